"""The numbers of one load point as a table for a terminal: the same statistics as in the report, latencies in ms."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pdkv.analysing.checks import Check
from pdkv.analysing.metrics import point_facts
from pdkv.analysing.point_requests import PointRequests, requests_of_point
from pdkv.analysing.request_checks import check_point
from pdkv.analysing.responses import read_requests
from pdkv.artifacts import write_parquet
from pdkv.units import DASH, format_ms, format_quantity

STATISTICS = ("mean", "median", "p90", "p99", "min", "max")
LATENCIES = {"TTFT": "ttft", "TPOT": "tpot", "ITL": "itl", "E2EL": "e2el"}
THROUGHPUTS = {
    "output throughput": "output_throughput",
    "total throughput": "total_throughput",
    "request throughput": "request_throughput",
    "output throughput, whole run": "output_throughput_whole_run",
}
MAX_CACHED = 0.01  # of the prompt tokens
MIN_KEPT_UP = 0.8  # of the rate of the sends: answers of different length alone blur it by some percent
MIN_REQUESTS_FOR_PACE = 8


def read_url_load(folder: Path, point: Mapping[str, Any], client_cpu_share: float | None) -> dict[str, Any]:
    """Write ``requests.parquet`` from the sends and events in ``folder``; the facts of its one load point.

    ``point`` is ``{point, arrival, concurrency, rate}``, ``client_cpu_share`` the client's CPU seconds per second of
    load. ``checks`` of the facts are those of a trial's point that need nothing but the requests, and two more for
    what the counters of a trial's servers would tell.
    """
    requests = read_requests(folder / "sends.parquet", folder / "events.parquet", [point])
    write_parquet(folder / "requests.parquet", requests)
    found = requests_of_point(requests, point["point"])
    facts = point_facts(found, point, None)
    checks = [*check_point(found, facts, client_cpu_share), _check_cached(found)]
    if point["arrival"] != "closed":
        checks.append(_check_pace(found))
    return {**facts, "checks": [check.as_json() for check in checks]}


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
        *(_describe_check(check) for check in facts["checks"] if check["state"] != "passed"),
    ]


def _describe_check(check: Mapping[str, Any]) -> str:
    remedy = f" ({check['remedy']})" if check["remedy"] else ""
    return f"check {check['state']}: {check['name']}: {check['evidence']}{remedy}"


def _check_cached(requests: PointRequests) -> Check:
    name = "prompts not answered from a cache"
    measured = requests.measured
    cached = requests.table["cached_tokens"].to_numpy(zero_copy_only=False)[measured].astype(np.float64)
    prompt = requests["input_tokens"][measured]
    if not cached.size or np.isnan(cached).any() or np.isnan(prompt).any():
        return Check(name, "unknown", "the server did not say how many prompt tokens it had cached")
    share = float(cached.sum() / prompt.sum()) if prompt.sum() else 0.0
    evidence = f"{share:.1%} of the prompt tokens were cached"
    if share <= MAX_CACHED:
        return Check(name, "passed", evidence)
    return Check(name, "failed", evidence, "leave out --seed, or switch prefix caching off at the server")


def _check_pace(requests: PointRequests) -> Check:
    """Whether requests were finished as fast as they were sent; else they queue, and latencies grow with the load."""
    name = "server kept up with the rate"
    measured = requests.measured
    if np.count_nonzero(measured) < MIN_REQUESTS_FOR_PACE:
        return Check(name, "unknown", "too few requests were answered to tell", "ask for more requests")
    sending_s = float(np.ptp(requests["t_send_s"][measured]))
    answering_s = float(np.ptp(requests["t_last_s"][measured]))
    share = sending_s / answering_s if answering_s else 1.0
    evidence = f"requests were finished at {min(share, 1.0):.0%} of the rate at which they were sent"
    if share >= MIN_KEPT_UP:
        return Check(name, "passed", evidence)
    return Check(name, "suspect", evidence, "an overload: latencies grow for as long as it lasts; lower the rate")


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            text.ljust(width) if column == 0 else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
