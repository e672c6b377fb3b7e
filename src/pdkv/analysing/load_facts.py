"""What came over the sockets -> requests.parquet, and metrics.json: of the load, and whether it was warm before."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from pdkv.analysing.checks import Check, state_of
from pdkv.analysing.metrics import point_facts
from pdkv.analysing.point_requests import PointRequests, points_of, requests_of_point
from pdkv.analysing.request_checks import check_point, merge_points, point_label
from pdkv.analysing.responses import read_requests
from pdkv.analysing.restart_check import check_restarts
from pdkv.analysing.scrapes import point_counters
from pdkv.analysing.transfer_checks import check_kv_transfer, check_prefix_cache
from pdkv.analysing.ttft_parts import check_ttft_parts, point_ttft_parts
from pdkv.analysing.warmup_facts import WARMUP_COLUMNS, describe_warmup
from pdkv.artifacts import read_json, read_json_lines, write_json, write_parquet
from pdkv.seals import check_seals


def read_load(trial: Path, source: str = "") -> None:
    """Write ``requests.parquet`` and ``metrics.json`` of the trial folder from its raw evidence.

    A trial whose load never began gets an empty table and no points. ``source``: digest of what reads it.
    """
    stages = read_json(trial / "stages.json", "stages/1")
    # From the plan: a point that was broken off is not among those of stages.json.
    plan = read_json(trial / "plan.json", "plan/1")
    check_seals(trial, stages, "sends.parquet", "events.parquet", "scrapes.jsonl")
    requests = read_requests(trial / "sends.parquet", trial / "events.parquet", plan["points"])
    scrapes = trial / "scrapes.jsonl"
    rows = read_json_lines(scrapes) if scrapes.exists() else []
    write_parquet(trial / "requests.parquet", requests)
    warmup = describe_warmup(stages, requests.select(WARMUP_COLUMNS).to_pylist())
    content = {"source": source, **describe_load(requests, stages, rows), "warmup": warmup}
    write_json(trial / "metrics.json", "metrics/1", content)


def describe_load(requests: pa.Table, stages: Mapping[str, Any], scrapes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The content of metrics.json without ``warmup``. ``scrapes`` are the rows of scrapes.jsonl.

    ``state`` is ``failed`` where the trial did not come to its end, however good what was seen until then. One bad
    point does not make the others invalid: the state is ``invalid`` where all points are, ``suspect`` where some are.
    """
    held = set(points_of(requests))
    roles = {instance["name"]: instance["role"] for instance in stages["instances"]}
    ranks = ((stages.get("trial") or {}).get("mode") or {}).get("tensor_parallel_size") or 1
    cpu_share = client_cpu_share(stages)
    points: list[dict[str, Any]] = []
    checks: dict[str, list[Check]] = {}
    for point in stages["points"]:
        if point["point"] not in held:
            continue
        of_point = requests_of_point(requests, point["point"])
        server = point_counters(list(scrapes), roles, point["point"])
        split = point_ttft_parts(scrapes, roles, point["point"], of_point["ttft_s"])
        lived = check_restarts(scrapes, roles, point["point"])
        facts, found = _describe_point(of_point, point, server, split, cpu_share, lived, ranks)
        points.append(facts)
        checks[point_label(point)] = found
    merged = merge_points(checks)
    failed = stages["outcome"]["status"] != "ok" or not points
    states = {point["state"] for point in points}
    return {
        "points": points,
        "checks": [check.as_json() for check in merged],
        "state": "failed" if failed else "suspect" if len(states) > 1 and "invalid" in states else state_of(merged),
    }


def client_cpu_share(stages: Mapping[str, Any]) -> float | None:
    """CPU seconds of the client per second of load; ``None`` where they were not recorded."""
    cpu_s = (stages.get("client") or {}).get("cpu_s")
    length_s = sum(point["end_s"] - point["start_s"] for point in stages["points"] if point["end_s"] is not None)
    return cpu_s / length_s if cpu_s is not None and length_s > 0 else None


def _describe_point(
    requests: PointRequests,
    point: Mapping[str, Any],
    server: Mapping[str, Any],
    split: Mapping[str, Any] | None,
    cpu_share: float | None,
    lived: Check,
    ranks: int,
) -> tuple[dict[str, Any], list[Check]]:
    facts = {**point_facts(requests, point, server), "ttft_parts": split}
    checks = [*check_point(requests, facts, cpu_share), lived, check_prefix_cache([facts])]
    checks += [*check_kv_transfer([facts], ranks), *check_ttft_parts(facts)]
    return {**facts, "checks": [check.as_json() for check in checks], "state": state_of(checks)}, checks
