"""What the devices did, by role: the article's figures A.1 and A.2, with the source of the samples named."""

from collections.abc import Callable, Sequence
from typing import Any

from pdkv.analysing.study_results import ENGINE_ROLES, Cell, StudyResults
from pdkv.reporting.figure_names import trace_figure
from pdkv.reporting.illustrated_workloads import illustrated_workloads
from pdkv.reporting.report_blocks import Block, Column, Figure, Paragraph, Section, Table, left, row, ruled_by
from pdkv.reporting.report_phrases import cell_label, listed
from pdkv.reporting.stored_texts import retell
from pdkv.reporting.wording import Wording
from pdkv.units import DASH, format_bytes, format_quantity


def describe_traces(results: StudyResults, say: Wording) -> list[Section]:
    """The source of the samples, a table of the load stage, and a figure per mode."""
    traced = [(cell, trial["trace"]) for cell in results.cells if (trial := cell.drawn_trial) and trial.get("trace")]
    if not traced:
        return [Section(say("traces.title"), (Paragraph(say("traces.nothing")),))]
    blocks: list[Block] = [Paragraph(_sources(traced, say)), _load_table(results, traced, say)]
    if missing := _missing(traced, say):
        blocks.append(Paragraph(missing))
    drawn: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for cell, trace in traced:
        drawn.setdefault((cell.workload, cell.mode), []).append(trace)
    for workload in illustrated_workloads(results):
        for mode in results.modes:
            if shown := drawn.get((workload, mode)):
                key = "caption.trace_gpu" if any(_shown_kind(trace) == "gpu" for trace in shown) else "caption.trace"
                caption = say(key, mode=mode, workload=workload, source=_source_names(shown, say))
                blocks.append(Figure(trace_figure(workload, mode), caption))
            elif any(cell.mode == mode for cell in results.cells_of(workload)):
                blocks.append(Paragraph(say("traces.none_of_mode", mode=mode, workload=workload)))
    return [Section(say("traces.title"), tuple(blocks))]


def _sources(traced: list[tuple[Cell, dict[str, Any]]], say: Wording) -> str:
    """Where the samples came from, how often they were taken, and how fine they really are."""
    sentences = [say("traces.source", source=_source_names([trace for _, trace in traced], say))]
    counter = [value for _, trace in traced if (value := (trace.get("resolution_s") or {}).get("counter")) is not None]
    # Only of the kinds that are shown: beside GPUs, the host's own accounting is asked less often.
    for kind in dict.fromkeys(kind for _, trace in traced if (kind := _shown_kind(trace))):
        periods = [seconds for _, trace in traced if (seconds := _period(trace, kind)) is not None]
        if periods:
            sentences.append(say(f"traces.sampled_{kind}", seconds=f"{max(periods):.2g}"))
    if counter:
        sentences.append(say("traces.counter", seconds=f"{max(counter):.2g}"))
    return say("list.sentence").join(sentences)


def _period(trace: dict[str, Any], kind: str) -> float | None:
    """Seconds from one sample to the next of a device of this kind."""
    resolution = trace.get("resolution_s") or {}
    return (resolution.get("by_kind") or {}).get(kind)


def _source_names(traces: Sequence[dict[str, Any]], say: Wording) -> str:
    names = dict.fromkeys(name for trace in traces for name in _sources_shown(trace))
    return listed([say(f"source.{name}") if say.has(f"source.{name}") else name for name in names], say)


def _sources_shown(trace: dict[str, Any]) -> list[str]:
    """On a host with GPUs the table and the figures show these, and nothing of the host's own accounting."""
    sources = list(trace.get("source") or [])
    return ["nvml"] if "nvml" in sources and _shown_kind(trace) == "gpu" else sources


