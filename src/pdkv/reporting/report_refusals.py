"""Comparisons that were refused, with the reason once for each pair of cells."""

from collections.abc import Iterable

from pdkv.analysing.comparability import differing_facts
from pdkv.analysing.identical_cells import refusal_of_twins
from pdkv.analysing.study_results import Cell, StudyResults
from pdkv.reporting.report_phrases import cell_label, listed, listed_some
from pdkv.reporting.stored_texts import retell
from pdkv.reporting.wording import Wording

UNLIKE = "not comparable: "  # as cell_pairs.refusal_of begins where cells differ in facts that it then lists


def refusals(results: StudyResults, factor: str, cells: Iterable[Cell], say: Wording) -> tuple[str, ...]:
    """A sentence for each pair of this factor whose numbers may not be set against each other."""
    wanted = set(cells)
    notes: dict[tuple[Cell, Cell], str] = {}
    for effect in results.effects:
        cell = results.cell_of(effect)
        if effect.row["factor"] == factor and cell in wanted and effect.row["stat"] == "mean" and effect.ratio is None:
            notes.setdefault((cell, results.base_of(effect)), effect.row["note"] or "")
    return tuple(
        _refusal(cell_label(cell, results), cell_label(base, results), note, say)
        for (cell, base), note in notes.items()
        if note
    )


def why_unlike(one: Cell, other: Cell, say: Wording) -> str:
    """In what two cells differ that keeps them from being compared, ``host load: idle / busy``; empty where nothing."""
    refusal = refusal_of_twins(one, other)
    if refusal is None:  # goodput by other limits
        refusal = "; ".join(differing_facts(one.content.get("slo") or {}, other.content.get("slo") or {}))
    return retell(refusal.removeprefix(UNLIKE), say) if refusal else ""


def say_what_is_refused(results: StudyResults, say: Wording) -> list[str]:
    """One sentence with the facts, where pairs with numbers may not be compared: readers must know what is missing."""
    notes = {
        (effect.row["factor"], cell, base): effect.row["note"] or ""
        for effect in results.effects
        if (cell := results.cell_of(effect)).usable and (base := results.base_of(effect)).usable
    }
    refused = [note.removeprefix(UNLIKE) for note in notes.values() if note.startswith(UNLIKE)]
    if not refused:
        return []
    facts = dict.fromkeys(retell(part.partition(": ")[0], say) for note in refused for part in note.split("; "))
    return [say("summary.refused", count=len(refused), total=len(notes), facts=listed(facts, say))]


def say_where_base_is_missing(results: StudyResults, baseline: tuple[str, str], say: Wording) -> list[str]:
    """One sentence with the workloads that have numbers, but none of the cell that the others are held against."""
    lacking = []
    for workload in results.workloads:
        usable = [(cell.mode, cell.dtype) for cell in results.cells_of(workload) if cell.usable]
        if usable and baseline not in usable:
            lacking.append(workload)
    return [say("summary.no_base", base="/".join(baseline), workloads=listed_some(lacking, say))] if lacking else []


def _refusal(cell: str, base: str, note: str, say: Wording) -> str:
    if note.startswith(UNLIKE):
        return say("effects.refused_unlike", cell=cell, base=base, facts=retell(note.removeprefix(UNLIKE), say))
    return say("effects.refused", cell=cell, base=base, reason=retell(note, say))
