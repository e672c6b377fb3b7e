"""Two cells that differ in one thing, a sentence a pair: what is lower, higher or equivalent, and what stays open."""

from collections.abc import Sequence

from pdkv.analysing.hardware_units import PER_DEVICE
from pdkv.analysing.study_results import Cell, StudyResults
from pdkv.reporting.report_findings import (
    Number,
    Told,
    comparisons,
    named,
    tell_change,
    tell_decided,
    tell_open,
    tell_without_interval,
)
from pdkv.reporting.report_phrases import hardware_pair, listed, number_phrase
from pdkv.reporting.wording import Wording

# Observations of a pair are told for these only: its table holds the rest.
_OBSERVED = (("ttft", "mean"), ("tpot", "mean"), ("e2el", "mean"), ("output_throughput", "value"))


def tell_pairs(
    results: StudyResults,
    factor: str,
    cells: Sequence[Cell],
    numbers: Sequence[Number],
    margin: float,
    say: Wording,
) -> tuple[str, ...]:
    """A sentence for each of ``cells`` and its base of this factor, over all load levels."""
    told = comparisons(results, factor, cells, numbers, say)
    sentences = []
    for cell in dict.fromkeys(each.cell for each in told):
        of_pair = [each for each in told if each.cell is cell and each.kind != "none"]
        if of_pair and of_pair[0].same:
            sentences.append(say("findings.same", cell=cell.name, base=of_pair[0].base.name))
        elif of_pair:
            if cell.hardware == of_pair[0].base.hardware:  # the same changes once more
                of_pair = [each for each in of_pair if each.number[0] != PER_DEVICE]
            indexes = [each.index for each in of_pair]
            words = {
                "cell": named(cell, indexes, say),
                "base": named(of_pair[0].base, indexes, say),
                "hardware": hardware_pair(cell, of_pair[0].base, say),
            }
            parts = _parts(of_pair, margin, say)
            key = "findings.pair" if parts else "findings.observed_pair"
            sentences.append(say(key, parts=parts or _observed(of_pair, say), **words))
    return (*sentences, *tell_without_interval(told, say))


def tell_interactions(results: StudyResults, numbers: Sequence[Number], margin: float, say: Wording) -> tuple[str, ...]:
    """A sentence for each mode and precision: whether the precision does more there than in the baseline's mode."""
    told = comparisons(results, "interaction", results.cells, numbers, say)
    sentences = []
    for cell in dict.fromkeys(each.cell for each in told):
        of_cell = [each for each in told if each.cell is cell and each.kind != "none" and not each.same]
        if of_cell:
            base = of_cell[0].base
            involved = [
                other
                for other in results.cells_of(cell.workload)
                if other.mode in (cell.mode, base.mode) and other.dtype in (cell.dtype, base.dtype)
            ]
            doubtful = any(named(each, (t.index for t in of_cell), say) != each.name for each in involved)
            words = {
                "mode": say("summary.suspect", cell=cell.mode) if doubtful else cell.mode,
                "dtype": cell.dtype,
                "base_dtype": base.dtype,
                "base": base.mode,
            }
            parts = _parts(of_cell, margin, say)
            key = "findings.interaction" if parts else "findings.observed_interaction"
            sentences.append(say(key, parts=parts or _observed(of_cell, say), **words))
    return tuple(sentences)


def _parts(told: Sequence[Told], margin: float, say: Wording) -> str:
    """What was decided, then what was not; empty where launches are too few for either."""
    decided = tell_decided(told, lambda members: _number(members, say), margin, say)
    still_open = tell_open(told, lambda members: _number(members, say), say)
    if not decided and not still_open:
        return ""
    undecided = say("findings.pair_open", open=still_open) if still_open else ""
    return say("list.semicolon").join(part for part in (decided, undecided) if part)


def _observed(told: Sequence[Told], say: Wording) -> str:
    shown = [each for each in told if each.number in _OBSERVED]
    entries = [say("findings.entry", name=_number([each], say), effects=tell_change(each, say)) for each in shown]
    return listed(entries, say)


def _number(members: Sequence[Told], say: Wording) -> str:
    return number_phrase(*members[0].number, say)
