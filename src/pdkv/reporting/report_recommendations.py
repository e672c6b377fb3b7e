"""The conclusion: for each objective what may be recommended, on what evidence, and what remains open."""

from collections.abc import Iterable, Sequence

from pdkv.analysing.objective_numbers import GOALS
from pdkv.analysing.objective_places import Outcome, PlacedCell
from pdkv.analysing.study_results import StudyResults
from pdkv.reporting.report_blocks import Block, Bullets, Paragraph, Section, Table, Value, left, row, ruled_by
from pdkv.reporting.report_findings import MOST_NAMED, tell_more
from pdkv.reporting.report_phrases import counted, format_change, hardware_of, level_of_label, listed, number_phrase
from pdkv.reporting.stored_texts import retell
from pdkv.reporting.wording import Wording
from pdkv.units import DASH, format_quantity

SUSPECT = "†"
DECIDED = ("best", "equally good")
Numbers = list[tuple[str, str, str]]  # objective, metric, statistic


def describe_conclusion(
    results: StudyResults, outcomes: Sequence[Outcome], margin: float, say: Wording
) -> list[Section]:
    """A recommendation per objective with its table, then the objectives that remain open."""
    races = [outcome for outcome in outcomes if len(outcome.cells) > 1]
    blocks: list[Block] = [Paragraph(say("recommend.reading", margin=_margin(margin)))]
    sentences = [tell_goal(results, _of(races, number), margin, say) for number in _numbers(races)]
    still_open = _tell_open(outcomes, races, say)
    blocks.append(Bullets((*sentences, *still_open)))
    if any(outcome.place != "not decided" for outcome in races):
        blocks.append(_table(results, races, margin, say))
    apart = _tell_apart(results, outcomes, say)
    if apart:
        blocks += [Paragraph(say("recommend.apart")), Bullets(apart)]
    return [Section(say("recommend.title"), tuple(blocks))]


def say_what_is_recommended(
    results: StudyResults, outcomes: Sequence[Outcome], margin: float, say: Wording
) -> list[str]:
    """For the summary: the objectives in which any cell could be put aside, and the names of those that remain open.

    Nothing where launches are too few for any verdict.
    """
    races = [outcome for outcome in outcomes if len(outcome.cells) > 1 and outcome.place != "not decided"]
    if not races:
        return []
    decided = [outcome for outcome in races if outcome.place in DECIDED or outcome.worse]
    sentences = [tell_goal(results, _of(decided, number), margin, say) for number in _numbers(decided)]
    return [*sentences, *_tell_open(outcomes, races, say)]


def tell_goal(results: StudyResults, outcomes: Sequence[Outcome], margin: float, say: Wording) -> str:
    """One number of an objective, over all load levels and amounts of hardware: ``First token (mean TTFT): …``."""
    alike: dict[tuple[str, ...], list[Outcome]] = {}
    for number, outcome in enumerate(outcomes):
        names = _cells(outcome, outcome.left, say)
        merged = outcome.place in ("equally good", "cannot tell")
        alike.setdefault((outcome.hardware, outcome.place, names if merged else str(number)), []).append(outcome)
    parts = [_placed(results, members, _clause(members, margin, say), say) for members in alike.values()]
    return say("recommend.goal", goal=goal_name(outcomes[0], say), parts=say("list.semicolon").join(parts))


def goal_name(outcome: Outcome, say: Wording) -> str:
    """``Tail (p99 ITL)``."""
    number = number_phrase(outcome.metric, outcome.stat, say)
    return say("recommend.name", objective=say(f"objective.{_key(outcome.objective)}"), number=number)


