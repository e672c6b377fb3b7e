"""A plan is what was resolved when it was made: what is about to be measured is planned for what is there now."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fake_nvml import write_pynvml
from test_workflow_reruns import ROOT, Workspace

from pdkv.artifacts import read_json, write_json
from pdkv.measuring.plan_refresh import refresh_plan
from pdkv.study.config import load_study

STUDY = """\
model: ./m
engine: {{command: {command}{device}}}
workloads:
  w: {{input_tokens: 16, output_tokens: 4, concurrency: [2], requests: 4, max_model_len: 64}}
modes: {{default: {{}}, 2x: {{}}}}
dtypes: [fp16]
repeats: 1
"""
SHAPE = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64, "vocab_size": 32_000}


FAKE_ENGINE = (sys.executable, str(ROOT / "tests/fake_engine.py"))


def make_study(folder: Path, *, device: str = ", device: cpu", command: Sequence[str] = FAKE_ENGINE) -> None:
    """A study in ``folder``, with a model of its own."""
    (folder / "m").mkdir(parents=True)
    (folder / "m/config.json").write_text(json.dumps(SHAPE), encoding="utf-8")
    text = STUDY.format(command=json.dumps(command), device=device)
    (folder / "study.yaml").write_text(text, encoding="utf-8")


class Trial:
    """``pdkv plan`` and ``pdkv measure`` of one trial, as the rules call them."""

    def __init__(self, folder: Path, mode: str = "2x") -> None:
        self.folder, self.mode = folder, mode
        self.out = folder / f"results/w/{mode}/fp16/r1"

    def plan(self) -> dict[str, Any]:
        trial = load_study(self.folder / "study.yaml").trial("w", self.mode, "fp16", 1)
        self.out.mkdir(parents=True, exist_ok=True)
        self._pdkv("plan", "--trial", trial.to_slice(), "--source", "digest", str(self.out / "plan.json"))
        return self.read_plan()

    def read_plan(self) -> dict[str, Any]:
        return read_json(self.out / "plan.json", "plan/1")

    def measure(self) -> dict[str, Any]:
        self._pdkv("measure", str(self.out.relative_to(self.folder)), "--log", str(self.folder / "measure.log"))
        return read_json(self.out / "stages.json", "stages/1")

    def _pdkv(self, *arguments: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PDKV_LEASE_DIR": str(self.folder / "leases")}
        command = [sys.executable, "-m", "pdkv", *arguments]
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr


@pytest.mark.fault(
    "stored",
    "a plan that came from another folder, with that one's model and Python",
    "planned anew before it is measured here",
)
def test_what_is_measured_here_is_planned_for_here(tmp_path: Path) -> None:
    there, here = Trial(tmp_path / "there"), Trial(tmp_path / "here")
    make_study(there.folder)
    make_study(here.folder)
    plan = there.plan()
    plan["router"]["argv"][0] = plan["resolved"]["engine"]["router_command"][0] = "/another/python"
    here.out.mkdir(parents=True)
    write_json(here.out / "plan.json", "plan/1", {key: value for key, value in plan.items() if key != "schema"})
    shutil.rmtree(there.folder)

    stages = here.measure()
    assert stages["outcome"]["status"] == "ok"
    served = {instance["argv"][3] for instance in stages["instances"]}
    assert served == {str(here.folder / "m")}
    assert stages["router"]["argv"][0] == sys.executable
    fresh = here.read_plan()
    assert fresh["instances"][0]["argv"][3] == str(here.folder / "m"), "readers find the plan that was measured"
    assert (fresh["source"], fresh["trial"]) == ("digest", plan["trial"]), "no reason to plan or measure again"


def test_a_plan_that_holds_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Trial(tmp_path / "study")
    make_study(trial.folder)
    plan = trial.plan()
    monkeypatch.chdir(trial.folder)
    path, home = trial.out / "plan.json", Path(".engine")
    before = path.stat().st_mtime_ns
    assert refresh_plan(plan, path, home) is plan
    by_hand = {key: value for key, value in plan.items() if key != "resolved"}
    assert refresh_plan(by_hand, path, home) is by_hand
    assert path.stat().st_mtime_ns == before
    (trial.folder / "m/config.json").write_text(json.dumps({**SHAPE, "vocab_size": 999}), encoding="utf-8")
    assert refresh_plan(plan, path, home)["token_range"] != plan["token_range"]
    assert path.stat().st_mtime_ns != before


@pytest.mark.fault(
    "launch",
    "the model's folder is gone between plan and measurement",
    "failed at launch, with the folder it looked for",
)
def test_what_cannot_be_planned_any_more_is_a_failed_launch(tmp_path: Path) -> None:
    trial = Trial(tmp_path / "study", "default")
    make_study(trial.folder)
    trial.plan()
    shutil.rmtree(trial.folder / "m")
    outcome = trial.measure()["outcome"]
    assert (outcome["status"], outcome["stage"]) == ("failed", "launch")
    assert outcome["reason"].startswith(f"model: there is no folder {trial.folder / 'm'}")


@pytest.mark.fault(
    "devices",
    "GPUs appear after a trial has failed without them (`engine: auto`)",
    "planned and measured on a GPU; what has been measured stays",
)
def test_a_trial_is_tried_again_on_the_device_that_is_announced(tmp_path: Path) -> None:
    """An engine by command whose device is found out: first without a GPU, where one of two cells fails."""
    engine = tmp_path / "engine"
    flag, fake = tmp_path / "fail", ROOT / "tests/fake_engine.py"
    engine.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *max-num-seqs*) if [ -e "{flag}" ]; then echo "ERROR: told to fail"; exit 3; fi ;; esac\n'
        f'exec "{sys.executable}" "{fake}" "$@"\n'
    )
    engine.chmod(0o755)
    workspace = Workspace(tmp_path / "study", ROOT / "src")
    make_study(workspace.folder, device="", command=[str(engine)])
    text = (workspace.folder / "study.yaml").read_text(encoding="utf-8")
    workspace.write_study(text.replace("2x: {}", "mine: {args: {max_num_seqs: 8}}").replace("./m", "fake/model"))
    cells = [f"results/w/{mode}/fp16/r1/stages.json" for mode in ("default", "mine")]
    flag.touch()
    nvml = {"PYTHONPATH": f"{write_pynvml(tmp_path / 'none', '')}{os.pathsep}{workspace.source}"}
    done = workspace.snakemake(*cells, **nvml)
    assert done.returncode == 0, done.stdout
    assert [workspace.stages(mode)["outcome"]["status"] for mode in ("default", "mine")] == ["ok", "failed"]  # type: ignore[index]
    before = (workspace.folder / cells[0]).read_bytes(), (workspace.trial("default") / "plan.json").read_bytes()

    flag.unlink()
    cards = write_pynvml(tmp_path / "two", 'FakeGpu("GPU-1"), FakeGpu("GPU-2", bus=2)')
    done = workspace.snakemake(*cells, PYTHONPATH=f"{cards}{os.pathsep}{workspace.source}")
    assert done.returncode == 0, done.stdout
    plan = read_json(workspace.trial("mine") / "plan.json", "plan/1")
    stages = read_json(workspace.trial("mine") / "stages.json", "stages/1")
    assert plan["engine"]["device"] == "cuda" and plan["instances"][0]["gpus"] == 1
    assert (stages["outcome"]["status"], stages["attempt"]) == ("ok", 2)
    assert [instance["gpus"] for instance in stages["instances"]] == [["GPU-1"]]
    assert before == (
        (workspace.folder / cells[0]).read_bytes(),
        (workspace.trial("default") / "plan.json").read_bytes(),
    )
    assert done.stdout.count("rule plan_server:") == done.stdout.count("rule measure:") == 1
    again = workspace.snakemake("--dry-run", *cells, PYTHONPATH=f"{cards}{os.pathsep}{workspace.source}")
    assert "Nothing to be done" in again.stdout, again.stdout
