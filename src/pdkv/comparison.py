"""Cells against each other -> results/comparisons.csv: ratio, interval and verdict, or why there is none.

Values are in the units of summary.csv. A ratio needs two valid cells measured in the same surroundings, an interval
and a verdict at least three launches of both.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pdkv.aggregate import CAPACITIES, capacity_of
from pdkv.artifacts import read_json, write_text
from pdkv.cell_pairs import Pair, pair_cells, refusal_of, same_configuration
from pdkv.csv_table import tidy, to_csv
from pdkv.left_out import Summaries, summaries_without_each
from pdkv.load_level import load_label
from pdkv.metrics import LATENCIES, THROUGHPUTS
from pdkv.verdicts import MIN_LAUNCHES, RatioEstimate, decide, estimate_ratio, holm, repeats_to_decide

COLUMNS = (
    "workload", "concurrency", "metric", "stat", "effect", "mode", "dtype", "base_mode", "base_dtype", "value",
    "base_value", "ratio", "ci_low", "ci_high", "verdict", "launches", "base_launches", "note",
)  # fmt: skip
LATENCY_STATS = ("mean", "median", "p90", "p99")
QUANTITIES = (
    *((metric, stat) for metric in LATENCIES for stat in LATENCY_STATS),
    *((name, "value") for name in THROUGHPUTS),
)

_RAN = ("valid", "suspect")
_FEW = {1: "one launch", 2: "two launches"}

Row = dict[str, Any]
Folders = Mapping[int, Path]
LeftOut = Callable[[int, int, tuple[int, ...]], list[Summaries]]


def compare(cells: Sequence[Path], baseline: Sequence[str], output: Path) -> None:
    """Write the effects between the named cell.json files; ``baseline`` is (mode, dtype).

    Requests are read from the folders ``r{repeat}`` beside each cell.json.
    """
    contents = [read_json(path, "cell/1") for path in cells]
    folders = {id(content): path.parent for content, path in zip(contents, cells, strict=True)}
    mode, dtype = baseline
    write_text(output, to_csv(COLUMNS, comparison_rows(contents, folders, mode, dtype)))


def comparison_rows(contents: Sequence[Mapping[str, Any]], folders: Folders, mode: str, dtype: str) -> list[Row]:
    """The rows of comparisons.csv. ``folders`` gives the folder of a content of cell.json by its ``id()``."""
    points = {(id(cell), point["point"]): point for cell in contents for point in cell["points"]}

    @cache
    def left_out(cell: int, point: int, blocks: tuple[int, ...]) -> list[Summaries]:
        return summaries_without_each(folders[cell], points[cell, point], blocks)

    rows: list[Row] = []
    for pair in pair_cells(contents, mode, dtype):
        refusal = refusal_of(pair)
        rows += [row for point in _planned_points(pair.cell) for row in _point_rows(pair, point, refusal, left_out)]
        rows += [_capacity_row(pair, metric, refusal) for metric in CAPACITIES]
    _decide_families(rows)
    return rows


def _planned_points(cell: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The load levels that were asked for: a failed cell has measured none of them."""
    return [{"point": index, **point} for index, point in enumerate(cell["config"]["workload"]["points"])]


def _point_rows(pair: Pair, planned: Mapping[str, Any], refusal: str | None, left_out: LeftOut) -> Iterator[Row]:
    index = planned["point"]
    cell, base = (_measured_point(content, index) for content in (pair.cell, pair.base))
    refusal = refusal or _why_not_measured(pair, (cell, base))
    for metric, stat in QUANTITIES:
        row = _row(pair, load_label(planned), metric, stat)
        scale = 1e3 if metric in LATENCIES else 1.0
        row["value"], row["base_value"] = (_scaled(point, metric, stat, scale) for point in (cell, base))
        if refusal or cell is None or base is None:
            yield row | {"note": refusal or ""}
            continue
        row["launches"], row["base_launches"] = cell["launches"], base["launches"]
        blocks = tuple(sorted(set(cell["repeats"]) & set(base["repeats"])))
        _set_ratio(row)
        row["_weak"] = _weakness(stat, cell["metrics"][metric], base["metrics"][metric])
        if row["ratio"] and not row["_weak"] and len(blocks) >= MIN_LAUNCHES:
            sides = [left_out(id(content), index, blocks) for content in (pair.cell, pair.base)]
            values = [(one[metric][stat], other[metric][stat]) for one, other in zip(*sides, strict=True)]
            row["_estimate"] = _estimate(row["ratio"], values)
        _finish(row, pair, blocks)
        yield row


def _weakness(stat: str, cell: Mapping[str, Any], base: Mapping[str, Any]) -> str | None:
    """Why a statistic has a value but no interval."""
    if stat != "p99" or (cell["p99_supported"] and base["p99_supported"]):
        return None
    return f"{min(cell['n'], base['n'])} values cannot carry a p99"


