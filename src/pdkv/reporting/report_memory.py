"""Memory: what the plan estimated against what servers and devices said, and what disaggregation takes on top."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pdkv.analysing.compared_numbers import CapacityNumbers
from pdkv.analysing.hardware_units import KV_PER_DEVICE
from pdkv.analysing.study_results import ENGINE_ROLES, Cell, StudyResults
from pdkv.reporting.report_blocks import Block, Bullets, Column, Paragraph, Section, Table, Value, left, row, ruled_by
from pdkv.reporting.report_phrases import cell_label, format_change, hardware
from pdkv.reporting.wording import Wording
from pdkv.units import DASH, format_bytes, format_quantity

Entry = tuple[Cell, str, list[dict[str, Any]]]  # a cell, a role, its instances in launch.json


def describe_memory(results: StudyResults, say: Wording) -> list[Section]:
    """A row for each role of each cell, then disaggregated cells against one instance; none where nothing is known."""
    entries = list(_entries(results))
    shown = {key: read for key, read in _QUANTITIES.items() if any(read(entry).text != DASH for entry in entries)}
    if not shown:
        return []
    blocks: list[Block] = [Paragraph(say("memory.introduction")), _table(results, entries, shown, say)]
    extra = [text for cell in results.cells if cell.disaggregated and (text := _extra(cell, results, say))]
    if extra:
        blocks += [Paragraph(say("memory.extra_introduction")), Bullets(tuple(extra))]
    return [Section(say("memory.title"), tuple(blocks), level=2)]


def _entries(results: StudyResults) -> Iterator[Entry]:
    for cell in results.cells:
        instances = _instances(cell)
        for role in ENGINE_ROLES:
            if members := [each for each in instances if each["role"] == role]:
                yield cell, role, members


def _launched(cell: Cell) -> dict[str, Any] | None:
    """The launch that is shown: the first that counts."""
    return next((trial for trial in cell.used_trials if (trial.get("launch") or {}).get("instances")), None)


def _instances(cell: Cell) -> list[dict[str, Any]]:
    trial = _launched(cell)
    return list(trial["launch"]["instances"]) if trial else []


def _table(results: StudyResults, entries: Sequence[Entry], shown: dict[str, Any], say: Wording) -> Table:
    rows = [
        row(
            cell_label(entry[0], results),
            say("activity.role", role=entry[1], count=len(entry[2])),
            *(read(entry) for read in shown.values()),
        )
        for entry in entries
    ]
    labels = (left(say("word.cell")), left(say("traces.role")))
    columns = (*labels, *(Column(say(f"memory.{key}"), group=say(f"memory.{_GROUPS[key]}")) for key in shown))
    ruled = ruled_by((cell.workload, cell.mode) for cell, _, _ in entries)
    return Table(say("memory.caption"), columns, tuple(rows), (say("memory.note"),), ruled)


def _estimated(key: str) -> Callable[[Entry], Value]:
    return lambda entry: Value(format_bytes((entry[0].content.get("memory") or {}).get(key)))


def _stated(entry: Entry, key: str) -> float | None:
    """Bytes of the first instance of the role."""
    value = (entry[2][0].get("memory") or {}).get(key)
    return None if value is None else float(value)


def _weights(entry: Entry) -> Value:
    """Under the measured weights, how far they lie from the estimate."""
    return _beside_estimate(_stated(entry, "weights_bytes"), entry, "weights_bytes")


def _kv_per_token(entry: Entry) -> Value:
    instance = entry[2][0]
    size, tokens = instance.get("kv_cache_bytes"), instance.get("kv_cache_tokens")
    return _beside_estimate(size / tokens if size and tokens else None, entry, "kv_bytes_per_token")


def _beside_estimate(measured: float | None, entry: Entry, key: str) -> Value:
    estimated = (entry[0].content.get("memory") or {}).get(key)
    change = format_change(measured / estimated) if measured is not None and estimated else ""
    return Value(format_bytes(measured), under=change)


def _overheads(entry: Entry) -> Value:
    """What an instance takes besides weights and cache."""
    parts = [_stated(entry, key) for key in ("activation_bytes", "non_torch_bytes", "graph_bytes")]
    known = [part for part in parts if part is not None]
    return Value(format_bytes(sum(known)) if len(known) == len(parts) else DASH)


def _reserved(entry: Entry) -> Value:
    return Value(format_bytes(entry[2][0].get("kv_cache_bytes")))


def _in_use(entry: Entry) -> Value:
    """The highest sum over the role's GPUs at any load level."""
    cell, role, _ = entry
    trial = _launched(cell)
    levels = ((trial or {}).get("trace") or {}).get("levels") or ()
    used = [
        each["mem_bytes_max"]
        for level in levels
        for each in level["roles"]
        if level["kind"] == "gpu" and each["role"] == role and each["mem_bytes_max"] is not None
    ]
    return Value(format_bytes(max(used, default=None)))


