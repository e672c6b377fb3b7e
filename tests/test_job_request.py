"""What a scheduler is asked for, and where a study must say what its nodes have."""

from pathlib import Path

import pytest

from pdkv.errors import UserError
from pdkv.measuring.job_request import JobRequest, request_job, require_known_device
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
    require_known_device(trials(tmp_path, engine=engine)["default"].engine)
