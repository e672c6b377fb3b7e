"""What on this machine would stop a study or spoil it: looked at before it starts, each with its cure."""

import fcntl
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from pdkv.errors import UserError
from pdkv.measuring.deployment import SHARED_MEMORY_BYTES
from pdkv.measuring.gpu_use import look_at_use
from pdkv.measuring.gpu_visibility import answer, open_nvml, visible_gpus
from pdkv.measuring.lease_files import prepare_folder, read_holder
from pdkv.measuring.leases import QUEUE
from pdkv.measuring.leftovers import Leftovers
from pdkv.measuring.ports import reserved_ports
from pdkv.measuring.resolve import choose_engine, require_engine
from pdkv.measuring.shared_memory import free_bytes
from pdkv.measuring.survey import Survey, survey_study
from pdkv.study.config import Study
from pdkv.units import format_bytes

DISK_BYTES = 2 << 30  # evidence of a long study, and room for what else writes there
SPARE_FILES = 256  # open files beside one connection for each request in flight
PORTS = 8
LOOK_S = 0.5
BUSY_SHARE = 0.10  # of all cores: what others may take before the analysis calls a launch beside them suspect


@dataclass(frozen=True)
class Finding:
    """``note``: worth knowing; ``problem``: stops a study or spoils it, until ``cure`` is done."""

    subject: str
    state: Literal["ok", "note", "problem"]
    text: str
    cure: str = ""

    def __str__(self) -> str:
        """``problem  disk: 3 MiB free for results``, the cure in a line of its own."""
        cure = f"\n         {self.cure}" if self.cure else ""
        return f"{self.state:<7}  {self.subject}: {self.text}{cure}"


def examine(study: Study, home: Path, root: Path, leftovers: Leftovers, *, at_work: bool) -> Iterator[Finding]:
    """Every check in turn. ``home`` holds the embedded engines, ``root`` the study's ``results/``."""
    yield from _guarded("engine", lambda: _engine(study, home))
    yield from _guarded("gpu", _gpus)
    yield from _guarded("leases", _leases)
    yield from _guarded("disk", lambda: _disk(root))
    yield from _guarded("study", lambda: _survey(study, home))
    if not at_work:  # its own measurement is no foreign load
        yield from _guarded("host load", _host_load)
    yield from _guarded("open files", lambda: _open_files(study))
    yield from _guarded("shared memory", _shared_memory)
    yield from _guarded("ports", _ports)
    yield from _run(root, at_work)
    yield from name_leftovers(leftovers)


def name_leftovers(leftovers: Leftovers) -> Iterator[Finding]:
    """A problem each; they can be told without a study."""
    for line in leftovers.describe():
        yield Finding("leftover", "problem", line, "pdkv doctor --clean")
    if not leftovers.describe():
        yield Finding("leftovers", "ok", "nothing of a dead trial")


