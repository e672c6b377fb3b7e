"""Whether a precision does something else in another mode: its change there over its change in the base mode."""

from collections.abc import Sequence

from pdkv.analysing.identical_cells import noise, yardstick_groups
from pdkv.analysing.study_results import Cell, StudyResults
from pdkv.reporting.report_blocks import Block, Bullets, Column, Paragraph, Table, Value, left, row, ruled_by
from pdkv.reporting.report_changes import change_value, largest_change, largest_first, notes_of
from pdkv.reporting.report_findings import Number, comparisons, named
from pdkv.reporting.report_pairs import group_decided, tell_parts, tell_undecided
from pdkv.reporting.report_phrases import HEADLINES, headline, short_level
from pdkv.reporting.wording import Wording


def describe_interactions(results: StudyResults, numbers: Sequence[Number], margin: float, say: Wording) -> list[Block]:
    """Sentences on ``numbers`` where anything was decided, and the table; nothing where no cell has an interaction."""
    keyed = _rows(results, say)
    if not keyed:
        return []
    levels, rows, changes = zip(*keyed, strict=True)
    columns = (
        left(say("effects.level")), left(say("mode.name")), left(say("effects.over")), left(say("dtype.name")),
        *(Column(headline(metric, stat, say)) for metric, stat in HEADLINES),
    )  # fmt: skip
    notes = (say("note.interaction"), *notes_of(rows, margin, say))
    caption = say("effects.interaction_caption")
    table = Table(caption, columns, tuple(rows), notes, ruled_by(levels), largest_first(changes, say))
    told = tell_interactions(results, numbers, margin, say)
    return [Paragraph(say("findings.interactions")), *([told] if told.items else []), table]


def tell_interactions(results: StudyResults, numbers: Sequence[Number], margin: float, say: Wording) -> Bullets:
    """What was decided in ``numbers``, a sentence for each mode, precision and load; then what would decide the rest,
    in all numbers of the table."""
    told = [
        each
        for each in comparisons(results, "interaction", results.cells, dict.fromkeys((*HEADLINES, *numbers)), say)
        if each.kind != "none" and not each.same
    ]
    sentences = []
    for cell in dict.fromkeys(each.cell for each in told):
        of_cell = [each for each in told if each.cell is cell]
        base = of_cell[0].base
        of_numbers = [each for each in of_cell if each.number in numbers]
        for levels, group in group_decided(results, of_numbers, say):
            doubtful = any(
                named(each, (member.index for member in group), say) != each.name
                for each in _cells_behind(results, cell, base)
            )
            words = {
                "mode": say("summary.suspect", cell=cell.mode) if doubtful else cell.mode,
                "dtype": cell.dtype,
                "base_dtype": base.dtype,
                "base": base.mode,
            }
            sentences.append(say("findings.interaction", levels=levels, parts=tell_parts(group, margin, say), **words))
    rest = tell_undecided(told, say)
    return Bullets((*sentences, *rest), len(rest))


def _rows(results: StudyResults, say: Wording) -> list[tuple[str, tuple[Value, ...], float]]:
    """(level, row, largest change that was found) per load level and cell that has an interaction."""
    rows = []
    for workload in results.workloads:
        groups = yardstick_groups(results.cells_of(workload))
        for index, point in enumerate(results.points_of(workload)):
            level = short_level(workload, point, results, say)
            for cell in results.cells_of(workload):
                effects = {number: results.effect("interaction", cell, index, *number) for number in HEADLINES}
                known = [effect for effect in effects.values() if effect and effect.ratio is not None]
                if known:
                    base = results.base_of(known[0])
                    behind = _cells_behind(results, cell, base)
                    values = [
                        change_value(effects[each], noise(groups, index, *each), behind, index, each, say)
                        for each in HEADLINES
                    ]
                    step = say("effects.step", base=base.dtype, dtype=cell.dtype)
                    rows.append((level, row(level, cell.mode, base.mode, step, *values), largest_change(known)))
    return rows


def _cells_behind(results: StudyResults, cell: Cell, base: Cell) -> list[Cell]:
    """The four cells that an interaction rests on."""
    return [
        other
        for other in results.cells_of(cell.workload)
        if other.mode in (cell.mode, base.mode) and other.dtype in (cell.dtype, base.dtype)
    ]
