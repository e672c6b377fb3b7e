"""Device samples -> what each device did in each stage and at each load level, and what it used.

Means are over samples; a sample that a device could not give is left out, and a field that it never gave is null with
the reason, never 0. Energy comes from the device's counter where it has one and from integrated power besides; both are
shown. Nothing is said about a stretch of time that the samples do not cover.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from pdkv.analysing.device_energy import counted_energy, integrated_energy, within
from pdkv.analysing.load_activity import describe_levels
from pdkv.analysing.sampling import (
    FIELDS,
    POWER_LIMIT,
    counter_resolution,
    missing_fields,
    resolution_by_kind,
    sampler_resolution,
)
from pdkv.analysing.trace_checks import check_trace, unwatched_instances
from pdkv.artifacts import read_json, read_parquet, write_json, write_parquet
from pdkv.seals import check_seals


def trace_devices(trial: Path) -> None:
    """Write ``trace.parquet`` and ``trace.json`` of the trial folder from its samples.parquet and stages.json.

    metrics.json says when the load was full and how many tokens came meanwhile: without it, no energy per token.
    """
    stages = read_json(trial / "stages.json", "stages/1")
    load = trial / "metrics.json"
    measured = read_json(load, "metrics/1")["points"] if load.exists() else []
    check_seals(trial, stages, "samples.parquet")
    samples = read_parquet(trial / "samples.parquet")
    frame = attach_stages(samples.to_pandas(), stages)
    metadata = samples.schema.metadata or {}
    write_parquet(trial / "trace.parquet", pa.Table.from_pandas(frame, preserve_index=False))
    write_json(trial / "trace.json", "trace/1", describe_trace(frame, stages, metadata.get(b"missing"), measured))


def attach_stages(samples: pd.DataFrame, stages: Mapping[str, Any]) -> pd.DataFrame:
    """The samples with ``stage`` (null between stages) and ``point`` (null outside of load levels) of their time."""
    frame = samples.sort_values(["device", "t_s"], kind="stable").reset_index(drop=True)
    times = frame["t_s"].to_numpy()
    stage = np.full(len(frame), None, dtype=object)
    for each in stages["stages"]:
        stage[within(times, each)] = each["name"]
    point = np.full(len(frame), None, dtype=object)
    for each in stages["points"]:
        point[within(times, each)] = each["point"]
    return frame.assign(stage=stage, point=pd.array(list(point), dtype="Int16"))


def describe_trace(
    frame: pd.DataFrame,
    stages: Mapping[str, Any],
    reasons: bytes | str | None = None,
    measured: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """The content of trace.json.

    ``reasons``: ``{device: {field: why it is missing}}`` as JSON, if the sampler knew. ``measured``: the points of
    metrics.json.
    """
    spans = _spans(stages)
    # A kind of its own for each: rows about the processes on a GPU may bear its name too.
    series = [samples for _, samples in frame.groupby(["device", "kind"], sort=True)]
    devices = [_describe(samples, span) for samples in series for span in spans]
    devices = [each for each in devices if each["samples"]]
    return {
        "source": sorted(frame["source"].unique()),
        "resolution_s": {
            "sampler": sampler_resolution(frame),
            "by_kind": resolution_by_kind(frame),
            "counter": counter_resolution(frame),
        },
        "devices": devices,
        "phases": _phases(devices),
        "levels": describe_levels(frame, stages, measured),
        "missing": [*missing_fields(frame, reasons), *_missing_devices(stages)],
        "checks": [check.as_json() for check in check_trace(frame, devices, stages)],
    }


def _missing_devices(stages: Mapping[str, Any]) -> list[dict[str, Any]]:
    """As :func:`missing_fields`, for instances of which nothing was sampled."""
    unwatched = unwatched_instances(stages)
    if not unwatched:
        return []
    return [{"devices": unwatched, "fields": list(FIELDS), "reason": "on another node, whose devices are not sampled"}]


def _spans(stages: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every stage as a whole, and every load level within the load stage."""
    whole = [{"stage": each["name"], "point": None, **_times(each)} for each in stages["stages"]]
    levels = [{"stage": "load", "point": each["point"], **_times(each)} for each in stages["points"]]
    return [span for span in [*whole, *levels] if span["end_s"] is not None]


def _times(span: Mapping[str, Any]) -> dict[str, Any]:
    return {"start_s": span["start_s"], "end_s": span["end_s"]}


def _describe(samples: pd.DataFrame, span: Mapping[str, Any]) -> dict[str, Any]:
    """One device in one span. ``samples`` are all samples of the device, sorted by time."""
    inside = samples[within(samples["t_s"].to_numpy(), span)]
    first = samples.iloc[0]
    counted, integrated = counted_energy(samples, span), integrated_energy(samples, span)
    used = counted if counted is not None else integrated
    return {
        "device": first["device"],
        "kind": first["kind"],
        "instance": _text(first["instance"]),
        "role": _text(first["role"]),
        "stage": span["stage"],
        "point": span["point"],
        "util_mean": _number(inside["util"].mean()),
        "util_max": _number(inside["util"].max()),
        "mem_util_mean": _number(inside["mem_util"].mean()),
        "mem_bytes_max": _number(inside["mem_bytes"].max()),
        "power_mean_w": _number(inside["power_w"].mean()),
        "sm_clock_mean_mhz": _number(inside["sm_clock_mhz"].mean()),
        "power_limited_share": _power_limited_share(inside["throttle"].dropna()),
        "energy_j": used,
        "energy_from": None if used is None else "counter" if counted is not None else "power",
        "energy_counter_j": counted,
        "energy_power_j": integrated,
        "energy_difference": integrated / counted - 1 if counted and integrated is not None else None,
        "samples": len(inside),
    }


def _phases(devices: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Devices of a role together in a span: means of means, maxima of maxima; null where one of them does not know.

    Energy is the devices' sum, and so is the utilisation of processes: together they are what the role used.
    """
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for each in devices:
        if each["role"] is not None:
            groups.setdefault((each["role"], each["kind"], each["stage"], each["point"]), []).append(each)
    phases = []
    for (role, kind, stage, point), members in groups.items():
        phase = {"role": role, "kind": kind, "stage": stage, "point": point, "devices": len(members)}
        for key, combine in _COMBINED.items():
            values = [each[key] for each in members]
            together = np.sum if kind == "process" and key == "util_mean" else combine
            phase[key] = None if None in values else float(together(values))
        phases.append(phase)
    return phases


_COMBINED: dict[str, Callable[[list[float]], Any]] = {
    "util_mean": np.mean,
    "util_max": np.max,
    "mem_util_mean": np.mean,
    "mem_bytes_max": np.max,
    "power_mean_w": np.mean,
    "sm_clock_mean_mhz": np.mean,
    "power_limited_share": np.mean,
    "energy_j": np.sum,
}


def _power_limited_share(reasons: pd.Series) -> float | None:
    """Share of the samples in which the card says that it holds its clock down to keep to its power limit."""
    return float((reasons.astype("int64") & POWER_LIMIT != 0).mean()) if len(reasons) else None


def _number(value: Any) -> float | None:
    return None if value is None or pd.isna(value) else float(value)


def _text(value: Any) -> str | None:
    return None if value is None or pd.isna(value) else str(value)
