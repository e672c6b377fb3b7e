"""Verdicts of comparisons that belong together: who looks at many differences at once must ask more of each."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pdkv.analysing.csv_table import tidy
from pdkv.analysing.verdicts import MAX_REPEATS, RatioEstimate, decide, holm, more_repeats

Row = dict[str, Any]


@dataclass
class Comparison:
    """A row of comparisons.csv in the making: its columns, its estimate if it has one, the parts of its note."""

    row: Row
    notes: list[str] = field(default_factory=list)
    estimate: RatioEstimate | None = None

    def finished(self) -> Row:
        """The row with its note."""
        return {**self.row, "note": "; ".join(self.notes)}


def decide_families(comparisons: Sequence[Comparison], margin: float) -> None:
    """Give those that have an estimate their interval and verdict.

    A family is one statistic of one metric under one effect: all cells and loads of a workload.
    """
    families: dict[tuple[str, ...], list[tuple[Comparison, RatioEstimate]]] = {}
    for comparison in comparisons:
        if comparison.estimate is not None:
            key = tuple(comparison.row[name] for name in ("workload", "factor", "metric", "stat"))
            families.setdefault(key, []).append((comparison, comparison.estimate))
    for family in families.values():
        rejected = holm([estimate.p for _, estimate in family])
        undecided = rejected.count(False)
        for (comparison, estimate), reject in zip(family, rejected, strict=True):
            _decide(comparison, estimate, reject, undecided, margin)


def _decide(comparison: Comparison, estimate: RatioEstimate, rejected: bool, undecided: int, margin: float) -> None:
    row = comparison.row
    row["ci_low"], row["ci_high"] = tidy(estimate.low), tidy(estimate.high)
    row["verdict"] = decide(estimate, rejected=rejected, margin=margin)
    if estimate.standard_error == 0:
        comparison.notes.append(f"no spread seen in {estimate.blocks} launches")
    if row["verdict"] == "cannot tell":
        more = more_repeats(estimate, margin, undecided)
        row["more_repeats"] = f">{MAX_REPEATS - estimate.blocks}" if more is None else str(more)
        comparison.notes.append(_advice(more, estimate.blocks))


def _advice(more: int | None, blocks: int) -> str:
    if more is None:
        return f"more than {MAX_REPEATS - blocks} more repeats would be needed"
    return f"about {more} more repeat{'s' if more > 1 else ''} would likely decide"
