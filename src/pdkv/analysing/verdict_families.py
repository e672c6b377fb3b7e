"""Verdicts of comparisons that belong together: who looks at many differences at once must ask more of each."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pdkv.analysing.csv_table import tidy
from pdkv.analysing.verdicts import (
    MAX_REPEATS,
    RatioEstimate,
    decide,
    holm,
    more_repeats,
    why_too_fine,
    widen,
)

Row = dict[str, Any]


@dataclass(eq=False)
class Comparison:
    """A row of comparisons.csv in the making: its columns, its estimate if it has one, the parts of its note.

    ``same``: both sides ran the same configuration, so that a difference is noise. ``yardstick``: what such cells
    differ by in this number.
    """

    row: Row
    notes: list[str] = field(default_factory=list)
    estimate: RatioEstimate | None = None
    same: bool = False
    yardstick: float | None = None

    def finished(self) -> Row:
        """The row with its note."""
        return {**self.row, "note": "; ".join(self.notes)}


@dataclass
class _Standing:
    """What the families of a pair of cells say together: one that keeps equality is enough to keep it."""

    rejected: bool = True
    undecided: int = 0
    size: int = 0


def decide_families(comparisons: Sequence[Comparison], margin: float) -> None:
    """Give those that have an estimate their interval and verdict.

    A family is one statistic of one metric under one effect: all cells and loads of a workload. Two cells that are
    compared under several effects are in several families, and get one verdict: that of the strictest.
    """
    families: dict[tuple[str, ...], list[tuple[Comparison, RatioEstimate]]] = {}
    for comparison in comparisons:
        if comparison.estimate is not None:
            key = tuple(comparison.row[name] for name in ("workload", "factor", "metric", "stat"))
            families.setdefault(key, []).append((comparison, comparison.estimate))
    standings: dict[tuple[object, ...], _Standing] = {}
    for family in families.values():
        rejected = holm([estimate.p for _, estimate in family])
        for (comparison, _), reject in zip(family, rejected, strict=True):
            standing = standings.setdefault(_pair_of(comparison.row), _Standing())
            standing.rejected &= reject
            standing.undecided = max(standing.undecided, rejected.count(False))
            standing.size = max(standing.size, len(family))
    for family in families.values():
        for comparison, estimate in family:
            _decide(comparison, estimate, standings[_pair_of(comparison.row)], margin)


def _pair_of(row: Row) -> tuple[object, ...]:
    """The same for the same two cells in the same number at the same load, whatever they are compared under."""
    cells = frozenset(((row["mode"], row["dtype"]), (row["base_mode"], row["base_dtype"])))
    number = (row["workload"], row["concurrency"], row["metric"], row["stat"])
    return (*number, cells, row["factor"] == "interaction")


def _decide(comparison: Comparison, estimate: RatioEstimate, standing: _Standing, margin: float) -> None:
    row = comparison.row
    row["ci_low"], row["ci_high"] = tidy(estimate.low), tidy(estimate.high)
    row["family_low"], row["family_high"] = map(tidy, widen(estimate, standing.size))
    row["verdict"] = decide(estimate, rejected=standing.rejected, margin=margin)
    if estimate.standard_error == 0:
        comparison.notes.append(f"no spread seen in {estimate.blocks} launches")
    if row["verdict"] == "cannot tell":
        more = more_repeats(estimate, margin, standing.undecided)
        row["more_repeats"] = f">{MAX_REPEATS - estimate.blocks}" if more is None else str(more)
        comparison.notes.append(_advice(more, estimate.blocks))
    elif comparison.same and row["verdict"] != "equivalent":  # what lies between cells that ran the same is no lead
        row["verdict"] = "cannot tell"
    elif why := why_too_fine(row["verdict"], estimate.ratio, comparison.yardstick, margin):
        row["verdict"] = "cannot tell"
        comparison.notes.append(why)


def _advice(more: int | None, blocks: int) -> str:
    if more is None:
        return f"more than {MAX_REPEATS - blocks} more repeats would be needed"
    return f"about {more} more repeat{'s' if more > 1 else ''} would likely decide"
