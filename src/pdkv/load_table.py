"""The numbers of one load point as a table for a terminal: the same statistics as in the report, latencies in ms."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pdkv.artifacts import write_parquet
from pdkv.metrics import point_facts
from pdkv.point_requests import requests_of_point
from pdkv.responses import read_requests
from pdkv.units import DASH, format_ms, format_quantity

STATISTICS = ("mean", "median", "p90", "p99", "min", "max")
LATENCIES = {"TTFT": "ttft", "TPOT": "tpot", "ITL": "itl", "E2EL": "e2el"}
THROUGHPUTS = {
    "output throughput": "output_throughput",
    "total throughput": "total_throughput",
    "request throughput": "request_throughput",
    "output throughput, whole run": "output_throughput_whole_run",
}


def read_url_load(folder: Path, point: Mapping[str, Any]) -> dict[str, Any]:
    """Write ``requests.parquet`` from the sends and events in ``folder``; the facts of its one load point.

    ``point`` is ``{point, arrival, concurrency, rate}``.
    """
    requests = read_requests(folder / "sends.parquet", folder / "events.parquet", [point])
    write_parquet(folder / "requests.parquet", requests)
    return point_facts(requests_of_point(requests, point["point"]), point, None)


def describe_point(facts: Mapping[str, Any]) -> str:
    """Latencies, throughput, and what a reader must know before using them."""
    metrics = facts["metrics"]
    rows: list[tuple[str, ...]] = [("ms", *STATISTICS, "n")]
    for title, name in LATENCIES.items():
        summary = metrics[name]
        rows.append((title, *(format_ms(summary.get(stat)) for stat in STATISTICS), str(summary["n"])))
    lines = [*_aligned(rows), ""]
    for title, name in THROUGHPUTS.items():
        lines.append(f"{title}: {format_quantity(metrics[name]['value'])} {metrics[name]['unit']}")
    return "\n".join([*lines, *_circumstances(facts)])


def _circumstances(facts: Mapping[str, Any]) -> list[str]:
    requests, achieved = facts["requests"], facts["achieved_concurrency"]
    asked = f"{facts['concurrency']} users" if facts["arrival"] == "closed" else f"{facts['rate']:g} requests/s"
    in_flight = DASH if achieved is None else f"{achieved:.1f}"
    lag = facts["send_lag"]
    return [
        f"asked: {asked}; in flight on average: {in_flight}",
        f"requests: {requests['measured']} measured, {requests['ramp']} ramp and {requests['drain']} drain left out, "
        f"{requests['failed']} failed",
        f"sent later than scheduled: {format_ms(lag['median_s'])} ms (median), {format_ms(lag['max_s'])} ms (at most)",
        *(f"failed {count} times: {text}" for text, count in facts["errors"].items()),
    ]


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            text.ljust(width) if column == 0 else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
