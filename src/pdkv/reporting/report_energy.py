"""Watts, energy and cost of the output tokens of each cell and load level."""

from collections.abc import Iterator, Sequence
from typing import Any

from pdkv.analysing.study_results import Cell, StudyResults
from pdkv.analysing.token_cost import BOUGHT, COST, GOOD_COST, Prices, cost_per_million
from pdkv.analysing.token_energy import ENERGY, TOKENS_PER_JOULE
from pdkv.reporting.report_blocks import Block, Column, Paragraph, Section, Table, Value, left, row, ruled_by
from pdkv.reporting.report_phrases import cell_label, format_change, is_suspect, listed_few, short_level, verdict
from pdkv.reporting.stored_texts import retell
from pdkv.reporting.wording import Wording
from pdkv.units import DASH, format_quantity

SUSPECT = "†"
_COLUMNS = {COST: "cost", GOOD_COST: "good_cost"}

Entry = tuple[Cell, dict[str, Any]]  # a cell and one of its load levels


def describe_energy(results: StudyResults, prices: Prices | None, say: Wording) -> list[Section]:
    """Energy where cells ran on GPUs, cost where the study names prices; nothing where neither."""
    entries = list(_entries(results))
    powered = [entry for entry in entries if ENERGY in entry[1]["metrics"]]
    if not entries or not (powered or prices):
        return []
    blocks: list[Block] = [Paragraph(_introduction(entries, powered, prices, say))]
    told = [entry for entry in powered if entry[1]["metrics"][ENERGY]["value"] is not None]
    if powered and not told:
        blocks.append(Paragraph(say("energy.unknown")))
    priced = prices if prices and any(prices.of_an_hour(cell.content) for cell, _ in entries) else None
    if told or priced:
        blocks.append(_table(results, entries, bool(told), priced, say))
    title = "energy.title_both" if powered and prices else "energy.title" if powered else "energy.title_cost"
    return [Section(say(title), tuple(blocks), level=2)]


def _entries(results: StudyResults) -> Iterator[Entry]:
    for cell in results.cells:
        yield from ((cell, point) for point in cell.content.get("points") or () if point["launches"])


def _introduction(entries: Sequence[Entry], powered: Sequence[Entry], prices: Prices | None, say: Wording) -> str:
    sentences = [say("energy.introduction")] if powered else []
    if prices:
        named = (("per_gpu_hour", prices.per_gpu_hour), ("per_host_hour", prices.per_host_hour))
        listed = [
            say(f"energy.{key}", price=f"{price:g}", currency=prices.currency)
            for key, price in named
            if price is not None
        ]
        sentences.append(say("energy.prices", list=say("list.semicolon").join(listed)))
        sentences += _unpriced(entries, prices, say)
    return say("list.sentence").join(sentences)


def _unpriced(entries: Sequence[Entry], prices: Prices, say: Wording) -> list[str]:
    """Which cells have no cost, and why: the other kind of hardware has a price, or their own is not known."""
    cells: dict[str, list[str]] = {}
    for cell in dict.fromkeys(cell for cell, _ in entries):
        if (why := prices.why_none(cell.content)) is not None:
            cells.setdefault(why, []).append(cell.name)
    every = len({cell.name for cell, _ in entries})
    return [
        say(
            "energy.unpriced",
            cells=say("energy.every_cell")
            if len(dict.fromkeys(names)) == every
            else listed_few(dict.fromkeys(names), say),
            why=retell(why, say),
        )
        for why, names in cells.items()
    ]


def _table(results: StudyResults, entries: Sequence[Entry], told: bool, prices: Prices | None, say: Wording) -> Table:
    rows, doubt = [], False
    served = any(cell.content.get("slo") for cell, _ in entries)
    costs = [metric for metric in BOUGHT if prices and (metric == COST or served)]
    for cell, point in entries:
        suspect = is_suspect(cell, point["point"])
        doubt = doubt or suspect
        name = Value(cell_label(cell, results), mark=SUSPECT if suspect else "")
        values = [name, Value(short_level(cell.workload, point, results, say))]
        values += _energy_values(results, cell, point, say) if told else []
        values += [Value(_cost(cell, point, prices, metric)) for metric in costs]
        rows.append(row(*values))
    columns = [left(say("word.cell")), left(say("effects.level"))]
    if told:
        columns += [Column(say(f"energy.{key}")) for key in ("power", "idle", "per_token", "per_joule")]
    if prices:
        columns += [Column(say(f"energy.{_COLUMNS[metric]}", currency=prices.currency)) for metric in costs]
    notes = [say("energy.note")] if told else []
    if doubt:
        notes.append(f"{SUSPECT} {say('note.suspect')}")
    ruled = ruled_by((cell.workload, cell.mode) for cell, _ in entries)
    return Table(
        say("energy.caption" if told else "energy.caption_cost"), tuple(columns), tuple(rows), tuple(notes), ruled
    )


def _energy_values(results: StudyResults, cell: Cell, point: dict[str, Any], say: Wording) -> list[Value]:
    levels = [level for trial in cell.trials if (level := _level_of(trial, point)) is not None]
    metrics = point["metrics"]
    energy, inverse = (metrics.get(key, {}).get("value") for key in (ENERGY, TOKENS_PER_JOULE))
    effect = results.effect("baseline", cell, point["point"], ENERGY, "value")
    under = ""
    if effect is not None and effect.ratio is not None:
        under = format_change(effect.ratio)
        if effect.interval:
            under += f" {verdict(effect, say)}"
    idle = _mean([level["idle_share"] for level in levels])
    return [
        Value(format_quantity(_mean([level["power_w"] for level in levels]))),
        Value(DASH if idle is None else f"{idle:.0%}"),
        Value(format_quantity(energy), under=under),
        Value(format_quantity(inverse)),
    ]


def _level_of(trial: dict[str, Any], point: dict[str, Any]) -> dict[str, Any] | None:
    """What the trace of a launch that counts says of a load level on GPUs."""
    if trial["repeat"] not in point["repeats"]:
        return None
    levels = (trial.get("trace") or {}).get("levels") or ()
    return next((each for each in levels if each["point"] == point["point"] and each["kind"] == "gpu"), None)


def _cost(cell: Cell, point: dict[str, Any], prices: Prices | None, metric: str) -> str:
    if prices is None:
        return DASH
    bought = (point["metrics"].get(BOUGHT[metric]) or {}).get("value")
    return format_quantity(cost_per_million(cell.content, bought, prices))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
