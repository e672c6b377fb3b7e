"""Service levels and load: goodput, the highest load that meets the service levels, curves, knees and crossovers."""

import math
from collections.abc import Sequence
from typing import Any

from pdkv.analysing.comparability import differing_facts
from pdkv.analysing.hardware_units import GOODPUT_PER_DEVICE, throughput_per_device
from pdkv.analysing.highest_load import HighestLoad, Step, highest_load
from pdkv.analysing.load_level import load_ladders
from pdkv.analysing.service_levels import GOODPUT, SHARE, ServiceLevels
from pdkv.analysing.study_results import Cell, StudyResults
from pdkv.reporting.illustrated_workloads import illustrated_workloads
from pdkv.reporting.report_blocks import Block, Bullets, Column, Paragraph, Section, Table, Value, left, row, ruled_by
from pdkv.reporting.report_bounds import first_where
from pdkv.reporting.report_load_levels import describe_load_levels, level_name
from pdkv.reporting.report_phrases import cell_label, format_change, hardware, listed
from pdkv.reporting.stored_texts import retell
from pdkv.reporting.wording import Wording
from pdkv.units import DASH, format_quantity

ONE_LAUNCH, SUSPECT, GONE = "¹", "†", "‡"


def describe_service_levels(results: StudyResults, say: Wording) -> list[Section]:
    """The section; nothing for a study of a single load level without service levels."""
    blocks: list[Block] = []
    levels = next((found for cell in results.cells if (found := ServiceLevels.of_cell(cell.content))), None)
    if levels is not None:
        limits = [
            say("service.limit", metric=say(f"metric.{name}.name"), limit=f"{limit:,g}")
            for name, limit in levels.limits_ms.items()
        ]
        target = percent(levels.target_share)
        blocks.append(Paragraph(say("service.levels", limits=listed(limits, say), target=target)))
        for workload in results.workloads:
            # Numbers that were counted by other limits are others: those of cells not yet summarised anew.
            every = results.cells_of(workload)
            cells = [c for c in every if ServiceLevels.of_cell(c.content) == levels or not c.usable]
            blocks.append(_goodput_table(results, workload, cells, say))
            blocks.append(_highest_table(results, workload, cells, levels, say))
            others = tuple(_why_not_shown(cell, levels, results, say) for cell in every if cell not in cells)
            blocks += [Bullets(others)] if others else []
    drawn = illustrated_workloads(results)
    for workload in results.workloads:
        blocks += describe_load_levels(results, workload, say, drawn=workload in drawn)
    return [Section(say("service.title"), tuple(blocks))] if blocks else []


def _why_not_shown(cell: Cell, levels: ServiceLevels, results: StudyResults, say: Wording) -> str:
    """That a cell was counted by other service levels, or by none, and is in no table of goodput for that reason."""
    name, own = cell_label(cell, results), cell.content.get("slo")
    if not own:
        return say("service.counted_by_none", cell=name)
    facts = "; ".join(differing_facts(own, levels.as_json()))
    return say("service.counted_otherwise", cell=name, facts=retell(facts, say))


def percent(share: float) -> str:
    """``89.9%``, ``100%``: cut off after one decimal, so that what misses a target never reads as having reached it."""
    return f"{math.floor(round(share * 1000, 6)) / 10:g}%"


def _goodput_table(results: StudyResults, workload: str, cells: Sequence[Cell], say: Wording) -> Table:
    """A row for each cell and load level, in ascending order; one without numbers for a cell that has none."""
    rows: list[tuple[Value, ...]] = []
    names: list[str] = []
    points = results.points_of(workload)
    ascending = [index for ladder in load_ladders(points) for index in ladder]
    for cell in cells:
        measured: list[int | None] = [index for index in ascending if cell.point(index)]
        for index in measured or [None]:
            rows.append(_goodput_row(results, cell, index, points, say))
            names.append(cell.name)
    columns = (
        *_labels(say), left(say("service.load")), Column(say("service.goodput")), Column(say("service.per_unit")),
        Column(say("service.share")), Column(say("service.requests")), Column(say("throughput.launches")),
    )  # fmt: skip
    caption = say("service.goodput_caption", workload=workload)
    several = any((cell.point(index) or {}).get("launches", 0) > 1 for cell in cells for index in ascending)
    notes = (say("service.goodput_note"), *([say("note.several_launches")] if several else []), *_notes(rows, say))
    foremost = first_where((each[1].mark != "" for each in rows), "doubtful", say)
    return Table(caption, columns, tuple(rows), notes, ruled_by(names), foremost)