_QUANTITIES: dict[str, Callable[[Entry], Value]] = {
    "weights_estimated": _estimated("weights_bytes"),
    "weights": _weights,
    "per_token_estimated": _estimated("kv_bytes_per_token"),
    "per_token": _kv_per_token,
    "needed": _estimated("kv_bytes_needed"),
    "reserved": _reserved,
    "overheads": _overheads,
    "in_use": _in_use,
}
_GROUPS = {
    "weights_estimated": "of_weights",
    "weights": "of_weights",
    "per_token_estimated": "of_token",
    "per_token": "of_token",
    "needed": "of_cache",
    "reserved": "of_cache",
    "overheads": "of_rest",
    "in_use": "of_rest",
}


def _extra(cell: Cell, results: StudyResults, say: Wording) -> str:
    """A disaggregated cell against one instance of the same precision; empty where one of both says too little."""
    base = next(
        (other for other in results.cells_of(cell.workload) if _is_single(other) and other.dtype == cell.dtype), None
    )
    if base is None:
        return ""
    here, there = _weights_of(cell), _weights_of(base)
    sentences = []
    if here is not None and there is not None:
        sentences.append(
            say(
                "memory.copies",
                cell=cell_label(cell, results),
                base=cell_label(base, results),
                copies=len(_instances(cell)),
                weights=format_bytes(here),
                base_weights=format_bytes(there),
                extra=format_bytes(here - there),
            )
        )
    capacity, base_capacity = _tokens_per_gpu(cell), _tokens_per_gpu(base)
    if capacity and base_capacity:
        sentences.append(
            say(
                "memory.capacity",
                cell=cell_label(cell, results),
                base=cell_label(base, results),
                hardware=hardware(cell, say),
                base_hardware=hardware(base, say),
                tokens=format_quantity(capacity, 4),
                base_tokens=format_quantity(base_capacity, 4),
                change=format_change(_change_of_capacity(cell, base, results) or capacity / base_capacity),
            )
        )
    return say("list.sentence").join(sentences)


def _change_of_capacity(cell: Cell, base: Cell, results: StudyResults) -> float | None:
    """The ratio of comparisons.csv, where these two stand in it."""
    effect = results.capacity_effect("mode", cell, KV_PER_DEVICE)
    return effect.ratio if effect is not None and results.base_of(effect) is base else None


def _is_single(cell: Cell) -> bool:
    return cell.instance_count == 1 and not cell.disaggregated


def _weights_of(cell: Cell) -> float | None:
    """All copies; null where an instance does not say."""
    parts = [(each.get("memory") or {}).get("weights_bytes") for each in _instances(cell)]
    known = [float(part) for part in parts if part is not None]
    return sum(known) if known and len(known) == len(parts) else None


def _tokens_per_gpu(cell: Cell) -> float | None:
    """The mean of the launches, as in summary.csv."""
    return CapacityNumbers(cell.content).value(KV_PER_DEVICE, "value") if cell.content.get("gpus") else None
