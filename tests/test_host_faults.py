"""What becomes of a study when the machine under it, or a person at it, does what no study expects."""

import contextlib
import ctypes
import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from study_processes import kill_all, processes_by_kind, require_free_leases, require_no_process
from test_trial import wait_for_workers
from test_workflow_reruns import STUDY, Workspace
from trial_plans import fake_plan
from whole_trials import MeasuredTrial

from pdkv.artifacts import read_json, write_json
from pdkv.errors import UserError
from pdkv.measuring.process_tree import descendants
from pdkv.measuring.trial_folder import GATHERING
from pdkv.measuring.trial_stages import Measurement
from pdkv.preconditions import require_writable

Measure = Callable[[dict[str, Any]], MeasuredTrial]
ONE_CELL = STUDY.replace("  mine: {args: {max_num_seqs: 8}}\n", "")
LONG_LOAD = ONE_CELL.replace("requests: 4", "requests: 600").replace(
    "default: {}", "default: {env: {FAKE_TOKEN_S: '0.05'}}"
)
STAGES = "results/w/default/fp16/r1/stages.json"
CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, PR_CAPBSET_DROP = 1, 2, 24


# ---- processes of a trial are struck in the middle of its load -----------------------------------------------------


def strike_in_load(
    monkeypatch: pytest.MonkeyPatch, victim: Callable[[Measurement], int | None], number: signal.Signals
) -> None:
    """Half a second into the load, ``number`` goes to the process that ``victim`` names."""
    walk = Measurement.walk

    def struck(self: Measurement, *arguments: Any) -> Any:
        pid = victim(self)
        assert pid
        timer = threading.Timer(0.5, os.kill, (pid, number))
        timer.start()
        try:
            return walk(self, *arguments)
        finally:
            timer.join()

    monkeypatch.setattr(Measurement, "walk", struck)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
