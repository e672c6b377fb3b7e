"""What cells that ran the same differ by, number by number: no lead of another cell that is no larger is believed."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pdkv.analysing.compared_numbers import ByRepeat
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

    def of(self, number: Hashable, by_repeat_of: Callable[[CellContent], ByRepeat], wanted: int) -> float | None:
        """What identical cells differ by at most; None where no two of them have the number in a repeat of both.

        ``wanted`` launches carry an interval. Each ``number`` is looked at once, however many comparisons there are.
        """
        if number not in self._known:
            by_repeat = {cell: by_repeat_of(content) for cell, content in self._contents.items()}
            self._known[number] = largest_difference(self._groups, by_repeat.__getitem__, wanted)
        return self._known[number]
