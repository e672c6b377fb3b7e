"""Where the time of the study went, and what the pipeline itself took of it."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePath
from statistics import median

from pdkv.analysing.study_results import StudyResults
from pdkv.analysing.trial_gaps import TrialGaps, trial_gaps
from pdkv.reporting.report_blocks import Column, Paragraph, Section, Table, Value, left, row, ruled_by
from pdkv.reporting.report_bounds import WHOLE_ROWS, first_where
from pdkv.reporting.report_launches import describe_cold_and_warm_launches
from pdkv.reporting.report_phrases import cell_label
from pdkv.reporting.wording import Wording
from pdkv.units import DASH, format_duration

STAGES = ("launch", "warmup", "load", "shutdown", "wall", "overhead")
OVERHEAD_LIMIT = 0.10


def describe_stages(results: StudyResults, say: Wording) -> list[Section]:
    """A row per launch of every cell, with its job where a cluster ran it, and a total over those that ended well."""
    rows, keys, whole, ended = [], [], [], []
    logs = [trial["job_log"] for cell in results.cells for trial in cell.trials if trial.get("job_log")]
    for cell in results.cells:
        for trial in cell.trials:
            stages = trial.get("stages") or {}
            times = [stages.get(f"{name}_s") for name in STAGES]
            if times[-1] is not None:
                whole.append(times)
            ended.append(times[-1] is not None and not trial.get("failure"))
            label = cell_label(cell, results) + ("" if len(cell.trials) == 1 else f" r{trial['repeat']}")
            job = [str(trial.get("job") or DASH)] if logs else []
            rows.append(row(label, *job, *(format_duration(seconds) for seconds in times), _share(times)))
            keys.append((cell.workload, cell.mode))
    total = [sum(each[column] or 0.0 for each in whole) for column in range(len(STAGES))]
    if whole:
        job = [""] if logs else []
        rows.append(row(say("stages.total"), *job, *(format_duration(seconds) for seconds in total), _share(total)))
        keys.append(("", ""))
    columns = (
        left(say("word.cell")),
        *([left(say("stages.job"))] if logs else []),
        *(Column(say(f"stage.{name}")) for name in STAGES),
        Column(say("stages.share")),
    )
    notes = (say("stages.note"), *([say("stages.job_logs", folder=_common_folder(logs))] if logs else []))
    foremost = first_where((not ended_well for ended_well in ended), "unfinished", say)
    foremost = replace(foremost, always=tuple(range(len(ended), len(rows))))
    table = Table(say("stages.caption"), columns, tuple(rows), notes, ruled_by(keys), foremost)
    sentences = [_overhead_sentence(total, say) if whole else say("stages.nothing")]
    if gaps := trial_gaps(results.cells):
        sentences.append(_gaps_sentence(gaps, total if len(whole) == len(rows) - 1 else None, say))
    launches = describe_cold_and_warm_launches(results, say)
    by_mode = [_by_mode_table(results, say)] if len(ended) > WHOLE_ROWS else []
    blocks = (Paragraph(say("list.sentence").join(sentences)), *by_mode, table, *launches)
    return [Section(say("stages.title"), blocks)]


def _by_mode_table(results: StudyResults, say: Wording) -> Table:
    """Of so many launches that only some are shown, a row for each mode."""
    found: dict[str, list[list[float]]] = {}
    for cell in results.cells:
        for trial in cell.trials:
            times = [(trial.get("stages") or {}).get(f"{name}_s") for name in STAGES]
            if times[-1] is not None and not trial.get("failure"):
                found.setdefault(cell.mode, []).append([seconds or 0.0 for seconds in times])
    rows = [
        row(
            mode,
            f"{len(launches):,}",
            *(
                Value(format_duration(median(column)), under=format_duration(max(column)))
                for column in zip(*launches, strict=True)
            ),
        )
        for mode, launches in found.items()
    ]
    titles = (say("throughput.launches"), *(say(f"stage.{name}") for name in STAGES))
    return Table(say("stages.by_mode"), (left(say("mode.name")), *map(Column, titles)), tuple(rows))


def _common_folder(logs: Sequence[str]) -> str:
    """The folder below which the logs of all jobs lie."""
    folders = {PurePath(log).parent for log in logs}
    common = os.path.commonpath(folders)
    return str(PurePath(common).parent if len(folders) == 1 else common)


def _share(times: Sequence[float | None]) -> Value:
    wall, overhead = times[-2], times[-1]
    return Value(f"{overhead / wall:.1%}" if wall and overhead is not None else DASH)


def _gaps_sentence(gaps: TrialGaps, total: Sequence[float] | None, say: Wording) -> str:
    """The time between launches; with ``total``, that of a study all of which ran to its end, also its share."""
    said = say("stages.gaps", gaps=format_duration(gaps.gaps_s), count=gaps.count)
    if gaps.overlapping:
        return say("list.sentence").join((said, say("stages.gaps_overlapping")))
    if total is None:
        return said
    whole_s = gaps.walls_s + gaps.gaps_s
    share = f"{(total[-1] + gaps.gaps_s) / whole_s:.1%}"
    shared = say("stages.gaps_share", whole=format_duration(whole_s), share=share)
    return say("list.sentence").join((said, shared))


def _overhead_sentence(total: Sequence[float], say: Wording) -> str:
    """The pipeline's overhead against its limit, said either way."""
    wall, overhead = total[-2], total[-1]
    share = overhead / wall if wall else 0.0
    key = "stages.within" if share < OVERHEAD_LIMIT else "stages.beyond"
    return say(
        key,
        share=f"{share:.1%}",
        limit=f"{OVERHEAD_LIMIT:.0%}",
        overhead=format_duration(overhead),
        wall=format_duration(wall),
    )
