"""What a deployment may be chosen for, and the number by which each objective is judged.

``first token`` takes the mean, not the median: each request that waits counts in it, while a median does not see a
queue that holds up almost half of them. ``tail`` is what the slowest hundredth saw. The others are per GPU (without
GPUs: per core) or per token, so that cells on different amounts of hardware can be set against each other.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pdkv.analysing.aggregate import capacity_of
from pdkv.analysing.compared_numbers import ByRepeat, Numbers, PointNumbers
from pdkv.analysing.hardware_units import PER_DEVICE, hardware_units

KV_PER_DEVICE = "kv_cache_tokens_per_device"
ENERGY_PER_TOKEN = "energy_per_output_token"
_RAN = ("valid", "suspect")

CellContent = Mapping[str, Any]


@dataclass(frozen=True)
class Goal:
    """One number to be high or low. ``equal_hardware``: only cells on as much hardware may race for it."""

    objective: str
    metric: str
    stat: str
    higher: bool
    equal_hardware: bool
    at_load: bool = True


GOALS = (
    Goal("first token", "ttft", "mean", higher=False, equal_hardware=True),
    Goal("tail", "ttft", "p99", higher=False, equal_hardware=True),
    Goal("tail", "itl", "p99", higher=False, equal_hardware=True),
    Goal("tail", "e2el", "p99", higher=False, equal_hardware=True),
    Goal("throughput", PER_DEVICE, "value", higher=True, equal_hardware=False),
    Goal("capacity", KV_PER_DEVICE, "value", higher=True, equal_hardware=False, at_load=False),
    Goal("energy", ENERGY_PER_TOKEN, "value", higher=False, equal_hardware=False),
)


def unit_of(goal: Goal, cell: CellContent) -> str:
    """Unit of the goal's value; that of a number per device names the device."""
    units = hardware_units(cell)
    device = units[1] if units else "device"
    return {PER_DEVICE: f"tok/s/{device}", KV_PER_DEVICE: f"tokens/{device}", ENERGY_PER_TOKEN: "J/token"}.get(
        goal.metric, "ms"
    )


def numbers_of(goal: Goal, cell: CellContent, point: Mapping[str, Any] | None) -> Numbers:
    """The numbers of a cell for a goal; ``point`` is its entry for the load level, None for a goal without one."""
    if point is None:
        return _OfLaunches(_kv_per_device(cell))
    return _OfLaunches(_energy_per_token(cell, point)) if goal.metric == ENERGY_PER_TOKEN else PointNumbers(cell, point)


class _OfLaunches:
    """Numbers that a launch has as a whole; over several launches their mean counts."""

    def __init__(self, found: ByRepeat) -> None:
        self._found = found

    def value(self, metric: str, stat: str) -> float | None:
        """Mean of launches."""
        return sum(self._found.values()) / len(self._found) if self._found else None

    def by_repeat(self, metric: str, stat: str) -> ByRepeat:
        """Of the launches that say it."""
        return self._found

    def weakness(self, metric: str, stat: str) -> str | None:
        """None: there is no sample that could be too small."""
        return None


def _kv_per_device(cell: CellContent) -> ByRepeat:
    """KV-cache tokens of the instances that decode, over all the devices of the cell: prefill's GPUs count too."""
    units = hardware_units(cell)
    if units is None:
        return {}
    tokens = {t["repeat"]: capacity_of(t, "kv_cache_tokens") for t in cell["trials"] if t["state"] in _RAN}
    return {repeat: value / units[0] for repeat, value in tokens.items() if value is not None}


def _energy_per_token(cell: CellContent, point: Mapping[str, Any]) -> ByRepeat:
    """Joules of all GPUs of the cell while a load level lasted, over the output tokens of its answered requests.

    Ramp and drain are in both. Lengths are exact: a launch in which they were not is no part of the numbers.
    """
    trials = {trial["repeat"]: trial for trial in cell["trials"]}
    length = (cell["config"].get("workload") or {}).get("output_tokens")
    found = {}
    for repeat, metrics in zip(point["repeats"], point["per_launch"], strict=True):
        tokens = (metrics["output_throughput_whole_run"]["n"] or 0) * (length or 0)
        energy_j = _energy_at(trials[repeat], point["point"], cell.get("gpus") or 0)
        if tokens and energy_j is not None:
            found[repeat] = energy_j / tokens
    return found


def _energy_at(trial: Mapping[str, Any], index: int, gpus: int) -> float | None:
    """Of all GPUs at a load level; None unless each of them tells."""
    devices = (trial.get("trace") or {}).get("devices") or []
    parts = [each.get("energy_j") for each in devices if (each["kind"], each["point"]) == ("gpu", index)]
    return None if not parts or len(parts) != gpus or None in parts else float(sum(parts))
