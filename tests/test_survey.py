"""What is said of a study before it starts."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pdkv.errors import UserError
from pdkv.installing import engine_env
from pdkv.measuring import survey
from pdkv.measuring.feasibility import Host
from pdkv.measuring.survey import describe_survey, refuse_obstacles, survey_study
from pdkv.study.config import load_study

STUDY = f"""\
model: bundled
engine: {{python: '{sys.executable}'}}
workloads: {{w: {{input_tokens: 128, output_tokens: 16, concurrency: [2], requests: 8, max_model_len: 512}}}}
modes: [default, 1p1d, 2x]
dtypes: [bf16]
repeats: 3
"""


@pytest.fixture(autouse=True)
def _a_vllm_in_this_python(monkeypatch):
    monkeypatch.setattr(engine_env, "engine_version", lambda python: "0.32.0")


def study(tmp_path: Path, text: str):
    path = tmp_path / "study.yaml"
    path.write_text(text)
    return load_study(path)


def refuse(tmp_path: Path, text: str) -> None:
    asked = study(tmp_path, text)
    refuse_obstacles(asked, survey_study(asked, tmp_path))


def test_survey_lists_cells_trials_and_time(tmp_path):
    text = describe_survey(survey_study(study(tmp_path, STUDY), tmp_path))
    assert "w/1p1d/bf16" in text and "1 prefill + 1 decode" in text and "2 replicas" in text
    assert "3 cells, 9 trials" in text


def test_absurd_studies_are_refused_with_their_time(tmp_path):
    with pytest.raises(UserError, match=r"would take about .* h .*limits.study_hours"):
        refuse(tmp_path, STUDY.replace("requests: 8", "requests: 1000000000"))


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ("{python: /nowhere/python}", "/nowhere/python can't be run"),
        ("{command: no-such-program vllm}", "there is no program no-such-program"),
        ("cpu", "run: pdkv install-engine"),
    ],
)
@pytest.mark.fault(
    "launch",
    "the engine of a whole study is not installed",
    "refused before the start, with the path and how to install one",
)
def test_an_engine_that_is_not_there(tmp_path, engine, words):
    text = STUDY.replace(f"{{python: '{sys.executable}'}}", engine)
    with pytest.raises(UserError, match=words):
        refuse(tmp_path, text)


def test_a_command_that_is_there_and_can_not_be_run_is_not_said_to_be_missing(tmp_path):
    prefix = tmp_path / "wrapper"
    prefix.write_text('#!/bin/sh\nexec vllm "$@"\n')
    text = STUDY.replace(f"{{python: '{sys.executable}'}}", f"{{command: {prefix}}}")
    with pytest.raises(UserError, match=r"wrapper can't be run: it is no executable file: make it one \(chmod"):
        refuse(tmp_path, text)


def test_what_a_study_would_do_is_said_also_where_its_engine_is_not_there(tmp_path):
    asked = study(
        tmp_path, STUDY.replace(f"{{python: '{sys.executable}'}}", "cuda").replace("[default", "[default, 4x")
    )
    survey = survey_study(asked, tmp_path)
    assert "w/4x/bf16" in describe_survey(survey)
    assert [obstacle.partition(":")[0] for obstacle in survey.obstacles][1:] == [
        "w/default/bf16",
        "w/4x/bf16",
        "w/1p1d/bf16",
        "w/2x/bf16",
    ]
    assert "run: pdkv install-engine" in survey.obstacles[0]


def test_a_server_that_runs_already_needs_no_engine(tmp_path):
    text = STUDY.replace("[default, 1p1d, 2x]", "{live: {endpoint: 'http://127.0.0.1:8000'}}")
    asked = study(tmp_path, text.replace(f"{{python: '{sys.executable}'}}", "cpu"))
    assert survey_study(asked, tmp_path).obstacles == ()


@pytest.mark.parametrize(("version", "words"), [(None, "has no vLLM"), ("0.19.1", "known for 0.26 to 0.33 only")])
@pytest.mark.fault(
    "launch",
    "the Python that was named has no vLLM, or one that is not known",
    "refused before the start, with its version and those that are known",
)
def test_a_python_without_a_vllm_that_is_known(tmp_path, monkeypatch, version, words):
    monkeypatch.setattr(engine_env, "engine_version", lambda python: version)
    with pytest.raises(UserError, match=words):
        refuse(tmp_path, STUDY)


@pytest.mark.parametrize(
    ("model", "words"), [("./nowhere", "there is no folder"), ("{folder}", "holds no config.json")]
)
@pytest.mark.fault(
    "launch", "the model's folder is not there, or holds no model", "refused before the start, with the folder"
)
def test_a_model_that_is_not_there(tmp_path, model, words):
    text = STUDY.replace("model: bundled", f"model: {model.format(folder=tmp_path)}")
    with pytest.raises(UserError, match=words):
        survey_study(study(tmp_path, text), tmp_path)


def on_gpus(monkeypatch, gib: int) -> None:
    monkeypatch.setattr(engine_env, "detect_kind", lambda: "cuda")
    monkeypatch.setattr(survey, "look_at_host", lambda: Host(16, 2**40, (gib * 2**30,) * 2))


@pytest.mark.fault(
    "launch", "a cell needs more memory than its device has", "told before the start; the other cells run"
)
def test_cells_that_will_not_start_are_told_and_leave_the_others(tmp_path, monkeypatch):
    on_gpus(monkeypatch, 10)
    modes = "{default: {}, large: {args: {max_num_seqs: 1}}}"
    asked = study(tmp_path, STUDY.replace("[default, 1p1d, 2x]", modes))
    found = survey_study(asked, tmp_path)
    refuse_obstacles(asked, found)
    short = replace(found, cells=(found.cells[0], replace(found.cells[1], shortages=("single needs about 1 TiB",))))
    refuse_obstacles(asked, short)
    assert "w/large/bf16 will not start here: single needs about 1 TiB" in describe_survey(short)


def test_ranks_that_will_share_cores_are_told_and_run(tmp_path, monkeypatch):
    monkeypatch.setattr(survey, "look_at_host", lambda: Host(2, 2**40, ()))
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"num_attention_heads": 4, "num_key_value_heads": 2}')
    modes = "{wide: {tensor_parallel_size: 2}, 1p1d: {tensor_parallel_size: 2}}"
    text = STUDY.replace("[default, 1p1d, 2x]", modes).replace("bundled", str(model))
    asked = study(tmp_path, text.replace("engine: {", "engine: {device: cpu, "))
    found = survey_study(asked, tmp_path)
    refuse_obstacles(asked, found)
    told = describe_survey(found)
    assert "w/1p1d/bf16: 4 ranks of tensor parallelism share 2 cores" in told
    assert "w/wide/bf16:" not in told


def test_a_study_of_which_nothing_would_start_is_refused(tmp_path, monkeypatch):
    on_gpus(monkeypatch, 1)
    with pytest.raises(UserError, match=r"w/2x/bf16: replica needs about .* weights"):
        refuse(tmp_path, STUDY)
