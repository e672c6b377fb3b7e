"""``pdkv merge``: the launches of two machines, or of two runs, as one study.

Only evidence is taken: what was read from it is read anew where it is merged, by one version and with one config. All
that does not belong together is told at once, before anything is copied; then all of it appears, or nothing.
"""

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pdkv.artifacts import write_text
from pdkv.errors import UserError
from pdkv.run_lock import lock_run
from pdkv.stored_trials import StoredTrial, definitions, read_trial, trial_names, unfinished_names

NOTES = ("metadata", "incomplete")  # what Snakemake keeps of files under results/, in .snakemake
REPORTED_FAULTS = 50


def merge_studies(homes: Sequence[Path], into: Path) -> list[str]:
    """Copy the launches of all ``homes`` to ``into/results``; what was taken from where, one line each.

    Raises :class:`UserError`, with every conflict in it, before anything is copied.
    """
    results = (into / "results").resolve()
    _refuse_places(homes, into, results)
    found, faults = _read_all(homes)
    chosen, conflicts = _choose(found)
    faults += [*conflicts, *_contradictions(found)]
    if faults:
        raise _refusal(faults)
    into.mkdir(parents=True, exist_ok=True)
    lock = lock_run(into / ".snakemake")
    try:
        told = [*_describe(chosen, homes), *_describe_left_out(found, chosen, homes), *_describe_study(chosen)]
        _copy_all(chosen, results, told)
        for name in NOTES:  # of results that are no longer there: by them, what was copied would be measured again
            shutil.rmtree(into / ".snakemake" / name, ignore_errors=True)
    finally:
        os.close(lock)
    return told


def _refuse_places(homes: Sequence[Path], into: Path, results: Path) -> None:
    if len(homes) < 2:
        raise UserError(f"only {homes[0]} was named", remedy="name at least two folders: pdkv merge A B --into C")
    seen: dict[Path, Path] = {}
    for home in homes:
        trial_names(home)
        place = (home / "results").resolve()
        if place in seen:
            raise UserError(f"{seen[place]} and {home} are the same folder", remedy="name two folders")
        seen[place] = home
    for place, home in seen.items():
        within = home.resolve() in results.parent.parents
        if within or results == place or place in results.parents or results in place.parents:
            raise UserError(f"{home} would be changed by a merge into {into}", remedy="name another folder: --into C")
    if results.exists() and not (results.is_dir() and not any(results.iterdir())):
        raise UserError(
            f"{into} has results already",
            remedy="name an empty folder (--into C), and merge these results with the others",
        )


def _read_all(homes: Sequence[Path]) -> tuple[dict[str, list[StoredTrial]], list[str]]:
    """({name: the trials of that name, in the order of ``homes``}, what is wrong with the others)."""
    found: dict[str, list[StoredTrial]] = {}
    faults = []
    for home in homes:
        for name in trial_names(home):
            try:
                trial = read_trial(home, name)
            except UserError as error:
                faults.append(f"{error.problem}: {error.remedy}")
            else:
                found.setdefault(name, []).append(trial)
    return found, faults


def _choose(found: Mapping[str, list[StoredTrial]]) -> tuple[list[StoredTrial], list[str]]:
    """(one trial of each name, the names for which nobody can say which one it should be)."""
    chosen, conflicts = [], []
    for name, trials in found.items():
        candidates = [trial for trial in trials if not trial.failed] or trials
        first = candidates[0]
        chosen.append(first)
        for other in candidates[1:]:
            if not first.is_same_launch(other):
                how = "failed, each in its own way" if first.failed else "measured, with different evidence"
                conflicts.append(f"{name}: in {first.home} and in {other.home} it was {how}: keep one of them")
    return chosen, conflicts


def _contradictions(found: Mapping[str, list[StoredTrial]]) -> list[str]:
    """Parts of the study that have one name and two meanings: by one config, one side would be measured again."""
    meanings: dict[str, dict[str, tuple[dict[str, Any], list[StoredTrial]]]] = {}
    for trial in (trial for trials in found.values() for trial in trials):
        for part, said in definitions(trial):
            text = json.dumps(said, sort_keys=True)
            meanings.setdefault(part, {}).setdefault(text, (said, []))[1].append(trial)
    faults = []
    for part, variants in meanings.items():
        (said, trials), *others = variants.values()
        for other_said, other_trials in others:
            keys = [key for key in {**said, **other_said} if said.get(key) != other_said.get(key)]
            differing = "; ".join(f"{key}: {_brief(said.get(key))} / {_brief(other_said.get(key))}" for key in keys)
            faults.append(f"{part} is not the same in {_where(trials)} and in {_where(other_trials)}: {differing}")
    return faults


def _where(trials: Sequence[StoredTrial]) -> str:
    more = f" and {len(trials) - 1} more" if len(trials) > 1 else ""
    return f"{trials[0].folder}{more}"


def _brief(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _refusal(faults: Sequence[str]) -> UserError:
    hidden = len(faults) - REPORTED_FAULTS
    shown = [*faults[:REPORTED_FAULTS], *([f"… {hidden} more"] if hidden > 0 else [])]
    count = "1 reason" if len(faults) == 1 else f"{len(faults)} reasons"
    return UserError(
        "\n  ".join([f"these results can't be joined, for {count}; nothing was copied", *shown]),
        remedy="move away what does not belong to the study, or measure it again with one config and one version",
    )


def _copy_all(chosen: Iterable[StoredTrial], results: Path, told: Sequence[str]) -> None:
    """Everything beside ``results`` first, under another name, which it then loses at once."""
    gathering = results.with_name(f".{results.name}.merging")
    shutil.rmtree(gathering, ignore_errors=True)  # what a killed merge has left
    try:
        for trial in chosen:
            for file in trial.files:
                copy = gathering / trial.name / file
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(trial.folder / file, copy)
            (gathering / trial.name / "server").mkdir(exist_ok=True)  # of a launch that ended before any log
        write_text(gathering / "logs/merge.log", "\n".join(told) + "\n")
        gathering.replace(results)
    except OSError as error:
        raise UserError(f"cannot copy to {results.parent}: {error}", remedy="mend that, and merge again") from None
    finally:
        shutil.rmtree(gathering, ignore_errors=True)


# ---- what is said of it ---------------------------------------------------------------------------------------------


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


def _describe_study(chosen: Sequence[StoredTrial]) -> list[str]:
    """What a config must name so that the study is this one, and what it would still lack."""
    ids = {kind: list(dict.fromkeys(trial.plan["trial"][kind]["id"] for trial in chosen)) for kind in _KINDS}
    repeats = max(trial.repeat for trial in chosen)
    named = "; ".join(f"{kind}s: {', '.join(names)}" for kind, names in ids.items())
    lines = [f"a config for all of it has {named}; repeats: {repeats}"]
    lacking = len(ids["workload"]) * len(ids["mode"]) * len(ids["dtype"]) * repeats - len(chosen)
    if lacking:
        lines.append(f"of such a study {_count(lacking)} are missing: snakemake would measure them")
    return lines


_KINDS = ("workload", "mode", "dtype")


def _count(trials: int) -> str:
    return "1 trial" if trials == 1 else f"{trials} trials"


def _number(trial: StoredTrial) -> int:
    return trial.repeat


def _repeat(trial: StoredTrial) -> str:
    return f"r{trial.repeat}{' (failed)' if trial.failed else ''}"
