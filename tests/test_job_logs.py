"""The log of the Slurm job that measured a trial is found from its evidence and from the report."""

import json
from pathlib import Path

import pytest
from sample_results import Sample, write_sample

from pdkv.artifacts import read_json, write_json
from pdkv.measuring.job_nodes import job_log
from pdkv.reporting.report_blocks import Paragraph, Table
from pdkv.reporting.report_model import ReportSettings, read_report

SETTINGS = ReportSettings("A study", "en", ("default", "fp16"))
FOLDER = "results/logs/slurm/rule_measure"


def put_scontrol(folder: Path, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    program = folder / "bin/scontrol"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{answer}\nEND\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")


def test_a_job_s_log_is_asked_of_slurm_and_told_from_the_study_s_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_scontrol(tmp_path, monkeypatch, f"JobId=7 StdErr={tmp_path}/x.log StdIn=/dev/null StdOut={tmp_path}/a/7.log")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.chdir(tmp_path)
    assert job_log() == "a/7.log"
    monkeypatch.chdir("/")
    assert job_log() == f"{tmp_path}/a/7.log".lstrip("/")


def test_the_log_of_a_study_in_a_folder_with_blanks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = tmp_path / "my study of  4=2x2"
    shown = f"JobId=7 JobName=a WorkDir={study} StdErr={study}/x.log StdIn=/dev/null StdOut={study}/a b/7.log"
    study.mkdir()
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.chdir(study)
    put_scontrol(tmp_path, monkeypatch, f"{shown} TresPerNode=gres/gpu:1 ReqB:S:C:T=0:0:*:* ")
    assert job_log() == "a b/7.log"
    (tmp_path / "bin/scontrol").write_text(f"#!/bin/sh\necho '{shown}'\n", encoding="utf-8")
    assert job_log() == "a b/7.log", "the last field of all"


def test_without_a_job_or_an_answer_there_is_no_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert job_log() is None
    put_scontrol(tmp_path, monkeypatch, "slurm_load_jobs error: Invalid job id specified")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert job_log() is None
    (tmp_path / "bin/scontrol").unlink()
    assert job_log() is None


def report_of_jobs(folder: Path, logs: dict[str, str]) -> list[Paragraph | Table]:
    """The blocks of a report on cells whose launches were jobs, by mode the log of each."""
    cells = write_sample(folder / "results", Sample())
    for path in cells:
        content = read_json(path, "cell/1")
        for number, trial in enumerate(content["trials"]):
            if content["mode"] in logs:
                trial |= {"job": str(40 + number), "job_log": logs[content["mode"]]}
        write_json(path, "cell/1", {key: value for key, value in content.items() if key != "schema"})
    report = read_report(cells, folder / "results/comparisons.csv", SETTINGS)
    return [block for section in report.sections for block in section.blocks]


def test_the_report_names_the_job_of_each_launch_and_the_log_of_a_failed_one(tmp_path: Path) -> None:
    modes = {json.loads(path.read_text())["mode"] for path in write_sample(tmp_path / "look", Sample())}
    blocks = report_of_jobs(tmp_path, {mode: f"{FOLDER}/short_{mode}_fp16_1/41.log" for mode in modes})
    [failed] = {block.text for block in blocks if isinstance(block, Paragraph) and "Slurm job" in block.text}
    assert failed.startswith(f"The log of its Slurm job, 40: {FOLDER}/")
    [times] = [block for block in blocks if isinstance(block, Table) and block.caption.startswith("Time of each stage")]
    assert [column.title for column in times.columns][1] == "Slurm job"
    *launches, _ = [row[1].text for row in times.rows]
    assert set(launches) == {"40"}
    assert f"below {FOLDER}:" in times.notes[1]


def test_a_study_on_one_machine_has_no_word_of_jobs(tmp_path: Path) -> None:
    blocks = report_of_jobs(tmp_path, {})
    [times] = [block for block in blocks if isinstance(block, Table) and block.caption.startswith("Time of each stage")]
    assert "Slurm job" not in [column.title for column in times.columns] and len(times.notes) == 1
    assert not [block for block in blocks if isinstance(block, Paragraph) and "Slurm job" in block.text]
