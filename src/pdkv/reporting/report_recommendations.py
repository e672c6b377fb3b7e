"""The conclusion: in words only what the verdicts carry, then a table of all objectives, and what was not compared.

Nothing is recommended because it looked best: what is left when all cells that are shown worse are put aside is named.
"""

from collections.abc import Callable, Sequence
from functools import partial

from pdkv.analysing.identical_cells import identical_groups
from pdkv.analysing.objective_places import Outcome, PlacedCell
from pdkv.analysing.study_results import StudyResults
from pdkv.reporting.report_blocks import Block, Bullets, Paragraph, Section
from pdkv.reporting.report_findings import tell_range
from pdkv.reporting.report_headlines import tell_rivals_without_verdict
from pdkv.reporting.report_leads import ahead_untested
from pdkv.reporting.report_objectives import RECOMMENDED, objectives_table
from pdkv.reporting.report_open_objectives import tell_apart, tell_missing, tell_nothing, tell_open
from pdkv.reporting.report_outcomes import (
    OutcomesOf,
    amount,
    goal_name,
    in_places,
    interval_ends,
    is_hardly_served,
    level_name,
    numbers_of,
    of_number,
    others_in_place,
    said_cell,
    said_cells,
    tell_untested,
    value_with_unit,
)
from pdkv.reporting.report_phrases import counted, digits_of_changes, levels_phrase, listed, listed_few, separated
from pdkv.reporting.wording import Wording


def describe_conclusion(
    results: StudyResults, outcomes: Sequence[Outcome], margin: float, say: Wording
) -> list[Section]:
    """What may be recommended, or that nothing may; the evidence as a table; then what was set against nothing."""
    races, places = _races(results, outcomes), in_places(outcomes)
    ahead = partial(ahead_untested, results, margin=margin, say=say)
    blocks: list[Block] = []
    carried = [
        say(
            "recommend.goal",
            goal=goal_name(alike[0], say),
            parts=_told(results, places, alike, margin, say, lead=True),
        )
        for number in numbers_of(races)
        for alike in _alike(places, of_number(races, number), ahead)
    ]
    if races and not carried:
        blocks.append(Paragraph(tell_nothing(results, races, say)))
    missing = tell_missing(results, outcomes, races, say)
    rivals = tell_rivals_without_verdict(results, say) if races else []
    if carried or missing or rivals:
        blocks.append(Bullets((*carried, *(tell_open(races, say) if carried else []), *rivals, *missing)))
    blocks.append(Paragraph(say("recommend.reading", margin=_margin(margin))))
    if races:
        blocks.append(objectives_table(results, races, margin, say))
    apart = tell_apart(results, outcomes, say)
    if apart:
        blocks += [Paragraph(say("recommend.apart")), Bullets(apart)]
    return [Section(say("recommend.title"), tuple(blocks))]


def say_what_is_recommended(
    results: StudyResults, outcomes: Sequence[Outcome], margin: float, say: Wording
) -> list[str]:
    """For the summary: a sentence for each objective in which any cell could be put aside, without the evidence.

    Where there is none: one that says so. Nothing without outcomes.
    """
    races, places = _races(results, outcomes), in_places(outcomes)
    ahead = partial(ahead_untested, results, margin=margin, say=say)
    sentences = []
    for number in numbers_of(races):
        clauses = [
            _told(results, places, alike, margin, say, lead=False)
            for alike in _alike(places, of_number(races, number), ahead)
        ]
        if clauses:
            goal = goal_name(of_number(races, number)[0], say)
            sentences.append(say("recommend.goal", goal=goal, parts=separated(clauses, "list.semicolon", say)))
    if not races:
        return []
    if not sentences:
        return [tell_nothing(results, races, say)]
    return [*sentences, *tell_open(races, say), *tell_missing(results, outcomes, races, say)]


def has_verdicts(results: StudyResults, outcomes: Sequence[Outcome]) -> bool:
    """Whether launches sufficed anywhere to tell cells apart, or that they cannot be."""
    return any(outcome.place != "not decided" for outcome in _races(results, outcomes))


def _races(results: StudyResults, outcomes: Sequence[Outcome]) -> list[Outcome]:
    return [outcome for outcome in outcomes if len(outcome.cells) > 1 and not is_hardly_served(results, outcome)]


def _alike(
    outcomes: OutcomesOf, races: Sequence[Outcome], ahead: Callable[[Outcome], list[PlacedCell]]
) -> list[list[Outcome]]:
    """Races of one goal in which any cell was put aside or all are equal, those of the same outcome together.

    The same cells have raced, as many were left out, and all or none saw a cell ``ahead`` that was not tested.
    """
    groups: dict[tuple[object, ...], list[Outcome]] = {}
    for race in races:
        if race.place in RECOMMENDED or race.worse:
            names = tuple((cell.name, cell.suspect) for cell in race.left)
            entered, left_out = tuple(cell.name for cell in race.cells), len(_left_out(outcomes, race))
            untested = tuple(cell.name for cell in race.untested)
            key = (race.hardware, race.place, names, entered, untested, left_out, bool(ahead(race)))
            groups.setdefault(key, []).append(race)
    return list(groups.values())


