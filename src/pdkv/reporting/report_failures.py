"""Launches that failed or may not be believed: what happened, what was seen, and what to do."""

import re
from collections.abc import Sequence
from typing import Any, TypeAlias

from pdkv.analysing.study_results import Cell, StudyResults
from pdkv.log_text import clean_lines
from pdkv.reporting.report_blocks import Block, Excerpt, Paragraph, Section, Table, left, row
from pdkv.reporting.report_bounds import first_where
from pdkv.reporting.report_phrases import cell_label, listed, separated, stage_name
from pdkv.reporting.stored_texts import retell
from pdkv.reporting.typefaces import printable_log
from pdkv.reporting.wording import Wording
from pdkv.units import DASH

EXCERPT_LINES = 24
LINE_CHARACTERS = 300
MOST_TOLD = 20  # failures with their logs: each takes up to half a page
_NUMBER = re.compile(r"\d+")

Launches: TypeAlias = list[tuple[Cell, dict[str, Any]]]  # of one cell, that failed alike


def describe_failures(results: StudyResults, say: Wording) -> list[Section]:
    """Failed launches one by one with the end of their log, then every check that did not pass."""
    failed = [(cell, trial) for cell in results.cells for trial in cell.trials if trial.get("failure")]
    sections = [
        Section(say("failures.title"), (Paragraph(say("failures.introduction" if failed else "failures.none")),))
    ]
    told, rest = _of_each_kind(_alike(failed))
    sections += [_failed_launches(trials[0][0], [trial for _, trial in trials], say) for trials in told]
    sections += _failed_without_log(rest, results, say)
    return [*sections, Section(say("checks.title"), tuple(_check_blocks(results, say)), level=2)]


def excerpt_of(text: str, say: Wording) -> str:
    """The last lines of a log as they can be printed: no escape codes, long lines cut and the rest counted."""
    lines = clean_lines(text.rstrip("\n"))
    dropped = len(lines) - EXCERPT_LINES
    shown = [_cut(printable_log(line), say) for line in lines[-EXCERPT_LINES:]]
    return "\n".join(([say("failures.lines_before", count=dropped)] if dropped > 0 else []) + shown)


def _cut(line: str, say: Wording) -> str:
    rest = len(line) - LINE_CHARACTERS
    return line if rest <= 0 else line[:LINE_CHARACTERS] + say("failures.characters_more", count=f"{rest:,}")


def _alike(failed: Sequence[tuple[Cell, dict[str, Any]]]) -> list[Launches]:
    """Launches of one cell that failed in the same way together: but for numbers their logs end alike."""
    groups: dict[tuple[object, ...], Launches] = {}
    for cell, trial in failed:
        failure = trial["failure"]
        key = (cell, failure.get("stage"), failure.get("reason"), _NUMBER.sub("0", str(failure.get("excerpt") or "")))
        groups.setdefault(key, []).append((cell, trial))
    return list(groups.values())


def _of_each_kind(groups: Sequence[Launches]) -> tuple[list[Launches], list[Launches]]:
    """Those that are told with their logs, and the others; where not all are told, one of each kind comes first."""
    first: dict[tuple[str, str], Launches] = {}
    for group in groups:
        first.setdefault(_kind(group), group)
    kinds = {id(group) for group in first.values()}
    ordered = [*first.values(), *(group for group in groups if id(group) not in kinds)]
    told = {id(group) for group in ordered[:MOST_TOLD]}
    return [group for group in groups if id(group) in told], [group for group in groups if id(group) not in told]


def _kind(group: Launches) -> tuple[str, str]:
    failure = group[0][1]["failure"]
    return str(failure.get("stage")), _NUMBER.sub("0", str(failure.get("reason")))


def _failed_without_log(groups: Sequence[Launches], results: StudyResults, say: Wording) -> list[Section]:
    """A row for each group; nothing where there is none."""
    if not groups:
        return []
    rows = [
        row(
            cell_label(group[0][0], results),
            separated((str(trial["repeat"]) for _, trial in group), "list.comma", say),
            stage_name(str(failure.get("stage") or DASH), say),
            retell(str(failure["reason"]), say) if failure.get("reason") else say("failures.no_reason"),
        )
        for group in groups
        for failure in [group[0][1]["failure"]]
    ]
    columns = (
        left(say("word.cell")),
        left(say("failures.repeats")),
        left(say("failures.stage_title")),
        left(say("failures.reason"), wide=True),
    )
    count = sum(map(len, groups))
    table = Table(say("failures.rest_caption"), columns, tuple(rows))
    return [Section(say("failures.rest"), (Paragraph(say("failures.rest_said", count=f"{count:,}")), table), level=2)]


