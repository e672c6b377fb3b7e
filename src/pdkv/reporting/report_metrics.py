"""TTFT, TPOT, ITL, E2EL and throughput: for each its findings in words, then its table with every cell."""

from collections.abc import Callable, Sequence

from pdkv.analysing.hardware_units import GOODPUT_PER_DEVICE, PER_DEVICE
from pdkv.analysing.service_levels import GOODPUT
from pdkv.analysing.study_results import LATENCIES, THROUGHPUT, StudyResults
from pdkv.reporting.figure_names import ecdf_figure, metrics_figure
from pdkv.reporting.illustrated_workloads import illustrated_workloads, say_what_is_not_drawn
from pdkv.reporting.report_blocks import Block, Bullets, Column, Figure, Paragraph, Section, Table, Value, left
from pdkv.reporting.report_bounds import first_where
from pdkv.reporting.report_findings import (
    Number,
    Told,
    cell_of,
    comparisons,
    named,
    number_and_cell_of,
    tell_decided,
    tell_noise,
    tell_open,
    tell_without_interval,
)
from pdkv.reporting.report_levels import LATENCY_STATS, LevelRows
from pdkv.reporting.report_observations import observe
from pdkv.reporting.report_phrases import listed, listed_few, load_level, number_phrase
from pdkv.reporting.report_refusals import refusals
from pdkv.reporting.wording import Wording

# What the sentences of a section are about; its table holds more.
NUMBERS: dict[str, tuple[Number, ...]] = {
    "ttft": (("ttft", "mean"), ("ttft", "p99")),
    "tpot": (("tpot", "mean"),),
    "itl": (("itl", "mean"), ("itl", "p99")),
    "e2el": (("e2el", "mean"), ("e2el", "p99")),
    # Goodput has effects where the study sets service levels.
    THROUGHPUT: ((THROUGHPUT, "value"), (PER_DEVICE, "value"), (GOODPUT, "value"), (GOODPUT_PER_DEVICE, "value")),
}
_EACH_DEVICE = (PER_DEVICE, GOODPUT_PER_DEVICE)
_THROUGHPUT_COLUMNS = ("output", "per_unit", "total", "requests", "achieved", "ok_failed", "n", "launches")


def describe_metrics(results: StudyResults, baseline: tuple[str, str], margin: float, say: Wording) -> list[Section]:
    """A subsection for each metric: sentences, a table per workload; the figures of each load level go first."""
    blocks: list[Block] = [Paragraph(say("metrics.introduction", baseline="/".join(baseline)))]
    refused = refusals(results, "baseline", results.cells, say)
    if refused:
        blocks.append(Bullets(refused))
    blocks += say_what_is_not_drawn(results, illustrated_workloads(results), say)
    blocks += _figures(results, metrics_figure, "caption.metrics", say)
    sections = [Section(say("metrics.title"), tuple(blocks))]
    for metric in (*LATENCIES, THROUGHPUT):
        sections.append(
            Section(say(f"metrics.{metric}"), tuple(_metric_blocks(results, metric, baseline, margin, say)), 2)
        )
    return sections


def tell_findings(
    results: StudyResults, numbers: Sequence[Number], baseline: tuple[str, str], margin: float, say: Wording
) -> list[str]:
    """What the verdicts against the baseline carry; without any, what was observed."""
    told = [
        each
        for each in comparisons(results, "baseline", results.cells, numbers, say)
        # Per device, on as much hardware, the same changes are told once more.
        if not each.same and not (each.number[0] in _EACH_DEVICE and each.cell.hardware == each.base.hardware)
    ]
    if not any(each.kind not in ("observed", "none") for each in told):
        shown = [number for number in numbers if number[0] not in _EACH_DEVICE]
        return observe(results, baseline, shown, say)
    sentences = []
    for number in numbers:
        of_number = [each for each in told if each.number == number]
        parts = tell_decided(of_number, lambda members: cell_of(members, say), margin, say)
        if parts:
            base = named(of_number[0].base, (each.index for each in of_number), say)
            sentences.append(say("findings.decided", base=base, number=number_phrase(*number, say), parts=parts))
    still_open = tell_open(told, number_and_cell_of(say), say)
    few = [each for each in told if each.kind == "observed"]
    return [
        *sentences,
        *([say("findings.stays_open", parts=still_open)] if still_open else []),
        *tell_noise(told, say),
        *tell_without_interval(told, say),
        *([say("findings.observed_only", cells=_names(few, say))] if few else []),
    ]


