"""Up to which load a cell meets the service levels: told by each launch, and never guessed beyond what was measured."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal

from pdkv.analysing.service_levels import SHARE
from pdkv.analysing.study_results import Cell

Outcome = Literal["met", "missed", "launches differ", "launches left out", "not measured"]


@dataclass(frozen=True)
class Step:
    """One load level: ``index`` in the config, the share of each launch that is in the numbers, what follows."""

    index: int
    outcome: Outcome
    shares: tuple[float, ...]


@dataclass(frozen=True)
class HighestLoad:
    """The steps of a ladder from the lowest level to the highest."""

    steps: tuple[Step, ...]

    @property
    def reached(self) -> Step | None:
        """The highest level that is met and below which all are met too."""
        met = list(takewhile(lambda step: step.outcome == "met", self.steps))
        return met[-1] if met else None

    @property
    def stopped_by(self) -> Step | None:
        """The first level that is not met; ``None`` where all are: then the true highest load may be any above."""
        return next((step for step in self.steps if step.outcome != "met"), None)

    @property
    def met_beyond(self) -> tuple[Step, ...]:
        """Levels above the first that is not met which are met all the same."""
        if self.stopped_by is None:
            return ()
        beyond = self.steps[self.steps.index(self.stopped_by) :]
        return tuple(step for step in beyond if step.outcome == "met")

    @property
    def launches(self) -> int:
        """The fewest launches that one of the deciding levels rests on."""
        deciding = [step for step in (self.reached, self.stopped_by) if step is not None and step.shares]
        return min((len(step.shares) for step in deciding), default=0)


def highest_load(cell: Cell, ladder: Sequence[int], target_share: float) -> HighestLoad:
    """What each level of ``ladder`` (positions in the config, ascending) came to."""
    return HighestLoad(tuple(_step(cell, index, target_share) for index in ladder))


def _step(cell: Cell, index: int, target_share: float) -> Step:
    """Met: by every launch. Missed: by every launch that counts, for one that is left out shows no success either.

    A launch whose share is not known is as one that is left out.
    """
    point = cell.point(index) or {}
    found = [(launch.get(SHARE) or {}).get("value") for launch in point.get("per_launch") or []]
    shares = tuple(float(share) for share in found if share is not None)
    reached = [share >= target_share for share in shares]
    if not reached:
        return Step(index, "not measured", shares)
    if not any(reached):
        return Step(index, "missed", shares)
    if not all(reached):
        return Step(index, "launches differ", shares)
    complete = len(shares) == len(found) and not point.get("excluded")
    return Step(index, "met" if complete else "launches left out", shares)
