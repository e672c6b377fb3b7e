"""Comparisons that were refused, with the reason once for each pair of cells."""

from collections.abc import Container

from pdkv.analysing.study_results import Cell, StudyResults
from pdkv.reporting.report_phrases import cell_label
from pdkv.reporting.stored_texts import retell
from pdkv.reporting.wording import Wording


def refusals(results: StudyResults, factor: str, cells: Container[Cell], say: Wording) -> tuple[str, ...]:
    """A sentence for each pair of this factor whose numbers may not be set against each other."""
    reasons: dict[tuple[Cell, Cell], str] = {}
    for effect in results.effects:
        cell = results.cell_of(effect)
        if effect.row["factor"] == factor and cell in cells and effect.row["stat"] == "mean" and effect.ratio is None:
            reason = retell(effect.row["note"] or "", say)
            reasons.setdefault((cell, results.base_of(effect)), reason)
    return tuple(
        say("effects.refused", cell=cell_label(cell, results), base=cell_label(base, results), reason=reason)
        for (cell, base), reason in reasons.items()
        if reason
    )
