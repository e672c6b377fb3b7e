"""Load levels between which two cells change places: one is ahead below, the other above.

Named only where both verdicts are decided; where the numbers change places and a verdict is open, it is counted and not
named.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pdkv.analysing.hardware_units import GOODPUT_PER_DEVICE, PER_DEVICE
from pdkv.analysing.load_level import load_ladders
from pdkv.analysing.study_results import Cell, StudyResults

FACTORS = ("dtype", "mode", "hardware", "baseline")  # a pair is told under the first that it is compared under

OF_A_DEVICE = (PER_DEVICE, GOODPUT_PER_DEVICE)

Quantity = tuple[str, str]


@dataclass(frozen=True)
class Crossover:
    """``lower_below`` has the lower value at level ``below``, ``lower_above`` at the next decided level, ``above``.

    Levels are positions in the config; ``below`` is the lower load.
    """

    metric: str
    stat: str
    below: int
    above: int
    lower_below: Cell
    lower_above: Cell


@dataclass(frozen=True)
class Crossings:
    """``decided`` are named; ``seen`` counts (pair, number) that change places without verdicts that say so."""

    decided: tuple[Crossover, ...]
    seen: int


def find_crossings(results: StudyResults, workload: str, quantities: Sequence[Quantity]) -> Crossings:
    """All crossovers of a workload in the given (metric, stat).

    On equal hardware throughput per device changes places where throughput does, and is not told again.
    """
    decided: list[Crossover] = []
    seen = 0
    for factor, cell, base in compared_pairs(results, workload):
        for ladder in load_ladders(results.points_of(workload)):
            for quantity in quantities:
                if quantity[0] in OF_A_DEVICE and cell.hardware == base.hardware:
                    continue
                found = list(_flips(results, factor, (cell, base), ladder, quantity))
                decided += found
                seen += not found and _is_seen_to_flip(results, factor, cell, ladder, quantity)
    return Crossings(tuple(decided), seen)


def compared_pairs(results: StudyResults, workload: str) -> Iterator[tuple[str, Cell, Cell]]:
    """(factor, cell, base): each two cells once, whatever factors they are compared under.

    Cells that ran the same configuration are left out: what changes between them is noise.
    """
    told: set[frozenset[str]] = set()
    for factor in FACTORS:
        for effect in results.effects:
            if (effect.row["factor"], effect.row["workload"]) != (factor, workload):
                continue
            cell, base = results.cell_of(effect), results.base_of(effect)
            names = frozenset((cell.name, base.name))
            if names not in told:
                told.add(names)
                if cell.identity is None or cell.identity != base.identity:
                    yield factor, cell, base


def _flips(
    results: StudyResults, factor: str, pair: tuple[Cell, Cell], ladder: Sequence[int], quantity: Quantity
) -> Iterator[Crossover]:
    cell, base = pair
    verdicts = []
    for index in ladder:
        effect = results.effect(factor, cell, index, *quantity)
        if effect is not None and effect.verdict in ("lower", "higher"):
            verdicts.append((index, effect.verdict))
    for (below, first), (above, second) in pairwise(verdicts):
        if first != second:
            lower_first = cell if first == "lower" else base
            yield Crossover(*quantity, below, above, lower_first, base if lower_first is cell else cell)


def _is_seen_to_flip(results: StudyResults, factor: str, cell: Cell, ladder: Sequence[int], quantity: Quantity) -> bool:
    """Whether the numbers lie on both sides of each other; differences that are called equivalent do not count."""
    effects = [results.effect(factor, cell, index, *quantity) for index in ladder]
    ratios = [effect.ratio for effect in effects if effect and effect.verdict != "equivalent"]
    return any(ratio is not None and ratio < 1 for ratio in ratios) and any(
        ratio is not None and ratio > 1 for ratio in ratios
    )