def _left_out(outcomes: OutcomesOf, race: Outcome) -> list[PlacedCell]:
    """Cells of the study that might have been better, had they been tested here: not measured, not comparable, or with
    too few launches.

    On other hardware is not left out, for the sentence names the hardware; nor is a cell that served no request.
    """
    return race.untested + [
        cell
        for each in others_in_place(outcomes, race)
        for cell in each.cells
        if race.hardware in ("", cell.row["hardware"]) or not cell.row["hardware"]
        if cell.place != "out" or cell.value is None
    ]


def _among(outcomes: OutcomesOf, race: Outcome, clause: str, say: Wording) -> str:
    """The clause, with the cells that it is about where another race has some, or how many where some are in none."""
    left_out = _left_out(outcomes, race)
    if not left_out:
        return clause
    tested = [cell for cell in race.cells if cell not in race.untested]
    told = {"clause": clause, "count": len(tested), "left_out": counted(len(left_out), "recommend.left_out", say)}
    if any(cell.row["race"] for cell in left_out if cell not in race.untested):
        cells = listed_few([said_cell(cell, say) for cell in tested], say)
        return say("recommend.among_cells", cells=cells, **told)
    return say("recommend.among", **told)


def _told(
    results: StudyResults,
    outcomes: OutcomesOf,
    alike: Sequence[Outcome],
    margin: float,
    say: Wording,
    *,
    lead: bool,
) -> str:
    """``with 2 GPUs at c = 2 and c = 64, 2x/fp8 is best``."""
    clause = _among(outcomes, alike[0], _clause(results, alike, margin, say, lead=lead), say)
    if apart := tell_untested(alike[0], say):
        clause = say("recommend.and_apart", clause=clause, apart=apart)
    if ahead_untested(results, alike[0], margin, say):  # then at each of these levels
        overtaken = [_tell_ahead(results, each, margin, say, at_level=len(alike) > 1) for each in alike]
        clause = say("recommend.overtaken", ahead=listed(overtaken, say), clause=clause)
    named = [text for each in alike if (text := level_name(results, each, say))]
    levels = levels_phrase(named, results, say)
    device = amount(alike[0], say)
    key = "recommend." + "_".join(["at", *(["load"] if levels else []), *(["hardware"] if device else [])])
    return say(key, clause=clause, levels=levels, hardware=device) if levels or device else clause


def _tell_ahead(results: StudyResults, race: Outcome, margin: float, say: Wording, *, at_level: bool) -> str:
    """``2x/fp8 at c = 8 (289 ms against 1,294 ms)``: who was observed ahead of all that were tested."""
    ahead = ahead_untested(results, race, margin, say)
    level = level_name(results, race, say) if at_level else ""
    return say(
        "recommend.ahead_at" if level else "recommend.ahead",
        cells=listed_few([said_cell(cell, say) for cell in ahead], say),
        level=level,
        value=value_with_unit(ahead[0], say),
        tested=value_with_unit(race.leaders[0], say),
    )


def _clause(results: StudyResults, alike: Sequence[Outcome], margin: float, say: Wording, *, lead: bool) -> str:
    outcome = alike[0]
    cells = said_cells(outcome, outcome.left, say)
    rest = counted(len(outcome.worse), "recommend.rest", say) if outcome.worse else ""
    match outcome.place:
        case "best":
            evidence = _lead(alike, say) if lead else ""
            return (
                say("recommend.best_by", cell=cells, lead=evidence) if evidence else say("recommend.best", cell=cells)
            )
        case "equally good" if _same_configuration(results, outcome):
            return say("recommend.equal_same", cells=cells, rest=rest)
        case "equally good":
            return say("recommend.equal", cells=cells, margin=_margin(margin), rest=rest)
    return say("recommend.open", cells=cells, rest=rest)


def _same_configuration(results: StudyResults, outcome: Outcome) -> bool:
    """Whether all that is left ran one: no margin was tested between them."""
    left = {cell.name for cell in outcome.left}
    groups = identical_groups(results.cells_of(outcome.workload))
    return any(left <= {cell.name for cell in group} for group in groups)


def _lead(alike: Sequence[Outcome], say: Wording) -> str:
    """Over the nearest rival: of several load levels the range, and the interval that holds all of theirs."""
    leads = [lead for each in alike if (lead := each.lead) is not None and lead.ratio is not None]
    ratios = [lead.ratio for lead in leads if lead.ratio is not None]
    intervals = [lead.interval for lead in leads if lead.interval is not None]
    if not ratios:
        return ""
    digits = digits_of_changes([*ratios, *(end for interval in intervals for end in interval)])
    change = tell_range(ratios, say, digits)
    if intervals:
        ends = interval_ends(min(low for low, _ in intervals), max(high for _, high in intervals), digits)
        change = say("recommend.with_interval", change=change, **ends)
    rivals = dict.fromkeys(said_cell(lead.rival, say) for lead in leads)
    key = "recommend.lead" if len(rivals) == 1 else "recommend.leads"
    return say(key, change=change, rival=next(iter(rivals)))


def _margin(margin: float) -> str:
    return f"±{100 * margin:g}%"
