"""objectives.csv as reports read it: where each cell stands, race by race."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pdkv.analysing.objective_numbers import goal_of
from pdkv.analysing.objective_races import OTHER_WAY
from pdkv.artifacts import read_csv

LEFT = ("best", "equally good", "cannot tell")


@dataclass(frozen=True, eq=False)
class PlacedCell:
    """One row of objectives.csv."""

    row: dict[str, str]

    @property
    def name(self) -> str:
        """``1p1d/fp8``."""
        return f"{self.row['mode']}/{self.row['dtype']}"

    @property
    def against(self) -> str:
        """The cell that ``ratio`` is over; empty without one."""
        return f"{self.row['against_mode']}/{self.row['against_dtype']}" if self.row["against_mode"] else ""

    @property
    def place(self) -> str:
        """``best``, ``equally good``, ``cannot tell``, ``worse``, ``not tested``, ``not decided``, ``not compared`` or
        ``out``."""
        return self.row["place"]

    @property
    def suspect(self) -> bool:
        """Whether a check raised doubt about its number."""
        return self.row["state"] == "suspect"

    @property
    def value(self) -> float | None:
        """In the row's unit."""
        return float(self.row["value"]) if self.row["value"] else None

    @property
    def values_point_the_other_way(self) -> bool:
        """Whether its value and that of ``against`` are in another order than ``ratio``, which is by repeats."""
        return OTHER_WAY in self._notes

    @property
    def why_open(self) -> str:
        """What its note says beside that; empty where nothing."""
        return "; ".join(note for note in self._notes if note != OTHER_WAY)

    @property
    def _notes(self) -> list[str]:
        return (self.row["note"] or "").split("; ")

    @property
    def ratio(self) -> float | None:
        """The cell's number over that of ``against``."""
        return float(self.row["ratio"]) if self.row["ratio"] else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """95% interval of the ratio."""
        low, high = self.row["ci_low"], self.row["ci_high"]
        return (float(low), float(high)) if low and high else None


@dataclass(frozen=True)
class Lead:
    """How far the leader of a race is ahead: ``ratio`` of its number over the rival's, with its interval if any."""

    leader: PlacedCell
    rival: PlacedCell
    ratio: float | None
    interval: tuple[float, float] | None


@dataclass(frozen=True, eq=False)
class Outcome:
    """The cells that were set against each other in one number at one load level, in the study's order.

    ``hardware`` is what each of them had, empty where they may differ in it.
    """

    workload: str
    concurrency: str
    objective: str
    metric: str
    stat: str
    hardware: str
    cells: tuple[PlacedCell, ...]

    @cached_property
    def left(self) -> list[PlacedCell]:
        """Those that may be the best."""
        return [cell for cell in self.cells if cell.place in LEFT]

    @property
    def place(self) -> str:
        """That of the cells that are left; ``not decided`` or ``not compared`` where none could be told."""
        return self.left[0].place if self.left else self.cells[0].place

    @property
    def worse(self) -> list[PlacedCell]:
        """Those that another cell is shown to be better than."""
        return [cell for cell in self.cells if cell.place == "worse"]

    @property
    def untested(self) -> list[PlacedCell]:
        """Those with too few launches to be tested, where others were: they may be better or worse."""
        return [cell for cell in self.cells if cell.place == "not tested"]

    @cached_property
    def leaders(self) -> list[PlacedCell]:
        """Who is ahead among the cells that may be the best, or among all where nothing was decided: the one that the
        others are set against, of two the one with the better ratio. Where no ratio says it those with the best value,
        several where they are exactly alike.
        """
        among = self.left or list(self.cells)
        by_value = self._with_best_value(among)
        names = Counter(cell.against for cell in among)
        if len(among) == 2:
            ahead = [cell for cell in among if names[cell.name] and self._is_ahead(cell)]
        else:
            ahead = [cell for cell in among if names[cell.name] > 1]
        return ahead if len(ahead) == 1 else by_value

    def _is_ahead(self, cell: PlacedCell) -> bool:
        better = goal_of(self.metric, self.stat).higher
        return cell.ratio is not None and not math.isclose(cell.ratio, 1) and (cell.ratio > 1) == better

    @property
    def best_first(self) -> list[PlacedCell]:
        """Those that may be the best: the leader, then the others by their distance from it."""
        sign = -1 if goal_of(self.metric, self.stat).higher else 1
        leader = self.leaders[0]

        def distance(cell: PlacedCell) -> tuple[bool, float]:
            of_values = (cell.value or 0.0) / leader.value if leader.value else 0.0
            return cell is not leader, sign * (cell.ratio if cell.against == leader.name and cell.ratio else of_values)

        return sorted(self.left, key=distance)

    @property
    def lead(self) -> Lead | None:
        """The leader against its nearest rival by the verdicts; without any, against the next best value.

        None where all cells are alike.
        """
        leader = self.leaders[0]
        rival = next((cell for cell in self.cells if cell.name == leader.against), None)
        if rival is not None:
            return Lead(leader, rival, leader.ratio, leader.interval)
        behind = [cell for cell in self.cells if cell not in (*self.leaders, *self.untested)]
        if not behind:
            return None
        rival = self._with_best_value(behind)[0]
        ratio = leader.value / rival.value if leader.value is not None and rival.value else None
        return Lead(leader, rival, ratio, None)

    def _with_best_value(self, cells: Sequence[PlacedCell]) -> list[PlacedCell]:
        known = [cell.value for cell in cells if cell.value is not None]
        best = (max if goal_of(self.metric, self.stat).higher else min)(known)
        return [cell for cell in cells if cell.value is not None and math.isclose(cell.value, best, rel_tol=1e-9)]

    @property
    def more_repeats(self) -> str:
        """How many repeats more would likely decide between those left: ``4``, ``>47``; empty where unknown."""
        wanted = [cell.row["more_repeats"] for cell in self.left or self.cells if cell.row["more_repeats"]]
        return max(wanted, key=lambda text: (text.startswith(">"), int(text.lstrip(">"))), default="")


def read_outcomes(path: Path) -> list[Outcome]:
    """The outcomes of objectives.csv, in its order. Raises :class:`UserError` where the file is not there."""
    return outcomes_of([PlacedCell(row) for row in read_csv(path)])


def outcomes_of(cells: Sequence[PlacedCell]) -> list[Outcome]:
    """Rows of the same race together; a cell that is out or alone is an outcome by itself."""
    groups: dict[tuple[str, ...], list[PlacedCell]] = {}
    for number, cell in enumerate(cells):
        place = [cell.row[name] for name in ("workload", "concurrency", "objective", "metric", "stat")]
        groups.setdefault((*place, cell.row["race"] or f"alone {number}"), []).append(cell)
    return [_outcome_of(members) for members in groups.values()]


def _outcome_of(members: Sequence[PlacedCell]) -> Outcome:
    row = members[0].row
    hardware = {cell.row["hardware"] for cell in members}
    return Outcome(
        row["workload"],
        row["concurrency"],
        row["objective"],
        row["metric"],
        row["stat"],
        hardware.pop() if len(hardware) == 1 else "",
        tuple(members),
    )
