"""Two cells that differ in one thing: what was decided, a sentence for each pair and load; the table holds the rest."""

from collections.abc import Sequence

from pdkv.analysing.hardware_units import PER_DEVICE
from pdkv.analysing.study_results import Cell, StudyResults
from pdkv.reporting.report_blocks import Bullets
from pdkv.reporting.report_findings import (
    DECIDED,
    Number,
    Told,
    comparisons,
    named,
    number_and_cell_of,
    tell_more,
    tell_noise,
    tell_open,
    tell_range,
    tell_without_interval,
)
from pdkv.reporting.report_phrases import (
    HEADLINES,
    change_digits,
    hardware_pair,
    levels_phrase,
    listed,
    listed_few,
    number_phrase,
)
from pdkv.reporting.wording import Wording


def tell_pairs(
    results: StudyResults,
    factor: str,
    cells: Sequence[Cell],
    numbers: Sequence[Number],
    margin: float,
    say: Wording,
) -> Bullets:
    """What was decided in ``numbers`` between each of ``cells`` and its base of this factor, then what would decide
    the rest, in all numbers of the table.

    Where launches are too few for any verdict, that is all that is said: the table shows
    what was observed.
    """
    told = [
        each
        for each in comparisons(results, factor, cells, dict.fromkeys((*HEADLINES, *numbers)), say)
        # Per device, on as much hardware, the same changes are told once more.
        if each.kind != "none" and not (each.number[0] == PER_DEVICE and each.cell.hardware == each.base.hardware)
    ]
    sentences = []
    pairs: dict[Cell, list[Told]] = {}
    for each in told:
        pairs.setdefault(each.cell, []).append(each)
    for cell, of_pair in pairs.items():
        if of_pair[0].same:
            sentences.append(say("findings.same", cell=cell.name, base=of_pair[0].base.name))
            continue
        of_pair = [each for each in of_pair if each.number in numbers]
        for levels, group in group_decided(results, of_pair, say):
            indexes = [each.index for each in group]
            words = {
                "cell": named(cell, indexes, say),
                "base": named(of_pair[0].base, indexes, say),
                "hardware": hardware_pair(cell, of_pair[0].base, say),
            }
            sentences.append(say("findings.pair", levels=levels, parts=tell_parts(group, margin, say), **words))
    rest = tell_undecided([each for each in told if not each.same], say)
    return Bullets((*sentences, *rest), len(rest))


def group_decided(results: StudyResults, told: Sequence[Told], say: Wording) -> list[tuple[str, list[Told]]]:
    """The decided comparisons of a pair with their loads; loads at which the same was decided are told together."""
    by_level: dict[str, list[Told]] = {}
    for each in told:
        if each.kind in DECIDED:
            by_level.setdefault(each.level, []).append(each)
    alike: dict[frozenset[tuple[Number, str]], list[str]] = {}
    for level, members in by_level.items():
        alike.setdefault(frozenset((each.number, each.kind) for each in members), []).append(level)
    return [
        (levels_phrase(levels, results, say), [each for level in levels for each in by_level[level]])
        for levels in alike.values()
    ]


def tell_parts(told: Sequence[Told], margin: float, say: Wording) -> str:
    """``lower in mean TTFT (−10.0%). Equivalent within ±2% in mean TPOT``: the intervals stand in the table."""
    parts: list[str] = []
    for kind in DECIDED:
        found = [each for each in told if each.kind == kind]
        if found:
            names = [
                _entry([each for each in found if each.number == number], kind, say)
                for number in dict.fromkeys(each.number for each in found)
            ]
            key = f"findings.further.{kind}" if parts else f"findings.{kind}"
            parts.append(say(key, cells=listed(names, say), margin=f"±{100 * margin:g}%"))
    return say("list.full_stop").join(parts)


def tell_undecided(told: Sequence[Told], say: Wording) -> list[str]:
    """What would decide the open ones, which percentiles have no verdict, and that launches are too few.

    Open ones of the table together, for it shows which they are; those of numbers that are not in it by their names.
    """
    in_table = [each for each in told if each.number in HEADLINES]
    still_open = [each.effect.row.get("more_repeats") or "" for each in in_table if each.kind == "open"]
    few = [each for each in told if each.kind == "observed"]
    sentences = [say("findings.pairs_open", advice=tell_more(still_open, say))] if still_open else []
    if beside := tell_open([each for each in told if each.number not in HEADLINES], number_and_cell_of(say), say):
        sentences.append(say("findings.stays_open", parts=beside))
    sentences += [*tell_noise(told, say), *tell_without_interval(told, say)]
    if few and len(few) == len(told):
        sentences.append(say("findings.all_observed"))
    elif few:
        names = listed_few(dict.fromkeys(named(each.cell, [each.index], say) for each in few), say)
        sentences.append(say("findings.observed_only", cells=names))
    return sentences


def _entry(members: Sequence[Told], kind: str, say: Wording) -> str:
    name = number_phrase(*members[0].number, say)
    if kind == "equivalent":
        return name
    digits = max(change_digits(each.effect) for each in members)
    changes = tell_range([each.effect.ratio or 1.0 for each in members], say, digits)
    return say("findings.entry", name=name, effects=changes)
