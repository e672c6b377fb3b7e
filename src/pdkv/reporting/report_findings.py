"""Findings in words, told from verdicts: who differs from whom, by how much, at which load, and what stays open.

Comparisons of one verdict are told together, so that a person reads a few sentences. Where launches are too few for
verdicts, differences are told as what they are: observations.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from pdkv.analysing.compared_numbers import launches_wanted
from pdkv.analysing.study_results import Cell, Effect, StudyResults
from pdkv.reporting.report_phrases import (
    MOST_NAMED,
    change_digits,
    format_change,
    is_suspect,
    listed,
    listed_few,
    number_phrase,
    separated,
    short_level,
)
from pdkv.reporting.wording import Wording

Kind = Literal["lower", "higher", "equivalent", "noise", "open", "too few launches", "weak", "observed", "none"]
Number = tuple[str, str]  # metric and statistic
DECIDED: tuple[Kind, ...] = ("lower", "higher", "equivalent")
_PERCENTILES = ("median", "p90", "p99")
_LAUNCHES = ("launches", "base_launches")
MOST_CHANGES = 2  # told one by one, each with its load level
SAME = "same resolved configuration"  # as comparisons.csv notes it


@dataclass(frozen=True)
class Told:
    """One comparison at one load level."""

    effect: Effect
    cell: Cell
    base: Cell
    index: int
    number: Number
    level: str

    @property
    def same(self) -> bool:
        """Whether both sides ran the same configuration: then there is no effect to tell, only noise."""
        return SAME in (self.effect.row["note"] or "")

    @property
    def kind(self) -> Kind:
        """What it may be told as."""
        verdict = self.effect.verdict
        if self.effect.ratio is None:
            return "none"
        if verdict.startswith("not decided"):
            return "observed"
        if self.effect.interval is None and self.effect.row.get("more_repeats"):
            return "too few launches"
        if self.effect.interval is None and self.number[1] in _PERCENTILES:
            return "weak"
        decided = self.effect.interval is not None and not self.effect.row.get("more_repeats")
        if verdict == "cannot tell" and decided and self.effect.is_within_yardstick:
            return "noise"
        return next((kind for kind in DECIDED if kind == verdict), "open")


def comparisons(
    results: StudyResults, factor: str, cells: Iterable[Cell], numbers: Collection[Number], say: Wording
) -> list[Told]:
    """All comparisons of one factor in these numbers, load level by load level, that the study holds."""
    wanted: dict[str, list[Cell]] = {}
    for cell in cells:
        wanted.setdefault(cell.workload, []).append(cell)
    found = []
    for workload in results.workloads:
        for index, point in enumerate(results.points_of(workload)):
            level = short_level(workload, point, results, say)
            for cell in wanted.get(workload, ()):
                for number in numbers:
                    effect = results.effect(factor, cell, index, *number)
                    if effect is not None:
                        found.append(Told(effect, cell, results.base_of(effect), index, number, level))
    return found


def named(cell: Cell, indexes: Iterable[int], say: Wording) -> str:
    """The cell's name, with a word where its numbers at one of these load levels are in doubt."""
    return say("summary.suspect", cell=cell.name) if any(is_suspect(cell, index) for index in indexes) else cell.name


def cell_of(members: Sequence[Told], say: Wording) -> str:
    """The name of the cell that these comparisons are about."""
    return named(members[0].cell, [each.index for each in members], say)


def number_and_cell_of(say: Wording) -> Callable[[Sequence[Told]], str]:
    """Of comparisons of one cell in one number: ``mean TTFT of 1p1d/fp8``."""
    return lambda members: say("findings.of", number=number_phrase(*members[0].number, say), cell=cell_of(members, say))


