"""Who races whom for an objective, one number at one load level at a time, and who is in no race and why."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from typing import Any

from pdkv.analysing.cell_pairs import Pair, Side, reason_of, refusal_of, same_configuration
from pdkv.analysing.comparability import differing_facts
from pdkv.analysing.compared_numbers import ByRepeat, launches_wanted
from pdkv.analysing.contests import Entrant, hold_contest
from pdkv.analysing.hardware_units import KV_PER_DEVICE, hardware_units
from pdkv.analysing.load_level import load_label
from pdkv.analysing.objective_numbers import OF_SERVICE, CellContent, Goal, numbers_of
from pdkv.analysing.objective_races import Race
from pdkv.analysing.service_levels import GOODPUT
from pdkv.analysing.token_cost import BOUGHT, Prices
from pdkv.analysing.yardsticks import Yardsticks

NONE_SERVED = "no request met the service levels"


@dataclass
class ObjectiveField:
    """One goal at one load level (``index`` is None for a goal without one): the races, and who is in none."""

    goal: Goal
    index: int | None
    load: str
    prices: Prices | None = None
    yardstick: float | None = None
    races: list[Race] = field(default_factory=list)
    alone: list[tuple[Entrant, str]] = field(default_factory=list)
    out: list[tuple[CellContent, str, float | None]] = field(default_factory=list)


def fields_of(
    goal: Goal, cells: Sequence[CellContent], yardsticks: Yardsticks, prices: Prices | None
) -> Iterator[ObjectiveField]:
    """At each load level where any cell has a value."""
    points = cells[0]["config"]["workload"]["points"]
    levels = [(index, load_label(point)) for index, point in enumerate(points)] if goal.at_load else [(None, "")]
    for index, load in levels:
        found = ObjectiveField(goal, index, load, prices)
        entrants = [entrant for cell in cells if (entrant := _entrant(found, cell)) is not None]
        by_repeat = {id(entrant.cell): entrant.by_repeat for entrant in entrants}
        wanted = launches_wanted(goal.metric, goal.stat)
        found.yardstick = yardsticks.of((goal, load), partial(_by_repeat_of, by_repeat), wanted)
        if entrants or any(value is not None for _, _, value in found.out):
            for group in _on_equal_hardware(goal, entrants):
                _line_up(found, group)
            yield found


def _by_repeat_of(known: Mapping[int, ByRepeat], cell: CellContent) -> ByRepeat:
    return known.get(id(cell), {})


def _entrant(found: ObjectiveField, cell: CellContent) -> Entrant | None:
    """The cell with its number; where it has none, it is entered among those that are out."""
    goal = found.goal
    point = next((each for each in cell["points"] if each["point"] == found.index), None)
    why = "no value"
    if cell["state"] in ("failed", "invalid"):
        why = reason_of(cell)
    elif goal.at_load and point is None:
        why = "not measured at this load"
    elif point is not None and not point["launches"]:
        why = point["excluded"][0]["reason"]
    else:
        numbers = numbers_of(goal, cell, point, found.prices)
        value = numbers.value(goal.metric, goal.stat)
        if goal.metric in OF_SERVICE and point is not None and _goodput(point) == 0:
            # No ratio to anything: its launches could never decide that it is worse than one that serves well.
            found.out.append((cell, NONE_SERVED, value))
            return None
        if found.prices and goal.metric in BOUGHT:
            why = found.prices.why_none(cell) or why
        if value is not None:
            by_repeat = numbers.by_repeat(goal.metric, goal.stat)
            return Entrant(cell, value, by_repeat, numbers.weakness(goal.metric, goal.stat))
    found.out.append((cell, why, None))
    return None


def _goodput(point: Mapping[str, Any]) -> float | None:
    value: float | None = (point["metrics"].get(GOODPUT) or {}).get("value")
    return value


def _on_equal_hardware(goal: Goal, entrants: Sequence[Entrant]) -> list[list[Entrant]]:
    """Groups that had as much of it; all together where the number is per device."""
    if not goal.equal_hardware:
        return [list(entrants)]
    groups: dict[tuple[int, str] | None, list[Entrant]] = {}
    for entrant in entrants:
        groups.setdefault(hardware_units(entrant.cell), []).append(entrant)
    return list(groups.values())


def _line_up(found: ObjectiveField, group: Sequence[Entrant]) -> None:
    """Split a group into races of cells that may be compared, and hold all contests of each."""
    if found.goal.equal_hardware and hardware_units(group[0].cell) is None:
        found.alone += [(entrant, "its hardware is not known") for entrant in group]
        return
    if found.goal.metric == KV_PER_DEVICE:
        # The size that the user set for the cache, not what the deployment left for it.
        found.alone += [
            (entrant, "without GPUs the KV cache is as large as was set") for entrant in group if _no_gpus(entrant)
        ]
        group = [entrant for entrant in group if not _no_gpus(entrant)]
    classes: list[list[Entrant]] = []
    for entrant in group:
        fitting = next((each for each in classes if _refusal(found.goal, each[0], entrant) is None), None)
        if fitting is None:
            classes.append([entrant])
        else:
            fitting.append(entrant)
    for members in classes:
        if len(members) > 1:
            found.races.append(_race(found, members))
        else:
            found.alone.append((members[0], _why_alone(found, members[0], group)))


def _no_gpus(entrant: Entrant) -> bool:
    units = hardware_units(entrant.cell)
    return units is not None and units[1] != "GPU"


def _race(found: ObjectiveField, members: Sequence[Entrant]) -> Race:
    goal = found.goal
    contests = []
    for pair in combinations(members, 2):
        contest = hold_contest(*pair, goal.stat, same=same_configuration(_pair(*pair)), metric=goal.metric)
        contest.yardstick = found.yardstick
        contests.append(contest)
    return Race(members, goal.higher, contests)


def _why_alone(found: ObjectiveField, entrant: Entrant, group: Sequence[Entrant]) -> str:
    goal, others = found.goal, [each for each in group if each is not entrant]
    if others:
        return _refusal(goal, others[0], entrant) or ""
    if any(why == NONE_SERVED for _, why, _ in found.out):
        return "in no other cell a request met the service levels"
    return "no other cell on as much hardware has a value" if goal.equal_hardware else "no other cell has a value"


def _refusal(goal: Goal, one: Entrant, other: Entrant) -> str | None:
    """Why two entrants may not be set against each other: beyond that of their cells, goodput by other limits."""
    refusal = refusal_of(_pair(one, other))
    if refusal is None and goal.metric in OF_SERVICE and one.cell["slo"] != other.cell["slo"]:
        return f"not comparable: {'; '.join(differing_facts(one.cell['slo'], other.cell['slo']))}"
    return refusal


def _pair(one: Entrant, other: Entrant) -> Pair:
    """Two cells that may differ in mode and precision, and in nothing else."""
    return Pair("baseline", Side(one.cell), Side(other.cell))
