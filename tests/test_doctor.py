"""What a machine is told to have wrong, and what `--clean` takes away: everything of a dead trial, nothing else."""

import contextlib
import fcntl
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from trial_plans import fake_plan

from pdkv.analysing.checks import MAX_FOREIGN_CPU
from pdkv.artifacts import write_json
from pdkv.errors import UserError
from pdkv.measuring import machine_checks
from pdkv.measuring.leftovers import clean_leftovers, end_orphans, find_leftovers
from pdkv.measuring.machine_checks import Finding, examine, is_at_work
from pdkv.measuring.process_tree import descendants, read_process
from pdkv.measuring.shared_memory import mapped_segments
from pdkv.measuring.trial_folder import GATHERING, SEGMENTS
from pdkv.measuring.trial_mark import MARK, find_orphans, is_orphaned, make_mark
from pdkv.run_lock import lock_run
from pdkv.study.config import Study, load_study

ROOT = Path(__file__).parent.parent
NOBODY = Path("/nonexistent")
STUDY = f"""\
model: fake/model
engine: {{command: ["{sys.executable}", "{ROOT / "tests/fake_engine.py"}"]}}
workloads: {{w: {{input_tokens: 16, output_tokens: 4, concurrency: [2], requests: 4, max_model_len: 64}}}}
modes: {{default: {{}}}}
dtypes: [fp16]
"""


@pytest.fixture(autouse=True)
def _leases_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDKV_LEASE_DIR", str(tmp_path / "leases"))


@pytest.fixture
def study(tmp_path: Path) -> Study:
    (tmp_path / "config").mkdir()
    (tmp_path / "config/config.yaml").write_text(STUDY)
    return load_study(tmp_path / "config/config.yaml")


