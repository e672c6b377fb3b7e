"""What cells that ran the same differ by, number by number: no lead of another cell that is no larger is believed."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pdkv.analysing.identical_cells import largest_difference, yardstick_groups
from pdkv.analysing.study_results import Cell

CellContent = Mapping[str, Any]


class Yardsticks:
    """Of the cells of one workload, contents of cell.json."""

    def __init__(self, cells: Sequence[CellContent]) -> None:
        wrapped = {Cell(Path(), dict(content)): content for content in cells}
        self._contents = wrapped
        self._known: dict[Hashable, float | None] = {}
        self._groups = yardstick_groups(list(wrapped))

    def of(self, number: Hashable, value_of: Callable[[CellContent], float | None]) -> float | None:
        """The largest relative difference between identical cells; None where no two of them have the number.

        Each ``number`` is looked at once, however many comparisons there are of it.
        """
        if number not in self._known:
            self._known[number] = largest_difference(self._groups, lambda cell: value_of(self._contents[cell]))
        return self._known[number]
