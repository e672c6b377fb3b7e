"""The statistics of a cell with one of its launches left out: what the spread of a ratio is found from."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pdkv.artifacts import read_parquet
from pdkv.metrics import LATENCIES, THROUGHPUTS, pooled_latency
from pdkv.point_requests import requests_of_point
from pdkv.stats import FloatArray, summarize

Summaries = dict[str, dict[str, Any]]


def summaries_without_each(folder: Path, point: Mapping[str, Any], blocks: Sequence[int]) -> list[Summaries]:
    """For each of ``blocks``, all metrics of a point over the other blocks: requests pooled, throughput averaged.

    ``folder`` is the cell's, with a folder ``r{repeat}`` for each launch, ``point`` an entry of cell.json. Latencies
    are in seconds. Needs 8 bytes for each latency and each gap between tokens while it runs.
    """
    latencies = {repeat: _latencies(folder / f"r{repeat}", point["point"]) for repeat in blocks}
    throughputs = {repeat: dict(zip(point["repeats"], point["per_launch"], strict=True))[repeat] for repeat in blocks}
    found = []
    for block in blocks:
        kept = [repeat for repeat in blocks if repeat != block]
        pooled = {name: summarize(np.concatenate([latencies[repeat][name] for repeat in kept])) for name in LATENCIES}
        means = {name: _mean([throughputs[repeat][name]["value"] for repeat in kept]) for name in THROUGHPUTS}
        found.append({**pooled, **{name: {"value": mean} for name, mean in means.items()}})
    return found


def _latencies(trial: Path, point: int) -> dict[str, FloatArray]:
    requests = requests_of_point(read_parquet(trial / "requests.parquet"), point)
    return {name: pooled_latency([requests], name) for name in LATENCIES}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
