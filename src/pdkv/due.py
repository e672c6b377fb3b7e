"""What the evidence of a trial says about itself, so that Snakemake repeats what must be repeated and nothing else."""

import json
from dataclasses import dataclass
from typing import Any

from pdkv.records import Trial
from pdkv.result_files import ResultFiles

FIRST_LINES = 200  # bytes: a file begins with its schema and the source that made it


@dataclass(frozen=True)
class TrialDue:
    """What is due of a trial.

    ``attempt``: the one that its ``stages.json`` should hold. ``outdated``: those of its files that must be made anew,
    also where Snakemake has no notes of what they were made with. ``needs_plan``: there is no plan that still holds.
    """

    attempt: int
    outdated: tuple[str, ...]
    needs_plan: bool


def trial_due(results: ResultFiles, name: str, trial_slice: str, planner: str, device: str) -> TrialDue:
    """What is due of the trial ``name``.

    ``planner`` is the digest of the source that makes plans, ``device`` what the study computes on.
    """
    paths = [f"results/{name}/{file}" for file in ("plan.json", "stages.json")]
    plan, stages = contents = [_read(results, path) for path in paths]
    both = zip(paths, contents, strict=True)
    outdated = [path for path, content in both if is_of_another_trial(content, trial_slice)]
    elsewhere = is_planned_elsewhere(plan, stages, device)
    if elsewhere and paths[0] not in outdated:
        outdated.append(paths[0])
    needs_plan = elsewhere or plan_is_due(plan, trial_slice, planner)
    return TrialDue(attempt_due(stages), tuple(outdated), needs_plan)


def attempt_due(stages: dict[str, Any]) -> int:
    """The attempt that ``stages.json`` should hold: its own if the trial ran, one more if it failed, else 1.

    As a parameter of the measuring rule this differs from the recorded one exactly where a trial must be tried again.
    """
    try:
        attempt, status = int(stages["attempt"]), stages["outcome"]["status"]
    except (KeyError, TypeError, ValueError):
        return 1
    return attempt if status == "ok" else attempt + 1


def is_of_another_trial(content: dict[str, Any], trial_slice: str) -> bool:
    """Whether ``plan.json`` or ``stages.json`` is of something else than the study asks for under this name.

    Snakemake knows by its notes what a file was made with. They may be gone, of a run that was killed or of results
    that came from elsewhere; what is compared here is what the files say. What an older version did not know of has
    the value that the newer one takes for it.
    """
    recorded = content.get("trial")
    if recorded is None or recorded == json.loads(trial_slice):
        return False
    try:
        return Trial.from_slice(json.dumps(recorded)).to_slice() != trial_slice
    except (KeyError, TypeError, ValueError):
        return True


def plan_is_due(plan: dict[str, Any], trial_slice: str, source: str) -> bool:
    """Whether ``plan.json`` is missing, or was made for another slice or by another source of the planner."""
    return plan.get("source") != source or plan.get("trial") != json.loads(trial_slice)


def is_planned_elsewhere(plan: dict[str, Any], stages: dict[str, Any], device: str) -> bool:
    """Whether a trial that has not been measured was planned for another device than the study computes on now.

    What else a plan was resolved from is looked at when the trial is measured. The device decides before that what is
    asked for: GPUs, of Snakemake and of a cluster. A plan beside results stays, whatever it says.
    """
    planned = (plan.get("engine") or {}).get("device")
    return planned not in (None, device) and (stages.get("outcome") or {}).get("status") != "ok"


def is_read_by(path: str, source: str) -> bool:
    """Whether this file is there, and was made by the reading source of that digest, as its first lines say.

    It is asked of each launch of a study before anything runs: so the file is neither read as a whole nor checked.
    """
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - a Path costs more than the file
            return f'"source": "{source}"'.encode() in file.read(FIRST_LINES)
    except OSError:
        return False


def _read(results: ResultFiles, path: str) -> dict[str, Any]:
    try:
        content = json.loads(results.read(path) or b"null")
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}
