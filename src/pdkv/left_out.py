"""The statistics of a cell with one of its launches left out: what the spread of a ratio is found from."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pdkv.artifacts import read_parquet
from pdkv.metrics import LATENCIES, THROUGHPUTS, pooled_latency
from pdkv.point_requests import requests_of_point
from pdkv.stats import FloatArray, summarize

Value = Callable[[str, str], float | None]


class LaunchSamples:
    """What the launches of a cell measured at one point, by repeat. ``folder`` is the cell's, with a folder per launch.

    Needs 8 bytes for each latency and each gap between tokens of the point.
    """

    def __init__(self, folder: Path, point: Mapping[str, Any]) -> None:
        self._latencies: dict[int, dict[str, FloatArray]] = {}
        self._throughputs: dict[int, dict[str, float | None]] = {}
        for repeat, metrics in zip(point["repeats"], point["per_launch"], strict=True):
            requests = requests_of_point(read_parquet(folder / f"r{repeat}" / "requests.parquet"), point["point"])
            self._latencies[repeat] = {name: pooled_latency([requests], name) for name in LATENCIES}
            self._throughputs[repeat] = {name: metrics[name]["value"] for name in THROUGHPUTS}
        self._summaries: dict[tuple[str, tuple[int, ...]], dict[str, Any]] = {}

    def value(self, repeats: Sequence[int], metric: str, stat: str) -> float | None:
        """A statistic over the requests of these launches pooled; of a throughput the mean of launches."""
        key = (metric, tuple(repeats))
        if key not in self._summaries:
            self._summaries[key] = self._summarize(repeats, metric)
        found: float | None = self._summaries[key][stat]
        return found

    def _summarize(self, repeats: Sequence[int], metric: str) -> dict[str, Any]:
        if metric in LATENCIES:
            return summarize(np.concatenate([self._latencies[repeat][metric] for repeat in repeats]))
        values = [self._throughputs[repeat][metric] for repeat in repeats]
        known = [value for value in values if value is not None]
        return {"value": float(np.mean(known)) if known else None}
