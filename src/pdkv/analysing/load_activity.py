"""What the devices did at each load level: duty cycles by role, watts, and energy for the tokens that came meanwhile.

All of it is over the time in which the load was full, the same in which throughput is taken: tokens and energy are of
one window, and energy per token is power over throughput. Over the whole level, ramp and drain would count, in which
devices wait for work that a longer study would not lack (docs/decisions/0009).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from pdkv.analysing.device_energy import counted_energy, covers, integrated_energy, known_values, within
from pdkv.analysing.duty_cycle import DutyCycle, imbalance, join_duty_cycles, measure_duty_cycle
from pdkv.analysing.sampling import HARDWARE, counter_resolution, sampler_resolution, update_period

# What tells the ends of a window, power or else the energy counter, moves in steps: so many must fit into it.
MIN_ENERGY_STEPS = 20


@dataclass(frozen=True)
class _Activity:
    """One device over the span of a level."""

    device: str
    instance: str | None
    role: str
    duty: DutyCycle
    energy_j: float | None
    energy_from: str | None
    mem_bytes_max: float | None


def describe_levels(
    frame: pd.DataFrame, stages: Mapping[str, Any], measured: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """An entry of trace.json's ``levels`` for each load level that came to its end.

    ``frame``: all samples. ``stages``: stages.json. ``measured``: the points of metrics.json. The devices are the
    GPUs of the trial's instances, or where there are none their cores.
    """
    hardware = frame[frame["role"].notna()]
    kind = next((kind for kind in HARDWARE if (hardware["kind"] == kind).any()), None)
    hardware = hardware[hardware["kind"] == kind]
    sampler, coarsest = sampler_resolution(hardware), counter_resolution(hardware)
    resolution = max((s for s in (sampler, coarsest) if s is not None), default=None)
    facts = {each["point"]: each for each in measured}
    leased = {gpu for each in stages.get("instances") or () for gpu in each.get("gpus") or ()}
    all_seen = leased <= set(hardware["device"])
    levels = []
    for point in stages["points"] if kind else ():
        if point["end_s"] is not None:
            fact = facts.get(point["point"])
            window = fact.get("window") if fact else None
            span = window or {"start_s": point["start_s"], "end_s": point["end_s"]}
            devices = [_describe(samples, span, resolution) for _, samples in hardware.groupby("device", sort=True)]
            level = _level(point["point"], kind, span, fact if window else None, devices)
            # A part of the GPUs is not the cell.
            levels.append(level if all_seen else {**level, **dict.fromkeys(_OF_ALL_DEVICES)})
    return levels


_OF_ALL_DEVICES = ("idle_share", "power_w", "energy_j", "energy_per_output_token", "tokens_per_joule")


def _level(
    point: int, kind: str | None, span: Mapping[str, Any], fact: Mapping[str, Any] | None, devices: Sequence[_Activity]
) -> dict[str, Any]:
    """``fact``: the point of metrics.json if the load was ever full."""
    length_s = span["end_s"] - span["start_s"]
    energy_j = _sum([each.energy_j for each in devices])
    throughput = fact["metrics"]["output_throughput"] if fact else {"n": 0, "value": None}
    tokens = None if throughput["value"] is None else throughput["value"] * length_s
    per_token = energy_j / tokens if energy_j is not None and tokens else None
    roles = list(dict.fromkeys(each.role for each in devices))
    return {
        "point": point,
        "kind": kind,
        "start_s": span["start_s"],
        "end_s": span["end_s"],
        "full_load": fact is not None,
        "devices": [_device_json(each, length_s) for each in devices],
        "roles": [_role_json(role, [each for each in devices if each.role == role], length_s) for role in roles],
        "idle_share": join_duty_cycles([each.duty for each in devices]).idle_share,
        "power_w": None if energy_j is None else energy_j / length_s,
        "energy_j": energy_j,
        "output_tokens": None if tokens is None else round(tokens),
        "requests": throughput["n"],
        "energy_per_output_token": per_token,
        "tokens_per_joule": 1 / per_token if per_token else None,
    }


def _describe(samples: pd.DataFrame, span: Mapping[str, Any], resolution_s: float | None) -> _Activity:
    inside = samples[within(samples["t_s"].to_numpy(), span)]
    first = samples.iloc[0]
    used, source = _energy(samples, span)
    times, util = known_values(inside, "util")
    memory = inside["mem_bytes"].max()
    return _Activity(
        device=str(first["device"]),
        instance=None if pd.isna(first["instance"]) else str(first["instance"]),
        role=str(first["role"]),
        # A device that was lost on the way says nothing of the whole stretch.
        duty=measure_duty_cycle(times, util, resolution_s) if covers(times, span) else DutyCycle(),
        energy_j=used,
        energy_from=source,
        mem_bytes_max=None if pd.isna(memory) else float(memory),
    )


def _energy(samples: pd.DataFrame, span: Mapping[str, Any]) -> tuple[float | None, str | None]:
    """(joules, ``counter`` or ``power``); nothing where the span is too short for the steps of what tells its ends."""
    counted = counted_energy(samples, span)
    used = counted if counted is not None else integrated_energy(samples, span)
    times, values = known_values(samples, "power_w")
    if not covers(times, span):
        times, values = known_values(samples, "energy_j")
    step_s = update_period(times, values) or 0.0
    if used is None or span["end_s"] - span["start_s"] < MIN_ENERGY_STEPS * step_s:
        return None, None
    return used, "power" if counted is None else "counter"


def _device_json(each: _Activity, length_s: float) -> dict[str, Any]:
    return {
        "device": each.device,
        "instance": each.instance,
        "role": each.role,
        **each.duty.as_json(),
        "power_w": None if each.energy_j is None else each.energy_j / length_s,
        "energy_j": each.energy_j,
        "energy_from": each.energy_from,
        "mem_bytes_max": each.mem_bytes_max,
    }


def _role_json(role: str, members: Sequence[_Activity], length_s: float) -> dict[str, Any]:
    """The devices of a role: shares are means, bursts of all, watts, joules and bytes sums."""
    energy_j = _sum([each.energy_j for each in members])
    return {
        "role": role,
        "devices": len(members),
        **join_duty_cycles([each.duty for each in members]).as_json(),
        "power_w": None if energy_j is None else energy_j / length_s,
        "energy_j": energy_j,
        "mem_bytes_max": _sum([each.mem_bytes_max for each in members]),
        "imbalance": {
            "duty_cycle": imbalance([each.duty.duty_cycle for each in members]),
            "busy_share": imbalance([each.duty.busy_share for each in members]),
            "energy_j": imbalance([each.energy_j for each in members]),
        },
    }


def _sum(values: Sequence[float | None]) -> float | None:
    """Null where one of them is not known: a part is no total."""
    known = [value for value in values if value is not None]
    return float(sum(known)) if known and len(known) == len(values) else None