@contextlib.contextmanager
def sleeper(mark: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own that carries a mark, as a worker of an engine does."""
    with subprocess.Popen(
        [sys.executable, "-c", "import time; print(flush=True); time.sleep(300)"],
        env={**os.environ, MARK: mark},
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdout
        process.stdout.readline()
        yield process
        process.kill()


def mark_of_the_dead() -> str:
    code = "from pdkv.measuring.trial_mark import make_mark; print(make_mark())"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


class TestMark:
    def test_of_a_living_measurement(self) -> None:
        mark = make_mark()
        assert mark != make_mark()
        assert not is_orphaned(mark)
        with sleeper(mark) as process:
            assert process.pid not in {orphan.pid for orphan in find_orphans()}

    def test_of_a_dead_one(self) -> None:
        mark = mark_of_the_dead()
        assert is_orphaned(mark)
        with sleeper(mark) as process:
            assert process.pid in {orphan.pid for orphan in find_orphans()}

    def test_a_pid_that_somebody_else_has_now_is_no_owner(self) -> None:
        pid, started, *rest = make_mark().split(".")
        assert is_orphaned(".".join([pid, str(int(started) - 1), *rest]))

    def test_of_another_container_or_of_another_kind_is_left_alone(self) -> None:
        pid, started, namespace, name = mark_of_the_dead().split(".")
        assert not is_orphaned(".".join([pid, started, str(int(namespace) + 1), name]))
        assert not is_orphaned(uuid.uuid4().hex)
        assert not is_orphaned("")


class TestLeftovers:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        folder = tmp_path / "results/w/m/d/r1" / GATHERING
        (folder / "server").mkdir(parents=True)
        (folder / "server/single.log").write_text("half")
        return folder

    def test_half_evidence_of_a_dead_trial_goes_that_of_a_living_one_stays(self, tmp_path: Path, folder: Path) -> None:
        living = tmp_path / "results/w/m/d/r2" / GATHERING
        living.mkdir(parents=True)
        handle = os.open(living, os.O_RDONLY)
        fcntl.flock(handle, fcntl.LOCK_EX)
        found = find_leftovers(tmp_path, at_work=True)
        assert found.folders == (folder,)
        assert f"removed {folder}" in clean_leftovers(found)
        assert living.exists() and not folder.exists() and folder.parent.exists()
        os.close(handle)

    def test_a_trial_that_began_meanwhile_is_left_alone(self, tmp_path: Path, folder: Path) -> None:
        found = find_leftovers(tmp_path, at_work=False)
        handle = os.open(folder, os.O_RDONLY)
        fcntl.flock(handle, fcntl.LOCK_EX)
        assert f"removed {folder}" not in clean_leftovers(found)
        assert (folder / "server/single.log").exists()
        os.close(handle)

    def test_temporary_files_that_nobody_writes(self, tmp_path: Path) -> None:
        (tmp_path / "reports").mkdir()
        old, new, finished = (tmp_path / "reports" / name for name in (".a.md.x1.tmp", ".b.md.x2.tmp", "a.md"))
        for path in (old, new, finished):
            path.write_text("x")
        os.utime(old, (time.time() - 3600,) * 2)
        assert find_leftovers(tmp_path, at_work=True).files == ()
        found = find_leftovers(tmp_path, at_work=False)
        assert found.files == (old,)
        clean_leftovers(found)
        assert not old.exists() and new.exists() and finished.exists()

    def test_snakemakes_lock_only_while_nobody_is_at_work(self, tmp_path: Path) -> None:
        lock = tmp_path / ".snakemake/locks/0.output.lock"
        lock.parent.mkdir(parents=True)
        lock.touch()
        assert not is_at_work(tmp_path)
        handle = lock_run(tmp_path / ".snakemake")
        assert is_at_work(tmp_path)
        assert find_leftovers(tmp_path, at_work=True).locks == ()
        os.close(handle)
        assert not is_at_work(tmp_path)
        clean_leftovers(find_leftovers(tmp_path, at_work=False))
        assert not lock.exists()


MAPPER = """
import mmap, os, sys, time
maps = [mmap.mmap(os.open(path, os.O_RDWR), 0) for path in sys.argv[2:]]
with open(sys.argv[1], "x+b") as own:
    own.truncate(4096)
    maps.append(mmap.mmap(own.fileno(), 0))
print(flush=True)
time.sleep(300)
"""


class TestSharedMemoryInLaunch:
    """A trial that was killed before it was ready has noted no shared memory: what its processes alone map is its."""

    @pytest.fixture
    def segments(self) -> Iterator[tuple[Path, Path, Path]]:
        """The engine's own, one that somebody else may map as well, and one that was there before the trial."""
        names = [Path(f"/dev/shm/psm_pdkvtest_{uuid.uuid4().hex[:8]}") for _ in range(3)]
        yield names[0], names[1], names[2]
        for path in names:
            path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def orphan(self, *segments: Path) -> Iterator[subprocess.Popen[bytes]]:
        """It makes the first and maps all; the second is made after its trial began, the rest before."""
        for path in segments[2:]:
            path.write_bytes(b"x" * 4096)
        time.sleep(0.1)  # ten ticks of the clock by which starts of processes are counted
        environment = {**os.environ, MARK: mark_of_the_dead()}
        segments[1].write_bytes(b"x" * 4096)
        command = [sys.executable, "-c", MAPPER, *map(str, segments)]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, start_new_session=True) as process:
            assert process.stdout and process.stdout.readline()
            yield process
            process.kill()

    @pytest.mark.fault(
        "host",
        "measurement, keeper and server are killed at once in launch, an engine's processes stay",
        "`pdkv doctor` names the shared memory that they alone map, `--clean` takes it away; what a living process "
        "maps, or was there before the trial, stays",
    )
    def test_goes_with_the_processes(self, study: Study, tmp_path: Path, segments: tuple[Path, Path, Path]) -> None:
        ours, shared, older = segments
        with self.orphan(ours, shared, older) as process, shared.open("r+b") as handle, mmap.mmap(handle.fileno(), 0):
            told = doctor(tmp_path)
            assert f"process {process.pid} (" in told.stdout and f"{ours}, 4.00 KiB, shared memory" in told.stdout
            assert str(shared) not in told.stdout and str(older) not in told.stdout
            assert ours.exists() and process.poll() is None, "to look is not to touch"
            cleaned = doctor(tmp_path, "--clean")
            assert f"ended process {process.pid} (" in cleaned.stdout
            assert f"removed {ours}, 4096 bytes" in cleaned.stdout
        assert not ours.exists() and shared.exists() and older.exists()

    def test_goes_before_the_next_trial(self, tmp_path: Path, segments: tuple[Path, Path, Path]) -> None:
        ours, shared, older = segments
        with self.orphan(ours, shared, older) as process:
            assert process.pid in {ended.pid for ended in end_orphans(tmp_path / "results/w/m/d/r1")}
        assert not ours.exists() and not shared.exists() and older.exists()

    def test_what_somebody_maps_since_stays(self, tmp_path: Path, segments: tuple[Path, Path, Path]) -> None:
        ours, shared, older = segments
        with self.orphan(ours, shared, older):
            found = find_leftovers(tmp_path, at_work=True)
            assert {ours, shared} <= set(found.segments)
            with shared.open("r+b") as handle, mmap.mmap(handle.fileno(), 0):
                clean_leftovers(found)
        assert not ours.exists() and shared.exists() and older.exists()

    def test_a_file_in_a_folder_is_none(self, segments: tuple[Path, Path, Path]) -> None:
        with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="pdkvtest_") as folder:
            model = Path(folder) / "model.safetensors"
            model.write_bytes(b"x" * 4096)
            segments[0].write_bytes(b"x" * 4096)
            with contextlib.ExitStack() as stack:
                for path in (model, segments[0]):
                    stack.enter_context(mmap.mmap(stack.enter_context(path.open("r+b")).fileno(), 0))
                found = mapped_segments([os.getpid()])
            assert segments[0] in found and not [path for path in found if folder in str(path)]