def is_at_work(root: Path) -> bool:
    """Whether a run of the workflow holds its lock below ``root``."""
    try:
        handle = os.open(root / ".snakemake/pdkv.lock", os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def _guarded(subject: str, check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """What a check raises for people is a finding too."""
    try:
        yield from check()
    except UserError as error:
        yield Finding(subject, "problem", error.problem, error.remedy)
    except OSError as error:
        yield Finding(subject, "problem", f"cannot be looked at: {error}", "mend that, or work elsewhere")


def _engine(study: Study, home: Path) -> Iterator[Finding]:
    if all(mode.endpoint for mode in study.modes):
        yield Finding("engine", "ok", "none is needed: the study measures servers that run already")
        return
    chosen = choose_engine(study.engine, home)
    require_engine(study.engine, home)
    yield Finding("engine", "ok", f"{chosen.kind} ({chosen.device}), {' '.join(chosen.command)}")


def _gpus() -> Iterator[Finding]:
    nvml = open_nvml()
    if nvml is None:
        yield Finding("gpu", "note", "no NVIDIA driver answers: engines run on the CPU", "for GPUs: install the driver")
        return
    driver = answer(nvml.nvmlSystemGetDriverVersion)
    gpus = visible_gpus(nvml, os.environ)
    yield Finding("gpu", "ok" if gpus else "note", f"driver {driver}, {len(gpus)} GPUs may be used")
    leased = {name for name, _ in _holders()}
    for gpu in gpus:
        use = look_at_use(nvml, gpu.uuid)
        if not use.is_idle and gpu.uuid not in leased:
            cure = "end that program, or name other GPUs in CUDA_VISIBLE_DEVICES"
            yield Finding("gpu", "problem" if use.is_taken else "note", str(use), cure)


def _leases() -> Iterator[Finding]:
    holders = list(_holders())
    for name, (pid, trial) in holders:
        what = "a place in the queue" if name.startswith(QUEUE) else name
        yield Finding("leases", "note", f"{what} is held by process {pid} ({trial})", "wait for it, or end it")
    if not holders:
        yield Finding("leases", "ok", "no other measurement holds a device")


def _holders() -> Iterator[tuple[str, tuple[int, str]]]:
    for file in sorted(prepare_folder(None).iterdir()):
        if holder := read_holder(file):
            yield file.name, holder


def _disk(root: Path) -> Iterator[Finding]:
    for name in ("results", "reports", ".snakemake"):
        folder = root / name if (root / name).is_dir() else root
        if not os.access(folder, os.W_OK | os.X_OK):
            yield Finding(
                "disk", "problem", f"{folder} can't be written to", f"chmod u+rwx {folder}, or work elsewhere"
            )
            return
    free = shutil.disk_usage(root).free
    enough = free >= DISK_BYTES
    cure = "" if enough else f"free {format_bytes(DISK_BYTES - free)}, or move the folder to a larger disk"
    yield Finding("disk", "ok" if enough else "problem", f"{format_bytes(free)} free for results", cure)


def _survey(study: Study, home: Path) -> Iterator[Finding]:
    survey = survey_study(study, home)
    for obstacle in survey.obstacles:
        problem, _, cure = obstacle.rpartition(": ")
        yield Finding("study", "problem", problem or obstacle, cure if problem else "")
    if not survey.obstacles:
        yield Finding("study", "ok", f"{len(survey.cells)} cells can run here")
    yield from _memory(survey)


def _memory(survey: Survey) -> Iterator[Finding]:
    free = psutil.virtual_memory().available
    on_cpu = "(cpu)" in survey.engine
    needed = max((cell.memory_bytes or 0 for cell in survey.cells), default=0) if on_cpu else 0
    if needed > free:
        text = f"{format_bytes(free)} of memory is free, the largest cell needs about {format_bytes(needed)}"
        yield Finding("memory", "problem", text, "end other programs, or lower engine.kv_cache_gib")
    else:
        yield Finding("memory", "ok", f"{format_bytes(free)} free")


def _host_load() -> Iterator[Finding]:
    share = psutil.cpu_percent(LOOK_S) / 100
    text = f"programs take {share:.0%} of the cores just now"
    if share > BUSY_SHARE:
        yield Finding("host load", "note", f"{text}: launches beside them would be suspect", "end them, or wait")
    else:
        yield Finding("host load", "ok", text)


def _open_files(study: Study) -> Iterator[Finding]:
    users = [point.concurrency or 0 for workload in study.workloads for point in workload.points]
    needed = max(users, default=0) + SPARE_FILES
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != resource.RLIM_INFINITY and limit < needed:
        yield Finding(
            "open files", "problem", f"the limit is {limit}, this study needs {needed}", f"ulimit -n {needed}"
        )
    else:
        yield Finding("open files", "ok", f"the limit is {limit}")


def _shared_memory() -> Iterator[Finding]:
    free = free_bytes()
    if free is not None and free < SHARED_MEMORY_BYTES:
        text = f"/dev/shm has {format_bytes(free)} free, an engine needs {format_bytes(SHARED_MEMORY_BYTES)}"
        cure = "remove what is no longer used there; in a container: --shm-size=8g, or --ipc=host"
        yield Finding("shared memory", "problem", text, cure)
    else:
        yield Finding("shared memory", "ok", f"{format_bytes(free)} free in /dev/shm")


def _ports() -> Iterator[Finding]:
    with reserved_ports() as ports:
        for _ in range(PORTS):
            ports.take()
    yield Finding("ports", "ok", f"{PORTS} free ones found")


def _run(root: Path, at_work: bool) -> Iterator[Finding]:
    if at_work:
        yield Finding(
            "run", "note", f"a snakemake is at work in {root.resolve()}", "wait until it has ended, or end it"
        )
