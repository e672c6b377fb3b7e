"""Watts, energy and cost of the output tokens of each cell and load level."""

from collections.abc import Iterator, Sequence
from typing import Any

from pdkv.analysing.study_results import Cell, StudyResults
from pdkv.analysing.token_cost import Prices, cost_per_million_tokens
from pdkv.analysing.token_energy import ENERGY, TOKENS_PER_JOULE
from pdkv.reporting.report_blocks import Block, Column, Paragraph, Section, Table, Value, left, row, ruled_by
from pdkv.reporting.report_phrases import cell_label, format_change, is_suspect, short_level, verdict
from pdkv.reporting.wording import Wording
from pdkv.units import DASH, format_quantity

SUSPECT = "†"

Entry = tuple[Cell, dict[str, Any]]  # a cell and one of its load levels


def describe_energy(results: StudyResults, prices: Prices | None, say: Wording) -> list[Section]:
    """Energy where cells ran on GPUs, cost where the study names prices; nothing where neither."""
    entries = list(_entries(results))
    powered = [entry for entry in entries if ENERGY in entry[1]["metrics"]]
    if not entries or not (powered or prices):
        return []
    blocks: list[Block] = [Paragraph(_introduction(powered, prices, say))]
    told = [entry for entry in powered if entry[1]["metrics"][ENERGY]["value"] is not None]
    if powered and not told:
        blocks.append(Paragraph(say("energy.unknown")))
    if told or prices:
        blocks.append(_table(results, entries, bool(told), prices, say))
    title = "energy.title_both" if powered and prices else "energy.title" if powered else "energy.title_cost"
    return [Section(say(title), tuple(blocks), level=2)]


def _entries(results: StudyResults) -> Iterator[Entry]:
    for cell in results.cells:
        yield from ((cell, point) for point in cell.content.get("points") or () if point["launches"])


def _introduction(powered: Sequence[Entry], prices: Prices | None, say: Wording) -> str:
    sentences = [say("energy.introduction")] if powered else []
    if prices:
        named = (("per_gpu_hour", prices.per_gpu_hour), ("per_host_hour", prices.per_host_hour))
        listed = [
            say(f"energy.{key}", price=f"{price:g}", currency=prices.currency)
            for key, price in named
            if price is not None
        ]
        sentences.append(say("energy.prices", list=say("list.semicolon").join(listed)))
    return say("list.sentence").join(sentences)


def _table(results: StudyResults, entries: Sequence[Entry], told: bool, prices: Prices | None, say: Wording) -> Table:
    rows, doubt = [], False
    for cell, point in entries:
        suspect = is_suspect(cell, point["point"])
        doubt = doubt or suspect
        name = Value(cell_label(cell, results), mark=SUSPECT if suspect else "")
        values = [name, Value(short_level(cell.workload, point, results, say))]
        values += _energy_values(results, cell, point, say) if told else []
        values += [Value(_cost(cell, point, prices))] if prices else []
        rows.append(row(*values))
    columns = [left(say("word.cell")), left(say("effects.level"))]
    if told:
        columns += [Column(say(f"energy.{key}")) for key in ("power", "idle", "per_token", "per_joule")]
    if prices:
        columns.append(Column(say("energy.cost", currency=prices.currency)))
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


def _cost(cell: Cell, point: dict[str, Any], prices: Prices | None) -> str:
    if prices is None:
        return DASH
    cost = cost_per_million_tokens(cell.content, point["metrics"]["output_throughput"]["value"], prices)
    return format_quantity(cost)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
