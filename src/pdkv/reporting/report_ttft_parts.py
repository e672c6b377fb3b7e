"""Where the first token's time goes, cell by cell: parts in milliseconds and as shares, and the KV transfers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pdkv.analysing.study_results import Cell, StudyResults
from pdkv.analysing.ttft_parts import PARTS, TOLERANCE
from pdkv.reporting.figure_names import ttft_parts_figure
from pdkv.reporting.illustrated_workloads import illustrated_workloads
from pdkv.reporting.report_blocks import Block, Column, Figure, Paragraph, Section, Table, Value, left, row, ruled_by
from pdkv.reporting.report_phrases import format_change, is_suspect, short_level
from pdkv.reporting.wording import Wording
from pdkv.units import DASH, format_bytes, format_ms, format_quantity

UNEXPLAINED, SUSPECT, MISMATCHED = "*", "†", "‡"
NEAR = 0.10  # of the measured mean: a mean over all requests that is further off is told
GROUPS = {"prefill_intake": "prefill", "prefill_queue": "prefill", "prefill": "prefill"} | dict.fromkeys(
    ("decode_intake", "decode_queue", "kv_transfer", "first_decode_step"), "decode"
)

Entry = tuple[Cell, dict[str, Any], dict[str, Any]]  # a cell, what it has at a load level, its breakdown there


def describe_ttft_parts(results: StudyResults, say: Wording) -> list[Section]:
    """The section; none where no server was asked, as with an endpoint."""
    entries = list(_entries(results))
    if not entries:
        return []
    blocks: list[Block] = [Paragraph(say("ttft_parts.introduction")), _parts_table(results, entries, say)]
    if transfers := [entry for entry in entries if entry[1]["server"] and entry[1]["server"].get("kv_transfer")]:
        blocks.append(_transfer_table(results, transfers, say))
    told = {cell.workload for cell, _, _ in entries}
    for workload in illustrated_workloads(results):
        if workload in told:
            blocks.append(Figure(ttft_parts_figure(workload), say("caption.ttft_parts", workload=workload)))
    return [Section(say("ttft_parts.title"), tuple(blocks))]


def _entries(results: StudyResults) -> Iterable[Entry]:
    for workload in results.workloads:
        for index in range(len(results.points_of(workload))):
            for cell in results.cells_of(workload):
                point = cell.point(index)
                if point and point.get("ttft_parts"):
                    yield cell, point, point["ttft_parts"]


def _parts_table(results: StudyResults, entries: Sequence[Entry], say: Wording) -> Table:
    """Only parts that some cell has: without disaggregation there is no router and no decode among them."""
    parts = [part for part in PARTS if any(part in split["parts"] for _, _, split in entries)]
    rows = []
    for cell, point, split in entries:
        mark = UNEXPLAINED if split["state"] == "unexplained" else ""
        rest = replace(_share(split["unexplained_s"], split), mark=mark)
        values = [_share(split["parts"].get(part), split) for part in parts]
        rows.append(row(*_labels(results, cell, point, say), format_ms(split["ttft_mean_s"]), *values, rest))
    columns = [left(say("ttft_parts.level")), left(say("word.cell")), Column(say("metric.ttft.short"))]
    columns += [Column(say(f"ttft_part_short.{part}"), group=_group(part, say)) for part in parts]
    columns.append(Column(say("ttft_part_short.unexplained")))
    ruled = ruled_by((cell.workload, point["point"]) for cell, point, _ in entries)
    notes = (*_notes(entries, say), *_against_measured(results, entries, say))
    return Table(say("ttft_parts.caption"), tuple(columns), tuple(rows), notes, ruled)


def _labels(results: StudyResults, cell: Cell, point: Mapping[str, Any], say: Wording) -> tuple[Value, Value]:
    mark = SUSPECT if is_suspect(cell, point["point"]) else ""
    mark += MISMATCHED if point["ttft_parts"]["state"] == "mismatched" else ""
    return Value(short_level(cell.workload, dict(point), results, say)), Value(cell.name, mark=mark)


def _share(seconds: float | None, split: Mapping[str, Any]) -> Value:
    """Milliseconds over their share of TTFT."""
    if seconds is None:
        return Value(DASH)
    whole = split["ttft_mean_s"]
    return Value(
        format_ms(seconds).replace("-", "−"), under=f"{seconds / whole:.0%}".replace("-", "−") if whole else ""
    )


def _group(part: str, say: Wording) -> str:
    return say(f"ttft_parts.{GROUPS[part]}") if part in GROUPS else ""


def _notes(entries: Sequence[Entry], say: Wording) -> tuple[str, ...]:
    states = {split["state"] for _, _, split in entries}
    notes = [say("ttft_parts.note"), say("ttft_parts.intake")]
    if "unexplained" in states:
        notes.append(f"{UNEXPLAINED} {say('ttft_parts.unexplained', limit=f'{TOLERANCE:.0%}')}")
    if any(is_suspect(cell, point["point"]) for cell, point, _ in entries):
        notes.append(f"{SUSPECT} {say('note.suspect')}")
    if "mismatched" in states:
        notes.append(f"{MISMATCHED} {say('ttft_parts.mismatched')}")
    return tuple(notes)


def _against_measured(results: StudyResults, entries: Sequence[Entry], say: Wording) -> tuple[str, ...]:
    """Load level by load level, by how much the mean over all requests is off that of the measured ones, if it is."""
    levels: dict[tuple[str, int], tuple[str, list[str]]] = {}
    for cell, point, split in entries:
        whole, measured = split["ttft_mean_s"], cell.value(point["point"], "ttft", "mean")
        if whole and measured and abs(whole / measured - 1) > NEAR:
            label = short_level(cell.workload, dict(point), results, say)
            told = levels.setdefault((cell.workload, point["point"]), (label, []))[1]
            values = {"all": format_ms(whole), "measured": format_ms(measured)}
            told.append(say("ttft_parts.off_of_cell", cell=cell.name, change=format_change(whole / measured), **values))
    return tuple(
        say("ttft_parts.off", level=label, limit=f"{NEAR:.0%}", cells=say("list.semicolon").join(told))
        for label, told in levels.values()
    )


def _transfer_table(results: StudyResults, entries: Sequence[Entry], say: Wording) -> Table:
    """How much KV cache a request brought over, and how fast one transfer was."""
    rows = [
        row(*_labels(results, cell, point, say), *_transfer(point["server"]["kv_transfer"], split["counted"]["decode"]))
        for cell, point, split in entries
    ]
    titles = ("kv_per_request", "transfers_per_request", "transfer_time", "transfer_rate")
    labels = (left(say("ttft_parts.level")), left(say("word.cell")))
    columns = (*labels, *(Column(say(f"ttft_parts.{title}")) for title in titles))
    ruled = ruled_by((cell.workload, point["point"]) for cell, point, _ in entries)
    note = say("ttft_parts.transfer_note")
    return Table(say("ttft_parts.transfer_caption"), columns, tuple(rows), (note,), ruled)


def _transfer(transfer: Mapping[str, Any], requests: int | None) -> tuple[str, ...]:
    """Bytes and transfers per request, milliseconds of one transfer, GB/s of one."""
    count, size, seconds = (transfer.get(key) for key in ("count", "bytes", "seconds"))
    return (
        format_bytes(size / requests if size is not None and requests else None),
        format_quantity(count / requests if count is not None and requests else None),
        format_ms(seconds / count if seconds is not None and count else None),
        format_quantity(size / seconds / 1e9 if size is not None and seconds else None),
    )
