"""All numbers of a study in one long table: results/summary.csv and results/summary.parquet.

One row per workload, mode, dtype, load level, metric and statistic. What is not known has no row: an empty cell would
be read as 0 by some program down the line. Latencies are in ms, throughput in tok/s and req/s, and per device in
tok/s/GPU and req/s/GPU (without GPUs: per core).
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from pdkv.analysing.csv_table import tidy, to_csv
from pdkv.analysing.hardware_units import (
    GOODPUT_PER_DEVICE,
    KV_PER_DEVICE,
    PER_DEVICE,
    hardware_units,
    throughput_per_device,
)
from pdkv.analysing.load_level import load_label
from pdkv.analysing.metrics import LATENCIES, THROUGHPUTS
from pdkv.analysing.service_levels import GOODPUT, SHARE
from pdkv.analysing.stats import STATS
from pdkv.analysing.token_cost import BOUGHT, Prices, cost_per_million
from pdkv.analysing.token_energy import ENERGY_UNITS
from pdkv.artifacts import read_json, write_csv, write_parquet

COLUMNS = ("workload", "mode", "dtype", "concurrency", "metric", "stat", "value", "unit", "n")
CAPACITIES = {"kv_cache_tokens": "tokens", "max_concurrency": "requests", "kv_cache_bytes": "bytes"}
STAGES = ("launch", "warmup", "load", "shutdown", "wall", "overhead")

_TYPES = {"value": pa.float64(), "n": pa.int64()}
_SCHEMA = pa.schema([pa.field(name, _TYPES.get(name, pa.string())) for name in COLUMNS])

Row = dict[str, Any]


def aggregate(cells: Sequence[Path], parquet: Path, csv_file: Path, prices: Prices | None = None) -> None:
    """Write the summary of the named cell.json files, in their order; with ``prices`` also what they cost."""
    rows = [row for path in cells for row in summary_rows(read_json(path, "cell/1"), prices)]
    write_parquet(parquet, pa.Table.from_pylist(rows, schema=_SCHEMA))
    write_csv(csv_file, to_csv(COLUMNS, rows))


def summary_rows(cell: Mapping[str, Any], prices: Prices | None = None) -> Iterator[Row]:
    """The rows of one cell. Failed and invalid launches are in none of them."""
    identity = {key: cell[key] for key in ("workload", "mode", "dtype")}
    for point in cell["points"]:
        metrics = point["metrics"]
        for row in (*_point_rows(metrics), *_per_device_rows(cell, metrics), *_cost_rows(cell, metrics, prices)):
            yield {**identity, "concurrency": load_label(point), **row}
    for row in (*_capacity_rows(cell), *_stage_rows(cell)):
        yield {**identity, "concurrency": "", **row}


def capacity_of(trial: Mapping[str, Any], key: str) -> float | None:
    """What a launch can hold while it decodes: the sum over its instances, in a disaggregated mode the decode ones."""
    instances = (trial["launch"] or {}).get("instances") or []
    values = [instance.get(key) for instance in instances if instance.get("role") != "prefill"]
    return None if not values or None in values else float(sum(values))


def _point_rows(metrics: Mapping[str, Any]) -> Iterator[Row]:
    for metric in LATENCIES:
        found = metrics[metric]
        for stat in STATS:
            if found[stat] is not None:
                yield {"metric": metric, "stat": stat, "value": tidy(found[stat] * 1e3), "unit": "ms", "n": found["n"]}
    for metric in (*THROUGHPUTS, GOODPUT, SHARE, *ENERGY_UNITS):
        found = metrics.get(metric)
        if found and found["value"] is not None:
            yield {
                "metric": metric,
                "stat": "value",
                "value": tidy(found["value"]),
                "unit": found["unit"],
                "n": found["n"],
            }


def _per_device_rows(cell: Mapping[str, Any], metrics: Mapping[str, Any]) -> Iterator[Row]:
    units = hardware_units(cell)
    for metric, total in ((PER_DEVICE, "output_throughput"), (GOODPUT_PER_DEVICE, GOODPUT)):
        found = metrics.get(total)
        value = throughput_per_device(cell, found["value"]) if found else None
        if found and value is not None and units is not None:
            unit = f"{found['unit']}/{units[1]}"
            yield {"metric": metric, "stat": "value", "value": tidy(value), "unit": unit, "n": found["n"]}


def _cost_rows(cell: Mapping[str, Any], metrics: Mapping[str, Any], prices: Prices | None) -> Iterator[Row]:
    """What a million output tokens cost and, with service levels, a million requests that meet them."""
    for metric, bought in BOUGHT.items():
        found = metrics.get(bought)
        value = cost_per_million(cell, found["value"], prices) if found and prices else None
        if found and prices and value is not None:
            unit = prices.unit_of(metric)
            yield {"metric": metric, "stat": "value", "value": tidy(value), "unit": unit, "n": found["n"]}


def _capacity_rows(cell: Mapping[str, Any]) -> Iterator[Row]:
    """Means over the launches that say it."""
    for metric, unit in CAPACITIES.items():
        values = [value for trial in _ran(cell) if (value := capacity_of(trial, metric)) is not None]
        yield from _mean_row(metric, values, unit)
        if metric == "kv_cache_tokens" and cell.get("gpus"):
            yield from _mean_row(KV_PER_DEVICE, [value / cell["gpus"] for value in values], f"{unit}/GPU")


def _stage_rows(cell: Mapping[str, Any]) -> Iterator[Row]:
    for stage in STAGES:
        values = [value for trial in _ran(cell) if (value := trial["stages"][f"{stage}_s"]) is not None]
        yield from _mean_row(stage, values, "s")


def _mean_row(metric: str, values: Sequence[float], unit: str) -> Iterator[Row]:
    if values:
        mean = tidy(sum(values) / len(values))
        yield {"metric": metric, "stat": "value", "value": mean, "unit": unit, "n": len(values)}


def _ran(cell: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [trial for trial in cell["trials"] if trial["state"] in ("valid", "suspect")]
