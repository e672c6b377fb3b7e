"""The decided effects that most readers come for: of the KV-cache precision, and of disaggregation.

Of the rival on equal hardware also what is not decided: it is the comparison that money depends on.
"""

from collections.abc import Sequence
from typing import Any

from pdkv.analysing.hardware_units import PER_DEVICE
from pdkv.analysing.study_results import THROUGHPUT, Cell, StudyResults
from pdkv.reporting.report_bounds import few_of
from pdkv.reporting.report_findings import (
    DECIDED,
    Kind,
    Number,
    Told,
    cell_of,
    comparisons,
    named,
    names_with_loads,
    tell_decided,
)
from pdkv.reporting.report_phrases import (
    MOST_NAMED,
    format_change,
    hardware_pair,
    is_suspect,
    listed_few,
    number_phrase,
)
from pdkv.reporting.wording import Wording

OF_PRECISION: tuple[Number, ...] = ((THROUGHPUT, "value"),)
OF_RIVALS: tuple[Number, ...] = (("ttft", "mean"), ("tpot", "mean"), ("e2el", "mean"), (THROUGHPUT, "value"))
WHY_UNDECIDED: dict[Kind, str] = {
    "observed": "few", "too few launches": "few", "open": "open", "weak": "open", "noise": "noise",
}  # fmt: skip
OF_DISAGGREGATION: tuple[Number, ...] = (("ttft", "mean"), ("tpot", "mean"), (PER_DEVICE, "value"))


def tell_headlines(results: StudyResults, margin: float, say: Wording) -> list[str]:
    """A sentence for each number, and each pair of precisions or of modes, in which something was decided."""
    usable = [cell for cell in results.cells if cell.usable]
    disaggregated = [cell for cell in usable if cell.disaggregated]
    told = {"dtype": comparisons(results, "dtype", usable, OF_PRECISION, say)}
    for factor in ("mode", "hardware"):
        found = comparisons(results, factor, disaggregated, OF_DISAGGREGATION, say)
        told[factor] = sorted(found, key=lambda each: OF_DISAGGREGATION.index(each.number))
    return [sentence for factor, found in told.items() for sentence in _sentences(factor, found, margin, say)]


def tell_rivals_without_verdict(results: StudyResults, say: Wording) -> list[str]:
    """Disaggregation against its rival on equal hardware, where there is no verdict: what was seen at the highest load.

    A sentence for each pair of modes and workload: the question that most readers come with must not be passed over.
    """
    split = [cell for cell in results.cells if cell.usable and cell.disaggregated]
    pairs: dict[tuple[str, str, str], list[Told]] = {}
    for each in comparisons(results, "hardware", split, OF_RIVALS, say):
        if each.kind != "none" and not each.same:
            pairs.setdefault((each.cell.workload, each.cell.mode, each.base.mode), []).append(each)
    sentences = []
    for (workload, _, _), told in pairs.items():
        points = results.points_of(workload)
        highest = max({each.index for each in told}, key=lambda index: _load_of(points[index]))
        if sentence := _rival([each for each in told if each.index == highest], say):
            sentences.append(sentence + (say("headline.other_loads") if any(t.index != highest for t in told) else ""))
    return few_of(sentences, say)


def _load_of(point: dict[str, Any]) -> float:
    return float(point["concurrency"] or point["rate"] or 0)


def _rival(told: Sequence[Told], say: Wording) -> str:
    """One pair of modes at one load level; empty where each number has a verdict."""
    undecided = [each for each in told if each.kind not in DECIDED]
    if not undecided:
        return ""
    parts: dict[Cell, list[str]] = {}
    for each in undecided:
        key = "headline.seen_within_noise" if each.effect.is_within_yardstick else "headline.seen"
        change = say(key, number=number_phrase(*each.number, say), change=format_change(each.effect.ratio))
        parts.setdefault(each.cell, []).append(change)
    names = [
        say("headline.seen_in", cell=named(cell, [told[0].index], say), changes=say("list.comma").join(changes))
        for cell, changes in parts.items()
    ]
    more = [say("headline.seen_more", count=len(names) - MOST_NAMED)] if len(names) > MOST_NAMED else []
    reasons = dict.fromkeys(WHY_UNDECIDED[each.kind] for each in undecided)
    first = told[0]
    sentence = say(
        "headline.rival" if len(undecided) == len(told) else "headline.rival_in_part",
        one=first.cell.mode,
        other=first.base.mode,
        hardware=hardware_pair(first.cell, first.base, say),
        level=first.level,
        why=say("list.semicolon").join(say(f"headline.why.{reason}") for reason in reasons),
        parts=say("list.semicolon").join([*names[:MOST_NAMED], *more]),
    )
    doubted = {each.base.name for each in undecided if is_suspect(each.base, each.index)}
    return sentence + (say("headline.doubted", cells=listed_few(sorted(doubted), say)) if doubted else "")


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
