"""A trial's plan when the trial is measured: made anew if it was resolved from something else than is here now.

Results are moved and merged, a model's folder is named from where the study runs, environments are made anew. A plan
that lies beside results says what was measured, and a plan's contents alone never cost a measurement.
"""

import json
from pathlib import Path
from typing import Any

from pdkv.artifacts import read_json, write_json
from pdkv.measuring.plan import plan_trial
from pdkv.measuring.resolve import choose_engine, resolve_model
from pdkv.records import Trial


def refresh_plan(plan: dict[str, Any], path: Path, home: Path) -> dict[str, Any]:
    """``plan`` if it still holds, else its successor, which then stands in ``path``.

    What is computed on stays: on a cluster that is decided where jobs are submitted. A plan that does not say what it
    was resolved from stays too. Raises :class:`UserError` where nothing can be planned here, ``OSError``.
    """
    resolved = plan.get("resolved")
    if resolved is None:
        return plan
    trial = Trial.from_slice(json.dumps(plan["trial"]))
    engine = choose_engine(trial.engine, home, device=plan["engine"]["device"])
    now = plan_trial(trial, engine, *resolve_model(trial.model, home))
    if now["resolved"] == resolved:
        return plan
    write_json(path, "plan/1", {**now, "source": plan["source"]})
    return read_json(path, "plan/1")
