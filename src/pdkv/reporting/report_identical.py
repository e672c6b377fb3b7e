"""Cells that resolved to one configuration: what they differ by is noise, and the yardstick for what others do."""

from collections.abc import Sequence

from pdkv.analysing.identical_cells import noise, refused_twins, yardstick_groups
from pdkv.analysing.study_results import Cell, StudyResults
from pdkv.reporting.report_blocks import Block, Bullets, Column, Paragraph, Section, Table, Value, left, row
from pdkv.reporting.report_phrases import (
    HEADLINES,
    cell_label,
    format_both_ways,
    headline,
    is_suspect,
    listed_few,
    separated,
    short_level,
)
from pdkv.reporting.report_refusals import UNLIKE
from pdkv.reporting.stored_texts import retell
from pdkv.reporting.wording import Wording

SUSPECT, NONE_SHARED = "†", "‡"


def describe_identical_cells(results: StudyResults, say: Wording) -> list[Section]:
    """Which cells ran the same thing, and the most that they differed by."""
    groups = yardstick_groups(results.cells)
    refused = tuple(
        say(
            "identical.refused",
            one=cell_label(one, results),
            other=cell_label(other, results),
            reason=retell(why.removeprefix(UNLIKE), say),
        )
        for one, other, why in refused_twins(results.cells)
    )
    if not groups and refused:
        blocks: list[Block] = [Paragraph(say("identical.no_yardstick")), Bullets(refused)]
        return [Section(say("identical.title"), tuple(blocks), level=2)]
    if not groups:
        return [Section(say("identical.title"), (Paragraph(say("identical.none")),), level=2)]
    names = separated((listed_few([cell.name for cell in group], say) for group in groups), "list.semicolon", say)
    blocks = [Paragraph(say("identical.said", groups=names)), *([Bullets(refused)] if refused else [])]
    rows = [
        each
        for workload in results.workloads
        for index, point in enumerate(results.points_of(workload))
        for group in groups
        if group[0].workload == workload
        for each in _row(short_level(workload, point, results, say), group, index, say)
    ]
    if rows:
        columns = (
            left(say("effects.level")),
            left(say("identical.cells")),
            *(Column(headline(metric, stat, say)) for metric, stat in HEADLINES),
        )
        marks = "".join(value.mark for each in rows for value in each)
        notes = [say("identical.how")]
        if SUSPECT in marks:
            notes.append(f"{SUSPECT} {say('note.suspect_yardstick')}")
        if NONE_SHARED in marks:
            notes.append(f"{NONE_SHARED} {say('identical.none_shared')}")
        blocks.append(Table(say("identical.caption"), columns, tuple(rows), tuple(notes)))
    return [Section(say("identical.title"), tuple(blocks), level=2)]


def _row(level: str, group: Sequence[Cell], index: int, say: Wording) -> list[tuple[Value, ...]]:
    """The differences of one group at one load level; none where fewer than two of its cells were measured."""
    if sum(bool((cell.point(index) or {}).get("repeats")) for cell in group) < 2:
        return []
    values = [noise([group], index, *number) for number in HEADLINES]
    mark = SUSPECT if any(is_suspect(cell, index) for cell in group) else ""
    if all(value is None for value in values):
        mark += NONE_SHARED
    names = Value(say("list.comma").join(cell.name for cell in group), mark=mark)
    return [row(level, names, *map(format_both_ways, values))]
