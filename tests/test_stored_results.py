"""Stored results that were cut, edited, lost or mixed up: each is named with what to do, and none is used."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_workflow_reruns import STUDY, Workspace

from pdkv.artifacts import Stored, read_csv, read_json, read_json_lines, read_parquet, write_csv, write_json
from pdkv.artifacts import write_parquet as write_table
from pdkv.errors import UserError
from pdkv.seals import check_seals, seal_files

ROOT = Path(__file__).parent.parent
TRIAL, CELL = "results/w/default/fp16/r1", "results/w/default/fp16"
# Which verb reads which file: the last argument is what it would write again.
READERS = {
    "read-trial": (
        [TRIAL],
        [
            *("plan.json", "stages.json", "sends.parquet", "events.parquet", "samples.parquet", "scrapes.jsonl"),
            "server/single.log",
        ],
    ),
    "summarize-cell": (
        [f"{CELL}/cell.json", "--trials", TRIAL],
        [*(f"{name}.json" for name in ("plan", "stages", "launch", "metrics", "trace")), "requests.parquet"],
    ),
    "aggregate": ([f"{CELL}/cell.json", "--parquet", "results/s.parquet", "--csv", "results/s.csv"], ["../cell.json"]),
    "write-markdown": (
        [
            f"{CELL}/cell.json",
            *("--comparisons", "results/comparisons.csv", "--objectives", "results/objectives.csv"),
            *("--output", "reports/again.md", "--report"),
            '{"title": "t", "language": "en", "baseline": {"mode": "default", "dtype": "fp16"}}',
        ],
        ["../cell.json", "../../../../comparisons.csv", "../../../../objectives.csv"],
    ),
}
CASES = [(verb, file) for verb, (_, files) in READERS.items() for file in files]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    source = tmp_path_factory.mktemp("source") / "src"
    shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    workspace = Workspace(tmp_path_factory.mktemp("stored"), source)
    workspace.write_study(STUDY.replace("  mine: {args: {max_num_seqs: 8}}\n", ""))
    workspace.run("results/comparisons.csv", "results/objectives.csv", "results/summary.csv")
    return workspace


@pytest.fixture
def workspace(finished: Workspace, tmp_path: Path) -> Workspace:
    shutil.copytree(finished.folder, tmp_path / "copy", symlinks=True)
    return Workspace(tmp_path / "copy", finished.source)


def run_verb(workspace: Workspace, verb: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pdkv", verb, *READERS[verb][0]],
        cwd=workspace.folder,
        env=workspace.environment,
        capture_output=True,
        encoding="utf-8",
        timeout=120,
    )


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def lose(path: Path) -> None:
    path.unlink()


def edit(path: Path) -> None:
    """As a person does: in an editor, or with a program that reads the table and saves it again."""
    if path.suffix == ".json":
        content = json.loads(path.read_text("utf-8"))
        key = next(key for key in content if key not in ("schema", "digest"))
        del content[key]
        path.write_text(json.dumps(content, indent=2), "utf-8")
    elif path.suffix == ".parquet":
        table = pq.read_table(path)
        pq.write_table(table.drop_columns(table.column_names[:1]), path)
    else:
        path.write_bytes(path.read_bytes().replace(b"1", b"7", 1) + b"\n")


@pytest.mark.fault(
    "stored", "evidence that was truncated, emptied, lost or edited", "named with what to delete, never used"
)
@pytest.mark.parametrize("harm", [cut, empty, lose, edit], ids=lambda harm: harm.__name__)
@pytest.mark.parametrize("file", ["sends.parquet", "events.parquet", "samples.parquet", "scrapes.jsonl"])
def test_evidence_is_what_was_measured(workspace: Workspace, file: str, harm: Callable[[Path], None]) -> None:
    trial = workspace.folder / TRIAL
    stages = read_json(trial / "stages.json", "stages/1")
    check_seals(trial, stages, file)
    harm(trial / file)
    with pytest.raises(UserError, match=f"{file} is not") as caught:
        check_seals(trial, stages, file)
    assert "stages.json and run snakemake again" in caught.value.remedy


@pytest.mark.fault(
    "stored",
    "any file that a step reads was truncated, edited or is missing",
    "the step ends with status 2, names the file and what to do",
)
@pytest.mark.parametrize(("verb", "file"), CASES)
def test_each_reader_names_the_file(workspace: Workspace, verb: str, file: str) -> None:
    """One kind of harm each, by turns: starting a verb takes a second."""
    harm = (cut, edit, lose)[CASES.index((verb, file)) % 3]
    path = (workspace.folder / TRIAL / file).resolve()
    harm(path)
    done = run_verb(workspace, verb)
    assert done.returncode == 2, (harm.__name__, done.stdout, done.stderr)
    assert path.name in done.stderr and "run snakemake again" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_spoilt_file_does_not_hide_another(workspace: Workspace) -> None:
    trial = workspace.folder / TRIAL
    for harm, file in ((edit, "server/single.log"), (cut, "events.parquet"), (lose, "samples.parquet")):
        harm(trial / file)
    (trial / "requests.parquet").unlink()  # as Snakemake does before the job
    done = run_verb(workspace, "read-trial")
    assert done.returncode == 2
    assert [done.stderr.count(f"{TRIAL}/{file} is not") for file in ("server/single.log", "events.parquet")] == [1, 1]
    assert f"{TRIAL}/samples.parquet is not there" in done.stderr and "requests.parquet" not in done.stderr
    assert done.stderr.count("run snakemake again") == 3


def test_one_fault_that_all_readers_meet_is_told_once(workspace: Workspace) -> None:
    cut(workspace.folder / TRIAL / "stages.json")
    done = run_verb(workspace, "read-trial")
    assert done.returncode == 2 and done.stderr.count("stages.json is") == 1, done.stderr


def test_what_is_unharmed_is_read(workspace: Workspace) -> None:
    """Else the tests above would prove nothing."""
    for verb in READERS:
        done = run_verb(workspace, verb)
        assert done.returncode == 0, (verb, done.stderr)


@pytest.mark.fault("stored", "a table of another launch among the evidence", "named, never used")
def test_evidence_of_another_launch_is_told(workspace: Workspace, tmp_path: Path) -> None:
    trial = workspace.folder / TRIAL
    stages = read_json(trial / "stages.json", "stages/1")
    other = pq.read_table(trial / "sends.parquet").slice(1)
    pq.write_table(other, trial / "sends.parquet")
    with pytest.raises(UserError, match=r"sends\.parquet is not what was measured"):
        check_seals(trial, stages, "sends.parquet")


@pytest.mark.fault(
    "stored", "a missing one of several derived files", "made again from the evidence; nothing is measured"
)
def test_snakemake_makes_again_what_was_deleted_and_measures_nothing(workspace: Workspace) -> None:
    for name in ("metrics.json", "launch.json", "../cell.json"):
        (workspace.folder / TRIAL / name).unlink()
    due = workspace.due(f"{CELL}/cell.json")
    assert due["read_trial"] == 1 and due["measure"] == 0


@pytest.mark.fault(
    "stored",
    "truncated evidence in a study that is run again",
    "snakemake stops at that cell and says what to delete; then only this launch is measured again",
)
def test_snakemake_measures_again_what_was_spoilt(workspace: Workspace) -> None:
    cut(workspace.folder / TRIAL / "events.parquet")
    (workspace.folder / TRIAL / "metrics.json").unlink()  # as if the reader of the load had been mended
    refused = workspace.snakemake(f"{CELL}/cell.json")
    assert refused.returncode == 1
    assert f"pdkv: {TRIAL}/events.parquet is not" in refused.stdout, refused.stdout
    assert f"delete {TRIAL}/stages.json and run snakemake again" in refused.stdout
    (workspace.folder / TRIAL / "stages.json").unlink()
    assert workspace.due(f"{CELL}/cell.json")["measure"] == 1
    workspace.run(f"{CELL}/cell.json")
    assert run_verb(workspace, "read-trial").returncode == 0


@pytest.mark.fault(
    "stored", "a missing one of several files of evidence", "whoever has to read it measures this launch again"
)
def test_snakemake_measures_again_what_lost_a_file(workspace: Workspace) -> None:
    for name in ("samples.parquet", "trace.json"):
        (workspace.folder / TRIAL / name).unlink()
    due = workspace.due(f"{CELL}/cell.json")
    assert (due["measure"], due["plan_server"]) == (1, 0)


class TestArtifacts:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        write_json(tmp_path / "a.json", "a/1", {"x": {"y": [{"z": 1.5}]}, "t": "é"})
        return tmp_path / "a.json"

    def test_is_read_as_written_however_laid_out(self, path: Path) -> None:
        content = read_json(path, "a/1")
        assert content == {"schema": "a/1", "x": {"y": [{"z": 1.5}]}, "t": "é"}
        path.write_text(json.dumps(json.loads(path.read_text("utf-8")), indent=4, sort_keys=True))
        assert read_json(path, "a/1") == content

    @pytest.mark.fault(
        "stored",
        "a JSON file of an old schema version, or edited by hand",
        "named with both versions, or as changed; never used",
    )
    @pytest.mark.parametrize(
        ("old", "new", "message"),
        [
            ("1.5", "1.6", "was changed"),
            ("a/1", "a/0", "reads 'a/1'"),
            ("}", "", "not valid JSON"),
            ("é", "e", "changed"),
        ],
    )
    def test_a_change_is_told(self, path: Path, old: str, new: str, message: str) -> None:
        path.write_text(path.read_text("utf-8").replace(old, new), "utf-8")
        with pytest.raises(UserError, match=message) as caught:
            read_json(path, "a/1")
        assert str(path) in caught.value.problem and "delete it" in caught.value.remedy

    @pytest.mark.parametrize("text", ["[1]", "3", '"x"', "", "\0", "[" * 100_000, '{"schema": {}}'])
    def test_what_is_no_artefact_is_told(self, path: Path, text: str) -> None:
        path.write_text(text)
        with pytest.raises(UserError, match=r"a\.json"):
            read_json(path, "a/1")

    def test_a_key_that_is_not_there_names_the_file(self, path: Path) -> None:
        content = read_json(path, "a/1")
        with pytest.raises(UserError, match=r"a\.json is not what pdkv wrote: it lacks the key 'w'"):
            content["x"]["y"][0]["w"]
        assert isinstance(content["x"], Stored) and content.get("w") is None and "w" not in content

    def test_a_folder_and_a_file_that_may_not_be_read(self, tmp_path: Path) -> None:
        (tmp_path / "f.json").mkdir()
        for read in (lambda path: read_json(path, "a/1"), read_csv, read_json_lines, read_parquet):
            with pytest.raises(UserError, match=r"f\.json"):
                read(tmp_path / "f.json")

    @pytest.mark.fault("stored", "a table that a spreadsheet program has saved", "named, never used")
    def test_csv_saved_by_another_program_is_told(self, tmp_path: Path) -> None:
        path = tmp_path / "t.csv"
        write_csv(path, "a,b\n1.5,x\n")
        assert read_csv(path) == [{"a": "1.5", "b": "x"}]
        path.write_bytes(b"a;b\r\n1,5;x\r\n")
        with pytest.raises(UserError, match="was changed after pdkv wrote it"):
            read_csv(path)
        write_csv(path, "a,b\n1.5\n")
        with pytest.raises(UserError, match="longer or shorter than the header"):
            read_csv(path)

    @pytest.mark.fault("stored", "a flipped bit in a Parquet file", "named by its checksum, never used")
    def test_a_flipped_bit_in_parquet_is_told(self, tmp_path: Path) -> None:
        path = tmp_path / "t.parquet"
        write_table(path, pa.table({"a": list(range(5000))}))
        raw = bytearray(path.read_bytes())
        raw[60] ^= 1
        path.write_bytes(raw)
        with pytest.raises(UserError, match=r"cannot read .*t\.parquet"):
            read_parquet(path)

    def test_a_column_that_is_not_there_names_the_file(self, tmp_path: Path) -> None:
        write_table(tmp_path / "t.parquet", pa.table({"a": [1], "b": [2]}))
        assert read_parquet(tmp_path / "t.parquet", ["b"]).column_names == ["b"]
        with pytest.raises(UserError, match=r"t\.parquet .* lacks the column 'c'"):
            read_parquet(tmp_path / "t.parquet", ["a", "c"])

    def test_seals_of_nothing_pass(self, tmp_path: Path) -> None:
        (tmp_path / "x").write_text("1")
        check_seals(tmp_path, {}, "x", "y")
        assert seal_files(tmp_path, "x") == {}
