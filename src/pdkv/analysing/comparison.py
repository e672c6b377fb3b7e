"""Cells against each other -> results/comparisons.csv: ratio, interval and verdict, or why there is none.

Values are in the units of summary.csv. Ratios are taken within a repeat, of launches that were measured close in time
and with the same prompts; their geometric mean is the ratio of a row. It needs valid cells measured in the same
surroundings, an interval and a verdict at least three launches of each.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pdkv.analysing.cell_pairs import Pair, Side, pair_cells, refusal_of, same_configuration
from pdkv.analysing.compared_numbers import (
    LIMITED_BY_SLO,
    ByRepeat,
    CapacityNumbers,
    Numbers,
    PointNumbers,
    launches_wanted,
    quantities_at_a_load,
    quantities_without_a_load,
    refusal_by_limits,
    why_spread_is_unknown,
)
from pdkv.analysing.csv_table import tidy, to_csv
from pdkv.analysing.load_level import load_label
from pdkv.analysing.verdict_families import Comparison, Row, decide_families
from pdkv.analysing.verdicts import MARGIN, MIN_LAUNCHES, estimate_ratio, geometric_mean
from pdkv.analysing.yardsticks import Yardsticks
from pdkv.artifacts import read_json, write_csv

COLUMNS = (
    "workload", "concurrency", "metric", "stat", "factor", "level_a", "level_b", "held", "ratio", "ci_low", "ci_high",
    "launches", "verdict", "mode", "dtype", "base_mode", "base_dtype", "value", "base_value", "base_launches",
    "more_repeats", "family_low", "family_high", "yardstick", "note",
)  # fmt: skip

_FEW = {1: "one launch", 2: "two launches"}

NumbersOf = Mapping[int, Numbers]  # by id() of a content of cell.json


def compare(cells: Sequence[Path], baseline: Sequence[str], output: Path, margin: float = MARGIN) -> None:
    """Write the effects between the named cell.json files.

    ``baseline`` is (mode, dtype); differences up to ``margin`` (0.02: 2%) do not matter.
    """
    mode, dtype = baseline
    rows = comparison_rows([read_json(path, "cell/1") for path in cells], mode, dtype, margin)
    write_csv(output, to_csv(COLUMNS, rows))


def comparison_rows(cells: Sequence[Mapping[str, Any]], mode: str, dtype: str, margin: float = MARGIN) -> list[Row]:
    """The rows of comparisons.csv. ``cells`` are contents of cell.json, ``mode`` and ``dtype`` the baseline's.

    One workload after the other: nothing is compared beyond it.
    """
    by_workload: dict[str, list[Mapping[str, Any]]] = {}
    for cell in cells:
        by_workload.setdefault(cell["workload"], []).append(cell)
    return [row for found in by_workload.values() for row in _rows_of_workload(found, mode, dtype, margin)]


def _rows_of_workload(cells: Sequence[Mapping[str, Any]], mode: str, dtype: str, margin: float) -> Iterator[Row]:
    points = {(id(cell), point["point"]): PointNumbers(cell, point) for cell in cells for point in cell["points"]}
    capacities: NumbersOf = {id(cell): CapacityNumbers(cell) for cell in cells}
    comparisons: list[Comparison] = []
    yardsticks = Yardsticks(cells)
    for pair in pair_cells(cells, mode, dtype):
        refusal = refusal_of(pair)
        for index, planned in enumerate(pair.side.cell["config"]["workload"]["points"]):
            level = {cell: numbers for (cell, point), numbers in points.items() if point == index}
            why = refusal or _why_not_measured(pair, index)
            found = _compare_at(load_label(planned), pair, quantities_at_a_load(pair.cells), level, why)
            comparisons += _measure_by(yardsticks, found, level)
        found = _compare_at("", pair, quantities_without_a_load(pair.cells), capacities, refusal)
        comparisons += _measure_by(yardsticks, found, capacities)
    decide_families(comparisons, margin)
    return (comparison.finished() for comparison in comparisons)


def _measure_by(yardsticks: Yardsticks, comparisons: Iterable[Comparison], numbers: NumbersOf) -> Iterator[Comparison]:
    """Each with what identical cells differ by in its number, where it has a ratio."""
    for comparison in comparisons:
        row = comparison.row
        if row["ratio"] is not None:
            number = (row["concurrency"], row["metric"], row["stat"])
            wanted = launches_wanted(row["metric"], row["stat"])
            comparison.yardstick = yardsticks.of(number, partial(_by_repeat_of, numbers, *number[1:]), wanted)
            row["yardstick"] = None if comparison.yardstick is None else tidy(comparison.yardstick)
        yield comparison


def _value_of(numbers: NumbersOf, metric: str, stat: str, cell: Mapping[str, Any]) -> float | None:
    return numbers[id(cell)].value(metric, stat) if id(cell) in numbers else None


def _by_repeat_of(numbers: NumbersOf, metric: str, stat: str, cell: Mapping[str, Any]) -> ByRepeat:
    return numbers[id(cell)].by_repeat(metric, stat) if id(cell) in numbers else {}


def _compare_at(
    load: str, pair: Pair, quantities: Sequence[tuple[str, str]], numbers: NumbersOf, refusal: str | None
) -> Iterator[Comparison]:
    """All numbers of a pair at one load level, or without one."""
    for metric, stat in quantities:
        row = _row(load, pair, metric, stat)
        row["value"], row["base_value"] = (_value(side, numbers, metric, stat) for side in (pair.side, pair.base))
        comparison = Comparison(row, same=same_configuration(pair))
        why = refusal or (refusal_by_limits(pair.cells) if metric in LIMITED_BY_SLO else None)
        if why:
            comparison.notes.append(why)
        else:
            _set_ratio(comparison, pair, numbers)
            comparison.notes += _remarks(pair)
        yield comparison


def _row(load: str, pair: Pair, metric: str, stat: str) -> Row:
    names = {key: pair.side.cell[key] for key in ("workload", "mode", "dtype")}
    bases = {"base_mode": pair.base.cell["mode"], "base_dtype": pair.base_dtype}
    quantity = {"concurrency": load, "metric": metric, "stat": stat, "factor": pair.factor}
    levels = dict(zip(("level_a", "level_b", "held"), pair.levels, strict=True))
    return {**dict.fromkeys(COLUMNS), **names, **bases, **quantity, **levels}


def _why_not_measured(pair: Pair, index: int) -> str | None:
    for cell in pair.cells:
        point = next((point for point in cell["points"] if point["point"] == index), None)
        if point is None:
            return f"{cell['label']}: not measured at this load"
        if not point["launches"]:
            return f"{cell['label']}: {point['excluded'][0]['reason']}"
    return None


def _value(side: Side, numbers: NumbersOf, metric: str, stat: str) -> float | None:
    """A cell's number or, in an interaction, the quotient of two."""
    found = [_value_of(numbers, metric, stat, cell) for cell in side.cells]
    quotient = _quotient(found)
    return None if quotient is None else tidy(quotient)


