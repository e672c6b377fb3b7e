"""Evidence under a name that stands for something else by now, and files that come from the future."""

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from test_workflow_reruns import Workspace, finished, source, workspace

from pdkv.due import is_of_another_trial
from pdkv.records import Trial

__all__ = ["finished", "source", "workspace"]
HOUR_S = 3600.0


def change_lengths(workspace: Workspace) -> None:
    config = workspace.folder / "config/config.yaml"
    text = config.read_text(encoding="utf-8")
    assert "output_tokens: 4" in text
    config.write_text(text.replace("output_tokens: 4", "output_tokens: 7"), encoding="utf-8")


def answered(workspace: Workspace, mode: str) -> object:
    return workspace.stages(mode)["trial"]["workload"]["output_tokens"]  # type: ignore[index]


@pytest.mark.fault(
    "stored",
    "a run with a changed config is killed between plan and measurement, and its notes are lost",
    "what was measured by the old config is measured anew, and never shown under the new one",
)
def test_evidence_of_another_config_is_measured_anew_without_snakemakes_notes(workspace: Workspace) -> None:
    change_lengths(workspace)
    workspace.run("--until", "plan_server")
    shutil.rmtree(workspace.folder / ".snakemake")
    assert workspace.due()["measure"] == 2
    workspace.run()
    assert [answered(workspace, mode) for mode in ("default", "mine")] == [7, 7]
    report = (workspace.folder / "reports/summary.md").read_text(encoding="utf-8")
    assert "| w | 16 | 7 |" in report
    assert not workspace.due()


@pytest.mark.fault(
    "stored", "another study's results are put in the place of this one's", "measured anew; no number of theirs is used"
)
def test_results_of_another_study_under_the_same_names_are_not_used(workspace: Workspace) -> None:
    change_lengths(workspace)
    shutil.rmtree(workspace.folder / ".snakemake")
    for option in ((), ("--rerun-triggers", "mtime")):
        due = workspace.due(*option)
        assert (due["plan_server"], due["measure"]) == (2, 2), "by their plans the old trials would be measured again"
    workspace.run()
    assert [answered(workspace, mode) for mode in ("default", "mine")] == [7, 7]
    assert not workspace.due()


def test_what_an_older_version_did_not_know_of_is_no_change(workspace: Workspace) -> None:
    recorded: dict[str, Any] = workspace.stages("mine")
    asked = Trial.from_slice(json.dumps(recorded["trial"])).to_slice()
    del recorded["trial"]["limits"]["trial_timeout_s"], recorded["trial"]["mode"]["nodes"]
    assert not is_of_another_trial(recorded, asked)
    recorded["trial"]["seed"] += 1
    assert is_of_another_trial(recorded, asked)
    assert not is_of_another_trial({}, asked)


@pytest.mark.fault(
    "host",
    "the clock is set back by an hour after all was planned, or evidence comes from a host whose clock is ahead",
    "measured and reported as ever; Snakemake, which takes older outputs for a fault, removes nothing",
)
def test_inputs_from_the_future_cost_no_measurement(workspace: Workspace) -> None:
    shutil.rmtree(workspace.folder / "results")
    workspace.run("--until", "plan_server")
    ahead_s = time.time() + HOUR_S
    for plan in workspace.folder.glob("results/*/*/*/r1/plan.json"):
        os.utime(plan, (ahead_s, ahead_s))
    workspace.run("--until", "measure")
    for path in workspace.folder.glob("results/*/*/*/r1/*"):
        os.utime(path, (ahead_s, ahead_s))
    output = workspace.run()
    assert "older modification time" not in output
    assert "measured in" not in output
    assert (workspace.folder / "reports/summary.pdf").is_file()
    assert all(path.stat().st_mtime < ahead_s - 60 for path in Path(workspace.folder / "results").rglob("*.json"))


@pytest.mark.fault(
    "host",
    "results or reports is a file, or a link to a disk that is not mounted",
    "one message with the cure, before anything is measured",
)
@pytest.mark.parametrize("folder", ["results", "reports"])
def test_what_cannot_be_written_to_is_said_before_the_start(workspace: Workspace, folder: str) -> None:
    place = workspace.folder / folder
    shutil.rmtree(place)
    for spoil, words in (
        (lambda: place.write_text("x"), f"{folder} is a file"),
        (lambda: place.symlink_to("/nowhere/disk"), f"{folder} is a link to /nowhere/disk, which is not there"),
    ):
        spoil()
        done = workspace.snakemake()
        assert done.returncode == 2, done.stdout
        assert words in done.stdout
        assert "Traceback" not in done.stdout
        place.unlink()
