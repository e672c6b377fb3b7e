"""What the evidence on disk says about itself, so that Snakemake repeats what must be repeated and nothing else."""

import json
from pathlib import Path
from typing import Any

from pdkv.records import Trial

FIRST_LINES = 200  # bytes: a file begins with its schema and the source that made it


def attempt_due(stages: Path) -> int:
    """The attempt that ``stages.json`` should hold: its own if the trial ran, one more if it failed, else 1.

    As a parameter of the measuring rule this differs from the recorded one exactly where a trial must be tried again.
    """
    recorded = _read(stages)
    try:
        attempt, status = int(recorded["attempt"]), recorded["outcome"]["status"]
    except (KeyError, TypeError, ValueError):
        return 1
    return attempt if status == "ok" else attempt + 1


def is_of_another_trial(stages: Path, trial_slice: str) -> bool:
    """Whether ``stages.json`` is evidence of something else than the study asks for under this name.

    Snakemake knows by its notes what a file was made with. They may be gone, of a run that was killed or of results
    that came from elsewhere; what is compared here is what the evidence says. What an older version did not know of has
    the value that the newer one takes for it.
    """
    recorded = _read(stages).get("trial")
    if recorded is None:
        return False
    try:
        return Trial.from_slice(json.dumps(recorded)).to_slice() != trial_slice
    except (KeyError, TypeError, ValueError):
        return True


def plan_is_due(plan: Path, trial_slice: str, source: str) -> bool:
    """Whether ``plan.json`` is missing, or was made for another slice or by another source of the planner."""
    recorded = _read(plan)
    return recorded.get("source") != source or recorded.get("trial") != json.loads(trial_slice)


def is_read_by(path: str, source: str) -> bool:
    """Whether this file is there, and was made by the reading source of that digest, as its first lines say.

    It is asked of each launch of a study before anything runs: so the file is neither read as a whole nor checked.
    """
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - a Path costs more than the file
            return f'"source": "{source}"'.encode() in file.read(FIRST_LINES)
    except OSError:
        return False


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
