"""What the devices did, by role: the article's figures A.1 and A.2, with the source of the samples named."""

from typing import Any

from pdkv.figure_names import trace_figure
from pdkv.report_blocks import Block, Column, Figure, Paragraph, Section, Table, Value, left, row, ruled_by
from pdkv.report_phrases import listed
from pdkv.study_results import Cell, StudyResults
from pdkv.units import DASH, format_bytes, format_quantity
from pdkv.wording import Wording


def describe_traces(results: StudyResults, say: Wording) -> list[Section]:
    """The source of the samples, a table of the load stage, and a figure per mode."""
    traced = [(cell, trial["trace"]) for cell in results.cells if (trial := cell.drawn_trial) and trial.get("trace")]
    if not traced:
        return [Section(say("traces.title"), (Paragraph(say("traces.nothing")),))]
    blocks: list[Block] = [Paragraph(_sources(traced, say)), _load_table(traced, say)]
    missing = list(dict.fromkeys(text for _, trace in traced for text in _missing(trace, say)))
    if missing:
        blocks.append(Paragraph(say("traces.missing", list="; ".join(missing))))
    for workload in results.workloads:
        for mode in results.modes:
            cells = [cell for cell, _ in traced if (cell.workload, cell.mode) == (workload, mode)]
            if cells:
                caption = say("caption.trace", mode=mode, workload=workload, source=_source_names(traced, cells, say))
                blocks.append(Figure(trace_figure(workload, mode), caption))
            else:
                blocks.append(Paragraph(say("traces.none_of_mode", mode=mode, workload=workload)))
    return [Section(say("traces.title"), tuple(blocks))]


def _sources(traced: list[tuple[Cell, dict[str, Any]]], say: Wording) -> str:
    """Where the samples came from, how often they were taken, and how fine they really are."""
    sentences = [say("traces.source", source=_source_names(traced, [cell for cell, _ in traced], say))]
    sampler = [value for _, trace in traced if (value := (trace.get("resolution_s") or {}).get("sampler")) is not None]
    counter = [value for _, trace in traced if (value := (trace.get("resolution_s") or {}).get("counter")) is not None]
    if sampler:
        sentences.append(say("traces.sampler", seconds=f"{max(sampler):.2g}"))
    if counter:
        sentences.append(say("traces.counter", seconds=f"{max(counter):.2g}"))
    return " ".join(sentences)


def _source_names(traced: list[tuple[Cell, dict[str, Any]]], cells: list[Cell], say: Wording) -> str:
    names = dict.fromkeys(name for cell, trace in traced if cell in cells for name in trace.get("source") or [])
    return listed([say(f"source.{name}") if say.has(f"source.{name}") else name for name in names], say)


def _missing(trace: dict[str, Any], say: Wording) -> list[str]:
    return [
        say("traces.missing_item", fields=", ".join(entry["fields"]), reason=entry["reason"])
        for entry in trace.get("missing") or []
    ]


def _load_table(traced: list[tuple[Cell, dict[str, Any]]], say: Wording) -> Table:
    """The load stage as a whole, by role; processes are left to the figures where devices were sampled."""
    rows, keys = [], []
    for cell, trace in traced:
        for phase in trace.get("phases") or []:
            if phase["stage"] == "load" and phase["point"] is None:
                rows.append(row(cell.workload, cell.name, phase["role"], _kind(phase, say), *_phase_values(phase)))
                keys.append((cell.workload, cell.mode))
    columns = (
        left(say("workload.name")),
        left(say("word.cell")),
        left(say("traces.role")),
        left(say("traces.devices")),
        *(Column(say(f"traces.{key}")) for key in ("util", "util_max", "mem_util", "memory", "power", "energy")),
    )
    return Table(say("traces.caption"), columns, tuple(rows), (say("traces.note"),), ruled_by(keys))


def _kind(phase: dict[str, Any], say: Wording) -> str:
    number = "one" if phase["devices"] == 1 else "many"
    return say(f"device.{phase['kind']}.{number}", count=phase["devices"])


def _phase_values(phase: dict[str, Any]) -> tuple[str | Value, ...]:
    return (
        _percent(phase.get("util_mean")),
        _percent(phase.get("util_max")),
        _percent(phase.get("mem_util_mean")),
        format_bytes(phase.get("mem_bytes_max")),
        _with_unit(phase.get("power_mean_w"), "W"),
        _with_unit(phase.get("energy_j"), "J"),
    )


def _percent(share: float | None) -> str:
    return DASH if share is None else f"{share:.0%}"


def _with_unit(value: float | None, unit: str) -> str:
    return DASH if value is None else f"{format_quantity(value)} {unit}"
