"""What the servers resolved their settings to, and how much KV cache that left."""

from collections.abc import Iterator, Mapping
from typing import Any

from pdkv.analysing.aggregate import CAPACITIES
from pdkv.analysing.study_results import Cell, StudyResults
from pdkv.reporting.report_blocks import Block, Column, Paragraph, Section, Table, Value, left, row, ruled_by
from pdkv.reporting.report_bounds import first_where
from pdkv.reporting.report_phrases import cell_label, format_change, known_or_dash
from pdkv.reporting.wording import Wording
from pdkv.units import DASH, format_bytes, format_quantity

SUSPECT = "†"
RESOLVED = (
    "kv_cache_dtype", "model_dtype", "chunked_prefill", "max_num_batched_tokens", "max_num_seqs", "attention_backend",
    "model_runner", "engine_version",
)  # fmt: skip


def describe_servers(results: StudyResults, say: Wording) -> list[Section]:
    """KV capacity and resolved settings, an instance a row.

    Settings are those of the first launch that counts, or where none does of the first that says any; capacities are
    means of the launches that count, as in summary.csv and comparisons.csv.
    """
    instances = [(cell, instance) for cell in results.cells for instance in _instances(cell)]
    if not instances:
        return [Section(say("servers.title"), (Paragraph(say("servers.nothing")),))]
    blocks: list[Block] = [Paragraph(say("servers.introduction"))]
    differing = [cell.name for cell in results.cells if _launches_differ(cell)]
    if differing:
        blocks.append(Paragraph(say("servers.differ", cells=say("list.comma").join(differing))))
    blocks += [_capacity_table(results, instances, say), _resolved_table(results, instances, say)]
    return [Section(say("servers.title"), tuple(blocks))]


def _instances(cell: Cell) -> Iterator[dict[str, Any]]:
    for trial in (*cell.used_trials, *cell.trials):
        found = (trial.get("launch") or {}).get("instances") or []
        if found:
            yield from found
            return


def _with_mean_capacity(cell: Cell, instance: dict[str, Any]) -> dict[str, Any]:
    """The instance with what it could hold on average; as it is in a cell of which no launch counts."""
    own = [
        each
        for trial in cell.used_trials
        for each in (trial.get("launch") or {}).get("instances") or []
        if each.get("name") == instance.get("name")
    ]
    told = {key: [each[key] for each in own if each.get(key) is not None] for key in CAPACITIES}
    means = {key: sum(values) / len(values) for key, values in told.items() if values}
    return {**instance, **means}


def _launches_differ(cell: Cell) -> bool:
    """Whether launches of the cell resolved to different things: then one row cannot stand for all."""
    identities = {identity for trial in cell.used_trials if (identity := (trial.get("launch") or {}).get("identity"))}
    return len(identities) > 1


def _labels(results: StudyResults, cell: Cell, instance: dict[str, Any]) -> tuple[str, str]:
    return cell_label(cell, results), str(instance.get("name") or instance.get("role") or DASH)


def _label_columns(say: Wording) -> tuple[Column, ...]:
    return left(say("word.cell")), left(say("servers.instance"))


def _capacity_table(results: StudyResults, instances: list[tuple[Cell, dict[str, Any]]], say: Wording) -> Table:
    rows: list[tuple[Value, ...]] = []
    row_keys: list[tuple[str, str]] = []
    for cell in dict.fromkeys(cell for cell, _ in instances):
        own = [_with_mean_capacity(cell, each) for owner, each in instances if owner is cell]
        of_cell = list(_capacity_rows(results, cell, own, say))
        rows += of_cell
        row_keys += [(cell.workload, cell.mode)] * len(of_cell)
    numbers = tuple(Column(say(f"servers.{key}")) for key in ("tokens", "concurrency", "bytes", "block", "length"))
    ruled = ruled_by(row_keys)
    doubtful = any(value.mark for each in rows for value in each)
    notes = (say("servers.capacity_note"), *([f"{SUSPECT} {say('note.suspect_capacity')}"] if doubtful else []))
    foremost = first_where((any(value.mark for value in each) for each in rows), "doubtful", say)
    return Table(say("servers.capacity_caption"), _label_columns(say) + numbers, tuple(rows), notes, ruled, foremost)


def _capacity_rows(
    results: StudyResults, cell: Cell, instances: list[dict[str, Any]], say: Wording
) -> Iterator[tuple[Value, ...]]:
    """An instance a row; where several decode, one more for all of them, which alone bears the cell's change."""
    decoding = [instance for instance in instances if instance.get("role") != "prefill"]
    for instance in instances:
        yield row(
            *_labels(results, cell, instance),
            _tokens(results, cell, instance, say, changed=decoding == [instance]),
            format_quantity(instance.get("max_concurrency")),
            format_bytes(instance.get("kv_cache_bytes")),
            known_or_dash(instance.get("block_size"), say),
            known_or_dash(instance.get("max_model_len"), say),
        )
    if len(decoding) > 1:
        sums = {key: _sum(decoding, key) for key in ("kv_cache_tokens", "max_concurrency", "kv_cache_bytes")}
        name = say("servers.whole_cell", count=len(decoding))
        tokens = _tokens(results, cell, sums, say, changed=True)
        held = (format_quantity(sums["max_concurrency"]), format_bytes(sums["kv_cache_bytes"]))
        yield row(cell_label(cell, results), name, tokens, *held, DASH, DASH)


def _sum(instances: list[dict[str, Any]], key: str) -> Any:
    values = [instance.get(key) for instance in instances]
    return None if None in values else sum(value for value in values if value is not None)


def _tokens(results: StudyResults, cell: Cell, instance: Mapping[str, Any], say: Wording, *, changed: bool) -> Value:
    """The capacity, and under it, if asked for as ``changed``, that of the cell against the base cell's."""
    effect = results.capacity_effect("baseline", cell, "kv_cache_tokens")
    known = effect is not None and effect.ratio is not None and changed
    under = format_change(effect.ratio) if effect and known else ""
    doubtful = cell.state == "suspect" or (under and effect is not None and results.base_of(effect).state == "suspect")
    mark = SUSPECT if doubtful else ""
    tokens = instance.get("kv_cache_tokens")
    return Value(DASH if tokens is None else f"{tokens:,.0f}", under=under, mark=mark)


def _resolved_table(results: StudyResults, instances: list[tuple[Cell, dict[str, Any]]], say: Wording) -> Table:
    """A column for each setting in which instances differ; the others are told in the note."""
    shown = {key: [known_or_dash(instance.get(key), say) for _, instance in instances] for key in RESOLVED}
    common = {key: texts[0] for key, texts in shown.items() if key != RESOLVED[0] and len(set(texts)) == 1}
    columns = [key for key in RESOLVED if key not in common]
    rows = [
        row(*_labels(results, cell, instance), *(shown[key][number] for key in columns))
        for number, (cell, instance) in enumerate(instances)
    ]
    told = [say("word.colon", name=say(f"servers.{key}"), value=text) for key, text in common.items() if text != DASH]
    notes = (say("servers.common", settings=say("list.semicolon").join(told)),) if told else ()
    ruled = ruled_by((cell.workload, cell.mode) for cell, _ in instances)
    titles = _label_columns(say) + tuple(left(say(f"servers.{key}")) for key in columns)
    return Table(say("servers.resolved_caption"), titles, tuple(rows), notes, ruled)
