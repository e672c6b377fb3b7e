"""The real workflow on a fake engine: what runs again after a change, and what never does."""

import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from pdkv.artifacts import read_csv, read_json, write_json
from pdkv.cli import _parser
from pdkv.reporting.figure_names import figure_count, illustrated
from pdkv.study.config import load_study

ROOT = Path(__file__).parent.parent
ENGINE = f"[{json.dumps(sys.executable)}, {json.dumps(str(ROOT / 'tests/fake_engine.py'))}]"
ENGINE_BY_PYTHON = "{python: '/opt/my engine/bin/python'}"
STUDY = f"""\
model: fake/model
engine: {{command: {ENGINE}}}
workloads:
  w: {{input_tokens: 16, output_tokens: 4, concurrency: [2], requests: 4, max_model_len: 64}}
modes:
  default: {{}}
  mine: {{args: {{max_num_seqs: 8}}}}
dtypes: [fp16]
repeats: 1
"""
TRIAL_RULES = ("plan_server", "measure", "read_trial", "summarize_cell")
STUDY_RULES = ("aggregate", "compare", "rank_objectives", "draw_figures", "write_markdown", "write_pdf")
NOTHING = "Nothing to be done"
LATER_KEYS = {"source", "warmup"}


class Workspace:
    """A folder with a study, in which Snakemake runs from outside."""

    def __init__(self, folder: Path, source: Path = ROOT / "src") -> None:
        self.folder = folder
        self.source = source
        self.output = ""

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(self.source), "PDKV_LEASE_DIR": str(self.folder.parent / "leases")}

    def write_study(self, text: str) -> None:
        (self.folder / "config").mkdir(parents=True, exist_ok=True)
        (self.folder / "config/config.yaml").write_text(text, encoding="utf-8")

    def command(self, *arguments: str, root: Path = ROOT) -> list[str]:
        return [sys.executable, "-m", "snakemake", "--snakefile", str(root / "Snakefile"), "--cores", "1", *arguments]

    def snakemake(self, *arguments: str, root: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments, root=root),
            cwd=self.folder,
            env={**self.environment, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            timeout=300,
        )

    def run(self, *arguments: str) -> str:
        """Run to the end; the output."""
        done = self.snakemake(*arguments)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def due(self, *arguments: str) -> Counter[str]:
        """What a run would do: how often each rule, and ``rule trial`` for the rules of a trial."""
        done = self.snakemake("--dry-run", *arguments)
        assert done.returncode == 0, done.stdout
        jobs: Counter[str] = Counter()
        for rule, body in re.findall(r"^(?:local)?rule (\w+):\n((?:    .*\n)+)", done.stdout, re.MULTILINE):
            jobs[rule] += 1
            wildcards = re.search(
                r"wildcards: workload=(.+), mode=(.+), dtype=(\w+)(?:, repeat=(\d+))?$", body, re.MULTILINE
            )
            if wildcards:
                jobs[f"{rule} {wildcards[2]}"] += 1
        assert bool(jobs) is (NOTHING not in done.stdout), done.stdout
        jobs.pop("all", None)
        return jobs

    def trial(self, mode: str) -> Path:
        return self.folder / f"results/w/{mode}/fp16/r1"

    def stages(self, mode: str) -> dict[str, object]:
        return dict(json.loads((self.trial(mode) / "stages.json").read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as it is now: tests must not see it being edited."""
    copy = tmp_path_factory.mktemp("source") / "src"
    shutil.copytree(ROOT / "src", copy, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    return copy


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, source: Path) -> Workspace:
    """A study of two cells that ran to the end. Tests work on copies."""
    workspace = Workspace(tmp_path_factory.mktemp("finished"), source)
    workspace.write_study(STUDY)
    workspace.output = workspace.run()
    return workspace


@pytest.fixture
def workspace(finished: Workspace, tmp_path: Path) -> Workspace:
    copy = tmp_path / "copy"
    shutil.copytree(finished.folder, copy, symlinks=True)
    return Workspace(copy, finished.source)


def test_first_run_makes_everything(finished: Workspace) -> None:
    for mode in ("default", "mine"):
        assert finished.stages(mode)["outcome"]["status"] == "ok"  # type: ignore[index]
    for path in ("reports/summary.pdf", "reports/summary.md", "results/summary.csv", "results/comparisons.csv"):
        assert (finished.folder / path).stat().st_size > 0, path
    output = finished.output
    assert "2 cells, 2 trials" in output, "the check stands before the run"
    assert re.search(r"\[1/2\] w · \w+ · fp16 · r1", output), "progress says which trial of how many"
    assert output.count("pdkv: cells: ") == 1, "the end says once what became of the cells"
    assert re.search(r"^pdkv: cells: 2 \w+.*; report: reports/summary\.pdf$", output, re.MULTILINE)


def test_another_language_rewrites_the_report_and_measures_nothing(workspace: Workspace) -> None:
    english = (workspace.folder / "reports/summary.md").read_text(encoding="utf-8")
    assert workspace.due("--config", "report={language: zh}") == {
        "draw_figures": 1,
        "write_markdown": 1,
        "write_pdf": 1,
    }
    both = ("reports/summary.pdf", "--config", "report={language: both}")
    # The English one too, though only in what it says of the command that makes it.
    assert workspace.due(*both) == {"draw_figures": 1, "write_markdown": 2, "write_pdf": 2}
    said = workspace.run(*both)
    assert "report: reports/summary.pdf, reports/summary.zh.pdf" in said
    reports = workspace.folder / "reports"
    replaced = """ --config 'report={"language": "both"}'"""
    assert (reports / "summary.md").read_text(encoding="utf-8").replace(replaced, "") == english
    chinese = (reports / "summary.zh.md").read_text(encoding="utf-8")
    assert "首 token 时延" in chinese
    assert "(figures.zh/w/metrics_0.svg)" in chinese
    for name in ("summary.pdf", "summary.zh.pdf"):
        assert (reports / name).read_bytes().startswith(b"%PDF-")
    drawn = [sorted(path.name for path in (reports / name / "w").iterdir()) for name in ("figures", "figures.zh")]
    assert drawn[0] == drawn[1]
    assert drawn[0]
    assert (reports / "tables").is_dir() and (reports / "tables.zh").is_dir()
    assert not workspace.due(*both)


def test_prices_rank_the_cells_anew_and_measure_nothing(workspace: Workspace) -> None:
    workspace.write_study(STUDY + "cost: {per_gpu_hour: 2.5}\n")
    assert workspace.due() == {"aggregate": 1, "rank_objectives": 1, "write_markdown": 1, "write_pdf": 1}


def test_a_figure_that_was_lost_is_drawn_again_for_the_next_report(workspace: Workspace) -> None:
    """Any of them, though one stands for all where Snakemake asks what the report needs."""
    lost = workspace.folder / "reports/figures/w/trace_mine.svg"
    before = lost.read_bytes()
    lost.unlink()
    (workspace.folder / "reports/summary.pdf").unlink()
    assert workspace.due() == {"draw_figures": 1, "write_markdown": 1, "write_pdf": 1}
    workspace.run()
    assert lost.read_bytes() == before
    workspace.run()
    assert workspace.due() == Counter()


@pytest.mark.fault(
    "devices",
    "CUDA_VISIBLE_DEVICES names a GPU twice, or one that cannot be told",
    "finished results are read; what would measure is refused with the reason, before it starts",
)
def test_gpus_that_cannot_be_told_matter_only_to_what_measures(workspace: Workspace) -> None:
    environment = {"PYTHONPATH": f"{ROOT / 'tests/slurm/fake_gpus'}:{workspace.source}", "CUDA_VISIBLE_DEVICES": "0,0"}
    (workspace.folder / "reports/summary.pdf").unlink()
    done = workspace.snakemake(**environment)
    assert done.returncode == 0 and (workspace.folder / "reports/summary.pdf").is_file(), done.stdout
    (workspace.trial("mine") / "stages.json").unlink()
    refused = workspace.snakemake(**environment)
    assert refused.returncode == 2
    assert refused.stdout.count("CUDA_VISIBLE_DEVICES=0,0 names GPU-fake-0 twice") == 1
    assert "Traceback" not in refused.stdout and "UserError" not in refused.stdout


def test_tables_that_were_lost_are_written_again(workspace: Workspace) -> None:
    shutil.rmtree(workspace.folder / "reports/tables")
    assert workspace.due() == {"write_markdown": 1, "write_pdf": 1}


@pytest.mark.parametrize("engine", ["auto", ENGINE_BY_PYTHON], ids=["embedded", "by python"])
def test_every_command_of_a_first_run_is_one_that_the_command_line_takes(tmp_path: Path, engine: str) -> None:
    """On an empty clone too, where the model must be made first: no rule may print words that `pdkv` refuses."""
    workspace = Workspace(tmp_path)
    workspace.write_study(STUDY.replace("fake/model", "bundled").replace(f"{{command: {ENGINE}}}", engine))
    printed = workspace.run("--dry-run", "--printshellcmds")
    commands = re.findall(r"^Shell command: pdkv (.+?)(?: 2> \S+)?$", printed, re.MULTILINE)
    assert {command.split()[0] for command in commands} >= {"prepare-model", "plan", "measure", "write-pdf"}
    for command in commands:
        _parser().parse_args(shlex.split(command.replace("$PPID", "1")))  # exits where it does not understand


def test_second_run_does_nothing_and_is_quick(workspace: Workspace) -> None:
    before = os.times()
    output = workspace.run()
    after = os.times()
    assert NOTHING in output
    assert "trials, roughly" not in output, "what measures nothing asks the machine for nothing"
    # CPU time: on a busy machine the clock on the wall says nothing about us.
    assert after.children_user + after.children_system - before.children_user - before.children_system < 6


def test_one_cells_config_reruns_exactly_that_cell_and_what_is_downstream(workspace: Workspace) -> None:
    workspace.write_study(STUDY.replace("max_num_seqs: 8", "max_num_seqs: 4"))
    expected = Counter(TRIAL_RULES + STUDY_RULES)
    expected.update(f"{rule} mine" for rule in TRIAL_RULES)
    assert workspace.due() == expected


def test_another_mode_in_front_is_the_only_one_measured(workspace: Workspace) -> None:
    workspace.write_study(STUDY.replace("  default: {}", "  chunked: {}\n  default: {}"))
    due = workspace.due()
    assert due["measure"] == due["measure chunked"] == 1
    assert due["read_trial"] == 1


def test_another_workload_in_front_is_the_only_one_measured(workspace: Workspace) -> None:
    """So a report on some of a study's workloads costs no measurement either: no trial knows of the other workloads."""
    other = "  v: {input_tokens: 8, output_tokens: 4, concurrency: [2], requests: 4, max_model_len: 64}\n"
    workspace.write_study(STUDY.replace("workloads:\n", "workloads:\n" + other))
    output = workspace.snakemake("--dry-run").stdout
    measured = re.findall(r"^rule measure:\n(?:    .*\n)*?    output: results/(\w+)/(\w+)/", output, re.MULTILINE)
    assert sorted(measured) == [("v", "default"), ("v", "mine")], output


def test_the_figures_of_many_workloads_are_those_that_the_report_has_room_for(tmp_path: Path) -> None:
    """As :func:`illustrated` says it, by which they are drawn: six figures each, and at most 200."""
    workspace = Workspace(tmp_path)
    fields = "{input_tokens: 16, output_tokens: 4, concurrency: [2], requests: 4, max_model_len: 64}"
    workloads = "".join(f"  w{number:02}: {fields}\n" for number in range(40))
    workspace.write_study(re.sub(r"  w: .*\n", workloads, STUDY))
    output = workspace.snakemake("--dry-run", "--until", "draw_figures").stdout
    [declared] = re.findall(r"rule draw_figures:\n(?:    .*\n)*?    output: (.*)\n", output)
    counts = Counter(path.split("/")[2] for path in declared.split(", "))
    assert list(counts) == illustrated({f"w{number:02}": 6 for number in range(40)}) and len(counts) == 33
    assert set(counts.values()) == {figure_count(levels=1, modes=2)} == {6}


def test_one_more_repeat_measures_only_the_new_one(workspace: Workspace) -> None:
    due = workspace.due("--config", "repeats=2")
    assert due["measure"] == 2
    assert due["summarize_cell"] == 2


def test_other_service_levels_measure_and_read_nothing_again(workspace: Workspace) -> None:
    """They are asked of what was read: only the cells' summaries and what lies behind them are made again."""
    behind = {"summarize_cell", *STUDY_RULES}
    workspace.write_study(STUDY + "slo: {ttft_ms: 500}\n")
    assert {rule for rule in workspace.due() if " " not in rule} == behind
    workspace.run()
    summary = (workspace.folder / "results/summary.csv").read_text(encoding="utf-8")
    assert "w,mine,fp16,2,goodput,value," in summary
    workspace.write_study("slo: {target_share: 0.90, ttft_ms: 500.0}\n" + STUDY)
    assert workspace.due() == Counter(), "spelt otherwise"
    workspace.write_study(STUDY + "slo: {ttft_ms: 400}\n")
    assert {rule for rule in workspace.due() if " " not in rule} == behind


RESPELT = f"""\
# The same study, with its keys in another order.
repeats: 1.0
seed: 0  # a default, written out
limits: {{request_timeout_s: 600}}
modes:
  mine: {{args: {{"max-num-seqs": 0x8}}}}
  default:
dtypes: fp16
load: {{warmup_rounds: 2, ramp_interval_ms: 10.0}}
workloads:
  w:
    max_model_len: 64
    requests: 4
    concurrency: 2
    output_tokens: 4
    input_tokens: 0x10
engine: {{command: {ENGINE}}}
model: {{name: fake/model}}
report: {{language: en}}
"""


@pytest.mark.fault(
    "input", "the same config spelt otherwise: order, 0x10, 3.0, comments, defaults", "nothing is measured again"
)
def test_same_study_spelt_otherwise_reruns_nothing(workspace: Workspace) -> None:
    workspace.write_study(RESPELT)
    assert workspace.due() == Counter()


def test_touching_the_config_reruns_nothing(workspace: Workspace) -> None:
    os.utime(workspace.folder / "config/config.yaml")
    assert workspace.due() == Counter()


@pytest.mark.fault("stored", "results copied to another disk, all times changed", "nothing is measured again")
def test_results_copied_to_another_disk_stay_as_they_are(workspace: Workspace) -> None:
    """New times in an order of their own, same bytes."""
    paths = sorted((workspace.folder / "results").rglob("*"))
    random.Random(4).shuffle(paths)
    for age, path in enumerate(paths):
        os.utime(path, (time.time() - age, time.time() - age))
    assert workspace.due() == Counter()


@pytest.mark.fault("stored", "Snakemake's own notes are lost", "nothing is measured again")
def test_results_without_snakemakes_notes_are_not_measured_again(workspace: Workspace) -> None:
    shutil.rmtree(workspace.folder / ".snakemake")
    os.utime(workspace.trial("mine") / "plan.json")
    due = workspace.due()
    assert due["measure"] == 0, due


class TestSourceChanges:
    @pytest.fixture
    def edited(self, workspace: Workspace, tmp_path: Path) -> Path:
        """The package as a copy that may be changed."""
        shutil.copytree(workspace.source, tmp_path / "src")
        workspace.source = tmp_path / "src"
        return tmp_path / "src" / "pdkv"

    @staticmethod
    def append(path: Path, text: str) -> None:
        assert path.is_file()
        path.write_text(path.read_text(encoding="utf-8") + text, encoding="utf-8")

    def test_a_copy_alone_is_no_change(self, workspace: Workspace, edited: Path) -> None:
        assert workspace.due() == Counter()

    def test_report_template_writes_the_report_only(self, workspace: Workspace, edited: Path) -> None:
        template = next(path for path in sorted((edited / "reporting" / "templates").rglob("*")) if path.is_file())
        self.append(template, "\n")
        assert set(workspace.due()) == {"draw_figures", "write_markdown", "write_pdf"}

    def test_analysis_is_read_again_without_measuring(self, workspace: Workspace, edited: Path) -> None:
        self.append(edited / "analysing" / "metrics.py", "\nADDED = 1\n")
        due = workspace.due()
        assert due["read_trial"] == 2
        assert due["measure"] == due["plan_server"] == 0

    def test_measuring_wing_measures_again(self, workspace: Workspace, edited: Path) -> None:
        self.append(edited / "measuring" / "keeper.py", "\nADDED = 1\n")
        due = workspace.due()
        assert due["measure"] == 2
        assert due["plan_server"] == 0

    @pytest.mark.fault(
        "stored",
        "results that another version has read, without Snakemake's notes or where these are not to count",
        "read again; nothing is measured again",
    )
    def test_what_another_version_read_is_read_again_without_notes(self, workspace: Workspace, edited: Path) -> None:
        self.append(edited / "analysing" / "metrics.py", "\nADDED = 1\n")
        for option in (("--rerun-triggers", "mtime"), ()):
            due = workspace.due(*option)
            assert due["read_trial"] == due["summarize_cell"] == 2
            assert due["measure"] == due["plan_server"] == 0
            shutil.rmtree(workspace.folder / ".snakemake")

    def test_results_of_a_version_that_kept_no_source_are_read_again(self, workspace: Workspace) -> None:
        """And of one whose metrics.json did not say yet whether the launch was warm."""
        for path in workspace.folder.glob("results/w/*/fp16/r1/metrics.json"):
            content = {key: value for key, value in read_json(path, "metrics/1").items() if key not in LATER_KEYS}
            write_json(path, "metrics/1", content)
        shutil.rmtree(workspace.folder / ".snakemake")
        assert workspace.due()["measure"] == 0
        workspace.run()
        for path in workspace.folder.glob("results/w/*/fp16/r1/metrics.json"):
            assert set(read_json(path, "metrics/1")) > LATER_KEYS
        assert workspace.due() == Counter()

    def test_a_repeat_that_other_code_measured_is_not_compared(self, workspace: Workspace, edited: Path) -> None:
        """Where Snakemake was told not to measure the first one again."""
        self.append(edited / "measuring" / "client.py", "\nADDED = 1\n")
        more = ("--rerun-triggers", "mtime", "--config", "repeats=2")
        assert workspace.due(*more)["measure"] == 2
        workspace.run(*more)
        rows = read_csv(workspace.folder / "results/comparisons.csv")
        assert rows and not [row for row in rows if row["ratio"]]
        assert all("pdkv's measuring code: " in row["note"] for row in rows)
        report = (workspace.folder / "reports/summary.md").read_text(encoding="utf-8")
        assert "by one version of pdkv" in report
        assert f"| Digest of pdkv's measuring code | {workspace.stages('mine')['source']} |" in report

    def test_comments_are_no_change(self, workspace: Workspace, edited: Path) -> None:
        for path in edited.rglob("*.py"):
            self.append(path, "\n# said again\n")
        assert workspace.due() == Counter()


class TestFailedCells:
    BROKEN = STUDY.replace("mine: {args: {max_num_seqs: 8}}", 'mine: {args: {max_num_seqs: 8}, env: {FAKE_EXIT: "3"}}')

    @pytest.mark.fault(
        "launch", "one cell of a study fails", "the report names it and holds the others; each run tries it again"
    )
    def test_report_is_written_and_the_cell_is_tried_again_until_it_runs(self, workspace: Workspace) -> None:
        workspace.write_study(self.BROKEN)
        workspace.run()
        outcome = workspace.stages("mine")["outcome"]
        assert (outcome["status"], outcome["stage"]) == ("failed", "launch")  # type: ignore[index]
        report = (workspace.folder / "reports/summary.md").read_text(encoding="utf-8")
        assert "told to fail" in report, "the cell's own reason"
        summary = (workspace.folder / "results/summary.csv").read_text(encoding="utf-8")
        assert "w,default,fp16," in summary and "w,mine,fp16," not in summary

        due = workspace.due()
        assert due["measure"] == due["measure mine"] == 1, "a failure is tried again, a success never"

        workspace.run(f"{workspace.trial('mine').relative_to(workspace.folder)}/stages.json")
        assert workspace.stages("mine")["attempt"] == 2
        assert workspace.due()["measure mine"] == 1

    def test_mended_cell_is_done(self, workspace: Workspace) -> None:
        """The attempt that succeeded stays what Snakemake has noted: no further run."""
        target = f"{workspace.trial('mine').relative_to(workspace.folder)}/stages.json"
        stages = workspace.stages("mine")
        stages["outcome"] = {"status": "failed", "stage": "load", "reason": "made up", "excerpt": None}
        (workspace.folder / target).write_text(json.dumps(stages))
        workspace.run(target)
        assert workspace.stages("mine")["attempt"] == 2
        assert workspace.stages("mine")["outcome"]["status"] == "ok"  # type: ignore[index]
        assert NOTHING in workspace.run(target)


class TestKilled:
    SLOW = STUDY.replace("mine: {args: {max_num_seqs: 8}}", 'mine: {env: {FAKE_READY_S: "never"}}')

    @pytest.mark.fault(
        "host",
        "Ctrl-C or SIGKILL of a whole run, snakemake and job",
        "finished cells are kept as they are, only the one at work is measured again, without a flag",
    )
    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["killed", "ctrl-c"])
    def test_finished_cells_are_kept_and_the_killed_one_is_measured(self, workspace: Workspace, number: int) -> None:
        before = (workspace.trial("default") / "stages.json").read_bytes()
        workspace.write_study(self.SLOW)
        with subprocess.Popen(
            workspace.command(),
            cwd=workspace.folder,
            env=workspace.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as run:
            assert run.stdout
            seen = ""
            for line in run.stdout:
                seen += line
                if re.search(r"mine · fp16 · r1  launch", line):
                    break
            else:
                pytest.fail(seen)
            time.sleep(0.5)
            os.killpg(run.pid, number)
            run.stdout.read()
        assert not (workspace.trial("mine") / "stages.json").exists(), "nothing unfinished looks finished"

        workspace.write_study(STUDY)
        due = workspace.due()
        assert due["measure"] == due["measure mine"] == 1
        workspace.run("results/w/mine/fp16/r1/stages.json")
        assert (workspace.trial("default") / "stages.json").read_bytes() == before
        assert workspace.stages("mine")["outcome"]["status"] == "ok"  # type: ignore[index]


class TestLost:
    """Snakemake removes what a job will make before it starts, and does not miss it where what lies behind is there."""

    @pytest.mark.fault(
        "host",
        "a run is killed while it measures a failed launch again, below a report that was made before",
        "the next run measures it; the old report does not hide it",
    )
    @pytest.mark.parametrize("target", [[], ["reports/summary.pdf"], ["results/w/mine/fp16/cell.json"]], ids=" ".join)
    def test_a_launch_below_a_report_is_missed(self, workspace: Workspace, target: list[str]) -> None:
        (workspace.trial("mine") / "stages.json").unlink()
        due = workspace.due(*target)
        assert due["measure"] == due["measure mine"] == 1
        assert due["summarize_cell mine"] == 1 and due["summarize_cell default"] == 0

    @pytest.mark.parametrize(
        ("lost", "rule"),
        [
            ("results/w/mine/fp16/r1/trace.json", "read_trial"),
            ("results/w/mine/fp16/cell.json", "summarize_cell"),
            ("results/objectives.csv", "rank_objectives"),
            ("reports/summary.md", "write_markdown"),
        ],
    )
    def test_what_was_read_from_it_is_missed(self, workspace: Workspace, lost: str, rule: str) -> None:
        (workspace.folder / lost).unlink()
        due = workspace.due("reports/summary.pdf")
        assert due[rule] == 1 and due["measure"] == 0

    def test_nothing_else_is_made_for_one_cell(self, workspace: Workspace) -> None:
        (workspace.trial("mine") / "stages.json").unlink()
        assert workspace.due("results/w/default/fp16/cell.json") == Counter()


class TestConfigOnTheCommandLine:
    def test_only_the_named_file_counts(self, finished: Workspace, tmp_path: Path) -> None:
        """Snakemake would merge it into config/config.yaml: then `mine` would be measured too."""
        other = tmp_path / "other.yaml"
        other.write_text(STUDY.replace("  mine: {args: {max_num_seqs: 8}}\n", "").replace("default: {}", "chunked: {}"))
        due = finished.due("--configfile", str(other))
        assert due["measure"] == due["measure chunked"] == 1

    @pytest.mark.parametrize(
        ("text", "said", "arguments"),
        [
            (
                "repeats: 1\nrepeats: 2\n",
                "repeats stands twice, first in line 1",
                ["--configfile", "config/config.yaml"],
            ),
            (STUDY + "repeat: 3\n", "did you mean repeats?", ["--dry-run"]),
            ("workloads:\n\tw: 1\n", "a tab, where YAML wants blanks", ["--dry-run"]),
            (STUDY.replace("default: {}", "'a;touch pwned': {}"), "can't be a name", []),
        ],
    )
    def test_bad_config_ends_with_one_message(self, tmp_path: Path, text: str, said: str, arguments: list[str]) -> None:
        workspace = Workspace(tmp_path)
        workspace.write_study(text)
        done = workspace.snakemake(*arguments)
        assert done.returncode == 2, done.stdout
        assert said in done.stdout
        assert re.search(r"^pdkv: config/config.yaml:\d+: ", done.stdout, re.MULTILINE)
        assert "Traceback" not in done.stdout
        assert {path.name for path in tmp_path.iterdir()} <= {"config", ".snakemake"}

    def test_bad_override(self, finished: Workspace) -> None:
        done = finished.snakemake("--dry-run", "--config", "repeats=0")
        assert done.returncode == 2
        assert "pdkv: --config: repeats: found 0" in done.stdout

    @pytest.mark.fault(
        "input", "a study that would run for years", "refused before it starts, with its time and the limit"
    )
    def test_unfeasible_study_is_refused_before_it_starts(self, tmp_path: Path) -> None:
        workspace = Workspace(tmp_path)
        workspace.write_study(STUDY.replace("requests: 4", "requests: 1000000000"))
        done = workspace.snakemake()
        assert done.returncode == 2, done.stdout
        assert "limits.study_hours" in done.stdout
        assert "Traceback" not in done.stdout
        assert not (tmp_path / "results/w").exists()
        assert not list((tmp_path / ".snakemake/locks").glob("*")), "the next run is not locked out"


class TestOrder:
    def test_repeats_are_blocks_in_a_seeded_order(self, tmp_path: Path, source: Path) -> None:
        """With one core, Snakemake starts the trials in the study's order."""
        workspace = Workspace(tmp_path, source)
        workspace.write_study(STUDY.replace("repeats: 1", "repeats: 2\nseed: 6"))
        wanted = [trial.name for trial in load_study(tmp_path / "config/config.yaml").trials()]
        assert wanted[0].split("/")[1] != wanted[2].split("/")[1], "a seed that shuffles the blocks differently"
        output = workspace.run(*(f"results/{name}/stages.json" for name in sorted(wanted)))
        measured = re.findall(r"\[\d/4\] w · (\w+) · fp16 · r(\d)  launch", output)
        assert [f"w/{mode}/fp16/r{repeat}" for mode, repeat in measured] == wanted


class TestFoldersThatAShellReads:
    @pytest.mark.fault("input", "a clone whose path holds blanks, quotes and accents", "the whole chain runs")
    def test_whole_chain_in_a_clone_with_blanks_quotes_and_accents(self, tmp_path: Path) -> None:
        clone = tmp_path / "o'brien (2) é" / "pd kv"
        clone.mkdir(parents=True)
        shutil.copy(ROOT / "Snakefile", clone)
        for name in ("workflow", "profiles", "envs", "src"):
            shutil.copytree(ROOT / name, clone / name, ignore=shutil.ignore_patterns("__pycache__"))
        workspace = Workspace(clone, clone / "src")
        mode = "é.x-1+2"
        workspace.write_study(STUDY.replace("  default: {}\n", "").replace("mine:", f"{mode}:"))
        done = workspace.snakemake(root=clone)
        assert done.returncode == 0, done.stdout
        assert (clone / "reports/summary.pdf").is_file()
        assert (clone / f"results/w/{mode}/fp16/cell.json").is_file()
        assert NOTHING in workspace.snakemake(root=clone).stdout


class TestSnakemakesOwnTools:
    def test_lint(self, finished: Workspace) -> None:
        done = finished.snakemake("--lint")
        assert done.returncode == 0, done.stdout

    def test_report_carries_the_results_with_captions(self, workspace: Workspace) -> None:
        workspace.run("--report", "report.html")
        html = (workspace.folder / "report.html").read_text(encoding="utf-8")
        assert "summary.pdf" in html and "metrics_0.svg" in html


@pytest.mark.fault("host", "two snakemakes on one folder", "the second is refused at once, with what to do")
def test_two_runs_in_one_folder_do_not_meet(workspace: Workspace) -> None:
    workspace.write_study(TestKilled.SLOW)
    with subprocess.Popen(
        workspace.command(),
        cwd=workspace.folder,
        env=workspace.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as first:
        assert first.stdout
        for line in first.stdout:
            if "r1  launch" in line:
                break
        second = workspace.snakemake()
        os.killpg(first.pid, signal.SIGINT)
        first.stdout.read()
    assert second.returncode == 2
    assert "another snakemake is at work" in second.stdout
