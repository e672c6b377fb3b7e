"""Where more load stops paying: the knee of a cell's curve of throughput against latency.

The knee is the load level with the greatest power, throughput divided by response time: there a line from the origin
touches the curve (Leonard Kleinrock, "Power and deterministic rules of thumb for probabilistic problems in computer
communications", ICC 1979). Taken here with the median E2EL, in each launch by itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pdkv.analysing.study_results import THROUGHPUT, Cell

MIN_LEVELS = 3  # of two levels both are ends: which of them is the better says nothing about a maximum between


@dataclass(frozen=True)
class Knee:
    """``levels`` are the load levels that were compared, by position in the config, ascending.

    The knee is at ``low`` where that equals ``high``, else somewhere from ``low`` to ``high``: launches disagree,
    levels tie, or some launches lack a level (``incomplete``), at which theirs may be.
    """

    levels: tuple[int, ...]
    low: int
    high: int
    launches: int
    incomplete: int = 0

    @property
    def decided(self) -> bool:
        """Whether all launches have their greatest power at the same level, and only there."""
        return self.low == self.high

    @property
    def may_lie_below(self) -> bool:
        """Whether it can be at the lowest level: then a still lower one may have more power."""
        return self.low == self.levels[0]

    @property
    def may_lie_above(self) -> bool:
        """Whether it can be at the highest level: then a still higher one may have more power."""
        return self.high == self.levels[-1]

    @property
    def inside(self) -> bool:
        """Whether levels on both sides have less power in every launch."""
        return not (self.may_lie_below or self.may_lie_above)


def find_knee(cell: Cell, ladder: Sequence[int]) -> Knee | None:
    """The knee over the levels of ``ladder`` at which any launch has a power; ``None`` unless there are three.

    What a launch would have had at a level that it lacks is not known: its knee may be there too.
    """
    powers = {index: _power_by_repeat(cell, index) for index in ladder}
    levels = tuple(index for index in ladder if powers[index])
    if len(levels) < MIN_LEVELS:
        return None
    repeats = set.union(*(set(powers[index]) for index in levels))
    best: set[int] = set()
    for repeat in repeats:
        greatest = max(powers[index][repeat] for index in levels if repeat in powers[index])
        best |= {position for position, index in enumerate(levels) if powers[index].get(repeat, greatest) == greatest}
    incomplete = sum(any(repeat not in powers[index] for index in levels) for repeat in repeats)
    return Knee(levels, levels[min(best)], levels[max(best)], len(repeats), incomplete)


def power_of(metrics: Mapping[str, Any]) -> float | None:
    """Output tokens per second and second of median E2EL of one launch at one level; ``None`` where not known."""
    throughput = (metrics.get(THROUGHPUT) or {}).get("value")
    latency_s = (metrics.get("e2el") or {}).get("median")
    return None if throughput is None or not latency_s else float(throughput / latency_s)


def _power_by_repeat(cell: Cell, index: int) -> dict[int, float]:
    point = cell.point(index) or {}
    launches = zip(point.get("repeats") or [], point.get("per_launch") or [], strict=True)
    return {repeat: power for repeat, metrics in launches if (power := power_of(metrics)) is not None}
