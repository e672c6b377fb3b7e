"""What the conclusion leaves open: that nothing may be recommended, what would decide, and what was not compared."""

from collections.abc import Collection, Sequence

from pdkv.analysing.objective_numbers import GOALS, OF_SERVICE
from pdkv.analysing.objective_places import Outcome
from pdkv.analysing.study_results import StudyResults
from pdkv.reporting.report_findings import tell_more
from pdkv.reporting.report_objectives import RECOMMENDED
from pdkv.reporting.report_outcomes import (
    best_share_served,
    goal_name,
    in_places,
    is_hardly_served,
    level_name,
    objective_name,
    split_from,
)
from pdkv.reporting.report_phrases import counted, listed, listed_few, listed_some, number_phrase, separated
from pdkv.reporting.report_service import percent
from pdkv.reporting.stored_texts import retell
from pdkv.reporting.wording import Wording

OPTIONAL = ("goodput", "cost", "service cost")


def tell_nothing(results: StudyResults, races: Sequence[Outcome], say: Wording) -> str:
    """That no cell could be put aside anywhere, and what would be needed."""
    undecided = [race for race in races if race.place == "cannot tell"]
    if undecided:
        return say("recommend.nothing_shown", advice=tell_more([race.more_repeats for race in undecided], say))
    few = [race for race in races if race.more_repeats]
    if not few:
        return say("recommend.nothing_tested")
    needed: dict[str, int] = {}
    for race in few:
        needed[_kind(race)] = max(needed.get(_kind(race), 0), int(race.more_repeats))
    first = needed.get("other") or min(needed.values())
    later = [kind for kind in ("p99", "goodput") if needed.get(kind, 0) > first]
    wanted = counted(first, "recommend.more_launches", say)
    beyond = [race for race in races if not race.more_repeats]
    if later:
        names = [name for kind in later for name in _later(results, kind, few, beyond, say)]
        count = max(needed[kind] for kind in later)
        wanted = say("recommend.more_later", wanted=wanted, count=count, numbers=listed(names, say))
    places = in_places(races)
    split = any(split_from(places, race) for race in races)
    said = say("recommend.nothing_yet_split" if split else "recommend.nothing_yet", wanted=wanted)
    return said + _tell_beyond(results, beyond, few, say)


def _kind(race: Outcome) -> str:
    """Which numbers want as many launches."""
    return "p99" if race.stat == "p99" else "goodput" if race.metric in OF_SERVICE else "other"


def _later(
    results: StudyResults, kind: str, few: Sequence[Outcome], beyond: Sequence[Outcome], say: Wording
) -> list[str]:
    """``a p99``; where launches are not all that some numbers of the kind lack, those of which they are."""
    of_kind = [race for race in beyond if _kind(race) == kind]
    if not of_kind:
        return [say(f"recommend.later.{kind}")]
    return _numbers(results, [race for race in few if _kind(race) == kind], of_kind, say)


def _tell_beyond(results: StudyResults, beyond: Sequence[Outcome], few: Sequence[Outcome], say: Wording) -> str:
    """The numbers in which launches alone would decide nothing, with the reason where it is one; empty without any."""
    if not beyond:
        return ""
    names = listed(_numbers(results, beyond, few, say), say)
    reasons = {retell(cell.why_open, say) for race in beyond for cell in race.cells if cell.why_open}
    if len(reasons) == 1:
        return say("recommend.beyond_launches_why", numbers=names, why=reasons.pop())
    return say("recommend.beyond_launches", numbers=names)


def _numbers(results: StudyResults, races: Sequence[Outcome], others: Sequence[Outcome], say: Wording) -> list[str]:
    """``p99 TTFT``; ``p99 TTFT (c = 2)`` where ``others`` have the number too."""
    elsewhere = {(race.metric, race.stat) for race in others}
    names = []
    for number in dict.fromkeys((race.metric, race.stat) for race in races):
        name = number_phrase(*number, say)
        levels = [level_name(results, race, say) for race in races if (race.metric, race.stat) == number]
        if number in elsewhere and any(levels):
            name = say("findings.entry", name=name, effects=listed_few(dict.fromkeys(filter(None, levels)), say))
        names.append(name)
    return names


def tell_open(races: Sequence[Outcome], say: Wording) -> list[str]:
    """Objectives in which nothing was decided somewhere."""
    names = list(dict.fromkeys(goal_name(race, say) for race in races if race.place not in RECOMMENDED))
    return [say("recommend.remain_open", goals=listed(names, say))] if names else []