def tell_decided(told: Sequence[Told], name_of: Callable[[Sequence[Told]], str], margin: float, say: Wording) -> str:
    """``lower in A (…), higher in B (…) and equivalent within ±2% in C (…)``; empty where nothing was decided."""
    parts = []
    for kind in DECIDED:
        found = [each for each in told if each.kind == kind]
        if found:
            if kind == "equivalent":
                cells = names_with_loads(found, name_of, say, number_is_told=True)
            else:
                cells = _grouped(found, name_of, say)
            words = {"margin": f"±{100 * margin:g}%", "cells": cells}
            parts.append(say(f"findings.{kind}", **words))
    return say("list.semicolon").join(parts)


def tell_open(told: Sequence[Told], name_of: Callable[[Sequence[Told]], str], say: Wording) -> str:
    """``chunked/fp8 (c = 2): about 4 more repeats would likely decide``; empty where nothing is open."""
    found = [each for each in told if each.kind == "open"]
    groups = [[each for each in found if bool(each.effect.row.get("more_repeats")) is known] for known in (True, False)]
    return say("list.semicolon").join(
        say(
            "findings.open",
            cells=names_with_loads(members, name_of, say),
            advice=tell_more([each.effect.row.get("more_repeats") or "" for each in members], say),
        )
        for members in groups
        if members
    )


def tell_noise(told: Sequence[Told], say: Wording) -> list[str]:
    """The numbers in which a difference is sure, and yet no larger than that between cells that ran the same."""
    found = [each for each in told if each.kind == "noise"]
    return [say("findings.within_yardstick", numbers=_numbers(found, say))] if found else []


def tell_without_interval(told: Sequence[Told], say: Wording) -> list[str]:
    """The numbers without a verdict for want of launches, of values in a launch, or of both: each in one sentence."""
    few, weak = ({each.number for each in told if each.kind == kind} for kind in ("too few launches", "weak"))
    lacks = {"too_few_launches": few - weak, "too_few_of_both": few & weak, "weak": weak - few}
    found = {key: [each for each in told if each.number in numbers] for key, numbers in lacks.items()}
    return [_tell_lack(key, members, say) for key, members in found.items() if members]


def _tell_lack(key: str, told: Sequence[Told], say: Wording) -> str:
    """What these numbers lack. Cells with so few launches that they have no verdict in any number count too."""
    weak = [each for each in told if each.kind == "weak"]
    wanted = launches_wanted(*told[0].number)
    if key == "weak" and any(int(each.effect.row[side]) < wanted for each in weak for side in _LAUNCHES):
        key = "weak_and_few"
    missing = [each for each in told if each.kind in ("too few launches", "observed")]
    counts = {int(more) for each in missing if (more := each.effect.row.get("more_repeats"))}
    ends = list(dict.fromkeys(str(end) for end in (min(counts, default=0), max(counts, default=0))))
    return say(
        f"findings.{key}",
        numbers=_numbers(told, say),
        wanted=wanted,
        more=ends[0] if len(ends) == 1 else say("findings.range", first=ends[0], last=ends[1]),
        levels=listed_few(dict.fromkeys(each.level for each in weak), say),
    )


def tell_more(wanted: Iterable[str], say: Wording) -> str:
    """How many more repeats would likely decide, such as ``4`` and ``>47``; an empty text where that cannot be said."""
    told = set(wanted)
    texts = sorted(told - {""}, key=repeats_wanted)
    if not texts:
        return say("findings.advice.unknown")
    if "" in told:
        return say("findings.advice.not_of_all", advice=tell_more(texts, say))
    near = [text for text in texts if not text.startswith(">")]
    if not near:
        return say("findings.advice.beyond", count=texts[-1].lstrip(">"))
    low, high = near[0], near[-1]
    if low == high:
        advice = say("findings.advice.one" if low == "1" else "findings.advice.some", count=low)
    else:
        advice = say("findings.advice.range", low=low, high=high)
    if near == texts:
        return advice
    return say("findings.advice.partly", advice=advice, count=texts[-1].lstrip(">"))


def repeats_wanted(text: str) -> tuple[bool, int]:
    """The order of ``4``, ``12``, ``>47``."""
    return text.startswith(">"), int(text.lstrip(">"))


