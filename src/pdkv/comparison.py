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
from pdkv.left_out import LaunchSamples
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
SamplesOf = Callable[[int, int], LaunchSamples]


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
    def samples_of(cell: int, point: int) -> LaunchSamples:
        return LaunchSamples(folders[cell], points[cell, point])

    rows: list[Row] = []
    for pair in pair_cells(contents, mode, dtype):
        refusal = refusal_of(pair)
        rows += [row for point in _planned_points(pair.cell) for row in _point_rows(pair, point, refusal, samples_of)]
        rows += [_capacity_row(pair, metric, refusal) for metric in CAPACITIES]
    _decide_families(rows)
    return rows


def _planned_points(cell: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The load levels that were asked for: a failed cell has measured none of them."""
    return [{"point": index, **point} for index, point in enumerate(cell["config"]["workload"]["points"])]


def _point_rows(pair: Pair, planned: Mapping[str, Any], refusal: str | None, samples_of: SamplesOf) -> Iterator[Row]:
    index = planned["point"]
    cell, base = (_measured_point(content, index) for content in (pair.cell, pair.base))
    refusal = refusal or _why_not_measured(pair, (cell, base))
    for metric, stat in QUANTITIES:
        row = _row(pair, load_label(planned), metric, stat)
        scale = 1e3 if metric in LATENCIES else 1.0
        row["value"], row["base_value"] = (_scaled(point, metric, stat, scale) for point in (cell, base))
        if refusal or cell is None or base is None:
            row["note"] = refusal or ""
            yield row
            continue
        row["launches"], row["base_launches"] = cell["launches"], base["launches"]
        _set_ratio(row)
        blocks = sorted(set(cell["repeats"]) & set(base["repeats"]))
        if stat == "p99" and not (
            cell["metrics"][metric]["p99_supported"] and base["metrics"][metric]["p99_supported"]
        ):
            n = min(point["metrics"][metric]["n"] for point in (cell, base))
            row["_weak"] = f"{n} values cannot carry a p99"
        elif row["ratio"] and len(blocks) >= MIN_LAUNCHES:
            one, other = samples_of(id(pair.cell), index), samples_of(id(pair.base), index)
            left_out = [[repeat for repeat in blocks if repeat != block] for block in blocks]
            values = [(one.value(kept, metric, stat), other.value(kept, metric, stat)) for kept in left_out]
            row["_estimate"] = _estimate(row["ratio"], values)
        _finish(row, pair, blocks)
        yield row


def _capacity_row(pair: Pair, metric: str, refusal: str | None) -> Row:
    """What a cell can hold at a time: nothing of the load is in it, so it stands without a load level."""
    row = _row(pair, "", metric, "value")
    by_repeat = [
        {
            t["repeat"]: value
            for t in cell["trials"]
            if t["state"] in _RAN and (value := capacity_of(t, metric)) is not None
        }
        for cell in (pair.cell, pair.base)
    ]
    row["value"], row["base_value"] = (_mean(list(found.values())) for found in by_repeat)
    if refusal:
        return row | {"note": refusal}
    row["launches"], row["base_launches"] = (len(found) for found in by_repeat)
    _set_ratio(row)
    blocks = sorted(set(by_repeat[0]) & set(by_repeat[1]))
    if row["ratio"] and len(blocks) >= MIN_LAUNCHES:
        left_out = [[repeat for repeat in blocks if repeat != block] for block in blocks]
        values = [tuple(_mean([found[r] for r in kept]) for found in by_repeat) for kept in left_out]
        row["_estimate"] = _estimate(row["ratio"], values)
    _finish(row, pair, blocks)
    return row


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