def tell_missing(
    results: StudyResults, outcomes: Sequence[Outcome], races: Sequence[Outcome], say: Wording
) -> list[str]:
    """Objectives that were not measured at all, and those in which no two cells met."""
    known = {outcome.objective for outcome in outcomes}
    measured = {outcome.objective for outcome in outcomes if outcome.place != "out"}
    # Without service levels goodput is no objective, without prices no cost is: then they have no rows.
    every = [name for name in dict.fromkeys(goal.objective for goal in GOALS) if name not in OPTIONAL or name in known]
    raced = {race.objective for race in races}
    unserved = _tell_unserved(results, outcomes, say)
    if unserved:  # then goodput was measured, and is told by itself
        every = [name for name in every if name not in ("goodput", "service cost")]
    sentences = list(unserved)
    untold = [name for name in every if name not in measured]
    if untold:
        sentences.append(say("recommend.not_measured", goals=_goals(untold, say)))
    alone: dict[str, list[str]] = {}
    for name in every:
        if name in measured - raced:
            alone.setdefault(_common_reason(outcomes, name, say), []).append(name)
    for reason, names in alone.items():
        key = "recommend.nothing_to_compare_why" if reason else "recommend.nothing_to_compare"
        sentences.append(say(key, goals=_goals(names, say), reason=reason))
    return sentences


def _goals(objectives: Sequence[str], say: Wording) -> str:
    return listed([objective_name(name, say) for name in objectives], say)


def _common_reason(outcomes: Sequence[Outcome], objective: str, say: Wording) -> str:
    """Why no two cells met, where it is the same for all that have a value; empty where reasons differ."""
    alone = (each.cells[0].row["note"] for each in outcomes if each.objective == objective and each.place != "out")
    reasons = {retell(note or "", say) for note in alone}
    return reasons.pop() if len(reasons) == 1 else ""


def _tell_unserved(results: StudyResults, outcomes: Sequence[Outcome], say: Wording) -> list[str]:
    """The load levels at which no request met the service levels, then those at which hardly any did."""
    loads: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.objective == "goodput":
            loads.setdefault((outcome.workload, outcome.concurrency), []).append(outcome)
    none, hardly = [], []
    for members in loads.values():
        values = [cell.value for outcome in members for cell in outcome.cells if cell.value is not None]
        if values and not any(values):
            none += members
        elif is_hardly_served(results, members[0]):
            hardly += members
    sentences = []
    for key, found in (("recommend.none_served", none), ("recommend.hardly_served", hardly)):
        if found:
            levels = separated(dict.fromkeys(level_name(results, each, say) for each in found), "list.comma", say)
            goal = say("findings.entry", name=objective_name("goodput", say), effects=levels)
            share = percent(max(best_share_served(results, each) or 0.0 for each in found))
            sentences.append(say(key, goal=goal, share=share))
    return sentences


def tell_apart(results: StudyResults, outcomes: Sequence[Outcome], say: Wording) -> tuple[str, ...]:
    """Cells that were set against no other, with the reason once; the load where it holds for some levels only."""
    found: dict[tuple[str, str, str], list[Outcome]] = {}
    loads: dict[tuple[str, str], set[str]] = {}
    for outcome in outcomes:
        cell = outcome.cells[0]
        loads.setdefault((outcome.workload, outcome.objective), set()).add(outcome.concurrency)
        if outcome.place in ("out", "not compared"):
            key = (outcome.workload, cell.name, retell(cell.row["note"] or "", say))
            found.setdefault(key, []).append(outcome)
    cells: dict[tuple[str, str], list[str]] = {}
    for (workload, cell_name, reason), members in found.items():
        name = cell_name if len(results.workloads) == 1 else f"{workload}/{cell_name}"
        objectives = dict.fromkeys(each.objective for each in members)
        goals = listed(
            [_goal_at(results, loads[workload, objective], members, objective, say) for objective in objectives], say
        )
        cells.setdefault((goals, reason), []).append(name)
    return tuple(
        say("recommend.not_compared", cell=listed_few(names, say), goals=goals, reason=reason)
        for (goals, reason), names in cells.items()
    )


def _goal_at(
    results: StudyResults, loads: Collection[str], apart: Sequence[Outcome], objective: str, say: Wording
) -> str:
    """``Goodput``; ``Goodput (c = 64)`` where the objective has other ``loads`` too."""
    name = objective_name(objective, say)
    chosen = {each.concurrency: each for each in apart if each.objective == objective}
    if set(chosen) == loads:
        return name
    levels = listed_some([level_name(results, each, say) for each in chosen.values()], say)
    return say("findings.entry", name=name, effects=levels)
