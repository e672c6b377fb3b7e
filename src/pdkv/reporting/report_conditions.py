"""What was run: hardware, software, model, workloads, modes, precisions, and whether each cell may be believed."""

from collections import Counter

from pdkv.analysing.study_results import StudyResults
from pdkv.reporting.report_blocks import Block, Column, Paragraph, Section, Table, left, row
from pdkv.reporting.report_bounds import first_where
from pdkv.reporting.report_phrases import (
    cell_label,
    hardware,
    is_launched,
    known_or_dash,
    listed,
    load_level,
    stage_name,
    topology,
)
from pdkv.reporting.report_setup import setup_table, uses_random_weights
from pdkv.reporting.stored_texts import retell
from pdkv.reporting.wording import Wording
from pdkv.units import DASH


def describe_conditions(results: StudyResults, say: Wording) -> list[Section]:
    """The sections on what was run."""
    blocks: list[Block] = [setup_table(results, say)]
    if uses_random_weights(results):
        blocks.append(Paragraph(say("conditions.random_weights")))
    return [
        Section(say("conditions.title"), tuple(blocks)),
        Section(
            say("conditions.study"),
            (_workload_table(results, say), _mode_table(results, say), _dtype_table(results, say)),
            level=2,
        ),
        Section(
            say("conditions.validity"), (Paragraph(say("conditions.states")), _validity_table(results, say)), level=2
        ),
    ]


def _workload_table(results: StudyResults, say: Wording) -> Table:
    rows = []
    for name in results.workloads:
        config = results.cells_of(name)[0].config.get("workload") or {}
        points = results.points_of(name)
        rows.append(
            row(
                name,
                *(known_or_dash(config.get(key), say) for key in ("input_tokens", "output_tokens", "max_model_len")),
                say("list.comma").join(load_level(point, say) for point in points) or DASH,
                say("list.comma").join(dict.fromkeys(known_or_dash(each.get("requests"), say) for each in points))
                or DASH,
            )
        )
    columns = (
        left(say("workload.name")),
        Column(say("workload.input")),
        Column(say("workload.output")),
        Column(say("workload.length")),
        left(say("workload.levels"), wide=True),
        Column(say("workload.requests")),
    )
    return Table(say("workload.caption"), columns, tuple(rows))


def _mode_table(results: StudyResults, say: Wording) -> Table:
    rows = []
    for name in results.modes:
        cells = [cell for cell in results.cells if cell.mode == name]
        mode = cells[0].config.get("mode") or {}
        settings = {
            "chunked_prefill": mode.get("chunked_prefill"),
            "kv_connector": mode.get("kv_connector"),
            **{key: mode.get(key) for key in ("args", "prefill_args", "decode_args", "env", "kv_connector_config")},
        }
        said = say("list.semicolon").join(
            say("word.colon", name=say(f"mode.{key}"), value=known_or_dash(value, say))
            for key, value in settings.items()
            if value not in (None, {})
        )
        hardware_texts = dict.fromkeys(text for cell in cells if (text := hardware(cell, say)) != DASH)
        rows.append(
            row(
                name,
                topology(cells[0], say),
                say("list.comma").join(hardware_texts) or DASH,
                known_or_dash(mode.get("tensor_parallel_size"), say),
                said or say("mode.engine_default" if is_launched(cells[0]) else "mode.as_user_runs"),
            )
        )
    columns = (
        left(say("mode.name")),
        left(say("mode.topology"), wide=True),
        left(say("mode.hardware")),
        Column(say("mode.tensor_parallel")),
        left(say("mode.settings"), wide=True),
    )
    launched = [is_launched(cell) for cell in results.cells]
    fixed = [say("mode.launched" if all(launched) else "mode.some_launched")] if any(launched) else []
    return Table(
        say("mode.caption"), columns, tuple(rows), notes=(say("list.sentence").join((say("mode.note"), *fixed)),)
    )


def _dtype_table(results: StudyResults, say: Wording) -> Table:
    rows = []
    for name in results.dtypes:
        cells = [cell for cell in results.cells if cell.dtype == name]
        config = cells[0].config.get("dtype") or {}
        resolved = dict.fromkeys(
            known_or_dash(part.get("kv_cache_dtype"), say)
            for cell in cells
            for trial in cell.used_trials
            for part in ((trial.get("launch") or {}).get("resolved") or {}).values()
        )
        rows.append(
            row(
                name,
                known_or_dash(config.get("model_dtype"), say),
                known_or_dash(config.get("kv_cache_dtype"), say),
                say("list.comma").join(resolved) or DASH,
            )
        )
    columns = tuple(left(say(f"dtype.{key}")) for key in ("name", "model", "asked", "resolved"))
    key = "dtype.caption" if any(is_launched(cell) for cell in results.cells) else "dtype.endpoint_caption"
    return Table(say(key), columns, tuple(rows))


def _validity_table(results: StudyResults, say: Wording) -> Table:
    rows = []
    for cell in results.cells:
        checks = [check for part in (*cell.trials, cell.content) for check in part.get("checks") or []]
        counts = Counter(check["state"] for check in checks)
        doubts = [
            say("validity.doubt", state=say(f"check.{state}"), names=listed([retell(name, say) for name in names], say))
            for state in ("failed", "suspect", "unknown")
            if (names := list(dict.fromkeys(check["name"] for check in checks if check["state"] == state)))
        ]
        if cell.state == "failed":
            stages = dict.fromkeys((trial.get("failure") or {}).get("stage") for trial in cell.trials)
            doubts.insert(
                0,
                say(
                    "validity.failed",
                    stage=listed([stage_name(str(each), say) for each in stages if each], say) or DASH,
                ),
            )
        rows.append(
            row(
                cell_label(cell, results),
                say(f"state.{cell.state}"),
                f"{len(cell.used_trials)} / {len(cell.trials)}",
                f"{counts['passed']} / {len(checks)}",
                say("list.semicolon").join(doubts) or DASH,
            )
        )
    columns = (
        left(say("word.cell")),
        left(say("validity.state")),
        Column(say("validity.launches")),
        Column(say("validity.passed")),
        left(say("validity.doubts"), wide=True),
    )
    foremost = first_where((cell.state != "valid" for cell in results.cells), "doubtful", say)
    return Table(say("validity.caption"), columns, tuple(rows), foremost=foremost)
