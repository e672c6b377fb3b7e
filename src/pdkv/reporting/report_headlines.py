"""The decided effects that most readers come for: of the KV-cache precision, and of disaggregation."""

from collections.abc import Sequence

from pdkv.analysing.hardware_units import PER_DEVICE
from pdkv.analysing.study_results import THROUGHPUT, StudyResults
from pdkv.reporting.report_findings import (
    DECIDED,
    Number,
    Told,
    cell_of,
    comparisons,
    names_with_loads,
    tell_decided,
)
from pdkv.reporting.report_phrases import is_suspect, listed_few, number_phrase
from pdkv.reporting.wording import Wording

OF_PRECISION: tuple[Number, ...] = ((THROUGHPUT, "value"),)
OF_DISAGGREGATION: tuple[Number, ...] = (("ttft", "mean"), (PER_DEVICE, "value"))


def tell_headlines(results: StudyResults, margin: float, say: Wording) -> list[str]:
    """A sentence for each number, and each pair of precisions or of modes, in which something was decided."""
    usable = [cell for cell in results.cells if cell.usable]
    disaggregated = [cell for cell in usable if cell.disaggregated]
    told = {"dtype": comparisons(results, "dtype", usable, OF_PRECISION, say)}
    for factor in ("mode", "hardware"):
        found = comparisons(results, factor, disaggregated, OF_DISAGGREGATION, say)
        told[factor] = sorted(found, key=lambda each: OF_DISAGGREGATION.index(each.number))
    return [sentence for factor, found in told.items() for sentence in _sentences(factor, found, margin, say)]


def _sentences(factor: str, told: Sequence[Told], margin: float, say: Wording) -> list[str]:
    groups: dict[tuple[str, str, Number], list[Told]] = {}
    for each in told:
        if not each.same:
            sides = (each.cell.dtype, each.base.dtype) if factor == "dtype" else (each.cell.mode, each.base.mode)
            groups.setdefault((*sides, each.number), []).append(each)
    sentences = []
    for (one, other, number), group in groups.items():
        if parts := tell_decided(group, lambda members: cell_of(members, say), margin, say):
            words = {"one": one, "other": other, "number": number_phrase(*number, say), "parts": parts}
            sentences.append(say(f"headline.{factor}", **words) + _rest(group, say))
    return sentences


def _rest(group: Sequence[Told], say: Wording) -> str:
    """What a sentence on decided effects must not hide: where nothing was decided, and bases that are in doubt."""
    undecided = [each for each in group if each.kind not in DECIDED]
    doubted = {each.base.name for each in group if each.kind in DECIDED and is_suspect(each.base, each.index)}
    rest = ""
    if undecided:
        cells = names_with_loads(undecided, lambda members: cell_of(members, say), say, number_is_told=True)
        rest += say("headline.undecided", cells=cells)
    return rest + (say("headline.doubted", cells=listed_few(sorted(doubted), say)) if doubted else "")