def _clause(outcomes: Sequence[Outcome], margin: float, say: Wording) -> str:
    """What is recommended between the cells of a race, or of several with the same cells left."""
    outcome = outcomes[0]
    cells = _cells(outcome, outcome.left, say)
    match outcome.place:
        case "best":
            best = outcome.left[0]
            return say("recommend.best", cell=cells, lead=_lead(best, say)) if best.ratio else cells
        case "equally good":
            return say("recommend.equal", cells=cells, margin=_margin(margin), rest=_rest(outcome, say))
        case "cannot tell":
            advice = tell_more([each.more_repeats for each in outcomes], say)
            return say("recommend.open", cells=cells, rest=_rest(outcome, say), advice=advice)
    return say("recommend.observed", observed=_observed(outcome, say), advice=_launches_wanted(outcome, say))


def _placed(results: StudyResults, members: Sequence[Outcome], clause: str, say: Wording) -> str:
    """A clause with the load levels that it holds for, and the hardware where that is the same for all cells."""
    levels = listed(dict.fromkeys(text for each in members if (text := _level(results, each, say))), say)
    amount = _amount(members[0], say)
    key = "recommend." + "_".join(["at", *(["load"] if levels else []), *(["hardware"] if amount else [])])
    return say(key, clause=clause, levels=levels, hardware=amount) if levels or amount else clause


def _lead(best: PlacedCell, say: Wording) -> str:
    if best.interval is None:
        return say("recommend.lead_observed", change=format_change(best.ratio), rival=best.against)
    low, high = (format_change(end).replace("%", "") for end in best.interval)
    return say("recommend.lead", change=format_change(best.ratio), low=low, high=high, rival=best.against)


def _rest(outcome: Outcome, say: Wording) -> str:
    return counted(len(outcome.worse), "recommend.rest", say) if outcome.worse else ""


def _observed(outcome: Outcome, say: Wording) -> str:
    """From which value to which, without a verdict."""
    known = [(cell.value, cell) for cell in outcome.cells if cell.value is not None]
    low, high = min(known, key=lambda pair: pair[0]), max(known, key=lambda pair: pair[0])
    words = {"low": format_quantity(low[0]), "high": format_quantity(high[0]), "unit": _unit(low[1], say)}
    if words["low"] == words["high"]:
        return say("recommend.alike", low=words["low"], unit=words["unit"])
    return say("recommend.range", low_cell=_name(low[1], say), high_cell=_name(high[1], say), **words)


def _launches_wanted(outcome: Outcome, say: Wording) -> str:
    """What a verdict would need: launches, or, where those are there, more values in each."""
    more = outcome.more_repeats
    if not more:
        notes = (cell.row["note"] for cell in outcome.cells)
        return retell(next((note for note in notes if note), ""), say)
    return counted(int(more), "recommend.more_launches", say)


def _table(results: StudyResults, races: Sequence[Outcome], margin: float, say: Wording) -> Table:
    """The evidence: who is left, by what lead, who is shown worse, what would decide."""
    rows = []
    shown = ""
    for outcome in races:
        goal = goal_name(outcome, say)
        left_cells = outcome.left or list(outcome.cells)
        advice = outcome.more_repeats if outcome.place != "best" else ""
        rows.append(
            row(
                "" if goal == shown else goal,
                _level(results, outcome, say) or DASH,
                _amount(outcome, say) or say("recommend.differs"),
                Value(_cells(outcome, left_cells, say, mark=True), under=_evidence(outcome, say)),
                say(f"place.{_key(outcome.place)}"),
                _cells(outcome, outcome.worse, say, mark=True) or DASH,
                advice or DASH,
            )
        )
        shown = goal
    columns = (
        left(say("recommend.objective"), wide=True),
        left(say("effects.level")),
        left(say("mode.hardware")),
        left(say("recommend.may_be_best"), wide=True),
        left(say("recommend.place")),
        left(say("recommend.worse"), wide=True),
        left(say("recommend.more")),
    )
    notes = [say("recommend.note", margin=_margin(margin))]
    if any(cell.suspect for outcome in races for cell in outcome.cells):
        notes.append(f"{SUSPECT} {say('note.suspect')}")
    ruled = ruled_by((outcome.objective, outcome.metric) for outcome in races)
    return Table(say("recommend.caption"), columns, tuple(rows), tuple(notes), ruled)


