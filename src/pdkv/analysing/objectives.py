"""Which cells may be the best at what -> results/objectives.csv.

One row for each workload, objective, load level and cell. Verdicts of an objective are one family: all its numbers,
load levels and pairs of cells of a workload. See docs/statistics.md.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pdkv.analysing.contests import decide_contests
from pdkv.analysing.csv_table import tidy, to_csv
from pdkv.analysing.hardware_units import hardware_units
from pdkv.analysing.objective_fields import ObjectiveField, fields_of
from pdkv.analysing.objective_numbers import GOALS, CellContent, unit_of
from pdkv.analysing.objective_races import as_row, standings
from pdkv.analysing.token_cost import BOUGHT, Prices
from pdkv.analysing.verdicts import MARGIN
from pdkv.analysing.yardsticks import Yardsticks
from pdkv.artifacts import read_json, write_csv

COLUMNS = (
    "workload", "concurrency", "objective", "metric", "stat", "hardware", "race", "mode", "dtype", "state", "value",
    "unit", "place", "against_mode", "against_dtype", "ratio", "ci_low", "ci_high", "launches", "more_repeats", "note",
)  # fmt: skip

Row = dict[str, Any]


def rank_objectives(cells: Sequence[Path], output: Path, margin: float = MARGIN, prices: Prices | None = None) -> None:
    """Write where each of the named cells stands; differences up to ``margin`` (0.02: 2%) do not matter.

    With ``prices`` also what they cost.
    """
    rows = objective_rows([read_json(path, "cell/1") for path in cells], margin, prices)
    write_csv(output, to_csv(COLUMNS, rows))


def objective_rows(cells: Sequence[CellContent], margin: float = MARGIN, prices: Prices | None = None) -> list[Row]:
    """The rows of objectives.csv. ``cells`` are contents of cell.json; one that cannot take part says why."""
    rows: list[Row] = []
    of_workload: dict[str, list[CellContent]] = {}
    for cell in cells:
        of_workload.setdefault(cell["workload"], []).append(cell)
    for inside in of_workload.values():
        yardsticks = Yardsticks(inside)
        chosen = [goal for goal in GOALS if prices or goal.metric not in BOUGHT]
        for objective in dict.fromkeys(goal.objective for goal in chosen):
            goals = [goal for goal in chosen if goal.objective == objective]
            fields = [found for goal in goals for found in fields_of(goal, inside, yardsticks, prices)]
            decide_contests([each for found in fields for race in found.races for each in race.contests], margin)
            rows += [row for found in fields for row in _rows(found, inside)]
    return rows


def _rows(found: ObjectiveField, cells: Sequence[CellContent]) -> Iterator[Row]:
    """A row for each cell, in the order of the cells."""
    rows: dict[int, Row] = {}
    for number, race in enumerate(found.races, 1):
        for standing in standings(race):
            told = {"race": number, "value": standing.entrant.value, **as_row(standing)}
            rows[id(standing.entrant.cell)] = told
    for entrant, why in found.alone:
        launches = len(entrant.by_repeat)
        rows[id(entrant.cell)] = {
            "value": entrant.value, "place": "not compared", "launches": launches, "note": why,
        }  # fmt: skip
    for cell, why, value in found.out:
        rows[id(cell)] = {"value": value, "place": "out", "note": why}
    for cell in cells:
        known = {key: tidy(value) if isinstance(value, float) else value for key, value in rows[id(cell)].items()}
        yield {**dict.fromkeys(COLUMNS), **_names(found, cell), **known}


def _names(found: ObjectiveField, cell: CellContent) -> Row:
    goal, units = found.goal, hardware_units(cell)
    point = next((each for each in cell["points"] if each["point"] == found.index), None)
    states = {cell["state"], point["state"]} if point else {cell["state"]}
    return {
        "workload": cell["workload"],
        "concurrency": found.load,
        "objective": goal.objective,
        "metric": goal.metric,
        "stat": goal.stat,
        "hardware": f"{units[0]} {units[1]}" if units else None,
        "mode": cell["mode"],
        "dtype": cell["dtype"],
        "state": "suspect" if cell["state"] == "valid" and "suspect" in states else cell["state"],
        "unit": unit_of(goal, cell, found.prices),
    }
