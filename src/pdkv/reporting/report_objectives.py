"""The table of the conclusion, objective by load by hardware: who may be the best, its lead, what would decide."""

from collections.abc import Sequence

from pdkv.analysing.identical_cells import identical_groups
from pdkv.analysing.objective_places import Lead, Outcome
from pdkv.analysing.study_results import StudyResults
from pdkv.reporting.report_blocks import Column, Table, Value, left, row, ruled_by
from pdkv.reporting.report_leads import ahead_untested, is_within_noise
from pdkv.reporting.report_outcomes import (
    SUSPECT,
    OutcomesOf,
    amount,
    goal_name,
    in_places,
    interval_ends,
    level_name,
    marked_cells,
    split_from,
    value_with_unit,
)
from pdkv.reporting.report_phrases import digits_of_changes, format_change, separated
from pdkv.reporting.report_refusals import why_unlike
from pdkv.reporting.stored_texts import retell
from pdkv.reporting.wording import Wording
from pdkv.units import DASH

NOT_LAUNCHES, SAME, SPLIT, OTHER_WAY = "*", "≈", "§", "‡"
RECOMMENDED = ("best", "equally good")


def objectives_table(results: StudyResults, races: Sequence[Outcome], margin: float, say: Wording) -> Table:
    """A row for each race; differences up to ``margin`` (0.02: 2%) do not matter."""
    rows = []
    places = in_places(races)
    shown = ""
    for outcome in races:
        goal = goal_name(outcome, say)
        labels = ("" if goal == shown else goal, level_name(results, outcome, say) or DASH)
        device = amount(outcome, say) or say("recommend.differs")
        split = _split(results, places, outcome, say)
        rows.append(
            row(
                *labels,
                Value(device, split, mark=SPLIT if split else ""),
                _cells(results, outcome, margin, say),
                *_lead(results, outcome, say),
                _more(outcome),
            )
        )
        shown = goal
    columns = (
        left(say("recommend.objective"), wide=True, carried=True), left(say("effects.level")),
        left(say("mode.hardware")),
        left(say("recommend.cells"), wide=True), Column(say("recommend.value")),
        left(say("recommend.next_best")), Column(say("recommend.difference")), Column(say("recommend.more")),
    )  # fmt: skip
    notes = _notes(races, rows, margin, say)
    ruled = ruled_by((outcome.objective, outcome.metric) for outcome in races)
    return Table(say("recommend.caption"), columns, tuple(rows), notes, ruled)


def _split(results: StudyResults, races: OutcomesOf, outcome: Outcome, say: Wording) -> str:
    """Why its cells do not race with others on as much hardware; empty where they all do."""
    other = split_from(races, outcome)
    if other is None:
        return ""
    cells = {cell.name: cell for cell in results.cells_of(outcome.workload)}
    return why_unlike(cells[outcome.cells[0].name], cells[other.cells[0].name], say)


def _cells(results: StudyResults, outcome: Outcome, margin: float, say: Wording) -> Value:
    """What is recommended, what cannot be told apart, or what looked best; below it who is worse or not tested."""
    worse = marked_cells(outcome.worse, say)
    under = say("recommend.shown_worse", cells=worse) if worse and outcome.place != "best" else ""
    if outcome.untested:
        apart = say("recommend.untested_here", cells=marked_cells(outcome.untested, say))
        under = f"{under}\n{apart}" if under else apart
    ahead = ahead_untested(results, outcome, margin, say)
    if ahead:
        words = {"cells": marked_cells(ahead, say), "value": value_with_unit(ahead[0], say)}
        under += f"\n{say('recommend.observed_best_untested', **words)}"
    names = marked_cells(outcome.best_first or outcome.leaders, say)
    match outcome.place:
        case "best" | "equally good" if ahead:
            return Value(say("recommend.best_of_tested", cells=names), under)
        case "best" | "equally good":
            return Value(names, under, best=True)
        case "cannot tell":
            return Value(say("recommend.cannot_tell_between", cells=names), under)
    noisy = outcome.lead is not None and _is_noise(results, outcome, outcome.lead)
    return Value(say("recommend.observed_none" if noisy else "recommend.observed_best", cells=names), under)


def _lead(results: StudyResults, outcome: Outcome, say: Wording) -> tuple[Value, Value, Value]:
    """The leader's value, the next best with its own, and how far they are apart."""
    value = Value(value_with_unit(outcome.leaders[0], say))
    lead = outcome.lead
    if lead is None:
        return value, Value(DASH), Value(DASH)
    under, digits = "", 1
    if outcome.place == "best" and lead.ratio is not None:  # a lead, however small, is shown as one
        digits = digits_of_changes((lead.ratio, *(lead.interval or ())))
    if lead.interval is not None:
        under = say("effects.interval", **interval_ends(*lead.interval, digits))
    change = DASH if lead.ratio is None else format_change(lead.ratio, digits)
    mark = SAME if _is_noise(results, outcome, lead) else ""
    mark += OTHER_WAY if outcome.leaders[0].values_point_the_other_way else ""
    rival = Value(marked_cells([lead.rival], say), value_with_unit(lead.rival, say))
    return value, rival, Value(change, under, mark=mark)


def _is_noise(results: StudyResults, outcome: Outcome, lead: Lead) -> bool:
    """Whether both ran the same configuration, or differ by no more than cells that did."""
    return _same_configuration(results, outcome, lead) or is_within_noise(results, outcome, lead.ratio)


def _same_configuration(results: StudyResults, outcome: Outcome, lead: Lead) -> bool:
    groups = ({cell.name for cell in group} for group in identical_groups(results.cells_of(outcome.workload)))
    return any({lead.leader.name, lead.rival.name} <= names for names in groups)


def _more(outcome: Outcome) -> Value:
    """Launches that would likely decide; a mark where it is not launches that are missing."""
    if outcome.place in RECOMMENDED:
        return Value(DASH)
    return Value(outcome.more_repeats) if outcome.more_repeats else Value(DASH, mark=NOT_LAUNCHES)


def _notes(races: Sequence[Outcome], rows: Sequence[tuple[Value, ...]], margin: float, say: Wording) -> tuple[str, ...]:
    marks = {value.mark for each in rows for value in each}
    notes = [say("recommend.columns_note")]
    if any(outcome.untested for outcome in races):
        notes.append(say("recommend.untested_note"))
    if any(outcome.place != "not decided" for outcome in races):
        notes.append(say("recommend.note", margin=f"±{100 * margin:g}%"))
    if NOT_LAUNCHES in marks:
        reasons = [
            retell(cell.why_open, say)
            for outcome in races
            if _more(outcome).mark
            for cell in outcome.left or outcome.cells
            if cell.why_open
        ]
        why = separated(dict.fromkeys(reasons), "list.semicolon", say)
        notes.append(f"{NOT_LAUNCHES} {say('recommend.not_launches', why=why)}")
    if SPLIT in marks:
        notes.append(f"{SPLIT} {say('recommend.split')}")
    if any(SAME in mark for mark in marks):
        notes.append(f"{SAME} {say('recommend.same')}")
    if any(OTHER_WAY in mark for mark in marks):
        notes.append(f"{OTHER_WAY} {say('recommend.other_way')}")
    if any(cell.suspect for outcome in races for cell in outcome.cells):
        notes.append(f"{SUSPECT} {say('note.suspect')}")
    return tuple(notes)
