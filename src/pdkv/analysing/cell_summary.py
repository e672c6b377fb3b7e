"""The launches of a cell together -> cell.json.

A launch that failed or is invalid is listed with its reason and kept out of the numbers; a suspect one is in them and
marked. Percentiles are of all requests pooled: neither the mean nor the median of the launches' p99s is a p99.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pdkv.analysing.cell_launches import Launch, checks_of
from pdkv.analysing.checks import Check, state_of
from pdkv.analysing.comparability import differing_environments
from pdkv.analysing.metrics import THROUGHPUTS, latency_metrics
from pdkv.analysing.point_requests import REQUEST_COLUMNS, PointRequests, requests_of_point
from pdkv.analysing.server_totals import combine_server_counters
from pdkv.analysing.service_levels import ServiceLevels, pool_service_metrics, service_metrics
from pdkv.analysing.token_energy import energy_metrics, pool_energy_metrics
from pdkv.analysing.ttft_parts import combine_ttft_parts
from pdkv.artifacts import read_parquet, write_json

_STAGES = ("launch", "warmup", "load", "shutdown")


def summarize_cell(trials: Sequence[Path], output: Path, levels: ServiceLevels | None = None, source: str = "") -> None:
    """Write cell.json out of the folders of a cell's launches; with service levels, goodput is in it.

    ``source``: digest of what summarizes it.
    """
    content = describe_cell([Launch.read(folder) for folder in trials], levels)
    write_json(output, "cell/1", {"source": source, **content})


def describe_cell(launches: Sequence[Launch], levels: ServiceLevels | None = None) -> dict[str, Any]:
    """The content of cell.json."""
    first = launches[0].plan
    config = {key: value for key, value in first["trial"].items() if key != "repeat"}
    points = [_describe_point(point, launches, levels) for point in first["points"]]
    checks = [_check_same_environment(launches)]
    mode, dtype = config["mode"]["id"], config["dtype"]["id"]
    return {
        "workload": config["workload"]["id"],
        "mode": mode,
        "dtype": dtype,
        "state": _cell_state(launches, points, checks),
        "gpus": sum(instance["gpus"] for instance in first["instances"]),
        "instances": len(first["instances"]),
        "label": f"{mode} · {dtype}",
        "trials": [_describe_trial(launch) for launch in launches],
        "points": [point for point in points if point is not None],
        "memory": first.get("memory"),
        "environment": _environment(launches),
        "config": config,
        "slo": levels.as_json() if levels else None,
        "checks": [check.as_json() for check in checks],
    }


def stage_durations(stages: Mapping[str, Any]) -> dict[str, float | None]:
    """Seconds of each stage of stages.json, and of the overhead: the command without launch, warmup and load.

    A stage that was not reached is null, and so is the overhead of a trial that lacks one.
    """
    durations: dict[str, float | None] = dict.fromkeys((f"{name}_s" for name in _STAGES), None)
    for stage in stages["stages"]:
        key = f"{stage['name']}_s"
        durations[key] = (durations[key] or 0.0) + stage["end_s"] - stage["start_s"]
    wall_s = stages["wall"]["end_s"] - stages["wall"]["start_s"]
    parts = [durations[f"{name}_s"] for name in ("launch", "warmup", "load")]
    known = [part for part in parts if part is not None]
    return {**durations, "wall_s": wall_s, "overhead_s": wall_s - sum(known) if len(known) == len(parts) else None}


def _describe_trial(launch: Launch) -> dict[str, Any]:
    return {
        "repeat": launch.repeat,
        "state": launch.state,
        "attempt": launch.stages["attempt"],
        "job": launch.stages.get("job"),
        "job_log": launch.stages.get("job_log"),
        "beside": launch.stages.get("beside") or [],
        "failure": launch.failure,
        "stages": stage_durations(launch.stages),
        "checks": launch.checks,
        "launch": {key: launch.launch.get(key) for key in ("status", "resolved", "identity", "instances")},
        "trace": {key: value for key, value in launch.trace.items() if key not in ("schema", "checks")},
    }


def _describe_point(
    planned: Mapping[str, Any], launches: Sequence[Launch], levels: ServiceLevels | None
) -> dict[str, Any] | None:
    index = planned["point"]
    if not any(launch.point(index) for launch in launches):
        return None
    reasons = {launch.repeat: launch.why_excluded(index) for launch in launches}
    used = [launch for launch in launches if reasons[launch.repeat] is None]
    facts = [point for launch in used if (point := launch.point(index)) is not None]
    metrics, per_launch = _pool([_requests(launch, index) for launch in used], facts, levels)
    for launch, measured in zip(used, per_launch, strict=True):
        measured |= energy_metrics(launch.trace, index)
    metrics |= pool_energy_metrics(per_launch)
    return {
        **{key: planned[key] for key in ("point", "arrival", "concurrency", "rate")},
        "launches": len(used),
        "repeats": [launch.repeat for launch in used],
        "excluded": [{"repeat": repeat, "reason": reason} for repeat, reason in reasons.items() if reason],
        "state": _point_state(used, facts),
        "metrics": metrics,
        "per_launch": per_launch,
        "requests": {
            key: sum(point["requests"][key] for point in facts) for key in (facts[0]["requests"] if facts else ())
        },
        "multi_token_events": _total([point["multi_token_events"] for point in facts]),
        "achieved_concurrency": _mean([point["achieved_concurrency"] for point in facts]),
        "server": combine_server_counters([point["server"] for point in facts]),
        "ttft_parts": combine_ttft_parts([point["ttft_parts"] for point in facts]),
    }


def _pool(
    requests: Sequence[PointRequests], facts: Sequence[Mapping[str, Any]], levels: ServiceLevels | None
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(metrics of all launches together, metrics of each)."""
    pooled = latency_metrics(requests)
    for name, unit in THROUGHPUTS.items():
        found = [point["metrics"][name] for point in facts if point["metrics"][name]["value"] is not None]
        n = sum(metric["n"] for metric in found)
        pooled[name] = {"unit": unit, "n": n, "value": _mean([metric["value"] for metric in found])}
    per_launch = [dict(point["metrics"]) for point in facts]
    if levels is not None:
        for launch, measured in zip(per_launch, requests, strict=True):
            launch |= service_metrics(measured, launch["request_throughput"]["value"], levels)
        pooled |= pool_service_metrics(per_launch)
    return pooled, per_launch