def _missing(traced: list[tuple[Cell, dict[str, Any]]], say: Wording) -> str:
    """One sentence on the quantities of the table that no device gave or that a shown device lacked; empty if none."""
    phases = [phase for _, trace in traced for phase in _load_phases(trace)]
    fields = {FIELDS[key] for key, read in _QUANTITIES.items() if all(read(phase) == DASH for phase in phases)}
    reasons: list[str] = []
    for _, trace in traced:
        shown = {row["device"] for row in trace.get("devices") or [] if row["kind"] == _shown_kind(trace)}
        for entry in trace.get("missing") or []:
            lacking = set(entry["fields"]) & set(FIELDS.values())
            if lacking and shown & set(entry["devices"]):
                fields |= lacking
                reasons.append(entry["reason"])
    if not phases or not fields:
        return ""
    names = say("list.comma").join(say(f"field.{name}") for name in dict.fromkeys(FIELDS.values()) if name in fields)
    why = say("list.semicolon").join(dict.fromkeys(retell(reason, say) for reason in reasons))
    told = say("word.only_in", value=names, cells=why) if why else names
    return say("traces.missing", source=_source_names([trace for _, trace in traced], say), list=told)


def _load_table(results: StudyResults, traced: list[tuple[Cell, dict[str, Any]]], say: Wording) -> Table:
    """The load stage as a whole, by role. Quantities that no device of the study has are left out."""
    phases = [(cell, phase) for cell, trace in traced for phase in _load_phases(trace)]
    shown = {key: read for key, read in _QUANTITIES.items() if any(read(phase) != DASH for _, phase in phases)}
    rows = [
        row(cell_label(cell, results), phase["role"], _kind(phase, say), *(read(phase) for read in shown.values()))
        for cell, phase in phases
    ]
    labels = (left(say("word.cell")), left(say("traces.role")), left(say("traces.devices")))
    columns = (*labels, *(Column(say(f"traces.{key}")) for key in shown))
    ruled = ruled_by((cell.workload, cell.mode) for cell, _ in phases)
    return Table(say("traces.caption"), columns, tuple(rows), (say("traces.note"),), ruled)


# Engine instances first, then what served them.
ROLES = (*ENGINE_ROLES, "router", "client")


def _load_phases(trace: dict[str, Any]) -> list[dict[str, Any]]:
    """Of each role the GPUs where it has some, else its processes, else its cores, as in the figures."""
    kind = _shown_kind(trace)
    shown = [each for each in _whole_load(trace) if each["kind"] == kind]
    return sorted(shown, key=lambda each: ROLES.index(each["role"]) if each["role"] in ROLES else len(ROLES))


def _whole_load(trace: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for each in trace.get("phases") or [] if each["stage"] == "load" and each["point"] is None]


def _shown_kind(trace: dict[str, Any]) -> str | None:
    kinds = {each["kind"] for each in _whole_load(trace)}
    return next((kind for kind in ("gpu", "process", "core") if kind in kinds), None)


def _kind(phase: dict[str, Any], say: Wording) -> str:
    number = "one" if phase["devices"] == 1 else "many"
    return say(f"device.{phase['kind']}.{number}", count=phase["devices"])


def _percent(share: float | None) -> str:
    return DASH if share is None else f"{share:.0%}"


def _with_unit(value: float | None, unit: str) -> str:
    return DASH if value is None else f"{format_quantity(value)} {unit}"


_QUANTITIES: dict[str, Callable[[dict[str, Any]], str]] = {
    "util": lambda phase: _percent(phase.get("util_mean")),
    "util_max": lambda phase: _percent(phase.get("util_max")),
    "mem_util": lambda phase: _percent(phase.get("mem_util_mean")),
    "memory": lambda phase: format_bytes(phase.get("mem_bytes_max")),
    "power": lambda phase: _with_unit(phase.get("power_mean_w"), "W"),
    "energy": lambda phase: _with_unit(phase.get("energy_j"), "J"),
    "clock": lambda phase: _with_unit(phase.get("sm_clock_mean_mhz"), "MHz"),
    "power_limited": lambda phase: _percent(phase.get("power_limited_share")),
}

# What a quantity of the table is called in the samples.
FIELDS = {
    "util": "util",
    "util_max": "util",
    "mem_util": "mem_util",
    "memory": "mem_bytes",
    "power": "power_w",
    "energy": "energy_j",
    "clock": "sm_clock_mhz",
    "power_limited": "throttle",
}
