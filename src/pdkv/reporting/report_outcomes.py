"""How the parts of an outcome are called in sentences and tables: its goal, its load, its hardware, its cells."""

from collections.abc import Iterable, Mapping, Sequence

from pdkv.analysing.compared_numbers import launches_wanted
from pdkv.analysing.contests import MIN_LAUNCHES_STATED
from pdkv.analysing.hardware_units import KV_PER_DEVICE
from pdkv.analysing.load_level import load_label
from pdkv.analysing.objective_numbers import OF_SERVICE, goal_of
from pdkv.analysing.objective_places import Outcome, PlacedCell
from pdkv.analysing.service_levels import SHARE
from pdkv.analysing.study_results import StudyResults
from pdkv.reporting.report_phrases import (
    MOST_NAMED,
    format_change,
    hardware_of,
    level_of_label,
    listed_few,
    number_phrase,
)
from pdkv.reporting.wording import Wording
from pdkv.units import format_quantity

SUSPECT = "†"
MOST_IN_A_CELL = 20  # a cell of a table that is longer than a page cannot be set
HARDLY_SERVED = 0.05
Number = tuple[str, str, str]  # objective, metric, statistic
OutcomesOf = Mapping[tuple[str, ...], Sequence[Outcome]]  # by workload, load, objective, metric, statistic


def goal_name(outcome: Outcome, say: Wording) -> str:
    """``Tail (p99 ITL)``."""
    number = number_phrase(outcome.metric, outcome.stat, say)
    return say("recommend.name", objective=objective_name(outcome.objective, say), number=number)


def objective_name(objective: str, say: Wording) -> str:
    """``Tail``."""
    return say(f"objective.{word_key(objective)}")


def level_name(results: StudyResults, outcome: Outcome, say: Wording) -> str:
    """``c = 2``; empty where the number has no load level and the study one workload."""
    level = level_of_label(outcome.workload, outcome.concurrency, results, say)
    return level or (outcome.workload if len(results.workloads) > 1 else "")


def amount(outcome: Outcome, say: Wording) -> str:
    """``2 GPUs``; empty where the cells of the race differ in it or it is not known."""
    count, _, kind = outcome.hardware.partition(" ")
    return hardware_of((int(count), kind), say) if kind else ""


def value_with_unit(cell: PlacedCell, say: Wording) -> str:
    """``55.6 ms``."""
    currency, _, sold = cell.row["unit"].partition("/M ")
    if sold:
        unit = say(f"unit.M_{sold}", currency=currency)
    else:
        unit = say(f"unit.{word_key(cell.row['unit'].replace('/', '_per_'))}")
    return f"{format_quantity(cell.value)} {unit}"


def said_cell(cell: PlacedCell, say: Wording) -> str:
    """Its name, with a word where its numbers are in doubt."""
    return say("summary.suspect", cell=cell.name) if cell.suspect else cell.name


def said_cells(outcome: Outcome, cells: Sequence[PlacedCell], say: Wording) -> str:
    """Names in a sentence; where they are many, the first few and how many others, or that all of the race are."""
    if len(cells) == len(outcome.cells) > MOST_NAMED:
        return say("recommend.all", count=len(cells))
    return listed_few([said_cell(cell, say) for cell in cells], say)


def tell_untested(outcome: Outcome, say: Wording) -> str:
    """Which cells had too few launches, of the same repeats as another cell's, to be tested; empty where none had."""
    if not outcome.untested:
        return ""
    cells = listed_few([said_cell(cell, say) for cell in outcome.untested], say)
    if outcome.metric == KV_PER_DEVICE:
        return say("recommend.untested_stated", count=MIN_LAUNCHES_STATED, cells=cells)
    return say("recommend.untested", count=launches_wanted(outcome.metric, outcome.stat), cells=cells)


def marked_cells(cells: Iterable[PlacedCell], say: Wording) -> str:
    """Names in a table, with a mark where their numbers are in doubt."""
    names = [f"{cell.name}{SUSPECT if cell.suspect else ''}" for cell in cells]
    if len(names) <= MOST_IN_A_CELL:
        return say("list.comma").join(names)
    some = say("list.comma").join(names[:MOST_IN_A_CELL])
    return say("recommend.few_in_table", some=some, count=len(names) - MOST_IN_A_CELL)


def interval_ends(low: float, high: float, digits: int = 1) -> dict[str, str]:
    """``low`` and ``high`` of an interval as changes, the percent sign left to the change before it."""
    return {
        "low": format_change(low, digits).replace("%", ""),
        "high": format_change(high, digits).replace("%", ""),
    }


def word_key(words: str) -> str:
    """The key of a text that a table of results holds: ``first token`` is ``first_token``."""
    return words.replace(" ", "_")


def best_share_served(results: StudyResults, outcome: Outcome) -> float | None:
    """The largest share of requests that met the service levels, of all cells at a load level; None of other goals."""
    index = next(
        (i for i, p in enumerate(results.points_of(outcome.workload)) if load_label(p) == outcome.concurrency), None
    )
    if outcome.metric not in OF_SERVICE or index is None:
        return None
    cells = [cell for cell in results.cells_of(outcome.workload) if cell.usable]
    return max((share for cell in cells if (share := cell.value(index, SHARE, "value")) is not None), default=None)


def is_hardly_served(results: StudyResults, outcome: Outcome) -> bool:
    """Whether so few requests met the service levels that a best goodput would be one of a handful of requests."""
    share = best_share_served(results, outcome)
    return share is not None and share < HARDLY_SERVED


def in_places(outcomes: Iterable[Outcome]) -> OutcomesOf:
    """Outcomes by number and load: of a large study those of one are not searched among all for each of them."""
    found: dict[tuple[str, ...], list[Outcome]] = {}
    for each in outcomes:
        found.setdefault(_place_of(each), []).append(each)
    return found


def others_in_place(outcomes: OutcomesOf, outcome: Outcome) -> list[Outcome]:
    """The other outcomes in the same number at the same load."""
    return [each for each in outcomes.get(_place_of(outcome), ()) if each is not outcome]


def _place_of(outcome: Outcome) -> tuple[str, ...]:
    return outcome.workload, outcome.concurrency, outcome.objective, outcome.metric, outcome.stat


def split_from(races: OutcomesOf, outcome: Outcome) -> Outcome | None:
    """Another race for the same number on as much hardware, whose cells may not be compared with those of this one."""
    equal_hardware = goal_of(outcome.metric, outcome.stat).equal_hardware
    return next(
        (each for each in others_in_place(races, outcome) if each.hardware == outcome.hardware or not equal_hardware),
        None,
    )


def numbers_of(outcomes: Iterable[Outcome]) -> list[Number]:
    """The goals of these outcomes, in their order."""
    return list(dict.fromkeys((each.objective, each.metric, each.stat) for each in outcomes))


def of_number(outcomes: Iterable[Outcome], number: Number) -> list[Outcome]:
    """Those of one goal."""
    return [each for each in outcomes if (each.objective, each.metric, each.stat) == number]
