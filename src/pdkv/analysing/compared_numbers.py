"""The numbers of a cell that are compared: of one load level, or of the cell as a whole; in all and by launch."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from pdkv.analysing.aggregate import CAPACITIES, capacity_of
from pdkv.analysing.comparability import differing_facts
from pdkv.analysing.compared_quantities import LATENCY_STATS
from pdkv.analysing.hardware_units import GOODPUT_PER_DEVICE, KV_PER_DEVICE, PER_DEVICE, throughput_per_device
from pdkv.analysing.metrics import LATENCIES, THROUGHPUTS
from pdkv.analysing.service_levels import GOODPUT, SHARE
from pdkv.analysing.stats import supports_quantile
from pdkv.analysing.token_cost import GOOD_COST
from pdkv.analysing.token_energy import ENERGY
from pdkv.analysing.verdicts import MIN_LAUNCHES, MIN_LAUNCHES_COUNT, MIN_LAUNCHES_P99, RatioEstimate

QUANTITIES = (
    *((metric, stat) for metric in LATENCIES for stat in LATENCY_STATS),
    *((metric, "value") for metric in (*THROUGHPUTS, PER_DEVICE)),
)
SERVICE_QUANTITIES = ((GOODPUT, "value"), (GOODPUT_PER_DEVICE, "value"))
ENERGY_QUANTITIES = ((ENERGY, "value"),)
CAPACITY_QUANTITIES = tuple((metric, "value") for metric in CAPACITIES)

_QUANTILES = {"median": 0.5, "p90": 0.9, "p99": 0.99}
_RAN = ("valid", "suspect")
_OF_A_DEVICE = {PER_DEVICE: "output_throughput", GOODPUT_PER_DEVICE: GOODPUT}

LIMITED_BY_SLO = (GOODPUT, GOODPUT_PER_DEVICE)
_COUNTS = (*LIMITED_BY_SLO, GOOD_COST, SHARE)  # each is in proportion to the number of requests that met the limits

ByRepeat = dict[int, float]


def launches_wanted(metric: str, stat: str) -> int:
    """How many launches of each cell an interval and a verdict need at least."""
    if stat == "p99":
        return MIN_LAUNCHES_P99
    return MIN_LAUNCHES_COUNT if metric in _COUNTS else MIN_LAUNCHES


def why_spread_is_unknown(metric: str, estimate: RatioEstimate) -> str | None:
    """Counts that agree in all launches: ties of whole numbers, which say nothing about how the count varies."""
    if metric not in _COUNTS or estimate.standard_error > 0:
        return None
    return f"the counts of {estimate.blocks} launches show no spread: no interval"


def quantities_at_a_load(cells: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, str], ...]:
    """(metric, stat) of what is compared between cells at a load level.

    Goodput only where some of them have service levels, energy only where all of them had GPUs.
    """
    served = any(cell.get("slo") for cell in cells)
    powered = all(any(ENERGY in point["metrics"] for point in cell["points"]) for cell in cells)
    return QUANTITIES + (SERVICE_QUANTITIES if served else ()) + (ENERGY_QUANTITIES if powered else ())


def refusal_by_limits(cells: Sequence[Mapping[str, Any]]) -> str | None:
    """Why the goodput of cells means something else in each: they were counted by other service levels."""
    first = cells[0].get("slo") or {}
    for other in (cell.get("slo") or {} for cell in cells[1:]):
        if first != other:
            return f"not comparable: {'; '.join(differing_facts(first, other))}"
    return None


def quantities_without_a_load(cells: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, str], ...]:
    """(metric, stat) of what cells can hold; per GPU only where all of them have some.

    On a CPU the cache is as large as the study sets it, whatever else is in memory.
    """
    return CAPACITY_QUANTITIES + (((KV_PER_DEVICE, "value"),) if all(cell["gpus"] for cell in cells) else ())


class Numbers(Protocol):
    """What one cell brings into comparisons at one place; values are in the units of summary.csv."""

    def value(self, metric: str, stat: str) -> float | None:
        """Over all launches."""

    def by_repeat(self, metric: str, stat: str) -> ByRepeat:
        """Of each launch that has it."""

    def weakness(self, metric: str, stat: str) -> str | None:
        """Why the value can have no interval."""


class PointNumbers:
    """A cell at one load level; ``point`` is the entry of cell.json."""

    def __init__(self, cell: Mapping[str, Any], point: Mapping[str, Any]) -> None:
        self._cell, self._point = cell, point
        self._launches = dict(zip(point["repeats"], point["per_launch"], strict=True))

    def value(self, metric: str, stat: str) -> float | None:
        """Over all launches: requests pooled, throughput averaged."""
        return self._number(self._point["metrics"], metric, stat)

    def by_repeat(self, metric: str, stat: str) -> ByRepeat:
        """Of each launch that has it, over its own requests."""
        found = {repeat: self._number(metrics, metric, stat) for repeat, metrics in self._launches.items()}
        return {repeat: value for repeat, value in found.items() if value is not None}

    def weakness(self, metric: str, stat: str) -> str | None:
        """A quantile that not every launch can carry by itself."""
        if stat not in _QUANTILES:
            return None
        fewest = min((metrics[metric]["n"] for metrics in self._launches.values()), default=0)
        carried = supports_quantile(_QUANTILES[stat], fewest)
        return None if carried else f"{fewest} values in a launch cannot carry a {stat}"

    def _number(self, metrics: Mapping[str, Mapping[str, Any]], metric: str, stat: str) -> float | None:
        if metric in _OF_A_DEVICE:
            return throughput_per_device(self._cell, (metrics.get(_OF_A_DEVICE[metric]) or {}).get(stat))
        # A launch that left no trace has no entry for energy, a cell without service levels none for goodput.
        value: float | None = (metrics.get(metric) or {}).get(stat)
        return None if value is None else value * (1e3 if metric in LATENCIES else 1.0)


class CapacityNumbers:
    """What a cell can hold at a time: nothing of the load is in it, so it stands without a load level."""

    def __init__(self, cell: Mapping[str, Any]) -> None:
        self._cell = cell
        self._trials = {trial["repeat"]: trial for trial in cell["trials"] if trial["state"] in _RAN}

    def value(self, metric: str, stat: str) -> float | None:
        """Mean of launches."""
        found = self.by_repeat(metric, stat).values()
        return sum(found) / len(found) if found else None

    def by_repeat(self, metric: str, stat: str) -> ByRepeat:
        """Of the launches that ran and say it."""
        if metric == KV_PER_DEVICE:
            return self._per_device(self.by_repeat("kv_cache_tokens", stat))
        found = {repeat: capacity_of(trial, metric) for repeat, trial in self._trials.items()}
        return {repeat: value for repeat, value in found.items() if value is not None}

    def weakness(self, metric: str, stat: str) -> str | None:
        """None: each launch says what it holds."""
        return None

    def _per_device(self, found: ByRepeat) -> ByRepeat:
        """Over all GPUs of the cell: those of the prefill instances hold no token that is decoded."""
        return {repeat: value / self._cell["gpus"] for repeat, value in found.items()}
