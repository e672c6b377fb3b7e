"""How the devices of each role worked at each load level: bursts, plateaus, idle time, and how unevenly."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pdkv.analysing.duty_cycle import BUSY, PLATEAU
from pdkv.analysing.study_results import ENGINE_ROLES, Cell, StudyResults
from pdkv.reporting.report_blocks import Block, Bullets, Column, Paragraph, Section, Table, left, row, ruled_by
from pdkv.reporting.report_phrases import cell_label, listed, short_level
from pdkv.reporting.wording import Wording
from pdkv.units import DASH, format_quantity

Entry = tuple[Cell, dict[str, Any], dict[str, Any]]  # a cell, a level of its trace, a role there


def describe_activity(results: StudyResults, say: Wording) -> list[Section]:
    """A row for each cell, load level and role of the launch that the figures show; nothing without a trace."""
    entries = list(_entries(results))
    if not entries:
        return []
    blocks: list[Block] = [Paragraph(_introduction(entries, say)), _table(results, entries, say)]
    blocks += _imbalances(results, entries, say)
    return [Section(say("activity.title"), tuple(blocks), level=2)]


def _entries(results: StudyResults) -> Iterator[Entry]:
    for cell in results.cells:
        trial = cell.drawn_trial
        for level in ((trial or {}).get("trace") or {}).get("levels") or ():
            roles = {role["role"]: role for role in level["roles"]}
            yield from ((cell, level, roles[name]) for name in ENGINE_ROLES if name in roles)


def _introduction(entries: Sequence[Entry], say: Wording) -> str:
    sentences = [say("activity.introduction")]
    if any(cell.hardware and cell.hardware[1] == "core" for cell, _, _ in entries):
        sentences.append(say("activity.cores"))
    if not all(level["full_load"] for _, level, _ in entries):
        sentences.append(say("activity.never_full"))
    seen_from = [role["seen_from_s"] for _, _, role in entries if role["seen_from_s"] is not None]
    if seen_from:
        sentences.append(say("activity.seen_from", seconds=f"{max(seen_from):.2g}"))
    return say("list.sentence").join(sentences)


def _table(results: StudyResults, entries: Sequence[Entry], say: Wording) -> Table:
    """Quantities that no device of the study has are left out."""
    shown = {
        key: read for key, read in _QUANTITIES.items() if any(read(level, role) != DASH for _, level, role in entries)
    }
    rows = [
        row(
            cell_label(cell, results),
            _level(cell, level, results, say),
            say("activity.role", role=role["role"], count=role["devices"]),
            *(read(level, role) for read in shown.values()),
        )
        for cell, level, role in entries
    ]
    labels = (left(say("word.cell")), left(say("effects.level")), left(say("traces.role")))
    columns = (*labels, *(Column(say(f"activity.{key}")) for key in shown))
    ruled = ruled_by((cell.workload, cell.mode) for cell, _, _ in entries)
    note = say("activity.note", busy=f"{BUSY:.0%}", points=round(PLATEAU * 100))
    return Table(say("activity.caption"), columns, tuple(rows), (note,), ruled)


def _level(cell: Cell, level: dict[str, Any], results: StudyResults, say: Wording) -> str:
    point = cell.point(level["point"])
    return short_level(cell.workload, point, results, say) if point else DASH


def _imbalances(results: StudyResults, entries: Sequence[Entry], say: Wording) -> list[Block]:
    """How far the devices of a role lie apart; said of GPUs only."""
    several = [entry for entry in entries if entry[1]["kind"] == "gpu" and entry[2]["devices"] > 1]
    if not several:
        alone = any(level["kind"] == "gpu" for _, level, _ in entries)
        return [Paragraph(say("activity.no_peers"))] if alone else []
    items = [
        say(
            "activity.imbalance",
            cell=cell_label(cell, results),
            level=_level(cell, level, results, say),
            role=role["role"],
            count=role["devices"],
            parts=listed(_apart(role, say), say),
        )
        for cell, level, role in several
    ]
    return [Paragraph(say("activity.imbalances")), Bullets(tuple(items))]


def _apart(role: dict[str, Any], say: Wording) -> Iterator[str]:
    for key in ("duty_cycle", "busy_share", "energy_j"):
        value = role["imbalance"][key]
        yield say(f"activity.apart.{key}", share=DASH if value is None else f"{value:.1%}")


def _percent(value: float | None) -> str:
    return DASH if value is None else f"{value:.0%}"


def _plateau(level: dict[str, Any], role: dict[str, Any]) -> str:
    if role["plateau_share"] is None:
        return DASH
    return f"{role['plateau_share']:.0%} @ {role['plateau_level']:.0%}"


def _per_minute(level: dict[str, Any], role: dict[str, Any]) -> str:
    """Of one device, on average."""
    if role["bursts"] is None:
        return DASH
    minutes = (level["end_s"] - level["start_s"]) / 60 * role["devices"]
    return format_quantity(role["bursts"] / minutes) if role["bursts"] else "0"


def _lengths(kind: str) -> Callable[[dict[str, Any], dict[str, Any]], str]:
    def read(level: dict[str, Any], role: dict[str, Any]) -> str:
        median, p90 = role[f"{kind}_median_s"], role[f"{kind}_p90_s"]
        return DASH if median is None else f"{format_quantity(median)} ({format_quantity(p90)})"

    return read


_QUANTITIES: dict[str, Callable[[dict[str, Any], dict[str, Any]], str]] = {
    "duty_cycle": lambda level, role: _percent(role["duty_cycle"]),
    "busy": lambda level, role: _percent(role["busy_share"]),
    "idle": lambda level, role: _percent(role["idle_share"]),
    "plateau": _plateau,
    "bursts": _per_minute,
    "burst": _lengths("burst"),
    "gap": _lengths("gap"),
    "power": lambda level, role: format_quantity(role["power_w"]),
}
