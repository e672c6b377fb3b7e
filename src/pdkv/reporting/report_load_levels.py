"""What several load levels show together: curves of throughput against latency, their knees, and crossovers."""

from collections.abc import Mapping, Sequence
from typing import Any

from pdkv.analysing.crossovers import Crossover, find_crossings
from pdkv.analysing.hardware_units import GOODPUT_PER_DEVICE, PER_DEVICE
from pdkv.analysing.knees import MIN_LEVELS, Knee, find_knee
from pdkv.analysing.load_level import load_label, load_ladders
from pdkv.analysing.metrics import LATENCIES
from pdkv.analysing.service_levels import GOODPUT
from pdkv.analysing.study_results import THROUGHPUT, Cell, StudyResults
from pdkv.analysing.verdicts import MIN_LAUNCHES
from pdkv.reporting.figure_names import curves_figure
from pdkv.reporting.report_blocks import Block, Bullets, Column, Figure, Paragraph, Table, Value, left, row, ruled_by
from pdkv.reporting.report_phrases import counted, hardware, listed, number_phrase
from pdkv.reporting.wording import Wording
from pdkv.units import DASH, format_ms, format_quantity

CROSSING = (
    ("ttft", "mean"), ("ttft", "p99"), ("tpot", "mean"), ("itl", "p99"), ("e2el", "mean"),
    (THROUGHPUT, "value"), (PER_DEVICE, "value"), (GOODPUT, "value"), (GOODPUT_PER_DEVICE, "value"),
)  # fmt: skip
SUSPECT = "†"


def describe_load_levels(results: StudyResults, workload: str, say: Wording, drawn: bool = True) -> list[Block]:
    """Figure (if ``drawn``), knees and crossovers of a workload; nothing where no two levels can be set in order."""
    points = results.points_of(workload)
    if all(len(ladder) < 2 for ladder in load_ladders(points)):
        return []
    figures = [Figure(curves_figure(workload), say("curves.caption", workload=workload))] if drawn else []
    return [*figures, *_knee_blocks(results, workload, say), *_crossover_blocks(results, workload, say)]


def level_name(point: Mapping[str, Any], say: Wording) -> str:
    """``c = 2`` or ``2/s``."""
    label = load_label(point)
    return say("load.closed_short", concurrency=label) if point["arrival"] == "closed" else label


def _knee_blocks(results: StudyResults, workload: str, say: Wording) -> list[Block]:
    points = results.points_of(workload)
    ladders = load_ladders(points)
    if all(len(ladder) < MIN_LEVELS for ladder in ladders):
        return [Paragraph(say("knees.few", workload=workload, count=max(map(len, ladders))))]
    cells = results.cells_of(workload)
    rows = [_knee_row(cell, ladder, points, say) for cell in cells for ladder in ladders if len(ladder) >= MIN_LEVELS]
    columns = (
        left(say("mode.name")), left(say("dtype.name")), left(say("mode.hardware")), left(say("knees.knee"), wide=True),
        Column(say("knees.throughput")), Column(say("knees.latency")), Column(say("knees.levels")),
        Column(say("throughput.launches")),
    )  # fmt: skip
    notes = [say("knees.note")]
    if any(cell.state == "suspect" for cell in cells):
        notes.append(f"{SUSPECT} {say('note.suspect')}")
    return [
        Table(
            say("knees.caption", workload=workload), columns, tuple(rows), tuple(notes), ruled_by(c.mode for c in cells)
        )
    ]


def _knee_row(
    cell: Cell, ladder: Sequence[int], points: Sequence[Mapping[str, Any]], say: Wording
) -> tuple[Value, ...]:
    labels = (cell.mode, Value(cell.dtype, mark=SUSPECT if cell.state == "suspect" else ""), hardware(cell, say))
    knee = find_knee(cell, ladder)
    if knee is None:
        return row(*labels, say("knees.too_few"), *[DASH] * 4)
    there = (
        (format_quantity(cell.value(knee.low, THROUGHPUT, "value")), format_ms(cell.value(knee.low, "e2el", "median")))
        if knee.decided
        else (DASH, DASH)
    )
    levels = say("knees.of", count=len(knee.levels), all=len(ladder))
    remarks = [] if knee.inside else [say("knees.outside")]
    if knee.incomplete:
        remarks.append(say("knees.incomplete", count=knee.incomplete, all=knee.launches))
    under = say("list.semicolon").join(remarks)
    return row(*labels, Value(_where(knee, points, say), under=under), *there, levels, str(knee.launches))


def _where(knee: Knee, points: Sequence[Mapping[str, Any]], say: Wording) -> str:
    low, high = (level_name(points[index], say) for index in (knee.low, knee.high))
    if knee.decided:
        key = "at_or_above" if knee.may_lie_above else "at_or_below" if knee.may_lie_below else "at"
        return say(f"knees.{key}", level=low)
    if knee.may_lie_below and knee.may_lie_above:
        return say("knees.nowhere", low=low, high=high)
    key = "between_or_above" if knee.may_lie_above else "between_or_below" if knee.may_lie_below else "between"
    return say(f"knees.{key}", low=low, high=high)


def _crossover_blocks(results: StudyResults, workload: str, say: Wording) -> list[Block]:
    """What is decided, in words, and how much is not."""
    found = find_crossings(results, workload, CROSSING)
    blocks: list[Block] = []
    told = _told(found.decided, results.points_of(workload), say)
    if told:
        blocks += [Paragraph(say("crossovers.introduction", workload=workload)), Bullets(told)]
    else:
        few = all(len(cell.used_trials) < MIN_LAUNCHES for cell in results.cells_of(workload))
        blocks.append(Paragraph(say("crossovers.few" if few else "crossovers.none", workload=workload)))
    if found.seen:
        blocks.append(Paragraph(counted(found.seen, "crossovers.unsure", say)))
    return blocks


def _name(cell: Cell, say: Wording) -> str:
    return say("crossovers.suspect", cell=cell.name) if cell.state == "suspect" else cell.name


def _told(crossovers: Sequence[Crossover], points: Sequence[Mapping[str, Any]], say: Wording) -> tuple[str, ...]:
    """A sentence for each two cells and two load levels, with the numbers that change sides there."""
    numbers: dict[tuple[int, int, Cell, Cell], list[str]] = {}
    for each in crossovers:
        lower_is_ahead = each.metric in LATENCIES
        first, second = each.lower_below, each.lower_above
        if not lower_is_ahead:
            first, second = second, first
        key = "crossovers.lower" if lower_is_ahead else "crossovers.higher"
        number = say(key, number=number_phrase(each.metric, each.stat, say))
        numbers.setdefault((each.below, each.above, first, second), []).append(number)
    return tuple(
        say(
            "crossovers.told",
            below=level_name(points[below], say),
            above=level_name(points[above], say),
            first=_name(first, say),
            second=_name(second, say),
            numbers=listed(each, say),
        )
        for (below, above, first, second), each in numbers.items()
    )