def _total(counts: Sequence[int | None]) -> int | None:
    """``None`` where one of them is not known, and where there is none."""
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


def _requests(launch: Launch, index: int) -> PointRequests:
    return requests_of_point(read_parquet(launch.folder / "requests.parquet", REQUEST_COLUMNS), index)


def _point_state(used: Sequence[Launch], facts: Sequence[Mapping[str, Any]]) -> str:
    if not used:
        return "invalid"
    whole = [check for launch in used for check in launch.whole_checks]
    return state_of(checks_of([*whole, *(check for point in facts for check in point["checks"])]))


def _cell_state(launches: Sequence[Launch], points: Sequence[Mapping[str, Any] | None], checks: Sequence[Check]) -> str:
    states = {launch.state for launch in launches}
    if states == {"failed"}:
        return "failed"
    if not any(point and point["launches"] for point in points):
        return "invalid"
    return "valid" if states == {"valid"} and state_of(checks) == "valid" else "suspect"


def _check_same_environment(launches: Sequence[Launch]) -> Check:
    name = "same environment in all launches"
    counted = [launch for launch in launches if launch.counts]  # one that never started knows no version of its engine
    if not counted:
        return Check(name, "unknown", "no launch counts")
    recorded = [launch.environment for launch in counted if launch.environment]
    if len(recorded) < 2:
        return (
            Check(name, "passed", "one launch") if recorded else Check(name, "unknown", "no environment was recorded")
        )
    differing = sorted(differing_environments(*recorded))
    if not differing:
        return Check(name, "passed", f"{len(recorded)} launches")
    return Check(
        name,
        "suspect",
        "; ".join(differing),
        "measure all launches of a cell on one machine, with one engine, from one shell and by one version of pdkv",
    )


def _environment(launches: Sequence[Launch]) -> dict[str, Any]:
    """The fingerprint of the first launch that counts, else of one that came to its end, else of any that has one.

    Launches from before ``inherited`` was recorded may stand beside newer ones: it is that of the first that has it.
    """
    by_use = sorted(launches, key=lambda launch: (not launch.counts, launch.failure is not None))
    environment: dict[str, Any] = next((launch.environment for launch in by_use if launch.environment), {})
    counted = [launch.environment for launch in launches if launch.counts]
    inherited = next((each["inherited"] for each in counted if each.get("inherited") is not None), None)
    return dict(environment) if inherited is None else {**environment, "inherited": inherited}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