def _quotient(values: Sequence[float | None]) -> float | None:
    """The first by the second, where there is one; ``None`` where one is missing or the second is 0."""
    first, *rest = values
    if first is None or not all(rest):
        return None
    return first / rest[0] if rest and rest[0] else first


def _set_ratio(comparison: Comparison, pair: Pair, numbers: NumbersOf) -> None:
    """The ratio of both sides, its estimate or why there is none."""
    row = comparison.row
    by_repeat = [
        [numbers[id(cell)].by_repeat(row["metric"], row["stat"]) for cell in side.cells]
        for side in (pair.side, pair.base)
    ]
    row["launches"], row["base_launches"] = (min(map(len, cells)) for cells in by_repeat)
    if (why := _why_no_ratio(row)) is not None:
        comparison.notes.append(why)
        return
    ratios = _ratios_in_common(by_repeat)
    # Without a repeat in common, or with a 0 in one of them, the values shown are all there is to divide.
    usable = [ratio for ratio in ratios if ratio]
    complete = bool(ratios) and len(usable) == len(ratios)
    row["ratio"] = tidy(geometric_mean(usable) if complete else row["value"] / row["base_value"])
    if ratios and not complete:
        comparison.notes.append("a launch has 0: no interval")
    weak = [why for cell in pair.cells if (why := numbers[id(cell)].weakness(row["metric"], row["stat"]))]
    comparison.notes += weak[:1]
    if len(ratios) < MIN_LAUNCHES:
        launches = min(row["launches"], row["base_launches"])
        row["verdict"] = f"not decided: {_FEW.get(launches, 'too few launches of the same repeat')}"
        row["more_repeats"] = str(launches_wanted(row["metric"], row["stat"]) - len(ratios))
    elif weak or not complete:
        row["verdict"] = "cannot tell"
    else:
        _estimate(comparison, usable)
    if 0 < len(ratios) < max(len(cell) for cells in by_repeat for cell in cells):
        many = f"from {len(ratios)} repeats in common"
        comparison.notes.append("from 1 repeat in common" if len(ratios) == 1 else many)


def _estimate(comparison: Comparison, ratios: Sequence[float]) -> None:
    """The estimate of three ratios or more, or why this number can have none."""
    row = comparison.row
    wanted = launches_wanted(row["metric"], row["stat"])
    if len(ratios) < wanted:
        row["verdict"], row["more_repeats"] = "cannot tell", str(wanted - len(ratios))
        comparison.notes.append(
            f"{len(ratios)} launches cannot carry the interval of a p99: {wanted} can"
            if row["stat"] == "p99"
            else f"{len(ratios)} launches cannot carry the interval of a count of requests: {wanted} can"
        )
        return
    estimate = estimate_ratio(ratios)
    if why := why_spread_is_unknown(row["metric"], estimate):
        row["verdict"] = "cannot tell"
        comparison.notes.append(why)
    else:
        comparison.estimate = estimate


def _ratios_in_common(by_repeat: Sequence[Sequence[ByRepeat]]) -> list[float | None]:
    """The ratio of both sides in each repeat that all cells have; ``None`` where one divides by 0."""
    repeats = set.intersection(*(set(cell) for cells in by_repeat for cell in cells))
    return [
        _quotient([_quotient([cell[repeat] for cell in cells]) for cells in by_repeat]) for repeat in sorted(repeats)
    ]


def _why_no_ratio(row: Row) -> str | None:
    value, base = row["value"], row["base_value"]
    if value is None or base is None:
        return "no value" if value is None else "the base has no value"
    return f"the base is 0, the difference {value:+g}" if base == 0 else None


def _remarks(pair: Pair) -> list[str]:
    same = ["same resolved configuration"] if same_configuration(pair) else []
    return same + [f"{cell['label']} is suspect" for cell in pair.cells if cell["state"] == "suspect"]