def _failed_launches(cell: Cell, trials: Sequence[dict[str, Any]], say: Wording) -> Section:
    """Launches of a cell that failed alike: one reason, one log, one remedy."""
    failure = trials[0]["failure"]
    stage = str(failure.get("stage") or DASH)
    reason = retell(str(failure["reason"]), say) if failure.get("reason") else say("failures.no_reason")
    attempts = listed(dict.fromkeys(str(trial.get("attempt") or 1) for trial in trials), say)
    words = {"stage": stage_name(stage, say), "attempt": attempts, "reason": reason}
    blocks: list[Block] = [Paragraph(say("failures.said", **words))]
    repeats = listed([str(trial["repeat"]) for trial in trials], say)
    if failure.get("excerpt") and len(trials) > 1:
        same = all(trial["failure"].get("excerpt") == failure["excerpt"] for trial in trials)
        key = "failures.same" if same else "failures.alike"
        blocks.append(Paragraph(say(key, repeats=repeats, first=trials[0]["repeat"])))
    if failure.get("excerpt"):
        blocks.append(Excerpt(excerpt_of(str(failure["excerpt"]), say)))
    for trial in trials:
        if trial.get("job_log"):
            blocks.append(Paragraph(say("failures.job_log", job=trial["job"], path=trial["job_log"])))
    remedy = f"remedy.{stage}"
    blocks.append(Paragraph(say(remedy if say.has(remedy) else "remedy.other")))
    names = {"cell": cell.name, "workload": cell.workload}
    title = say("failures.launch", repeat=repeats, **names)
    if len(trials) > 1:
        title = say("failures.launches", repeats=repeats, **names)
    return Section(title, tuple(blocks), level=2)


def _check_blocks(results: StudyResults, say: Wording) -> list[Block]:
    """Checks that failed or are suspect; unknown ones too, as what is not known is not passed."""
    found: dict[tuple[str, str, str, str], list[str]] = {}
    for cell in results.cells:
        for part in [*cell.trials, cell.content]:
            label = cell_label(cell, results)
            launch = f"{label} r{part['repeat']}" if len(cell.trials) > 1 and "repeat" in part else label
            for check in part.get("checks") or []:
                if check["state"] != "passed" and not (part.get("failure") and check["state"] == "unknown"):
                    key = (check["name"], check["state"], check.get("evidence") or DASH, check.get("remedy") or DASH)
                    found.setdefault(key, []).append(launch)
    if not found:
        trials = [trial for cell in results.cells for trial in cell.trials]
        failed = sum(bool(trial.get("failure")) for trial in trials)
        if failed == len(trials):
            return [Paragraph(say("checks.nothing_ran"))]
        words = {"count": len(trials) - failed, "all": len(trials)}
        return [Paragraph(say("checks.none_of_ran" if failed else "checks.none", **words))]
    order = sorted(found, key=lambda key: ("failed", "suspect", "unknown").index(key[1]))
    rows = [
        row(
            retell(name, say),
            say(f"check.{state}"),
            retell(evidence, say),
            retell(remedy, say),
            _launches(found[key], results, say),
        )
        for key in order
        for name, state, evidence, remedy in [key]
    ]
    columns = (
        left(say("checks.name")),
        left(say("checks.state")),
        left(say("checks.evidence"), wide=True),
        left(say("checks.remedy"), wide=True),
        left(say("checks.launch"), wide=True),
    )
    foremost = first_where((state != "unknown" for _, state, _, _ in order), "not_passed", say)
    ruled = tuple(range(1, len(rows)))
    states = {state for _, state, _, _ in order}
    notes = [say("checks.again")] if states & {"failed", "suspect"} else []
    notes += [say("checks.note")] if "unknown" in states else []
    return [Table(say("checks.caption"), columns, tuple(rows), tuple(notes), ruled, foremost)]


def _launches(names: list[str], results: StudyResults, say: Wording) -> str:
    """The launches by name; not one by one where they are all that ran."""
    ran = sum(not trial.get("failure") for cell in results.cells for trial in cell.trials)
    return say("checks.all_launches", count=ran) if len(names) == ran > 2 else separated(names, "list.comma", say)