def _metric_blocks(
    results: StudyResults, metric: str, baseline: tuple[str, str], margin: float, say: Wording
) -> list[Block]:
    findings = tell_findings(results, NUMBERS[metric], baseline, margin, say)
    blocks: list[Block] = [Bullets(tuple(findings))] if findings else []
    for workload in results.workloads:
        levels = [
            LevelRows(results, workload, index, point, baseline, say)
            for index, point in enumerate(results.points_of(workload))
        ]
        measured = [level for level in levels if level.measured]
        blocks += [_table(metric, workload, measured, say)] if measured else []
        nothing = [load_level(level.point, say) for level in levels if not level.measured]
        blocks += [Paragraph(say("metrics.nothing", workload=workload, level=level)) for level in nothing]
    return [*blocks, *(_figures(results, ecdf_figure, "caption.ecdf", say) if metric == THROUGHPUT else [])]


def _table(metric: str, workload: str, levels: Sequence[LevelRows], say: Wording) -> Table:
    """All load levels of a workload one below the other."""
    rows: list[tuple[Value, ...]] = []
    ruled: list[int] = []
    for level in levels:
        ruled += [len(rows)] if rows else []
        rows += level.throughput_rows() if metric == THROUGHPUT else level.latency_rows(metric)
    labels = (left(say("effects.level")), left(say("mode.name")), left(say("dtype.name")), left(say("mode.hardware")))
    if metric == THROUGHPUT:
        numbers = tuple(Column(say(f"throughput.{key}")) for key in _THROUGHPUT_COLUMNS)
        caption = say("caption.throughput", workload=workload)
    else:
        numbers = tuple(Column(say(f"stat.{stat}")) for stat in (*LATENCY_STATS, "n"))
        caption = say("caption.latency", metric=say(f"metric.{metric}.short"), workload=workload)
    notes = tuple(dict.fromkeys(note for level in levels for note in level.notes(rows)))
    if metric == "itl":
        notes += tuple(note for level in levels if (note := _merged_events(level, say)))
    foremost = first_where((each[len(labels) - 2].mark != "" for each in rows), "doubtful", say)
    return Table(caption, labels + numbers, tuple(rows), notes, tuple(ruled), foremost)


def _merged_events(level: LevelRows, say: Wording) -> str:
    """Of which cells more than 1% of the measured events carried several tokens; empty if of none."""
    told = []
    for cell in level.cells:
        point = cell.point(level.index) or {}
        several = point.get("multi_token_events")
        # Each request has one event more than gaps.
        events = (cell.metric(level.index, "itl").get("n") or 0) + (cell.metric(level.index, "ttft").get("n") or 0)
        if several and several / events > 0.01:
            told.append(say("word.only_in", value=f"{several / events:.1%}", cells=cell.name))
    return say("note.merged_events", level=level.label, cells=listed(told, say)) if told else ""


def _figures(results: StudyResults, path: Callable[[str, int], str], caption: str, say: Wording) -> list[Block]:
    """One figure for each load level of a drawn workload that any cell was measured at."""
    return [
        Figure(path(workload, index), say(caption, workload=workload, level=load_level(point, say)))
        for workload in illustrated_workloads(results)
        for index, point in enumerate(results.points_of(workload))
        if any(cell.point(index) for cell in results.cells_of(workload))
    ]


def _names(told: Sequence[Told], say: Wording) -> str:
    return listed_few(dict.fromkeys(named(each.cell, [each.index], say) for each in told), say)
