"""What was observed where launches are too few for verdicts: from where to where a number went, load by load."""

from collections.abc import Sequence

from pdkv.analysing.service_levels import GOODPUT
from pdkv.analysing.study_results import THROUGHPUT, Cell, StudyResults
from pdkv.reporting.report_findings import Number, named
from pdkv.reporting.report_phrases import hardware, listed_few, load_level, number_phrase
from pdkv.reporting.wording import Wording
from pdkv.units import format_ms, format_quantity

_RATES = {THROUGHPUT: "unit.tok_s", GOODPUT: "unit.req_s"}


def observe(results: StudyResults, baseline: tuple[str, str], numbers: Sequence[Number], say: Wording) -> list[str]:
    """A sentence per load level. Cells that may not be compared with the baseline are not put in a row with it."""
    sentences = []
    for workload in results.workloads:
        for index, point in enumerate(results.points_of(workload)):
            cells = comparable_cells(results, workload, baseline, index)
            ranges = [text for number in numbers if (text := _range(cells, index, number, say))]
            if ranges:
                level = load_level(point, say)
                apart = [each for each in results.cells_of(workload) if each.point(index) and each not in cells]
                words = {"workload": workload, "level": level, "ranges": say("list.semicolon").join(ranges)}
                if apart:
                    names = listed_few([named(each, [index], say) for each in apart], say)
                    sentences.append(say("summary.observed_without", cells=names, base="/".join(baseline), **words))
                else:
                    sentences.append(say("summary.observed", **words))
    return sentences


def comparable_cells(results: StudyResults, workload: str, baseline: tuple[str, str], index: int) -> list[Cell]:
    """The baseline and the cells that were set against it; without a usable baseline every usable cell alone: none."""
    usable = [cell for cell in results.cells_of(workload) if cell.usable]
    base = next((cell for cell in usable if (cell.mode, cell.dtype) == baseline), None)
    if base is None:
        return []
    numbers = [(THROUGHPUT, "value"), ("ttft", "mean")]
    effects = {cell: [results.effect("baseline", cell, index, *number) for number in numbers] for cell in usable}
    return [cell for cell in usable if cell is base or any(each and each.ratio is not None for each in effects[cell])]


def _range(cells: Sequence[Cell], index: int, number: Number, say: Wording) -> str:
    values = [(value, cell) for cell in cells if (value := cell.value(index, *number)) is not None]
    limits = [cell.content.get("slo") for _, cell in values]
    if not values or (number[0] == GOODPUT and limits.count(limits[0]) < len(limits)):  # counted by other limits
        return ""
    (low, low_cell), (high, high_cell) = min(values, key=_first), max(values, key=_first)
    unit = _RATES.get(number[0], "unit.ms")
    texts = [format_quantity(value) if number[0] in _RATES else format_ms(value) for value in (low, high)]
    words = {"number": number_phrase(*number, say), "unit": say(unit)}
    if len(values) == 1:
        return say("summary.one_value", low=texts[0], cell=named(low_cell, [index], say), **words)
    if texts[0] == texts[1]:
        return say("summary.all_alike", low=texts[0], **words)
    names = {"low_cell": named(low_cell, [index], say), "high_cell": named(high_cell, [index], say)}
    if number[0] in _RATES and low_cell.hardware != high_cell.hardware:  # totals of unlike amounts
        of_each = zip(names, (low_cell, high_cell), strict=True)
        names = {
            key: say("summary.on_hardware", cell=names[key], hardware=hardware(cell, say)) for key, cell in of_each
        }
    return say("summary.range", low=texts[0], high=texts[1], **names, **words)


def _first(pair: tuple[float, Cell]) -> float:
    return pair[0]