@pytest.mark.fault(
    "host",
    "somebody signals the engine in mid-load (INT, TERM, HUP, KILL)",
    "failed at load, with the signal or status",
)
def test_a_signal_to_the_engine(measure: Measure, monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    strike_in_load(monkeypatch, lambda trial: trial.deployment.instances[0].server.pid, number)
    trial = measure(fake_plan(requests=4000, FAKE_WORKERS="2"))
    assert trial.failure and trial.failure.stage == "load"
    assert trial.failure.reason.startswith(f"single was killed by signal {number:d} ({number.name})")


@pytest.mark.fault(
    "load",
    "the engine core alone is killed in mid-load",
    "failed at load, though the server answers with errors first and then ends with status 0: with the process that "
    "died, its signal where that can be known, and where to look",
)
@pytest.mark.parametrize("core", ["kept", "reaped"])
def test_a_killed_engine_core(measure: Measure, monkeypatch: pytest.MonkeyPatch, core: str) -> None:
    """The server ends by itself later, with status 0, and its log names no error."""

    def victim(trial: Measurement) -> int | None:
        return next(each.pid for each in descendants(trial.deployment.instances[0].server.pid or 0))

    strike_in_load(monkeypatch, victim, signal.SIGKILL)
    trial = measure(fake_plan(requests=4000, FAKE_CORE=core))
    assert trial.failure and trial.failure.stage == "load"
    how = r"been killed by signal 9 \(SIGKILL\): .*dmesg.*" + ("|ended before" if core == "reaped" else "")
    told = rf"single ended with status 0: its process VLLM::EngineCor \(\d+\) had ({how})"
    assert re.fullmatch(told, trial.failure.reason), trial.failure.reason
    assert "engine core exited unexpectedly" in trial.failure.excerpt


@pytest.mark.fault(
    "host",
    "the process that keeps a server is killed in mid-load",
    "failed at load; workers in sessions of their own end too",
)
def test_a_killed_keeper(measure: Measure, monkeypatch: pytest.MonkeyPatch) -> None:
    def keeper(trial: Measurement) -> int:
        process = trial.deployment.instances[0].server._keeper
        assert process
        return process.pid

    strike_in_load(monkeypatch, keeper, signal.SIGKILL)
    trial = measure(fake_plan(requests=4000, FAKE_WORKERS="2"))
    assert trial.failure and trial.failure.reason == "single was lost"
    log = (trial.folder / "server/single.log").read_text()
    workers = [int(line.split()[1]) for line in log.splitlines() if line.startswith("worker ")]
    assert len(workers) == 2
    assert not [pid for pid in workers if is_running(pid)]


def is_running(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.fault(
    "host", "the process that samples devices is killed", "the load goes on; the launch is not called valid"
)
def test_a_killed_sampler(measure: Measure, monkeypatch: pytest.MonkeyPatch) -> None:
    from pdkv.analysing.utilization import trace_devices

    strike_in_load(monkeypatch, lambda trial: trial.sampler.pid, signal.SIGKILL)
    trial = measure(fake_plan(requests=200))
    assert trial.failure is None
    trace_devices(trial.folder)
    states = {check["name"]: check["state"] for check in read_json(trial.folder / "trace.json", "trace/1")["checks"]}
    assert states["devices watched to the end"] == "suspect"


# ---- Snakemake is struck alone -------------------------------------------------------------------------------------


@contextlib.contextmanager
def running(workspace: Workspace, until: str) -> Iterator["subprocess.Popen[str]"]:
    """Snakemake, once it has said ``until``."""
    with subprocess.Popen(
        workspace.command("results/w/default/fp16/cell.json"),
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
            if until in line:
                break
        else:
            pytest.fail(seen)
        yield run


def leases_of(workspace: Workspace) -> Path:
    return Path(workspace.environment["PDKV_LEASE_DIR"])


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    (tmp_path / "study").mkdir()
    yield Workspace(tmp_path / "study")
    kill_all(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
@pytest.mark.fault(
    "host",
    "snakemake alone is killed, or its terminal closes",
    "its measurement ends too; the next run needs no --unlock",
)
def test_snakemake_dies_alone(workspace: Workspace, tmp_path: Path, number: signal.Signals) -> None:
    workspace.write_study(LONG_LOAD)
    with running(workspace, until="r1  load") as run:
        run.send_signal(number)
        assert run.wait(10) == -number
        # Without a pause: the measurement may still be ending its servers.
        workspace.write_study(ONE_CELL)
        output = workspace.run(STAGES)
    assert "unlock" not in output
    assert workspace.stages("default")["outcome"]["status"] == "ok"  # type: ignore[index]
    require_no_process(tmp_path)
    require_free_leases(leases_of(workspace))


@pytest.mark.parametrize(("number", "again"), [(signal.SIGTERM, 0), (signal.SIGINT, 1)])
@pytest.mark.fault(
    "host",
    "snakemake alone gets SIGTERM or SIGINT",
    "it waits for the measurement at work and starts nothing more; the next run measures at most that one again",
)
def test_snakemake_is_told_to_stop(workspace: Workspace, tmp_path: Path, number: signal.Signals, again: int) -> None:
    """After SIGINT, Snakemake keeps its note that the job was not over."""
    workspace.write_study(ONE_CELL.replace("requests: 4", "requests: 60"))
    with running(workspace, until="r1  load") as run:
        run.send_signal(number)
        said = run.communicate(timeout=60)[0]
        assert run.returncode == 1, said
    assert workspace.stages("default")["outcome"]["status"] == "ok"  # type: ignore[index]
    require_no_process(tmp_path)
    due = workspace.due("results/w/default/fp16/cell.json")
    assert due["summarize_cell"] == 1 and due["measure"] <= again


@pytest.mark.fault(
    "host",
    "the machine goes down in the middle of a load: locks, half files and notes stay",
    "the next run needs no flag, throws the half trial away and measures it",
)
def test_reboot_in_the_middle(workspace: Workspace, tmp_path: Path) -> None:
    workspace.write_study(LONG_LOAD)
    trial = workspace.trial("default")
    with running(workspace, until="r1  load") as run:
        kill_all(tmp_path)
        run.wait()
    assert (trial / GATHERING / "scrapes.jsonl").exists() and not (trial / "stages.json").exists()
    half = trial / ".stages.json.abc.tmp"  # killed between the writing and the renaming
    half.write_text('{"schema": "stages/1", "att')
    locks = workspace.folder / ".snakemake/locks"  # as a snakemake without our profile leaves them
    locks.mkdir(exist_ok=True)
    (locks / "0.output.lock").write_text(str(trial / "stages.json"))
    assert (workspace.folder / ".snakemake/incomplete").exists(), "Snakemake's own note that a job was not over"
    workspace.write_study(ONE_CELL)
    workspace.run(STAGES)
    assert workspace.stages("default")["outcome"]["status"] == "ok"  # type: ignore[index]
    assert not (trial / GATHERING).exists()
    require_no_process(tmp_path)
    require_free_leases(leases_of(workspace))


# ---- files can't be written ----------------------------------------------------------------------------------------


def pdkv(folder: Path, *arguments: str, limit: Callable[[], None] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pdkv", *arguments],
        cwd=folder,
        env={**os.environ, "PDKV_LEASE_DIR": str(folder / "leases")},
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=limit,
    )


def fill_the_disk() -> None:
    """No file may grow beyond 20 kB: a full disk for everything that a trial starts, and for nobody else."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))


def be_bound_by_modes() -> None:
    """Root is not, unless it gives that up."""
    for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
        ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)


@pytest.mark.fault(
    "host",
    "the disk is full while evidence is written",
    "one message with the file and the cure, status 2; measured on the next run",
)
def test_full_disk(tmp_path: Path) -> None:
    trial = tmp_path / "results/w/default/bf16/r1"
    write_json(trial / "plan.json", "plan/1", {**fake_plan(requests=200), "source": ""})
    measure = ("measure", str(trial), "--log", "measure.log")
    full = pdkv(tmp_path, *measure, limit=fill_the_disk)
    assert full.returncode == 2, full.stderr
    assert re.search(r"^pdkv: cannot write .*r1.*: File too large$", full.stderr, re.MULTILINE)
    assert "run snakemake again: what is measured already stays" in full.stderr
    assert "Traceback" not in full.stderr
    assert not (trial / "stages.json").exists() and not (trial / GATHERING).exists()
    require_no_process(tmp_path)
    assert pdkv(tmp_path, *measure).returncode == 0
    assert read_json(trial / "stages.json", "stages/1")["outcome"]["status"] == "ok"


@pytest.mark.fault(
    "host", "results/ is read-only", "one message with the file and the cure, status 2, before anything is started"
)
def test_read_only_results(tmp_path: Path) -> None:
    trial = tmp_path / "results/w/default/bf16/r1"
    write_json(trial / "plan.json", "plan/1", {**fake_plan(), "source": ""})
    (tmp_path / "leases").mkdir()
    trial.chmod(0o555)
    try:
        done = pdkv(tmp_path, "measure", str(trial), "--log", "measure.log", limit=be_bound_by_modes)
    finally:
        trial.chmod(0o755)
    assert done.returncode == 2, done.stderr
    assert f"cannot write {trial / GATHERING}: Permission denied" in done.stderr
    assert "give this user the right to write there" in done.stderr and "Traceback" not in done.stderr
    assert {path.name for path in trial.iterdir()} == {"plan.json"}


@pytest.mark.fault(
    "host",
    "results/ or reports/ may not be written to, when a study starts",
    "refused before anything is measured, with the folder and the cure; `pdkv check` says it too",
)
@pytest.mark.parametrize("name", ["results", "reports"])
def test_a_folder_that_takes_nothing(workspace: Workspace, name: str) -> None:
    workspace.write_study(ONE_CELL)
    (folder := workspace.folder / name).mkdir(mode=0o555)
    for command in (workspace.command("reports/summary.md"), [sys.executable, "-m", "pdkv", "check"]):
        refused = run_bound(workspace, command)
        assert refused.returncode, command
        assert f"pdkv: cannot write {folder}: this user has no right to" in refused.stderr
        assert "give this user the right to write there" in refused.stderr and "Traceback" not in refused.stderr
    assert not list(folder.iterdir()) and not workspace.trial("default").exists()


@pytest.mark.fault(
    "host",
    "results or a folder in it may not be looked into, is a file, or is a link that leads nowhere or to itself",
    "refused before anything is measured, with the folder and the cure; `pdkv check` and `pdkv doctor` say it too",
)
@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda at: at.mkdir(mode=0), "cannot look into {at}: this user has no right to"),
        (lambda at: (at / "w").mkdir(mode=0, parents=True), "cannot look into {at}/w: this user has no right to"),
        (lambda at: at.touch(), "results is a file, and pdkv's folder has that name"),
        (lambda at: at.symlink_to("/nowhere9"), "results is a link to /nowhere9, which is not there"),
        (lambda at: at.symlink_to("config/config.yaml"), "results is a link to config/config.yaml, which is a file"),
        (lambda at: at.symlink_to("results"), "results is a link to results, which cannot be followed: Too many"),
        (
            lambda at: [(at.parent / "shut").mkdir(mode=0), at.symlink_to("shut/in")],
            "results is a link to shut/in, which cannot be followed: Permission denied",
        ),
    ],
)
def test_a_folder_that_cannot_be_looked_into(workspace: Workspace, spoil: Callable[[Path], Any], said: str) -> None:
    workspace.write_study(ONE_CELL)
    spoil(at := workspace.folder / "results")
    verb = [sys.executable, "-m", "pdkv"]
    for command, status in ((workspace.command("--dry-run"), 2), ([*verb, "check"], 2), ([*verb, "doctor"], 1)):
        done = run_bound(workspace, command)
        assert done.returncode == status, done.stderr
        assert said.format(at=at) in done.stdout + done.stderr and "Traceback" not in done.stderr


@pytest.mark.fault(
    "host",
    "a folder of logs may not be written to, when a study starts",
    "refused before anything is measured, with the folder and the cure",
)
@pytest.mark.parametrize("name", ["results", "reports"])
def test_logs_that_cannot_be_replaced(workspace: Workspace, name: str) -> None:
    workspace.write_study(ONE_CELL)
    (folder := workspace.folder / name / "logs").mkdir(parents=True)
    for log in ("aggregate", "write_markdown"):
        (folder / f"{log}.log").touch()
    folder.chmod(0o555)
    refused = run_bound(workspace, workspace.command("reports/summary.md"))
    assert refused.returncode
    assert f"pdkv: cannot write {folder}: this user has no right to" in refused.stderr
    assert "Traceback" not in refused.stderr and not workspace.trial("default").exists()


def run_bound(workspace: Workspace, command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=workspace.folder,
        env=workspace.environment,
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=be_bound_by_modes,
    )


def test_what_is_written_anew_is_looked_at_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Snakemake does, which does not start a job over a file that may not be written."""
    old, new = tmp_path / "old.csv", tmp_path / "a/b/new.csv"
    old.touch()
    require_writable([old, new])
    looked_at = []
    monkeypatch.setattr(os, "access", lambda path, _mode: looked_at.append(path) or path != old)
    read_only = os.statvfs_result((*tuple(os.statvfs(tmp_path))[:8], os.ST_RDONLY, 255))
    monkeypatch.setattr(os, "statvfs", lambda _path: read_only)
    with pytest.raises(UserError, match=r"old\.csv: its disk is read-only\n.*make this disk writable"):
        require_writable([new, old])
    assert looked_at == [tmp_path, old]


@pytest.mark.fault(
    "host",
    "results/ is moved or removed while a trial is measured",
    "one message with the folder, status 2; its servers end, and the next run measures it",
)
def test_results_that_are_moved(tmp_path: Path) -> None:
    trial = tmp_path / "results/w/default/bf16/r1"
    write_json(trial / "plan.json", "plan/1", {**fake_plan(requests=200), "source": ""})
    scrapes = trial / GATHERING / "scrapes.jsonl"
    moving = threading.Thread(target=move_once_there, args=(tmp_path / "results", scrapes))
    moving.start()
    moved = pdkv(tmp_path, "measure", str(trial), "--log", "measure.log")
    moving.join()
    assert moved.returncode == 2, moved.stderr
    assert f"{trial / GATHERING} is gone: its folder was moved or removed while the trial was measured" in moved.stderr
    assert "Traceback" not in moved.stderr, moved.stderr[-3000:]
    require_no_process(tmp_path)
    require_free_leases(tmp_path / "leases")


def move_once_there(folder: Path, file: Path) -> None:
    while not file.exists() or "warm" not in file.read_text(encoding="utf-8"):
        time.sleep(0.02)
    folder.rename(folder.with_name("elsewhere"))


@pytest.mark.fault(
    "host",
    "a file has the name of a folder in which a trial is measured",
    "one message with the file and the cure, status 2, before anything is started",
)
@pytest.mark.parametrize("name", [GATHERING, "logs"])
def test_a_file_in_the_way(tmp_path: Path, name: str) -> None:
    trial = tmp_path / "results/w/default/bf16/r1"
    write_json(trial / "plan.json", "plan/1", {**fake_plan(), "source": ""})
    (trial / name).touch()
    done = pdkv(tmp_path, "measure", str(trial), "--log", str(trial / "logs/measure.log"))
    assert done.returncode == 2, done.stderr
    assert f"cannot write {trial / name}: File exists\n  move away what has that name, and run" in done.stderr
    assert "Traceback" not in done.stderr


# ---- time ----------------------------------------------------------------------------------------------------------


@pytest.mark.fault(
    "host",
    "the clock is set back by a day in mid-load",
    "all durations and metrics stay what they are: none is taken from it",
)
def test_clock_set_back(measure: Measure, monkeypatch: pytest.MonkeyPatch) -> None:
    true, began_s = time.time, time.monotonic()
    walk = Measurement.walk

    def set_back(self: Measurement, *arguments: Any) -> Any:
        monkeypatch.setattr(time, "time", lambda: true() - 86_400)
        return walk(self, *arguments)

    monkeypatch.setattr(Measurement, "walk", set_back)
    trial = measure(fake_plan(requests=20))
    took_s = time.monotonic() - began_s
    assert trial.failure is None
    stages = trial.stages
    assert abs(stages["clock"]["unix_s"] - true()) < took_s + 60, "the one anchor to the calendar is from the start"
    assert all(0 <= each["end_s"] - each["start_s"] < took_s for each in stages["stages"])
    assert 0 < stages["wall"]["end_s"] - stages["wall"]["start_s"] < took_s
    assert all(0 < row["t_end_s"] - row["t_send_s"] < took_s for row in trial.sends())


def test_no_duration_is_taken_from_the_calendar() -> None:
    """Where the wall clock is read at all: a trial's anchor, the age or time of a file, a seed, the time of day."""
    source = Path(__file__).parent.parent / "src/pdkv"
    wall = re.compile(r"\btime\.time(_ns)?\(|datetime\.|strftime|CLOCK_REALTIME")
    read = {path.name for path in source.rglob("*.py") if wall.search(path.read_text(encoding="utf-8"))}
    assert read == {"clock_skew.py", "leftovers.py", "stage_record.py", "progress.py", "url_load.py"}


def test_everything_of_a_study_is_found(workspace: Workspace, tmp_path: Path) -> None:
    """Else no test above would prove that nothing is left."""
    workspace.write_study(LONG_LOAD)
    with running(workspace, until="r1  load") as run:
        kinds = processes_by_kind(tmp_path)
        assert {kind: len(found) for kind, found in kinds.items()} == {
            "snakemake": 1,
            "measure": 1,
            "keeper": 1,
            "engine": 1,
        }
        assert json.dumps(kinds["snakemake"][0].pid) == str(run.pid)
        kill_all(tmp_path)


@pytest.mark.fault(
    "host",
    "measurement and keeper are killed at once; workers that cleared their environment live on",
    "the next measurement on this host ends them before it starts anything",
)
def test_what_nobody_keeps_is_ended_by_the_next_trial(tmp_path: Path) -> None:
    """vLLM's processes overwrite their environment with their title, and with it the mark by which they were known."""
    dead, next_one = (tmp_path / "results/w/single/bf16" / name for name in ("r1", "r2"))
    write_json(dead / "plan.json", "plan/1", {**fake_plan(FAKE_WORKERS="2", FAKE_READY_S="never"), "source": ""})
    write_json(next_one / "plan.json", "plan/1", {**fake_plan(), "source": ""})
    command = [sys.executable, "-m", "pdkv", "measure", str(dead), "--log", str(tmp_path / "dead.log")]
    environment = {**os.environ, "PDKV_LEASE_DIR": str(tmp_path / "leases")}
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as measurement:
        workers = wait_for_workers(dead, 2)
        victims = [process for kind in ("measure", "keeper") for process in processes_by_kind(tmp_path)[kind]]
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for process in victims:
                os.kill(process.pid, number)
        measurement.wait(10)
    living = [pid for pid in workers if is_running(pid)]  # all, unless somebody else measures here at the same time
    told = pdkv(tmp_path, "measure", str(next_one), "--log", str(tmp_path / "next.log"))
    assert told.returncode == 0, told.stderr
    assert not any(is_running(pid) for pid in workers)
    log = (tmp_path / "next.log").read_text(encoding="utf-8")
    assert all(f"ended process {pid} (VLLM::Worker), which a dead trial had left" in log for pid in living)


@pytest.mark.fault(
    "load",
    "the server answers with errors for some seconds before it ends",
    "failed at load, with its end as the reason, though the load is over before",
)
def test_a_server_that_answers_with_errors_before_it_ends(measure: Measure, monkeypatch: pytest.MonkeyPatch) -> None:
    """The load is over before the server is."""
    walk = Measurement.walk

    def dying(self: Measurement, *arguments: Any) -> Any:
        pid = self.deployment.instances[0].server.pid
        assert pid
        threading.Timer(2.5, os.kill, (pid, signal.SIGTERM)).start()
        return walk(self, *arguments)

    monkeypatch.setattr(Measurement, "walk", dying)
    trial = measure(fake_plan(requests=40, FAKE_ANSWERS="status-500", FAKE_FROM="25"))
    assert trial.failure and trial.failure.stage == "load"
    assert trial.failure.reason == "single was killed by signal 15 (SIGTERM)"
