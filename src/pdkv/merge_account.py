"""What is said of a merge: how much came from where, what was left there, and which study it makes."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from pdkv.stored_trials import StoredTrial, unfinished_names

KINDS = ("workload", "mode", "dtype")


def describe_merge(
    found: Mapping[str, list[StoredTrial]], chosen: Sequence[StoredTrial], homes: Sequence[Path], logs: Sequence[Path]
) -> list[str]:
    """One line each. ``found``: by name the trials of all ``homes``; ``chosen``: that of each name which was taken.

    ``logs``: those of their Slurm jobs that are taken with them.
    """
    return [
        *_describe(chosen, homes),
        *_describe_left_out(found, chosen, homes),
        *_describe_lost_logs(chosen, homes, set(logs)),
        *_describe_study(chosen),
    ]


def _describe(chosen: Sequence[StoredTrial], homes: Sequence[Path]) -> list[str]:
    """How much came from where, and on what machines it was measured; then each cell."""
    lines = []
    for home in homes:
        trials = [trial for trial in chosen if trial.home == home]
        machines = Counter(trial.machine for trial in trials)
        measured = "; ".join(f"{machine} ({count})" for machine, count in machines.items())
        lines.append(f"{home}: {_count(len(trials))}{f', measured on {measured}' if trials else ''}")
    cells: dict[str, dict[Path, list[StoredTrial]]] = {}
    for trial in chosen:
        cells.setdefault(trial.cell, {}).setdefault(trial.home, []).append(trial)
    for cell, origins in cells.items():
        parts = [
            f"{', '.join(map(_repeat, sorted(trials, key=_number)))} from {home}" for home, trials in origins.items()
        ]
        lines.append(f"{cell}: {'; '.join(parts)}")
    return lines


def _describe_left_out(
    found: Mapping[str, list[StoredTrial]], chosen: Sequence[StoredTrial], homes: Sequence[Path]
) -> list[str]:
    lines = []
    for trial in chosen:
        for other in found[trial.name]:
            if other is not trial:
                why = "the same launch" if trial.is_same_launch(other) else "failed there"
                lines.append(f"{trial.name}: not taken from {other.home}: {why}")
    for home in homes:
        unfinished = unfinished_names(home)
        if unfinished:
            lines.append(f"{home}: {_count(len(unfinished))} planned there and not measured: {', '.join(unfinished)}")
    return lines


def _describe_lost_logs(chosen: Sequence[StoredTrial], homes: Sequence[Path], taken: Collection[Path]) -> list[str]:
    """Whose log the report will name where it is not: one that lies elsewhere, or is lost, was not taken."""
    lines = []
    for home in homes:
        logs = {
            trial.name: home / trial.stages["job_log"]
            for trial in chosen
            if trial.home == home and trial.stages.get("job_log")
        }
        lost = [
            name
            for name, log in logs.items()
            if log not in taken and (log.is_relative_to(home.absolute()) or not log.exists())
        ]
        if lost:
            lines.append(f"{home}: {_count(len(lost))} taken without the log of the Slurm job: {', '.join(lost)}")
    return lines


def _describe_study(chosen: Sequence[StoredTrial]) -> list[str]:
    """What a config must name so that the study is this one, and what it would still lack."""
    ids = {kind: list(dict.fromkeys(trial.plan["trial"][kind]["id"] for trial in chosen)) for kind in KINDS}
    repeats = max(trial.repeat for trial in chosen)
    named = "; ".join(f"{kind}s: {', '.join(names)}" for kind, names in ids.items())
    lines = [f"a config for all of it has {named}; repeats: {repeats}"]
    lacking = len(ids["workload"]) * len(ids["mode"]) * len(ids["dtype"]) * repeats - len(chosen)
    if lacking:
        lines.append(f"of such a study {_count(lacking)} are missing: snakemake would measure them")
    return lines


def _count(trials: int) -> str:
    return "1 trial" if trials == 1 else f"{trials} trials"


def _number(trial: StoredTrial) -> int:
    return trial.repeat


def _repeat(trial: StoredTrial) -> str:
    return f"r{trial.repeat}{' (failed)' if trial.failed else ''}"