def _evidence(outcome: Outcome, say: Wording) -> str:
    best = outcome.left[0] if outcome.place == "best" else None
    return _lead(best, say) if best and best.ratio else ""


def _tell_open(outcomes: Sequence[Outcome], races: Sequence[Outcome], say: Wording) -> list[str]:
    """Objectives in which nothing was decided somewhere, and those that were not measured at all."""
    open_races = [outcome for outcome in races if outcome.place not in DECIDED]
    names = list(dict.fromkeys(goal_name(outcome, say) for outcome in open_races))
    sentences = [say("recommend.remain_open", goals=listed(names, say))] if names else []
    measured = {outcome.objective for outcome in outcomes if outcome.place != "out"}
    missing = [name for name in dict.fromkeys(goal.objective for goal in GOALS) if name not in measured]
    if missing:
        goals = listed([say(f"objective.{_key(name)}") for name in missing], say)
        sentences.append(say("recommend.not_measured", goals=goals))
    raced = {outcome.objective for outcome in outcomes if len(outcome.cells) > 1}
    alone = [name for name in dict.fromkeys(o.objective for o in outcomes) if name in measured - raced]
    if alone:
        goals = listed([say(f"objective.{_key(name)}") for name in alone], say)
        sentences.append(say("recommend.nothing_to_compare", goals=goals))
    return sentences


def _tell_apart(results: StudyResults, outcomes: Sequence[Outcome], say: Wording) -> tuple[str, ...]:
    """Cells that were set against no other, with the reason once."""
    found: dict[tuple[str, str], list[str]] = {}
    for outcome in outcomes:
        cell = outcome.cells[0]
        if outcome.place in ("out", "not compared"):
            name = cell.name if len(results.workloads) == 1 else f"{outcome.workload}/{cell.name}"
            reason = retell(cell.row["note"] or "", say)
            goals = found.setdefault((name, reason), [])
            if (goal := say(f"objective.{_key(outcome.objective)}")) not in goals:
                goals.append(goal)
    return tuple(
        say("recommend.not_compared", cell=name, goals=listed(goals, say), reason=reason)
        for (name, reason), goals in found.items()
    )


def _cells(outcome: Outcome, cells: Sequence[PlacedCell], say: Wording, *, mark: bool = False) -> str:
    """Their names; where they are many and all of the race, how many."""
    if len(cells) == len(outcome.cells) > MOST_NAMED and not mark:
        return say("recommend.all", count=len(cells))
    names = [f"{cell.name}{SUSPECT if cell.suspect else ''}" if mark else _name(cell, say) for cell in cells]
    return say("list.comma").join(names) if mark else listed(names, say)


def _name(cell: PlacedCell, say: Wording) -> str:
    return say("summary.suspect", cell=cell.name) if cell.suspect else cell.name


def _level(results: StudyResults, outcome: Outcome, say: Wording) -> str:
    level = level_of_label(outcome.workload, outcome.concurrency, results, say)
    return level or (outcome.workload if len(results.workloads) > 1 else "")


def _amount(outcome: Outcome, say: Wording) -> str:
    """``2 GPUs``; empty where the cells of the race differ in it or it is not known."""
    count, _, kind = outcome.hardware.partition(" ")
    return hardware_of((int(count), kind), say) if kind else ""


def _unit(cell: PlacedCell, say: Wording) -> str:
    return say(f"unit.{_key(cell.row['unit'].replace('/', '_per_'))}")


def _margin(margin: float) -> str:
    return f"±{100 * margin:g}%"


def _key(words: str) -> str:
    return words.replace(" ", "_")


def _numbers(outcomes: Iterable[Outcome]) -> Numbers:
    return list(dict.fromkeys((each.objective, each.metric, each.stat) for each in outcomes))


def _of(outcomes: Iterable[Outcome], number: tuple[str, str, str]) -> list[Outcome]:
    return [each for each in outcomes if (each.objective, each.metric, each.stat) == number]