@contextlib.contextmanager
def writer(log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process without a mark that writes to ``log``, as a worker that overwrote its environment."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as handle, subprocess.Popen(["sleep", "300"], stdout=handle, start_new_session=True) as process:
        yield process
        process.kill()


class TestWriters:
    """What is known only by the log it writes to."""

    @pytest.fixture
    def trial(self, tmp_path: Path) -> Path:
        trial = tmp_path / "results/w/single/bf16/r1"
        write_json(trial / "plan.json", "plan/1", {**fake_plan(), "source": ""})
        return trial

    def found(self, root: Path) -> set[int]:
        return {process.pid for process in find_leftovers(root, at_work=True).processes}

    @pytest.mark.parametrize("log", ["single.log", "router.log"])
    def test_to_the_log_of_a_server(self, tmp_path: Path, trial: Path, log: str) -> None:
        with writer(trial / GATHERING / "server" / log) as process:
            assert process.pid in self.found(tmp_path)

    def test_through_a_link_and_to_a_log_that_was_removed_since(self, tmp_path: Path, trial: Path) -> None:
        real = (tmp_path / "results").rename(tmp_path / "elsewhere")
        (tmp_path / "results").symlink_to(real)
        log = trial / GATHERING / "server/single.log"
        with writer(log) as process:
            log.unlink()
            assert process.pid in self.found(tmp_path)
            assert process.pid in {ended.pid for ended in end_orphans(trial.with_name("r2"))}
            assert process.wait(10) == -signal.SIGKILL

    @pytest.mark.fault(
        "host",
        "somebody's process writes into a folder that is called as ours are",
        "it is not a leftover, and lives on",
    )
    @pytest.mark.parametrize(
        "log",
        [
            "x/.measuring/server/note.txt",
            "x/.measuring/server/single.log",
            "results/w/single/bf16/r1/.measuring/server/note.txt",
            "results/w/single/bf16/r1/.measuring/server/other.log",
            "results/w/single/bf16/r2/.measuring/server/single.log",
            "results/w/single/bf16/r1/server/single.log",
            "other study/results/w/single/bf16/r1/.measuring/server/single.log",
        ],
    )
    def test_elsewhere(self, study: Study, tmp_path: Path, trial: Path, log: str) -> None:
        write_json(tmp_path / "other study" / trial.relative_to(tmp_path) / "plan.json", "plan/1", dict(fake_plan()))
        with writer(tmp_path / log) as process:
            assert process.pid not in self.found(tmp_path)
            assert process.pid not in {ended.pid for ended in end_orphans(trial)}
            assert f"process {process.pid}" not in doctor(tmp_path, "--clean").stdout
            assert process.poll() is None

    def test_a_trial_outside_results_answers_for_itself_alone(self, tmp_path: Path, trial: Path) -> None:
        with writer(trial / GATHERING / "server/single.log") as process:
            assert process.pid not in {ended.pid for ended in end_orphans(tmp_path / "out")}
            assert process.poll() is None

    def test_of_another_user(self, tmp_path: Path, trial: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with writer(trial / GATHERING / "server/single.log") as process:
            somebody = os.getuid() + 1
            monkeypatch.setattr(os, "getuid", lambda: somebody)
            assert process.pid not in self.found(tmp_path)


@pytest.mark.parametrize("arguments", [(), ("--clean",), ("--config", "nowhere.yaml", "--clean")])
def test_without_a_study_leftovers_are_told_and_not_touched(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    trial = tmp_path / "results/w/single/bf16/r1"
    write_json(trial / "plan.json", "plan/1", {**fake_plan(), "source": ""})
    with writer(trial / GATHERING / "server/single.log") as process:
        told = doctor(tmp_path, *arguments)
        assert told.returncode == 2
        assert f"process {process.pid} (sleep) of a dead trial" in told.stdout and GATHERING in told.stdout
        assert ("nowhere.yaml" if "--config" in arguments else "config.yaml") in told.stderr
        assert process.poll() is None and (trial / GATHERING / "server/single.log").exists()


class TestMachine:
    def findings(self, study: Study, root: Path, monkeypatch: pytest.MonkeyPatch | None = None) -> list[Finding]:
        leftovers = find_leftovers(root, at_work=False)
        return list(examine(study, root / ".engine", root, leftovers, at_work=False))

    def problem(self, findings: list[Finding], subject: str) -> Finding:
        found = [finding for finding in findings if finding.subject == subject and finding.state == "problem"]
        assert len(found) == 1, [str(finding) for finding in findings]
        assert found[0].cure
        return found[0]

    def test_full_disk(self, study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        usage = machine_checks.shutil.disk_usage(tmp_path)
        monkeypatch.setattr(machine_checks.shutil, "disk_usage", lambda _: usage._replace(free=5 << 20))
        assert "5.00 MiB free" in self.problem(self.findings(study, tmp_path), "disk").text

    def test_open_files(self, study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(machine_checks.resource, "getrlimit", lambda _: (100, 100))
        assert "ulimit -n 258" in self.problem(self.findings(study, tmp_path), "open files").cure

    @pytest.mark.parametrize(("percent", "state"), [(36.0, "note"), (3.0, "ok")])
    def test_host_load(
        self, study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, percent: float, state: str
    ) -> None:
        """What would make every launch suspect is better known before they are measured."""
        assert machine_checks.BUSY_SHARE == MAX_FOREIGN_CPU
        monkeypatch.setattr(machine_checks.psutil, "cpu_percent", lambda _: percent)
        (found,) = [each for each in self.findings(study, tmp_path) if each.subject == "host load"]
        assert found.state == state and f"{percent:.0f}% of the cores" in found.text

    def test_shared_memory(self, study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(machine_checks, "free_bytes", lambda: 64 << 20)
        assert "/dev/shm has 64.0 MiB" in self.problem(self.findings(study, tmp_path), "shared memory").text

    def test_no_engine(self, tmp_path: Path) -> None:
        path = tmp_path / "study.yaml"
        path.write_text(STUDY.replace(sys.executable, str(NOBODY / "vllm")))
        found = self.findings(load_study(path), tmp_path)
        assert "/nonexistent/vllm" in self.problem(found, "engine").text

    def test_no_port(self, study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def none(*_: object) -> None:
            raise UserError("no 1 free ports", remedy="end servers")

        monkeypatch.setattr("pdkv.measuring.ports.PortReservation.take", none)
        assert self.problem(self.findings(study, tmp_path), "ports").cure == "end servers"

    def test_a_lease_says_by_whom(self, study: Study, tmp_path: Path) -> None:
        from pdkv.measuring.leases import lease_host

        with lease_host(trial="another/study"):
            notes = [str(finding) for finding in self.findings(study, tmp_path) if finding.subject == "leases"]
        assert len(notes) == 1 and f"process {os.getpid()} (another/study)" in notes[0] and "wait for it" in notes[0]

    def test_a_gpu_that_others_use(self, study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from pdkv.measuring.gpu_use import GpuUse
        from pdkv.measuring.gpu_visibility import Gpu

        gpus = [Gpu(f"GPU-{n}", n, f"0000:0{n}", "H200", 1 << 37) for n in range(2)]
        uses = {"GPU-0": GpuUse("GPU-0", ("4711 (python3)",), 9 << 30), "GPU-1": GpuUse("GPU-1", (), 0)}
        monkeypatch.setattr(machine_checks, "open_nvml", lambda: type("Nvml", (), {"nvmlSystemGetDriverVersion": 0}))
        monkeypatch.setattr(machine_checks, "answer", lambda *_: "580.1")
        monkeypatch.setattr(machine_checks, "visible_gpus", lambda *_: gpus)
        monkeypatch.setattr(machine_checks, "look_at_use", lambda _, uuid: uses[uuid])
        found = self.findings(study, tmp_path)
        assert "4711 (python3), 9.00 GiB" in self.problem(found, "gpu").text
        assert any("driver 580.1, 2 GPUs" in finding.text for finding in found)

    def test_a_fit_machine_has_no_problem(self, study: Study, tmp_path: Path) -> None:
        found = self.findings(study, tmp_path)
        assert {finding.subject for finding in found if finding.state == "problem"} <= {"leftover", "memory"}
        assert {"engine", "disk", "study", "open files", "shared memory", "ports"} <= {f.subject for f in found}


def doctor(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pdkv", "doctor", *arguments], cwd=folder, capture_output=True, text=True, timeout=60
    )


def wait_for(path: Path, patience_s: float = 60) -> None:
    deadline = time.monotonic() + patience_s
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} never came"
        time.sleep(0.05)


@pytest.mark.fault(
    "host",
    "measurement, keeper and server are killed at once",
    "`pdkv doctor` names what they left with its size, `--clean` takes it away and nothing else",
)
def test_a_trial_that_was_killed_with_all_that_guards_it(study: Study, tmp_path: Path) -> None:
    """SIGKILL of measurement, keeper and server at once: what they leave is named with its size, and taken away."""
    ours, others = (Path(f"/dev/shm/psm_pdkvtest_{uuid.uuid4().hex[:8]}") for _ in range(2))
    trial = tmp_path / "results/w/default/bf16/r1"
    plan = fake_plan(requests=500, FAKE_SHM=ours.name, FAKE_TOKEN_S="0.5")
    write_json(trial / "plan.json", "plan/1", {**plan, "source": ""})
    others.write_bytes(b"x" * 4096)
    command = [sys.executable, "-m", "pdkv", "measure", str(trial), "--log", str(tmp_path / "measure.log")]
    try:
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as measurement:
            wait_for(trial / GATHERING / SEGMENTS)
            info = read_process(measurement.pid)
            assert info
            mark = f"{info.pid}.{info.started}.{make_mark().split('.', 2)[2]}"
            below = descendants(measurement.pid)
            for process in below:
                os.kill(process.pid, signal.SIGSTOP)  # so that the keeper can't tidy up
            for process in [info, *below]:
                os.kill(process.pid, signal.SIGKILL)
        with sleeper(mark) as worker:
            told = doctor(tmp_path)
            assert told.returncode == 1
            assert f"process {worker.pid} (" in told.stdout and "of a dead trial" in told.stdout
            assert f"{ours}, 4" in told.stdout and str(others) not in told.stdout
            assert GATHERING in told.stdout and "pdkv doctor --clean" in told.stdout
            assert ours.exists() and worker.poll() is None, "to look is not to touch"

            cleaned = doctor(tmp_path, "--clean")
            assert f"ended process {worker.pid} (" in cleaned.stdout and f"removed {ours}" in cleaned.stdout
            assert worker.wait(10) == -signal.SIGKILL
        assert not ours.exists() and others.exists()
        assert not (trial / GATHERING).exists() and (trial / "plan.json").exists()
        assert "nothing of a dead trial" in doctor(tmp_path).stdout
    finally:
        for path in (ours, others):
            path.unlink(missing_ok=True)
