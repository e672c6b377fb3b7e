"""``pdkv merge``: what belongs together becomes one study, what does not is named before anything is copied."""

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from test_workflow_reruns import ENGINE, ROOT, STUDY, Workspace

from pdkv.artifacts import read_csv, read_json, write_json
from pdkv.errors import UserError
from pdkv.run_lock import lock_run
from pdkv.seals import seal_files
from pdkv.stored_trials import trial_names
from pdkv.study.config import Study, load_study
from pdkv.study_merge import merge_studies
from pdkv.wings import digest

CONFIG = f"""\
model: fake/model
engine: {{command: {ENGINE}}}
workloads:
  short: {{input_tokens: 16, output_tokens: 4, concurrency: [2], requests: 4, max_model_len: 64}}
  long: {{input_tokens: 160, output_tokens: 4, concurrency: [2], requests: 4, max_model_len: 256}}
modes:
  default: {{}}
  mine: {{args: {{max_num_seqs: 8}}}}
dtypes: [fp16]
repeats: 3
"""
CELL = "short/default/fp16"


def gpu(name: str) -> list[dict[str, Any]]:
    return [{"uuid": "GPU-1", "name": name, "memory_bytes": 80 << 30, "driver": "570.1", "index": 0}]


@pytest.fixture
def study(tmp_path: Path) -> Study:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG, encoding="utf-8")
    return load_study(path)


def measure(
    home: Path,
    study: Study,
    *names: str,
    evidence: str = "bytes",
    status: str = "ok",
    card: str = "NVIDIA H200",
    **recorded: str,
) -> Path:
    """Trials as ``pdkv plan`` and ``pdkv measure`` leave them, with next to nothing in their evidence.

    ``recorded``: more of ``stages.json``, such as ``source``, which older evidence has not.
    """
    for name in names:
        folder = home / "results" / name
        workload, mode, dtype, repeat = name.split("/")
        trial = json.loads(study.trial(workload, mode, dtype, int(repeat[1:])).to_slice())
        for file in ("sends.parquet", "events.parquet", "samples.parquet", "scrapes.jsonl", "server/single.log"):
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(f"{evidence} of {file}", encoding="utf-8")
        stages = {
            "trial": trial,
            "attempt": 1,
            "outcome": {"status": status, "stage": None, "reason": None, "excerpt": None},
            "environment": {"host_cpu": "AMD EPYC 9354", "gpus": gpu(card)},
            "files": seal_files(folder, leave_out="stages.json"),
            **recorded,
        }
        write_json(folder / "plan.json", "plan/1", {"trial": trial, "source": digest("plan", "resolve")})
        write_json(folder / "stages.json", "stages/1", stages)
        (folder / "logs").mkdir(exist_ok=True)
        (folder / "logs/measure.log").write_text("notes", encoding="utf-8")
        (folder / "metrics.json").write_text("read from it", encoding="utf-8")
    return home


