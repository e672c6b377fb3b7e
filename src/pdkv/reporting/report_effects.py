"""One thing changed at a time: disaggregation against one instance and against replicas, and the KV precision."""

from collections.abc import Mapping, Sequence

from pdkv.analysing.hardware_units import PER_DEVICE
from pdkv.analysing.identical_cells import noise, yardstick_groups
from pdkv.analysing.study_results import Cell, StudyResults
from pdkv.reporting.report_blocks import Block, Bullets, Column, Paragraph, Section, Table, Value, left, row, ruled_by
from pdkv.reporting.report_changes import change_value, largest_change, largest_first, notes_of
from pdkv.reporting.report_interactions import describe_interactions
from pdkv.reporting.report_pairs import tell_pairs
from pdkv.reporting.report_phrases import HEADLINES, hardware_pair, headline, short_level
from pdkv.reporting.report_refusals import refusals
from pdkv.reporting.wording import Wording

# In what sentences tell a difference; medians stand in the tables.
TOLD = (*(number for number in HEADLINES if number[1] != "median"), (PER_DEVICE, "value"))


def describe_disaggregation(
    results: StudyResults, baseline: tuple[str, str], margin: float, say: Wording
) -> list[Section]:
    """PD against one instance, against replicas on equal hardware, and the other modes."""
    is_default = baseline[0] == "default"
    base = say("effects.default") if is_default else baseline[0]
    words = {"base": say("effects.default_mode") if is_default else say("effects.named_mode", mode=baseline[0])}
    split = [cell for cell in results.cells if cell.disaggregated]
    others = [cell for cell in results.cells if not cell.disaggregated]
    if len(results.modes) == 1:
        blocks: list[Block] = [Paragraph(say("effects.one_mode", mode=results.modes[0]))]
    elif not split:
        blocks = [Paragraph(say("effects.no_pd"))]
    else:
        blocks = _effect_block(results, "mode", split, "effects.pd", words, margin, say)
    if split and any(is_replicated(cell) for cell in results.cells):
        blocks += _effect_block(results, "hardware", split, "effects.hardware", words, margin, say)
    elif split and len(results.modes) > 1:
        blocks.append(Paragraph(say("effects.hardware.absent")))
    if any(_rows(results, "mode", others, say)):
        blocks += _effect_block(results, "mode", others, "effects.other_modes", words, margin, say)
    return [Section(say("effects.modes_title", base=base), (Paragraph(say("effects.reading")), *blocks))]


def describe_precision(results: StudyResults, baseline: tuple[str, str], margin: float, say: Wording) -> list[Section]:
    """KV precision within each mode, and whether what it does depends on the mode."""
    if len(results.dtypes) == 1:
        blocks: list[Block] = [Paragraph(say("effects.one_dtype", dtype=results.dtypes[0]))]
    else:
        blocks = _effect_block(results, "dtype", results.cells, "effects.dtype", {"dtype": baseline[1]}, margin, say)
        blocks += describe_interactions(results, TOLD[:-1], margin, say)
    return [Section(say("effects.dtype_title"), tuple(blocks))]


def is_replicated(cell: Cell) -> bool:
    """Whether undivided instances stood side by side behind a router."""
    return not cell.disaggregated and ((cell.config.get("mode") or {}).get("replicas") or 0) > 1


def _effect_block(
    results: StudyResults,
    factor: str,
    cells: Sequence[Cell],
    key: str,
    words: Mapping[str, str],
    margin: float,
    say: Wording,
) -> list[Block]:
    """What was found, pair by pair, and its table, or a sentence where there is none; then what was refused, and why.

    ``words`` name in captions what the cells are set against.
    """
    keyed = _rows(results, factor, cells, say)
    refused = refusals(results, factor, cells, say)
    blocks: list[Block] = [Bullets(refused)] if refused else []
    if not keyed:
        why = say("effects.all_refused") if refused else _why_nothing(results, factor, cells, key, words, say)
        return [Paragraph(why), *blocks]
    levels, rows, changes = zip(*keyed, strict=True)
    columns = (
        left(say("effects.level")),
        left(say("word.cell")),
        left(say("effects.against")),
        left(say("mode.hardware")),
        *(Column(headline(metric, stat, say)) for metric, stat in HEADLINES),
    )
    notes = [say("note.change")]
    if any(len(cell.used_trials) > 1 for cell in results.cells):
        notes.append(say("note.several_launches"))
    notes += notes_of(rows, margin, say)
    caption = say(f"{key}.caption", **words)
    table = Table(caption, columns, tuple(rows), tuple(notes), ruled_by(levels), largest_first(changes, say))
    told = tell_pairs(results, factor, cells, TOLD, margin, say)
    return [*([told] if told.items else []), table, *blocks]


def _why_nothing(
    results: StudyResults, factor: str, cells: Sequence[Cell], key: str, words: Mapping[str, str], say: Wording
) -> str:
    """Why there is no comparison of this kind and none that was refused either."""
    pairs = [
        (results.cell_of(effect), results.base_of(effect))
        for effect in results.effects
        if effect.row["factor"] == factor and results.cell_of(effect) in cells
    ]
    if not pairs:
        why = say(f"{key}.no_pair" if say.has(f"{key}.no_pair") else "effects.no_pair")
    else:
        gone = all(not (cell.usable and base.usable) for cell, base in pairs)
        why = say("effects.no_launch" if gone else "effects.no_value")
    return say(f"{key}.nothing", why=why, **words)


def _rows(
    results: StudyResults, factor: str, cells: Sequence[Cell], say: Wording
) -> list[tuple[str, tuple[Value, ...], float]]:
    """(level, row, largest change that was found) per load level and cell that has an effect of this kind."""
    rows = []
    wanted = set(cells)
    for workload in results.workloads:
        groups = yardstick_groups(results.cells_of(workload))
        for index, point in enumerate(results.points_of(workload)):
            level = short_level(workload, point, results, say)
            for cell in (each for each in results.cells_of(workload) if each in wanted):
                effects = {key: results.effect(factor, cell, index, *key) for key in HEADLINES}
                known = [effect for effect in effects.values() if effect and effect.ratio is not None]
                if known:
                    base = results.base_of(known[0])
                    values = [
                        change_value(effects[key], noise(groups, index, *key), (cell, base), index, key, say)
                        for key in HEADLINES
                    ]
                    labels = (level, cell.name, base.name, hardware_pair(cell, base, say))
                    rows.append((level, row(*labels, *values), largest_change(known)))
    return rows
