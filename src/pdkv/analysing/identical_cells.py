"""Cells whose servers resolved to the same thing: what differs between them is noise, and a yardstick for the rest."""

from collections.abc import Callable, Sequence
from itertools import combinations

from pdkv.analysing.cell_pairs import Pair, Side, refusal_of
from pdkv.analysing.study_results import Cell


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
    """The largest relative difference between identical cells at one load level; None where there are none."""
    return largest_difference(groups, lambda cell: cell.value(index, metric, stat))


def largest_difference(groups: Sequence[Sequence[Cell]], value_of: Callable[[Cell], float | None]) -> float | None:
    """The largest relative difference within a group, in a number of which a cell may have none; None without any."""
    differences = []
    for group in groups:
        values = [value for cell in group if (value := value_of(cell) or 0.0) > 0]
        if len(values) > 1:
            differences.append(max(values) / min(values) - 1)
    return max(differences, default=None)


def best_cells(
    cells: Sequence[Cell], index: int, metric: str, stat: str, *, higher: bool, measured: Sequence[Cell] = ()
) -> set[Cell]:
    """The cells that may be called best in one number: none where that is not clear.

    ``measured`` are all cells of the study, also those that could not be compared: identical ones among them show what
    the machine's noise was.

    The lead over the next different configuration must be larger than what identical cells differ by, and every cell
    that is identical to the best one must have it too.
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
    worst_of_best = min(values[c] for c in best) if higher else max(values[c] for c in best)
    best_rival = values[rivals[0]]
    low, high = sorted((worst_of_best, best_rival))
    leads = worst_of_best > best_rival if higher else worst_of_best < best_rival
    margin = noise(yardstick_groups(measured or cells), index, metric, stat) or 0.0
    tie = f"{low:.3g}" == f"{high:.3g}"  # as a table of three digits shows them
    return best if leads and not tie and low > 0 and high / low - 1 > margin else set()