def snapshot(home: Path) -> dict[str, tuple[str, int]]:
    return {
        str(path.relative_to(home)): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in sorted(home.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def a(tmp_path: Path, study: Study) -> Path:
    return measure(tmp_path / "A", study, f"{CELL}/r1")


class Folders:
    """A and B before a merge, which must be the same after it, and C."""

    def __init__(self, a: Path, b: Path, c: Path) -> None:
        self.a, self.b, self.c = a, b, c
        self.before = snapshot(a), snapshot(b)

    def merge(self) -> str:
        told = "\n".join(merge_studies([self.a, self.b], self.c))
        self.assert_untouched()
        assert sorted(path.name for path in self.c.iterdir()) == [".snakemake", "results"]
        return told

    def refused(self) -> str:
        with pytest.raises(UserError) as caught:
            merge_studies([self.a, self.b], self.c)
        self.assert_untouched()
        assert not self.c.exists() or not list(self.c.rglob("*.json")), "nothing was copied"
        return str(caught.value)

    def assert_untouched(self) -> None:
        assert (snapshot(self.a), snapshot(self.b)) == self.before


class TestWhatBelongsTogether:
    def test_repeats_of_one_cell(self, a: Path, study: Study, tmp_path: Path) -> None:
        b = measure(tmp_path / "B", study, f"{CELL}/r2", f"{CELL}/r3", card="NVIDIA H100")
        folders = Folders(a, b, tmp_path / "C")
        told = folders.merge()
        assert f"{CELL}: r1 from {a}; r2, r3 from {b}" in told
        assert f"{a}: 1 trial, measured on AMD EPYC 9354, 1 × NVIDIA H200 (1)" in told
        assert f"{b}: 2 trials, measured on AMD EPYC 9354, 1 × NVIDIA H100 (2)" in told
        assert "workloads: short; modes: default; dtypes: fp16; repeats: 3" in told
        assert "missing" not in told
        assert trial_names(folders.c) == [f"{CELL}/r1", f"{CELL}/r2", f"{CELL}/r3"]

    def test_evidence_and_its_log_come_along_and_what_was_read_from_it_does_not(
        self, a: Path, study: Study, tmp_path: Path
    ) -> None:
        b = measure(tmp_path / "B", study, "long/mine/fp16/r1")
        folders = Folders(a, b, tmp_path / "C")
        told = folders.merge()
        assert "of such a study 2 trials are missing: snakemake would measure them" in told
        for home, name in ((a, f"{CELL}/r1"), (b, "long/mine/fp16/r1")):
            there, here = snapshot(home / "results" / name), snapshot(folders.c / "results" / name)
            assert there.pop("metrics.json")
            assert here == there
        assert (folders.c / "results/logs/merge.log").read_text(encoding="utf-8") == told + "\n"

    @pytest.mark.parametrize("turned", [False, True])
    def test_where_one_failed_the_other_is_taken(self, a: Path, study: Study, tmp_path: Path, turned: bool) -> None:
        failed = measure(tmp_path / "B", study, f"{CELL}/r1", evidence="other", status="failed")
        folders = Folders(*((failed, a) if turned else (a, failed)), tmp_path / "C")
        told = folders.merge()
        assert f"{CELL}/r1: not taken from {failed}: failed there" in told
        stages = read_json(folders.c / f"results/{CELL}/r1/stages.json", "stages/1")
        assert stages["outcome"]["status"] == "ok"

    def test_the_same_launch_in_both_is_taken_once(self, a: Path, study: Study, tmp_path: Path) -> None:
        b = tmp_path / "B"
        shutil.copytree(a, b)
        measure(b, study, f"{CELL}/r2", status="failed")
        told = Folders(a, b, tmp_path / "C").merge()
        assert f"{CELL}: r1 from {a}; r2 (failed) from {b}" in told
        assert f"{CELL}/r1: not taken from {b}: the same launch" in told

    def test_what_was_only_planned_is_named_and_left(self, a: Path, study: Study, tmp_path: Path) -> None:
        b = measure(tmp_path / "B", study, f"{CELL}/r2", f"{CELL}/r3")
        (b / f"results/{CELL}/r3/stages.json").unlink()
        folders = Folders(a, b, tmp_path / "C")
        assert f"{b}: 1 trial planned there and not measured: {CELL}/r3" in folders.merge()
        assert trial_names(folders.c) == [f"{CELL}/r1", f"{CELL}/r2"]

    def test_three_folders_and_an_empty_one_for_them(self, a: Path, study: Study, tmp_path: Path) -> None:
        others = [measure(tmp_path / name, study, f"{CELL}/r{number}") for name, number in (("B", 2), ("D", 3))]
        (tmp_path / "C/results").mkdir(parents=True)
        merge_studies([a, *others], tmp_path / "C")
        assert len(trial_names(tmp_path / "C")) == 3

    def test_failed_launches_are_of_any_measuring_code(self, a: Path, study: Study, tmp_path: Path) -> None:
        """No number is of them."""
        b = measure(tmp_path / "B", study, f"{CELL}/r1", f"{CELL}/r2", status="failed", source="bb22")
        assert f"{CELL}: r1 from {a}; r2 (failed) from {b}" in Folders(a, b, tmp_path / "C").merge()


def put_job_log(home: Path, log: str, text: str) -> str:
    (home / log).parent.mkdir(parents=True, exist_ok=True)
    (home / log).write_text(text, encoding="utf-8")
    return log


class TestLogsOfSlurmJobs:
    FOLDER = "results/logs/slurm/rule_measure"

    def test_they_come_along(self, study: Study, tmp_path: Path) -> None:
        a, b = tmp_path / "A", tmp_path / "B"
        logs = [put_job_log(home, f"{self.FOLDER}/short_default_fp16_{home.name}/7.log", home.name) for home in (a, b)]
        measure(a, study, f"{CELL}/r1", job="7", job_log=logs[0])
        measure(b, study, f"{CELL}/r2", job="7", job_log=logs[1])
        put_job_log(a, f"{self.FOLDER}/short_default_fp16_A/6.log", "of an attempt that was tried again")
        told = Folders(a, b, tmp_path / "C").merge()
        assert "without the log" not in told
        assert [(tmp_path / "C" / log).read_text() for log in logs] == ["A", "B"]
        assert len(list((tmp_path / "C" / self.FOLDER).rglob("*.log"))) == 2

    def test_those_that_can_not_be_taken_are_told(self, study: Study, tmp_path: Path) -> None:
        """One name for two logs, a log that is gone, and one that lies outside of the results."""
        a, b = tmp_path / "A", tmp_path / "B"
        same = [put_job_log(home, f"{self.FOLDER}/7.log", home.name) for home in (a, b)]
        outside = put_job_log(a, "results/../7.log", "elsewhere")
        measure(a, study, f"{CELL}/r1", job_log=same[0])
        measure(b, study, f"{CELL}/r2", job_log=same[1])
        measure(a, study, f"{CELL}/r3", job_log=f"{self.FOLDER}/8.log")
        measure(a, study, "long/default/fp16/r1", job_log=outside)
        measure(a, study, "long/default/fp16/r2", job_log=str(tmp_path.parent))  # by its full name: found from C too
        told = Folders(a, b, tmp_path / "C").merge()
        lost = f"{CELL}/r1, {CELL}/r3, long/default/fp16/r1"
        assert f"{a}: 3 trials taken without the log of the Slurm job: " in told
        assert {*lost.split(", ")} == {*told.partition("the Slurm job: ")[2].partition("\n")[0].split(", ")}
        assert f"{b}: 1 trial taken without the log of the Slurm job: {CELL}/r2" in told
        assert not list((tmp_path / "C").rglob("7.log"))


def cut(folder: Path) -> None:
    os.truncate(folder / "events.parquet", 3)


def edit(folder: Path) -> None:
    text = (folder / "stages.json").read_text(encoding="utf-8")
    (folder / "stages.json").write_text(text.replace("H200", "H100"), encoding="utf-8")


def lose(folder: Path) -> None:
    (folder / "server/single.log").unlink()


def lose_plan(folder: Path) -> None:
    (folder / "plan.json").unlink()


def rewrite(folder: Path, file: str, schema: str, **changes: Any) -> None:
    content = read_json(folder / file, f"{Path(file).stem}/1")
    write_json(folder / file, schema, {**{key: value for key, value in content.items() if key != "schema"}, **changes})


def age(folder: Path) -> None:
    rewrite(folder, "stages.json", "stages/0")


def unseal(folder: Path) -> None:
    rewrite(folder, "stages.json", "stages/1", files=None)


def replan(folder: Path) -> None:
    rewrite(folder, "plan.json", "plan/1", source="0123")


def rename(folder: Path) -> None:
    folder.rename(folder.with_name("r3"))


class TestWhatDoesNot:
    @pytest.mark.parametrize(
        ("harm", "said"),
        [
            (cut, "events.parquet is not what was measured"),
            (edit, "stages.json was changed after pdkv wrote it"),
            (lose, "single.log is not there, though it was measured"),
            (lose_plan, "plan.json is not there"),
            (age, "stages.json holds 'stages/0', this version reads 'stages/1'"),
            (unseal, "was measured by an earlier version"),
            (replan, "was planned by another version of pdkv"),
            (rename, f"r3 is another trial: {CELL}/r2"),
        ],
        ids=lambda value: getattr(value, "__name__", ""),
    )
    def test_harmed_or_foreign_results(self, a: Path, study: Study, tmp_path: Path, harm: Any, said: str) -> None:
        b = measure(tmp_path / "B", study, f"{CELL}/r2")
        harm(b / "results" / CELL / "r2")
        assert said in Folders(a, b, tmp_path / "C").refused()

    def test_two_measurements_of_one_trial(self, a: Path, study: Study, tmp_path: Path) -> None:
        b = measure(tmp_path / "B", study, f"{CELL}/r1", evidence="other")
        said = Folders(a, b, tmp_path / "C").refused()
        assert f"{CELL}/r1: in {a} and in {b} it was measured, with different evidence" in said

    def test_two_failures_of_one_trial(self, study: Study, tmp_path: Path) -> None:
        homes = [measure(tmp_path / name, study, f"{CELL}/r1", evidence=name, status="failed") for name in ("A", "B")]
        assert "failed, each in its own way" in Folders(homes[0], homes[1], tmp_path / "C").refused()

    @pytest.mark.fault(
        "stored",
        "results of two versions of pdkv, whose load or measurement differ, are joined",
        "refused before anything is copied, with both places",
    )
    @pytest.mark.parametrize(
        ("here", "there", "said"),
        [
            ({"source": "aa11"}, {"source": "bb22"}, "aa11 / bb22"),
            ({"source": "aa11"}, {}, "aa11 / unknown (an earlier version)"),
            ({}, {"source": "bb22"}, "unknown (an earlier version) / bb22"),
        ],
    )
    def test_launches_measured_by_different_code(
        self, study: Study, tmp_path: Path, here: dict[str, str], there: dict[str, str], said: str
    ) -> None:
        a = measure(tmp_path / "A", study, f"{CELL}/r1", f"{CELL}/r2", **here)
        b = measure(tmp_path / "B", study, "short/mine/fp16/r1", **there)
        text = Folders(a, b, tmp_path / "C").refused()
        first, second = a / f"results/{CELL}/r1 and 1 more", b / "results/short/mine/fp16/r1"
        assert f"{first} and {second} were measured by different versions of pdkv: measuring code {said}" in text

    @pytest.mark.parametrize(
        ("old", "new", "said"),
        [
            (
                "max_num_seqs: 8",
                "max_num_seqs: 4",
                'mode mine is not the same in {a} and in {b}: args: {"max-num-seqs": 8}',
            ),
            ("requests: 4, max_model_len: 64", "requests: 5, max_model_len: 64", "workload short is not the same in"),
            ("model: fake/model", "model: fake/other", 'name: "fake/model" / "fake/other"'),
            ("repeats: 3", "seed: 7", "seed is not the same in {a} and in {b}: seed: 0 / 7"),
        ],
    )
    def test_another_config(self, study: Study, tmp_path: Path, old: str, new: str, said: str) -> None:
        """For the same name, and for another repeat of the cell, and for another cell of the study."""
        (tmp_path / "other.yaml").write_text(CONFIG.replace(old, new), encoding="utf-8")
        other = load_study(tmp_path / "other.yaml")
        a = measure(tmp_path / "A", study, "short/mine/fp16/r1")
        b = measure(tmp_path / "B", other, "short/mine/fp16/r2")
        places = {"a": a / "results/short/mine/fp16/r1", "b": b / "results/short/mine/fp16/r2"}
        text = said.replace("{a}", str(places["a"])).replace("{b}", str(places["b"]))
        assert text in Folders(a, b, tmp_path / "C").refused()

    def test_another_cell_of_another_study(self, a: Path, study: Study, tmp_path: Path) -> None:
        (tmp_path / "other.yaml").write_text(CONFIG.replace("repeats: 3", "seed: 7"), encoding="utf-8")
        b = measure(tmp_path / "B", load_study(tmp_path / "other.yaml"), "long/mine/fp16/r1")
        assert "seed is not the same" in Folders(a, b, tmp_path / "C").refused()

    def test_workloads_of_different_lengths_are_no_difference_between_engines(
        self, a: Path, study: Study, tmp_path: Path
    ) -> None:
        (tmp_path / "long.yaml").write_text(CONFIG.replace("max_model_len: 256", "max_model_len: 4096"))
        longer = load_study(tmp_path / "long.yaml")
        assert longer.trial("long", "default", "fp16", 1).engine.token_budget == 4096
        Folders(a, measure(tmp_path / "B", longer, "long/default/fp16/r1"), tmp_path / "C").merge()

    def test_all_of_it_is_told_at_once(self, a: Path, study: Study, tmp_path: Path) -> None:
        measure(a, study, f"{CELL}/r2", "short/mine/fp16/r1")
        b = measure(tmp_path / "B", study, f"{CELL}/r1", f"{CELL}/r2", "long/mine/fp16/r1", evidence="other")
        cut(b / "results/long/mine/fp16/r1")
        said = Folders(a, b, tmp_path / "C").refused()
        assert "can't be joined, for 3 reasons; nothing was copied" in said
        for name in (f"{CELL}/r1: in ", f"{CELL}/r2: in ", "long/mine/fp16/r1/events.parquet"):
            assert name in said


class TestFolders:
    @pytest.fixture
    def b(self, tmp_path: Path, study: Study) -> Path:
        return measure(tmp_path / "B", study, f"{CELL}/r2")

    def refused(self, homes: list[Path], into: Path) -> str:
        with pytest.raises(UserError) as caught:
            merge_studies(homes, into)
        assert caught.value.remedy
        return caught.value.problem

    def test_one_folder_twice(self, a: Path, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(a)
        assert "are the same folder" in self.refused([a, tmp_path / "link"], tmp_path / "C")
        assert "only" in self.refused([a], tmp_path / "C")

    def test_no_folder_no_results_no_trials(self, a: Path, tmp_path: Path) -> None:
        assert f"there is no folder {tmp_path / 'none'}" in self.refused([a, tmp_path / "none"], tmp_path / "C")
        (tmp_path / "bare").mkdir()
        assert f"{tmp_path / 'bare'} has no folder results/" in self.refused([a, tmp_path / "bare"], tmp_path / "C")
        (tmp_path / "bare/results/logs").mkdir(parents=True)
        assert "holds no trial that was measured" in self.refused([a, tmp_path / "bare"], tmp_path / "C")
        assert not (tmp_path / "C").exists()

    def test_into_one_of_them_or_below(self, a: Path, b: Path) -> None:
        before = snapshot(a)
        for into in (a, a / "results", a / "results/short", a / "x", a / "x/y"):
            assert "would be changed" in self.refused([a, b], into)
        assert snapshot(a) == before

    def test_into_a_folder_with_results(self, a: Path, b: Path, study: Study, tmp_path: Path) -> None:
        c = measure(tmp_path / "C", study, f"{CELL}/r3")
        before = snapshot(c)
        assert f"{c} has results already" in self.refused([a, b], c)
        assert snapshot(c) == before

    @pytest.mark.parametrize("into", ["loop", "loop/C", "n" * 300, "/proc/xx", "file", "file/C"])
    def test_into_what_can_be_no_folder(self, a: Path, b: Path, tmp_path: Path, into: str) -> None:
        (tmp_path / "loop").symlink_to("loop")
        (tmp_path / "file").touch()
        place = tmp_path / into
        with pytest.raises(UserError) as caught:
            merge_studies([a, b], place)
        assert caught.value.problem.startswith(f"cannot merge into {place}: ")
        assert caught.value.remedy == "name another folder: --into C"

    @pytest.mark.parametrize("home", ["loop", "n" * 300, "file"])
    def test_from_what_can_be_no_folder(self, a: Path, tmp_path: Path, home: str) -> None:
        (tmp_path / "loop").symlink_to("loop")
        (tmp_path / "file").touch()
        assert str(tmp_path / home) in self.refused([a, tmp_path / home], tmp_path / "C")

    def test_into_a_folder_where_snakemake_is_at_work(self, a: Path, b: Path, tmp_path: Path) -> None:
        lock = lock_run(tmp_path / "C/.snakemake")
        said = self.refused([a, b], tmp_path / "C")
        os.close(lock)
        assert said == f"another snakemake is at work in {tmp_path / 'C'}"

    def test_a_copy_that_fails_leaves_nothing(
        self, a: Path, b: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        copied = shutil.copy2

        def full_disk(source: Path, place: Path) -> None:
            if "r2" in str(source) and source.name == "events.parquet":
                raise OSError(28, "No space left on device")
            copied(source, place)

        monkeypatch.setattr(shutil, "copy2", full_disk)
        assert "No space left on device" in self.refused([a, b], tmp_path / "C")
        assert [path.name for path in (tmp_path / "C").iterdir()] == [".snakemake"]

    def test_what_a_killed_merge_left_is_thrown_away(self, a: Path, b: Path, tmp_path: Path) -> None:
        (tmp_path / "C/.results.merging/short/default/fp16/r9").mkdir(parents=True)
        merge_studies([a, b], tmp_path / "C")
        assert trial_names(tmp_path / "C") == [f"{CELL}/r1", f"{CELL}/r2"]
        assert not (tmp_path / "C/.results.merging").exists()


@pytest.fixture(scope="module")
def merged(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """One mode measured here, the other on a machine with other GPUs, both by the real workflow on a fake engine."""
    folder = tmp_path_factory.mktemp("merge")
    source = folder / "src"
    shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    only_here = STUDY.replace("  mine: {args: {max_num_seqs: 8}}\n", "")
    only_there = STUDY.replace("  default: {}\n", "")
    homes = []
    for name, text, mode, card in (("A", only_here, "default", "H200"), ("B", only_there, "mine", "H100")):
        workspace = Workspace(folder / name, source)
        workspace.write_study(text)
        workspace.run(f"results/w/{mode}/fp16/r1/stages.json")
        stages = workspace.trial(mode) / "stages.json"
        content = read_json(stages, "stages/1")
        environment = {**content["environment"], "gpus": gpu(f"NVIDIA {card}")}
        rewrite(stages.parent, "stages.json", "stages/1", environment=environment)
        homes.append(workspace.folder)
    into = Workspace(folder / "C", source)
    into.write_study(STUDY)
    shutil.copytree(homes[0] / ".snakemake", into.folder / ".snakemake")  # notes of results that have gone since
    (into.folder / ".snakemake/metadata/d3JvbmcK").write_text("{}")
    merge_studies(homes, into.folder)
    return into


def test_nothing_is_measured_again_and_no_comparison_crosses_gpu_models(merged: Workspace) -> None:
    before = {mode: (merged.trial(mode) / "stages.json").read_bytes() for mode in ("default", "mine")}
    due = merged.due()
    assert due["measure"] == due["plan_server"] == 0
    assert due["read_trial"] == 2
    output = merged.run()
    assert "2 trials, roughly" not in output
    assert {mode: (merged.trial(mode) / "stages.json").read_bytes() for mode in before} == before

    rows = [row for row in read_csv(merged.folder / "results/comparisons.csv") if row["mode"] == "mine"]
    assert rows
    for row in rows:
        assert row["ratio"] == row["verdict"] == ""
        assert "not comparable" in row["note"]
        assert "NVIDIA H100, 85899345920 bytes / NVIDIA H200, 85899345920 bytes" in row["note"]

    report = (merged.folder / "reports/summary.md").read_text(encoding="utf-8")
    machines = next(line for line in report.splitlines() if line.startswith("| GPUs"))
    assert "NVIDIA H200" in machines and "NVIDIA H100" in machines
    assert "default" in machines and "mine" in machines, "which cells come from which machine"
    assert "Nothing to be done" in merged.run()
