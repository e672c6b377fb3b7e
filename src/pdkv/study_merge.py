"""``pdkv merge``: the launches of two machines, or of two runs, as one study.

Only evidence is taken: what was read from it is read anew where it is merged, by one version and with one config. All
that does not belong together is told at once, before anything is copied; then all of it appears, or nothing.
"""

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pdkv.artifacts import write_text
from pdkv.errors import UserError
from pdkv.merge_account import describe_merge
from pdkv.run_lock import lock_run
from pdkv.stored_trials import StoredTrial, definitions, read_trial, trial_names

NOTES = ("metadata", "incomplete")  # what Snakemake keeps of files under results/, in .snakemake
REPORTED_FAULTS = 50
UNRECORDED = "unknown (an earlier version)"


def merge_studies(homes: Sequence[Path], into: Path) -> list[str]:
    """Copy the launches of all ``homes`` to ``into/results``; what was taken from where, one line each.

    Raises :class:`UserError`, with every conflict in it, before anything is copied.
    """
    with _told(f"cannot merge into {into}", "name another folder: --into C"):
        results = (into / "results").resolve()
        has_results = results.exists() and not (results.is_dir() and not any(results.iterdir()))
    _refuse_places(homes, into, results)
    if has_results:
        raise UserError(
            f"{into} has results already",
            remedy="name an empty folder (--into C), and merge these results with the others",
        )
    found, faults = _read_all(homes)
    chosen, conflicts = _choose(found)
    faults += [*conflicts, *_contradictions(found), *_other_measurers(chosen)]
    if faults:
        raise _refusal(faults)
    with _told(f"cannot merge into {into}", "name another folder: --into C"):
        into.mkdir(parents=True, exist_ok=True)
        lock = lock_run(into / ".snakemake")
    try:
        logs = _job_logs(chosen)
        told = describe_merge(found, chosen, homes, [log for log, _ in logs])
        _copy_all(chosen, logs, results, told)
        for name in NOTES:  # of results that are no longer there: by them, what was copied would be measured again
            shutil.rmtree(into / ".snakemake" / name, ignore_errors=True)
    finally:
        os.close(lock)
    return told


@contextmanager
def _told(problem: str, remedy: str) -> Iterator[None]:
    """What the system says against a folder that was named, as the :class:`UserError` that it is for a person."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{problem}: {error.strerror}", remedy=remedy) from None
    except RuntimeError as error:  # Path.resolve, of links that lead in a circle
        raise UserError(f"{problem}: {error}", remedy=remedy) from None


def _refuse_places(homes: Sequence[Path], into: Path, results: Path) -> None:
    if len(homes) < 2:
        raise UserError(f"only {homes[0]} was named", remedy="name at least two folders: pdkv merge A B --into C")
    seen: dict[Path, Path] = {}
    for home in homes:
        with _told(f"cannot look into {home}", "name a folder that holds results/"):
            trial_names(home)
            place = (home / "results").resolve()
        if place in seen:
            raise UserError(f"{seen[place]} and {home} are the same folder", remedy="name two folders")
        seen[place] = home
    for place, home in seen.items():
        within = home.resolve() in results.parent.parents
        if within or results == place or place in results.parents or results in place.parents:
            raise UserError(f"{home} would be changed by a merge into {into}", remedy="name another folder: --into C")


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


def _other_measurers(chosen: Sequence[StoredTrial]) -> list[str]:
    """Launches whose numbers mean different things, because another source measured them; failed ones have none."""
    sources: dict[str | None, list[StoredTrial]] = {}
    for trial in chosen:
        if not trial.failed:
            sources.setdefault(trial.source, []).append(trial)
    (source, trials), *others = sources.items() or [(None, [])]
    return [
        f"{_where(trials)} and {_where(other_trials)} were measured by different versions of pdkv: measuring code "
        f"{source or UNRECORDED} / {other or UNRECORDED}"
        for other, other_trials in others
    ]


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


def _job_logs(chosen: Sequence[StoredTrial]) -> list[tuple[Path, Path]]:
    """Logs of Slurm jobs, (where one lies, its path below ``results``), by which the report of all of it names them."""
    logs = [(trial.home / log, log.relative_to("results")) for trial in chosen if (log := trial.job_log)]
    named = Counter(place for _, place in logs)
    return [(log, place) for log, place in logs if named[place] == 1]  # not one job's log as that of another


def _copy_all(
    chosen: Sequence[StoredTrial], logs: Sequence[tuple[Path, Path]], results: Path, told: Sequence[str]
) -> None:
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
        for log, place in logs:
            (gathering / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(log, gathering / place)
        write_text(gathering / "logs/merge.log", "\n".join(told) + "\n")
        gathering.replace(results)
    except OSError as error:
        raise UserError(f"cannot copy to {results.parent}: {error}", remedy="mend that, and merge again") from None
    finally:
        shutil.rmtree(gathering, ignore_errors=True)
