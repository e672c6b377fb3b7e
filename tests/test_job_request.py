"""What a scheduler is asked for, and where a study must say what its nodes have."""

import os
from pathlib import Path

import pytest
from refusals import why_refused
from test_workflow_reruns import ENGINE, ROOT, Workspace
from test_workflow_reruns import STUDY as FAKE_STUDY

from pdkv.errors import UserError
from pdkv.measuring.job_request import JobRequest, engine_here, request_job, require_kept_options, require_known_device
from pdkv.records import Trial
from pdkv.study.config import load_study

STUDY = """\
model: {model}
engine: {engine}
workloads:
  w: {{input_tokens: 16, output_tokens: 4, concurrency: [2], requests: 4, max_model_len: 64}}
modes: {{default: {{}}, 2p1d: {{}}, wide: {{tensor_parallel_size: 4}}}}
dtypes: [fp16]
"""


def trials(tmp_path: Path, *, engine: str, model: str = "bundled") -> dict[str, Trial]:
    path = tmp_path / "study.yaml"
    path.write_text(STUDY.format(engine=engine, model=model), encoding="utf-8")
    return {trial.mode.id: trial for trial in load_study(path).trials()}


def requests(tmp_path: Path, **study: str) -> dict[str, JobRequest]:
    return {mode: request_job(trial, tmp_path) for mode, trial in trials(tmp_path, **study).items()}


@pytest.mark.parametrize("engine", ["cuda", "{command: vllm, device: cuda}", "{python: /x/python, device: cuda}"])
def test_gpus_are_those_of_all_instances(tmp_path: Path, engine: str) -> None:
    asked = requests(tmp_path, engine=engine)
    assert {mode: request.gpus for mode, request in asked.items()} == {"default": 1, "2p1d": 3, "wide": 4}
    assert len({request.cores for request in asked.values()}) == 1  # per GPU
    assert asked["default"].memory_mb < asked["2p1d"].memory_mb


def test_cpu_cells_get_equal_cores_and_no_gpu(tmp_path: Path) -> None:
    asked = requests(tmp_path, engine="cpu")
    assert {request.gpus for request in asked.values()} == {0}
    assert len({request.cores for request in asked.values()}) == 1
    # One instance: 2 GiB of programs, 1 GiB of cache, weights; with a quarter to spare, and 4 GiB for the client.
    assert 7 * 1024 < asked["default"].memory_mb < 10 * 1024


def test_time_covers_a_launch_that_is_given_up(tmp_path: Path) -> None:
    for request in requests(tmp_path, engine="cuda").values():
        assert request.minutes > 900 / 60
    assert request.minutes < 60


def test_a_model_whose_size_is_not_known_gets_a_large_one_s_memory(tmp_path: Path) -> None:
    unknown = requests(tmp_path, engine="cuda", model="org/model")["default"]
    assert unknown.memory_mb > requests(tmp_path, engine="cuda")["default"].memory_mb
    missing = requests(tmp_path, engine="cuda", model="/no/such/folder")["default"]  # planning it says what is wrong
    assert missing.gpus == 1 and missing.memory_mb == unknown.memory_mb


@pytest.mark.parametrize("engine", ["auto", "{command: vllm}", "{python: /x/python}"])
def test_nodes_are_not_guessed_from_the_login_node(tmp_path: Path, engine: str) -> None:
    with pytest.raises(UserError, match="engine: cuda or engine: cpu"):
        require_known_device(trials(tmp_path, engine=engine)["default"].engine)


@pytest.mark.parametrize("engine", ["cpu", "cuda", "{command: vllm, device: cuda}"])
def test_said_is_enough(tmp_path: Path, engine: str) -> None:
    assert why_refused(require_known_device, trials(tmp_path, engine=engine)["default"].engine) is None


def test_gpus_that_cannot_be_told_are_none_before_it_matters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finished results can be read, and a dry run shown; what is about to measure is refused with the reason."""

    def fail() -> str:
        raise UserError("CUDA_VISIBLE_DEVICES=0,0 names GPU-1 twice")

    monkeypatch.setattr("pdkv.installing.engine_env.detect_kind", fail)
    for engine in ("auto", "{command: vllm}"):
        trial = trials(tmp_path, engine=engine)["default"]
        assert engine_here(trial.engine, tmp_path).device == "cpu"
        assert request_job(trial, tmp_path).gpus == 0
    assert engine_here(trials(tmp_path, engine="cuda")["default"].engine, tmp_path).device == "cuda"


@pytest.mark.parametrize(
    ("needed", "given"),
    [
        ("--exclusive", "--exclusive"),
        ("--exclusive", "--exclusive --nodelist=node7"),
        ("--gpus-per-node=4", "--gpus-per-node=h100:4"),
        ("", "--nodelist=node7"),
        ("", ""),
    ],
)
def test_a_profile_may_add_to_what_a_trial_needs(needed: str, given: str) -> None:
    assert why_refused(require_kept_options, needed, given) is None


@pytest.mark.parametrize("given", ["--nodelist=node7", ""])
def test_a_profile_that_drops_what_a_trial_needs_is_refused(given: str) -> None:
    with pytest.raises(UserError, match="takes the place of --exclusive") as refused:
        require_kept_options("--exclusive", given)
    assert f"'{f'--exclusive {given}'.strip()}'" in refused.value.remedy


@pytest.mark.parametrize("given", ["--nodelist=node7", "--exclusive --nodelist=node7"])
def test_two_trials_on_cores_are_never_sent_to_one_node(tmp_path: Path, given: str) -> None:
    """One of them would wait there for the lease of the host until its job runs out of time."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("sbatch", "scontrol", "sinfo", "squeue", "sacct"):
        (programs / name).write_text(f'#!/bin/sh\necho "{name} $*" >> {tmp_path}/asked\nexit 1\n', encoding="utf-8")
        (programs / name).chmod(0o755)
    workspace = Workspace(tmp_path / "study")
    workspace.write_study(FAKE_STUDY.replace(ENGINE, f"{ENGINE}, device: cpu"))
    options = ["--profile", str(ROOT / "profiles/slurm"), "--slurm-no-account"]
    options += ["--default-resources", "slurm_partition=cores", "--set-resources", f"measure:slurm_extra='{given}'"]
    done = workspace.snakemake(*options, PATH=f"{programs}:{os.environ['PATH']}")
    sent = "sbatch" in (tmp_path / "asked").read_text(encoding="utf-8")
    assert sent is ("--exclusive" in given), done.stdout
    assert ("slurm_extra: --nodelist=node7 takes the place of --exclusive" in done.stdout) is not sent