def _capacity_row(pair: Pair, metric: str, refusal: str | None) -> Row:
    """What a cell can hold at a time: nothing of the load is in it, so it stands without a load level."""
    row = _row(pair, "", metric, "value")
    cell, base = _capacities(pair.cell, metric), _capacities(pair.base, metric)
    row["value"], row["base_value"] = _mean(list(cell.values())), _mean(list(base.values()))
    if refusal:
        return row | {"note": refusal}
    row["launches"], row["base_launches"] = len(cell), len(base)
    blocks = tuple(sorted(set(cell) & set(base)))
    _set_ratio(row)
    if row["ratio"] and len(blocks) >= MIN_LAUNCHES:
        values = [tuple(_mean([found[b] for b in blocks if b != block]) for found in (cell, base)) for block in blocks]
        row["_estimate"] = _estimate(row["ratio"], values)
    _finish(row, pair, blocks)
    return row


def _capacities(cell: Mapping[str, Any], metric: str) -> dict[int, float]:
    """By repeat, of the launches that ran and say it."""
    by_repeat = {trial["repeat"]: capacity_of(trial, metric) for trial in cell["trials"] if trial["state"] in _RAN}
    return {repeat: value for repeat, value in by_repeat.items() if value is not None}


def _row(pair: Pair, load: str, metric: str, stat: str) -> Row:
    names = {key: pair.cell[key] for key in ("workload", "mode", "dtype")}
    bases = {f"base_{key}": pair.base[key] for key in ("mode", "dtype")}
    row: Row = dict.fromkeys((*COLUMNS, "_estimate", "_weak"))
    return (
        row | names | bases | {"concurrency": load, "metric": metric, "stat": stat, "effect": pair.effect, "note": ""}
    )


def _measured_point(cell: Mapping[str, Any], index: int) -> Mapping[str, Any] | None:
    return next((point for point in cell["points"] if point["point"] == index), None)


def _why_not_measured(pair: Pair, points: Sequence[Mapping[str, Any] | None]) -> str | None:
    for content, point in zip((pair.cell, pair.base), points, strict=True):
        if point is None:
            return f"{content['label']}: not measured at this load"
        if not point["launches"]:
            return f"{content['label']}: {point['excluded'][0]['reason']}"
    return None


def _scaled(point: Mapping[str, Any] | None, metric: str, stat: str, scale: float) -> float | None:
    value = point["metrics"][metric][stat] if point else None
    return None if value is None else tidy(value * scale)


def _set_ratio(row: Row) -> None:
    value, base = row["value"], row["base_value"]
    if value is None or base is None:
        row["note"] = "no value" if value is None else "the base has no value"
    elif base == 0:
        row["note"] = f"the base is 0, the difference {value:+g}"
    else:
        row["ratio"] = value / base


def _estimate(ratio: float, values: Sequence[tuple[float | None, ...]]) -> RatioEstimate | None:
    """The ratio's spread; ``None`` where a statistic is missing or 0 without one of the blocks."""
    ratios = [value / base for value, base in values if value and base]
    return estimate_ratio(ratio, ratios) if len(ratios) == len(values) and ratio > 0 else None


def _finish(row: Row, pair: Pair, blocks: Sequence[int]) -> None:
    """What can be said of a ratio without looking at the rest of its family."""
    notes = [row["note"], row["_weak"]]
    if same_configuration(pair):
        notes.append("same resolved configuration")
    notes += [f"{cell['label']} is suspect" for cell in (pair.cell, pair.base) if cell["state"] == "suspect"]
    if row["ratio"] is not None:
        launches = min(row["launches"], row["base_launches"])
        if len(blocks) < MIN_LAUNCHES:
            row["verdict"] = f"not decided: {_FEW.get(launches, 'too few launches of the same repeat')}"
        elif row["_estimate"] is None:
            row["verdict"] = "cannot tell"
        elif len(blocks) < max(row["launches"], row["base_launches"]):
            notes.append(f"interval from {len(blocks)} repeats in common")
    row["note"] = "; ".join(note for note in notes if note)


def _decide_families(rows: Sequence[Row]) -> None:
    """Verdicts of all rows that have an interval. A family is one statistic under one effect: all cells, all loads."""
    families: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        if row["_estimate"] is not None:
            families.setdefault(tuple(row[key] for key in ("workload", "effect", "metric", "stat")), []).append(row)
    for family in families.values():
        for row, rejected in zip(family, holm([row["_estimate"].p for row in family]), strict=True):
            _decide(row, row["_estimate"], rejected)


def _decide(row: Row, estimate: RatioEstimate, rejected: bool) -> None:
    row["ci_low"], row["ci_high"] = estimate.low, estimate.high
    row["verdict"] = decide(estimate, rejected=rejected)
    notes = [row["note"]]
    if estimate.standard_error == 0:
        notes.append(f"no spread seen in {estimate.blocks} launches")
    if row["verdict"] == "cannot tell":
        repeats = repeats_to_decide(estimate)
        notes.append(
            f"about {repeats} repeats would likely decide" if repeats else "more than 50 repeats would be needed"
        )
    row["note"] = "; ".join(note for note in notes if note)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
