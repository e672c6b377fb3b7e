"""Cells whose servers resolved to the same thing: what differs between them is noise, and a yardstick for the rest."""

import math
from collections.abc import Callable, Sequence
from itertools import combinations

from pdkv.analysing.cell_pairs import Pair, Side, refusal_of
from pdkv.analysing.compared_numbers import ByRepeat, PointNumbers, launches_wanted
from pdkv.analysing.study_results import Cell
from pdkv.analysing.verdicts import estimate_ratio, geometric_mean

FEWEST_OF_BEST = 2  # launches


def identical_groups(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Usable cells of one workload that ran the same configuration, two or more together."""
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        if cell.usable and cell.identity is not None:
            groups.setdefault((cell.workload, cell.identity), []).append(cell)
    return [group for group in groups.values() if len(group) > 1]


def yardstick_groups(cells: Sequence[Cell]) -> list[list[Cell]]:
    """The :func:`identical_groups` split so that within each all cells may be compared; what is then alone is left out.

    Between an idle host and a busy one the same configuration differs by more than noise.
    """
    parts: list[list[Cell]] = []
    for group in identical_groups(cells):
        split: list[list[Cell]] = []
        for cell in group:
            part = next((part for part in split if all(refusal_of_twins(cell, other) is None for other in part)), None)
            if part is None:
                split.append([cell])
            else:
                part.append(cell)
        parts += [part for part in split if len(part) > 1]
    return parts


def refused_twins(cells: Sequence[Cell]) -> list[tuple[Cell, Cell, str]]:
    """Pairs of identical cells that may not be compared, with the reason: they are no yardstick."""
    return [
        (one, other, reason)
        for group in identical_groups(cells)
        for one, other in combinations(group, 2)
        if (reason := refusal_of_twins(one, other)) is not None
    ]


def refusal_of_twins(one: Cell, other: Cell) -> str | None:
    """Why two cells of any mode and precision may not be compared; None if they may."""
    return refusal_of(Pair("baseline", Side(one.content), Side(other.content)))


def noise(groups: Sequence[Sequence[Cell]], index: int, metric: str, stat: str) -> float | None:
    """What identical cells differ by at one load level, as :func:`largest_difference` has it."""

    def by_repeat(cell: Cell) -> ByRepeat:
        point = cell.point(index)
        return PointNumbers(cell.content, point).by_repeat(metric, stat) if point else {}

    return largest_difference(groups, by_repeat, launches_wanted(metric, stat))


def largest_difference(
    groups: Sequence[Sequence[Cell]], by_repeat_of: Callable[[Cell], ByRepeat], wanted: int
) -> float | None:
    """The most that any two cells of a group differ by in a number (0.1: 10%), told by the repeats that both have.

    ``wanted`` is how many of them an interval needs. None where no two cells have a repeat in common: what lies between
    launches of different repeats may be the hour as well.
    """
    pairs = [pair for group in groups for pair in combinations([by_repeat_of(cell) for cell in group], 2)]
    differences = (_difference(*pair, wanted) for pair in pairs)
    return max((difference for difference in differences if difference is not None), default=None)


def _difference(one: ByRepeat, other: ByRepeat, wanted: int) -> float | None:
    """How far the ratio of two cells is from 1, and at least half its interval: launches that differ to both sides
    cancel out in the ratio, and show all the same by how much identical cells can differ."""
    common = sorted(set(one) & set(other))
    pairs = [(one[repeat], other[repeat]) for repeat in common]
    # Of 0, and of the endless cost of nothing, there is no ratio.
    ratios = [first / second for first, second in pairs if 0 < first < math.inf and 0 < second < math.inf]
    if not ratios:
        return None
    logs = [abs(math.log(geometric_mean(ratios)))]
    if len(ratios) >= wanted:
        estimate = estimate_ratio(ratios)
        logs.append(math.log(estimate.high / estimate.low) / 2)
    return math.expm1(max(logs))


def best_cells(
    cells: Sequence[Cell], index: int, metric: str, stat: str, *, higher: bool, measured: Sequence[Cell] = ()
) -> set[Cell]:
    """The cells that may be called best in one number: none where that is not clear.

    ``measured`` are all cells of the study, also those that could not be compared: identical ones among them show what
    the machine's noise was.

    The lead over the next different configuration must be larger than what identical cells differ by, and every cell
    that is identical to the best one must have it too. What one launch alone has shown is best in nothing: the next may
    be another.
    """
    values = {cell: value for cell in cells if (value := cell.value(index, metric, stat)) is not None}
    ordered = sorted(values, key=lambda cell: values[cell], reverse=higher)
    if len(ordered) < 2:
        return set()
    first = ordered[0]
    best = {
        cell for cell in ordered if cell is first or (cell.identity is not None and cell.identity == first.identity)
    }
    rivals = [cell for cell in ordered if cell not in best]
    if not rivals:
        return set()
    if any((cell.point(index) or {}).get("launches", 0) < FEWEST_OF_BEST for cell in best):
        return set()
    worst_of_best = min(values[c] for c in best) if higher else max(values[c] for c in best)
    best_rival = values[rivals[0]]
    low, high = sorted((worst_of_best, best_rival))
    leads = worst_of_best > best_rival if higher else worst_of_best < best_rival
    margin = noise(yardstick_groups(measured or cells), index, metric, stat) or 0.0
    tie = f"{low:.3g}" == f"{high:.3g}"  # as a table of three digits shows them
    return best if leads and not tie and low > 0 and high / low - 1 > margin else set()
