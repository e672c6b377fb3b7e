"""A study in which almost everything breaks: it ends with a report that names each cell, and is mended by a rerun."""

import json
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from test_workflow_reruns import NOTHING, ROOT, Workspace, source
from whole_trials import require_nothing_left

__all__ = ["source"]
ENGINE = """\
import os, sys
from pathlib import Path
if Path(__file__).with_name("mended").exists():
    for name in [name for name in os.environ if name.startswith("FAKE_")]:
        del os.environ[name]
os.execv(sys.executable, [sys.executable, {engine!r}, *sys.argv[1:]])
"""
MODES = {
    "default": {},
    "exits": {"env": {"FAKE_EXIT": "3"}},
    "never-ready": {"env": {"FAKE_READY_S": "never"}},
    "hangs": {"env": {"FAKE_ANSWERS": "stall"}},
    "alone": {"prefill": 1, "decode": 1, "env": {"FAKE_PREFILLS_FROM": "1"}},
}
FAILED = {
    "exits": ("launch", "single ended with status 3: RuntimeError: the fake engine was told to fail"),
    "never-ready": ("launch", "single not ready within 8 s (limits.launch_timeout_s)"),
    "hangs": ("load", "single hangs: "),
}


def stages_of(workspace: Workspace, mode: str) -> dict[str, Any]:
    return dict(json.loads(evidence_of(workspace, mode)))


def evidence_of(workspace: Workspace, mode: str) -> bytes:
    return (workspace.folder / f"results/w/{mode}/fp16/r1/stages.json").read_bytes()


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory, source: Path) -> Workspace:
    """The study after its first run."""
    workspace = Workspace(tmp_path_factory.mktemp("broken") / "study", source)
    engine = workspace.folder / "engine.py"
    workload = {"input_tokens": 16, "output_tokens": 4, "concurrency": [2], "requests": 40, "max_model_len": 64}
    study = {
        "model": "fake/model",
        "engine": {"command": [sys.executable, str(engine)]},
        "workloads": {"w": workload},
        "modes": MODES,
        "dtypes": ["fp16"],
        "repeats": 1,
        "limits": {"launch_timeout_s": 8, "request_timeout_s": 2},
    }
    workspace.write_study(json.dumps(study))  # which is YAML too
    engine.write_text(ENGINE.format(engine=str(ROOT / "tests/fake_engine.py")))
    workspace.output = workspace.run()
    return workspace


@pytest.mark.fault(
    "launch",
    "most cells of a study fail, each in its own way",
    "the study ends with a report that names each of them with stage, reason, end of the log and what to do",
)
def test_the_study_ends_with_a_report_that_names_each_cell(broken: Workspace) -> None:
    outcomes = {mode: stages_of(broken, mode)["outcome"] for mode in MODES}
    assert {mode for mode, outcome in outcomes.items() if outcome["status"] == "failed"} == FAILED.keys()
    assert "3 failed (the report says why); report: reports/summary.pdf" in broken.output
    assert (broken.folder / "reports/summary.pdf").stat().st_size > 0
    report = (broken.folder / "reports/summary.md").read_text(encoding="utf-8")
    sections = {part.partition("/")[0]: part for part in report.split("\n### ")}
    for mode, (stage, reason) in FAILED.items():
        assert f"Failed at {stage}, attempt 1: {reason}" in sections[mode]
        assert outcomes[mode]["excerpt"].splitlines()[-1] in sections[mode]
        assert "What to do: " in sections[mode]
    assert "no prefill on decode instances" in report, "measured, and not to be believed"
    summary = (broken.folder / "results/summary.csv").read_text(encoding="utf-8")
    assert [mode for mode in MODES if f"w,{mode},fp16," in summary] == ["default"]


@pytest.mark.fault(
    "launch", "cells failed for a reason that has gone", "the next snakemake measures these cells and no other"
)
def test_a_rerun_measures_only_what_failed(broken: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDKV_LEASE_DIR", broken.environment["PDKV_LEASE_DIR"])
    for mode in MODES:
        require_nothing_left(stages_of(broken, mode), set(psutil.Process().children(recursive=True)))
    sound = {mode: evidence_of(broken, mode) for mode in MODES if mode not in FAILED}
    measured = {rule: count for rule, count in broken.due().items() if rule.startswith("measure")}
    assert measured == {"measure": len(FAILED), **{f"measure {mode}": 1 for mode in FAILED}}
    (broken.folder / "mended").touch()
    targets = [f"results/w/{mode}/fp16/r1/stages.json" for mode in MODES]
    broken.run(*targets)
    assert {mode: stages_of(broken, mode)["outcome"]["status"] for mode in MODES} == dict.fromkeys(MODES, "ok")
    assert {mode: stages_of(broken, mode)["attempt"] for mode in FAILED} == dict.fromkeys(FAILED, 2)
    assert {mode: evidence_of(broken, mode) for mode in sound} == sound
    assert NOTHING in broken.run(*targets)
