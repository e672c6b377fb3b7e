"""Comparisons that were refused, with the reason once for each pair of cells."""

from collections.abc import Container

from pdkv.analysing.study_results import Cell, StudyResults
from pdkv.reporting.report_phrases import cell_label
from pdkv.reporting.stored_texts import retell
from pdkv.reporting.wording import Wording

UNLIKE = "not comparable: "  # as cell_pairs.refusal_of begins where cells differ in facts that it then lists


def refusals(results: StudyResults, factor: str, cells: Container[Cell], say: Wording) -> tuple[str, ...]:
    """A sentence for each pair of this factor whose numbers may not be set against each other."""
    notes: dict[tuple[Cell, Cell], str] = {}
    for effect in results.effects:
        cell = results.cell_of(effect)
        if effect.row["factor"] == factor and cell in cells and effect.row["stat"] == "mean" and effect.ratio is None:
            notes.setdefault((cell, results.base_of(effect)), effect.row["note"] or "")
    return tuple(
        _refusal(cell_label(cell, results), cell_label(base, results), note, say)
        for (cell, base), note in notes.items()
        if note
    )


def _refusal(cell: str, base: str, note: str, say: Wording) -> str:
    if note.startswith(UNLIKE):
        return say("effects.refused_unlike", cell=cell, base=base, facts=retell(note.removeprefix(UNLIKE), say))
    return say("effects.refused", cell=cell, base=base, reason=retell(note, say))
