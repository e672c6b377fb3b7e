"""What a deployment may be chosen for, and the number by which each objective is judged.

``first token`` takes the mean, not the median: each request that waits counts in it, while a median does not see a
queue that holds up almost half of them. ``tail`` is what the slowest hundredth saw. The others are per GPU (without
GPUs: per core) or per token, so that cells on different amounts of hardware can be set against each other. ``goodput``
there is only in studies that set service levels, ``cost`` where prices are given, ``service cost`` with both.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pdkv.analysing.aggregate import capacity_of
from pdkv.analysing.compared_numbers import ByRepeat, Numbers, PointNumbers
from pdkv.analysing.hardware_units import GOODPUT_PER_DEVICE, KV_PER_DEVICE, PER_DEVICE, hardware_units
from pdkv.analysing.service_levels import GOODPUT
from pdkv.analysing.token_cost import BOUGHT, COST, GOOD_COST, Prices, cost_per_million
from pdkv.analysing.token_energy import ENERGY as ENERGY_PER_TOKEN

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
    Goal("goodput", GOODPUT_PER_DEVICE, "value", higher=True, equal_hardware=False),
    Goal("capacity", KV_PER_DEVICE, "value", higher=True, equal_hardware=False, at_load=False),
    Goal("energy", ENERGY_PER_TOKEN, "value", higher=False, equal_hardware=False),
    Goal("cost", COST, "value", higher=False, equal_hardware=False),
    Goal("service cost", GOOD_COST, "value", higher=False, equal_hardware=False),
)


OF_SERVICE = (GOODPUT_PER_DEVICE, GOOD_COST)  # counted by the service levels


def unit_of(goal: Goal, cell: CellContent, prices: Prices | None = None) -> str:
    """Unit of the goal's value; that of a number per device names the device, that of a cost the currency."""
    if prices and goal.metric in BOUGHT:
        return prices.unit_of(goal.metric)
    units = hardware_units(cell)
    device = units[1] if units else "device"
    per_device = {
        PER_DEVICE: f"tok/s/{device}",
        GOODPUT_PER_DEVICE: f"req/s/{device}",
        KV_PER_DEVICE: f"tokens/{device}",
    }
    return {**per_device, ENERGY_PER_TOKEN: "J/tok"}.get(goal.metric, "ms")


def goal_of(metric: str, stat: str) -> Goal:
    """The goal that is judged by this number."""
    return next(goal for goal in GOALS if (goal.metric, goal.stat) == (metric, stat))


def numbers_of(goal: Goal, cell: CellContent, point: Mapping[str, Any] | None, prices: Prices | None = None) -> Numbers:
    """The numbers of a cell for a goal; ``point`` is its entry for the load level, None for a goal without one."""
    if point is None:
        return _OfLaunches(_kv_per_device(cell))
    if prices and goal.metric in BOUGHT:
        return _Costs(cell, point, prices)
    if goal.metric == ENERGY_PER_TOKEN:
        return _OfLaunches(_of_launches(point, ENERGY_PER_TOKEN))
    if goal.metric == GOODPUT_PER_DEVICE:
        return _OfLaunches(_goodput_per_device(cell, point))
    return PointNumbers(cell, point)


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


class _Costs:
    """What a million cost: over all launches at their mean throughput or goodput, and at that of each."""

    def __init__(self, cell: CellContent, point: Mapping[str, Any], prices: Prices) -> None:
        self._cell, self._point, self._prices = cell, point, prices

    def value(self, metric: str, stat: str) -> float | None:
        """At the mean of launches."""
        bought = (self._point["metrics"].get(BOUGHT[metric]) or {}).get("value")
        return cost_per_million(self._cell, bought, self._prices)

    def by_repeat(self, metric: str, stat: str) -> ByRepeat:
        """Of each launch; infinite where it sold nothing, for it was paid for."""
        sold = _of_launches(self._point, BOUGHT[metric])
        return {
            repeat: cost_per_million(self._cell, bought, self._prices) or math.inf for repeat, bought in sold.items()
        }

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


def _goodput_per_device(cell: CellContent, point: Mapping[str, Any]) -> ByRepeat:
    """Requests per second and device that met every service level; nothing where the study sets none."""
    units = hardware_units(cell)
    if units is None or not cell.get("slo"):
        return {}
    return {repeat: value / units[0] for repeat, value in _of_launches(point, GOODPUT).items()}


def _of_launches(point: Mapping[str, Any], metric: str) -> ByRepeat:
    """A number that not every cell has, of the launches that tell it. Energy: docs/decisions/0009."""
    values = {
        repeat: (metrics.get(metric) or {}).get("value")
        for repeat, metrics in zip(point["repeats"], point["per_launch"], strict=True)
    }
    return {repeat: value for repeat, value in values.items() if value is not None}
