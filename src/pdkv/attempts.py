"""Which try at a trial its evidence stands for: the number that lets Snakemake repeat failures and nothing else."""

import json
from pathlib import Path


def attempt_due(stages: Path) -> int:
    """The attempt that ``stages.json`` should hold: its own if the trial ran, one more if it failed, else 1.

    As a parameter of the measuring rule this differs from the recorded one exactly where a trial must be tried again.
    """
    try:
        recorded = json.loads(stages.read_text(encoding="utf-8"))
        attempt, status = int(recorded["attempt"]), recorded["outcome"]["status"]
    except (OSError, ValueError, KeyError, TypeError):
        return 1
    return attempt if status == "ok" else attempt + 1