def _goodput_row(
    results: StudyResults, cell: Cell, index: int | None, points: Sequence[dict[str, Any]], say: Wording
) -> tuple[Value, ...]:
    if index is None:
        return row(cell.mode, Value(cell.dtype, mark=GONE), hardware(cell, say), *[DASH] * 6)
    goodput = cell.value(index, GOODPUT, "value")
    share = cell.value(index, SHARE, "value")
    point = cell.point(index) or {}
    launches = point.get("launches") or 0
    known = sum((launch.get(GOODPUT) or {}).get("value") is not None for launch in point.get("per_launch") or ())
    counted = str(launches) if known in (0, launches) else say("knees.of", count=known, all=launches)
    requests = cell.metric(index, SHARE).get("n") or 0
    return row(
        cell.mode,
        Value(cell.dtype, mark={"valid": "", "suspect": SUSPECT}.get(cell.point_state(index), GONE)),
        hardware(cell, say),
        level_name(points[index], say),
        _beside_base(results, cell, index, GOODPUT, goodput, say),
        _beside_base(results, cell, index, GOODPUT_PER_DEVICE, throughput_per_device(cell.content, goodput), say),
        DASH if share is None else percent(share),
        f"{requests:,}" if requests else DASH,
        counted if launches else DASH,
    )


def _beside_base(
    results: StudyResults, cell: Cell, index: int, metric: str, value: float | None, say: Wording
) -> Value:
    """A goodput over its difference to the base cell; the base is named, where there is any comparison with it."""
    under = ""
    effect = results.effect("baseline", cell, index, metric, "value")
    if effect is None:
        bases = (results.base_of(each) for each in results.effects if each.row["factor"] == "baseline")
        under = say("word.base") if any(base is cell for base in bases) else ""
    elif effect.ratio is not None:
        under = format_change(effect.ratio)
    return Value(format_quantity(value), under=under if value is not None else "")


def _highest_table(
    results: StudyResults, workload: str, cells: Sequence[Cell], levels: ServiceLevels, say: Wording
) -> Table:
    points = results.points_of(workload)
    rows = []
    for cell in cells:
        for ladder in load_ladders(points):
            load = highest_load(cell, ladder, levels.target_share)
            mark = ONE_LAUNCH if load.launches == 1 else ""
            labels = (cell.mode, Value(cell.dtype, mark=_state_mark(cell)), hardware(cell, say))
            launches = Value(str(load.launches) if load.launches else DASH, mark=mark)
            rows.append(row(*labels, _reached(load, points, say), _end(load, points, say), launches))
    columns = (
        *_labels(say), left(say("service.highest")), left(say("service.end"), wide=True),
        Column(say("throughput.launches")),
    )  # fmt: skip
    caption = say("service.highest_caption", workload=workload, target=percent(levels.target_share))
    foremost = first_where((each[1].mark != "" for each in rows), "doubtful", say)
    return Table(caption, columns, tuple(rows), _notes(rows, say), ruled_by(cell.mode for cell in cells), foremost)


def _reached(load: HighestLoad, points: Sequence[dict[str, Any]], say: Wording) -> Value:
    if load.reached is None:
        missed = load.stopped_by is not None and load.stopped_by.outcome == "missed"
        return Value(say("service.none" if missed else "service.cannot_tell"))
    level = level_name(points[load.reached.index], say)
    if load.stopped_by is None:
        return Value(say("service.at_least", level=level), under=say("service.highest_measured"))
    return Value(level)


_ENDS = {
    "missed": "service.missed",
    "launches differ": "service.differ",
    "launches left out": "service.left_out",
    "not measured": "service.not_measured",
}


def _end(load: HighestLoad, points: Sequence[dict[str, Any]], say: Wording) -> str:
    """Why it is not the next level."""
    step = load.stopped_by
    if step is None:
        return say("service.all_met")
    end = say(_ENDS[step.outcome], level=level_name(points[step.index], say), share=_shares(step, say))
    if not load.met_beyond:
        return end
    levels = listed([level_name(points[beyond.index], say) for beyond in load.met_beyond], say)
    return say("service.met_again", end=end, levels=levels)


def _shares(step: Step, say: Wording) -> str:
    if not step.shares:
        return DASH
    low, high = percent(min(step.shares)), percent(max(step.shares))
    return low if low == high else say("service.between", low=low, high=high)


def _labels(say: Wording) -> tuple[Column, ...]:
    return left(say("mode.name")), left(say("dtype.name")), left(say("mode.hardware"))


def _state_mark(cell: Cell) -> str:
    return {"valid": "", "suspect": SUSPECT}.get(cell.state, GONE)


def _notes(rows: Sequence[Sequence[Value]], say: Wording) -> tuple[str, ...]:
    marks = {value.mark for each in rows for value in each}
    keys = {ONE_LAUNCH: "service.one_launch", SUSPECT: "note.suspect", GONE: "note.gone"}
    return tuple(f"{mark} {say(key)}" for mark, key in keys.items() if mark in marks)
