"""One thing changed at a time: disaggregation against one instance and against replicas, and the KV precision."""

from collections.abc import Sequence

from pdkv.identical_cells import identical_groups, noise
from pdkv.report_blocks import Block, Column, Paragraph, Section, Table, Value, left, row, ruled_by
from pdkv.report_phrases import hardware_of, listed, load_level
from pdkv.study_results import Cell, Effect, StudyResults
from pdkv.units import format_percent
from pdkv.wording import Wording

# The numbers that an effect is shown in: few enough for one row, each with its own column.
HEADLINES = (
    ("ttft", "mean"), ("ttft", "median"), ("ttft", "p99"), ("tpot", "mean"), ("itl", "p99"), ("e2el", "mean"),
    ("output_throughput", "value"),
)  # fmt: skip
WITHIN_NOISE = "≈"


def describe_disaggregation(results: StudyResults, say: Wording) -> list[Section]:
    """PD against one instance, against replicas on equal hardware, and the other modes."""
    split = [cell for cell in results.cells if cell.disaggregated]
    others = [cell for cell in results.cells if not cell.disaggregated]
    blocks: list[Block] = []
    blocks += _effect_block(results, "mode", split, "effects.pd", say) if split else [Paragraph(say("effects.no_pd"))]
    if split:
        blocks += _effect_block(results, "hardware", split, "effects.hardware", say)
    if any(_rows(results, "mode", others, say)):
        blocks += _effect_block(results, "mode", others, "effects.other_modes", say)
    return [
        Section(say("effects.modes_title"), (Paragraph(say("effects.reading")), *blocks)),
        Section(say("identical.title"), tuple(_identical_blocks(results, say)), level=2),
    ]


def describe_precision(results: StudyResults, say: Wording) -> list[Section]:
    """KV precision within each mode."""
    return [
        Section(say("effects.dtype_title"), tuple(_effect_block(results, "dtype", results.cells, "effects.dtype", say)))
    ]


def headline(metric: str, stat: str, say: Wording) -> str:
    """``TTFT mean``, ``output tok/s``."""
    name = say(f"metric.{metric}.short")
    return name if stat == "value" else say("effects.headline", metric=name, stat=say(f"stat.{stat}"))


def _effect_block(results: StudyResults, kind: str, cells: Sequence[Cell], key: str, say: Wording) -> list[Block]:
    """The table of one kind of effect, or a sentence where nothing could be compared."""
    keyed = _rows(results, kind, cells, say)
    if not keyed:
        return [Paragraph(say(f"{key}.nothing"))]
    levels, rows = zip(*keyed, strict=True)
    columns = (
        left(say("effects.level")),
        left(say("word.cell")),
        left(say("effects.against")),
        left(say("mode.hardware")),
        *(Column(headline(metric, stat, say)) for metric, stat in HEADLINES),
    )
    notes = [say("note.change")]
    if any(value.mark == WITHIN_NOISE for each in rows for value in each):
        notes.append(f"{WITHIN_NOISE} {say('note.within_noise')}")
    return [Table(say(f"{key}.caption"), columns, tuple(rows), tuple(notes), ruled_by(levels))]


def _rows(results: StudyResults, kind: str, cells: Sequence[Cell], say: Wording) -> list[tuple[str, tuple[Value, ...]]]:
    """(level, row) per load level and cell that has an effect of this kind."""
    rows = []
    for workload in results.workloads:
        groups = identical_groups(results.cells_of(workload))
        for index, point in enumerate(results.points_of(workload)):
            level = load_level(point, say)
            level = level if len(results.workloads) == 1 else f"{workload}, {level}"
            for cell in cells:
                effects = {key: results.effect(kind, cell, index, *key) for key in HEADLINES}
                base = _base_of(results, cell, effects.values())
                if cell.workload == workload and base:
                    hardware = say(
                        "effects.hardware_pair",
                        here=hardware_of(cell.hardware, say),
                        there=hardware_of(base.hardware, say),
                    )
                    values = [_change(effects[key], noise(groups, index, *key), say) for key in HEADLINES]
                    rows.append((level, row(level, cell.name, base.name, hardware, *values)))
    return rows


def _base_of(results: StudyResults, cell: Cell, effects: "Sequence[Effect | None] | object") -> Cell | None:
    """The cell that these effects compare with, if any number could be compared."""
    found = [effect for effect in effects if effect and effect.ratio is not None]  # type: ignore[attr-defined]
    if not found:
        return None
    base = (found[0].row["base_mode"], found[0].row["base_dtype"])
    return next(other for other in results.cells_of(cell.workload) if (other.mode, other.dtype) == base)


def _change(effect: Effect | None, yardstick: float | None, say: Wording) -> Value:
    """The change in percent, below it the interval and the verdict where launches allow them."""
    if effect is None or effect.ratio is None or effect.ratio <= 0:
        return Value(format_percent(None))
    small = yardstick is not None and max(effect.ratio, 1 / effect.ratio) - 1 <= yardstick
    under = []
    if effect.interval:
        under.append(
            say("effects.interval", low=format_percent(effect.interval[0]), high=format_percent(effect.interval[1]))
        )
    if effect.verdict:
        under.append(say(f"verdict.{effect.verdict}") if say.has(f"verdict.{effect.verdict}") else effect.verdict)
    return Value(format_percent(effect.ratio), under=" ".join(under), mark=WITHIN_NOISE if small else "")


def _identical_blocks(results: StudyResults, say: Wording) -> list[Block]:
    """Which cells ran the same thing, and what they differed by."""
    groups = identical_groups(results.cells)
    if not groups:
        return [Paragraph(say("identical.none"))]
    names = "; ".join(listed([cell.name for cell in group], say) for group in groups)
    rows = []
    for workload in results.workloads:
        inside = [group for group in groups if group[0].workload == workload]
        for index, point in enumerate(results.points_of(workload)):
            for group in inside:
                values = [noise([group], index, *key) for key in HEADLINES]
                if any(value is not None for value in values):
                    shown = (format_percent(None if value is None else 1 + value, sign=False) for value in values)
                    level = (
                        load_level(point, say)
                        if len(results.workloads) == 1
                        else f"{workload}, {load_level(point, say)}"
                    )
                    rows.append(row(level, ", ".join(cell.name for cell in group), *shown))
    columns = (
        left(say("effects.level")),
        left(say("identical.cells")),
        *(Column(headline(metric, stat, say)) for metric, stat in HEADLINES),
    )
    table: list[Block] = [Table(say("identical.caption"), columns, tuple(rows))] if rows else []
    return [Paragraph(say("identical.said", groups=names)), *table]