def tell_change(each: Told, say: Wording) -> str:
    """``−12.3% [−14.0, −10.2] at c = 2``, without the interval where there is none."""
    digits = change_digits(each.effect)
    change = format_change(each.effect.ratio, digits)
    if each.effect.interval is None:
        return say("findings.change", change=change, level=each.level)
    low, high = (format_change(end, digits).replace("%", "") for end in each.effect.interval)
    return say("findings.effect", change=change, low=low, high=high, level=each.level)


def tell_range(ratios: Sequence[float], say: Wording, digits: int = 1) -> str:
    """``−12.3%``; of several ``−14.0% to −10.2%``."""
    first, last = (format_change(end, digits) for end in (min(ratios), max(ratios)))
    return first if first == last else say("findings.range", first=first, last=last)


def _grouped(told: Sequence[Told], name_of: Callable[[Sequence[Told]], str], say: Wording) -> str:
    """Each name with its effects; of many their number and range."""
    names = _by_name(told, name_of)
    if len(names) <= MOST_NAMED:
        return listed([say("findings.entry", name=name, effects=_effects(each, say)) for name, each in names], say)
    ordered = sorted(told, key=lambda each: abs((each.effect.ratio or 1.0) - 1))
    first, last = (
        say("findings.entry", name=name_of([each]), effects=tell_change(each, say))
        for each in (ordered[0], ordered[-1])
    )
    return say("findings.many", count=len(told), first=first, last=last)


def names_with_loads(
    told: Sequence[Told], name_of: Callable[[Sequence[Told]], str], say: Wording, *, number_is_told: bool = False
) -> str:
    """Each name with its load levels, such as ``chunked/fp8 (c = 2)``; of very many how many, number by number.

    ``number_is_told``: the sentence has named the one number that all of this is about.
    """
    names = _by_name(told, name_of)
    if len(names) > MOST_NAMED and number_is_told:
        return say("findings.so_many_of_one", count=len(told), levels=_levels(told, say))
    if len(names) > MOST_NAMED:
        numbers = [
            say("findings.entry", name=number_phrase(*number, say), effects=_levels(members, say))
            for number in dict.fromkeys(each.number for each in told)
            if (members := [each for each in told if each.number == number])
        ]
        return say("findings.so_many", count=len(told), numbers=listed(numbers, say))
    levels = {_levels(each, say) for _, each in names}
    if len(levels) == 1 and len(names) > 1:
        return say("findings.alike", names=listed([name for name, _ in names], say), levels=levels.pop())
    return listed([say("findings.entry", name=name, effects=_levels(each, say)) for name, each in names], say)


def _effects(told: Sequence[Told], say: Wording) -> str:
    """``+2.0% [+1.8, +2.2] at c = 2``; of many load levels the range, and the ends of all intervals."""
    intervals = [each.effect.interval for each in told if each.effect.interval]
    if len(told) <= MOST_CHANGES or not intervals:
        return say("list.comma").join(tell_change(each, say) for each in told)
    digits = max(change_digits(each.effect) for each in told)
    change = tell_range([each.effect.ratio or 1.0 for each in told], say, digits)
    ends = min(low for low, _ in intervals), max(high for _, high in intervals)
    low, high = (format_change(end, digits).replace("%", "") for end in ends)
    return say("findings.effect", change=change, low=low, high=high, level=_levels(told, say))


def _by_name(told: Sequence[Told], name_of: Callable[[Sequence[Told]], str]) -> list[tuple[str, list[Told]]]:
    """Comparisons of the same cells and number together, in their order."""
    groups: dict[tuple[Cell, Number], list[Told]] = {}
    for each in told:
        groups.setdefault((each.cell, each.number), []).append(each)
    return [(name_of(members), members) for members in groups.values()]


def _numbers(told: Sequence[Told], say: Wording) -> str:
    return listed(dict.fromkeys(number_phrase(*each.number, say) for each in told), say)


def _levels(told: Sequence[Told], say: Wording) -> str:
    return separated(dict.fromkeys(each.level for each in told), "list.comma", say)
