"""Which processes descend from one, read from ``/proc``, and how to end all of them.

A process that starts a session of its own leaves its group, and one that retitles itself overwrites its name and its
environment; the line of parents is what neither can change. It is unbroken as long as an ancestor is a subreaper.
Standard library only: :mod:`keeper` must start in an instant.
"""

import ctypes
import fcntl
import os
import signal
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
ZOMBIE_STATES = "ZX"


@dataclass(frozen=True)
class ProcessInfo:
    """A living process: ``started`` is its start time in clock ticks since boot, which tells a reused pid apart."""

    pid: int
    parent: int
    name: str
    started: int


def become_subreaper() -> None:
    """From now on, orphaned descendants of this process become its children instead of those of init."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


@contextmanager
def adopted_orphans() -> Iterator[None]:
    """Meanwhile orphaned descendants become children of this process."""
    become_subreaper()
    try:
        yield
    finally:
        _prctl(PR_SET_CHILD_SUBREAPER, 0)


def die_with_parent() -> None:
    """Have the kernel kill this process as soon as the thread that started it ends; survives exec."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def be_told_of_death(parent: int) -> bool:
    """Have the kernel send SIGTERM to this process as soon as its ``parent`` ends, killed or not.

    Returns whether the parent lives: it may have ended before.
    """
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    return os.getppid() == parent


@dataclass(frozen=True)
class ProcessUsage:
    """What a process, living or not yet reaped, has used: CPU seconds since its start, and resident memory now."""

    started: int
    cpu_s: float
    mem_bytes: int


def read_process(pid: int) -> ProcessInfo | None:
    """What ``/proc`` says about a process; None if it is gone or only waits to be reaped."""
    text = _read_stat(pid)
    if text is None:
        return None
    name = text[text.index("(") + 1 : text.rindex(")")]
    fields = text[text.rindex(")") + 2 :].split()
    if fields[0] in ZOMBIE_STATES:
        return None
    return ProcessInfo(pid, int(fields[1]), name, int(fields[19]))


def full_name(process: ProcessInfo) -> str:
    """The name that a process gives itself, of which the kernel keeps 15 characters: ``VLLM::EngineCore``."""
    try:
        first = Path(f"/proc/{process.pid}/cmdline").read_bytes().partition(b"\0")[0].decode("utf-8", "replace").strip()
    except OSError:
        return process.name
    return first if first.startswith(process.name) else process.name


def read_wait_status(process: ProcessInfo, handle: int) -> int | None:
    """How a process ended, as ``wait`` would say it; ``handle`` is a pidfd of it.

    None if it lives, or if its parent has been told already and the kernel (before 6.15) does not keep it for handles.
    """
    text = _read_stat(process.pid)
    if text is not None:
        fields = text[text.rindex(")") + 2 :].split()
        if int(fields[19]) == process.started:
            return int(fields[49]) if fields[0] in ZOMBIE_STATES else None
    info = bytearray(struct.pack("Q", _PIDFD_INFO_EXIT).ljust(_PIDFD_INFO_BYTES, b"\0"))
    with suppress(OSError):
        fcntl.ioctl(handle, _PIDFD_GET_INFO, info)
        if struct.unpack_from("Q", info)[0] & _PIDFD_INFO_EXIT:
            return int(struct.unpack_from("i", info, _PIDFD_INFO_BYTES - 4)[0])
    return None


# linux/pidfd.h: struct pidfd_info in its first version, which ends with the exit code
_PIDFD_INFO_BYTES = 64
_PIDFD_INFO_EXIT = 1 << 3
_PIDFD_GET_INFO = 0xC000_FF0B | _PIDFD_INFO_BYTES << 16


def read_usage(pid: int) -> ProcessUsage | None:
    """What a process uses, at the price of one read; None if it is gone."""
    text = _read_stat(pid)
    if text is None:
        return None
    fields = text[text.rindex(")") + 2 :].split()
    ticks = int(fields[11]) + int(fields[12])
    return ProcessUsage(int(fields[19]), ticks / _TICKS_A_S, int(fields[21]) * _PAGE_BYTES)


def _read_stat(pid: int) -> str | None:
    # No file object, for it takes longer to make than this takes to read: samplers come here many times a second.
    try:
        stat = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except OSError:
        return None
    try:
        return os.read(stat, _STAT_BYTES).decode("utf-8", "replace")
    except OSError:  # it ended after the file was opened
        return None
    finally:
        os.close(stat)


_STAT_BYTES = 4096  # 52 numbers of at most 20 digits, and a name of 64 bytes at most
_TICKS_A_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def all_processes() -> dict[int, ProcessInfo]:
    """All living processes by their pid."""
    found = (read_process(pid) for pid in all_pids())
    return {info.pid: info for info in found if info is not None}


def all_pids() -> set[int]:
    """The numbers of all processes: much cheaper than what they are."""
    # PTH208: a thousand Path objects each time would be waste.
    return {int(entry) for entry in os.listdir("/proc") if entry.isdigit()}  # noqa: PTH208


def descendants(ancestor: int) -> list[ProcessInfo]:
    """All living processes below ``ancestor``, parents before their children."""
    children: dict[int, list[ProcessInfo]] = {}
    for info in all_processes().values():
        children.setdefault(info.parent, []).append(info)
    found = list(children.get(ancestor, []))
    for info in found:  # grows while it is walked
        found += children.get(info.pid, [])
    return found


def kill_descendants(ancestor: int, give_up_after_s: float = 5.0) -> tuple[list[ProcessInfo], list[ProcessInfo]]:
    """SIGKILL everything below ``ancestor``, again and again until nothing new appears.

    Returns what had to be killed and what is still there (a process in an uninterruptible sleep, say). Reaps children
    of the calling process.
    """
    killed: dict[int, ProcessInfo] = {}
    deadline = time.monotonic() + give_up_after_s
    while True:
        reap_children()
        living = descendants(ancestor)
        if not living or time.monotonic() > deadline:
            return list(killed.values()), living
        for info in living:
            killed[info.pid] = info
            send_signal(info, signal.SIGKILL)
        time.sleep(0.02)


def kill_processes(
    processes: Sequence[ProcessInfo], give_up_after_s: float = 5.0
) -> tuple[list[ProcessInfo], list[ProcessInfo]]:
    """SIGKILL exactly these, whoever their parents are. Returns those that went and those that are still there."""
    deadline = time.monotonic() + give_up_after_s
    living = list(processes)
    while living and time.monotonic() < deadline:
        for process in living:
            send_signal(process, signal.SIGKILL)
        time.sleep(0.02)
        living = [each for each in living if (now := read_process(each.pid)) and now.started == each.started]
    return [process for process in processes if process not in living], living


def send_signal(process: ProcessInfo, number: int) -> None:
    """Signal exactly this process, never one that got its pid later."""
    now = read_process(process.pid)
    if now is None or now.started != process.started:
        return
    try:
        os.kill(process.pid, number)
    except (ProcessLookupError, PermissionError):
        return


def reap_children() -> dict[int, int]:
    """Take the exit status of every child that has ended: ``{pid: return code}``, negative for a signal."""
    codes: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return codes
        if pid == 0:
            return codes
        codes[pid] = os.waitstatus_to_exitcode(status)


def process_start_s() -> float:
    """When this process was started, by the monotonic clock."""
    own = read_process(os.getpid())
    assert own is not None
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - own.started / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - age_s


def find_marked(mark: str) -> list[ProcessInfo]:
    """Processes whose environment, as given at their start, holds ``mark`` (``NAME=value``) and can still be read.

    A process that retitled itself may have overwritten it (:mod:`pdkv.measuring.trial_mark` asks vLLM's not to).
    """
    found = []
    wanted = mark.encode()
    for entry in os.listdir("/proc"):  # noqa: PTH208
        if not entry.isdigit():
            continue
        try:
            environment = Path(f"/proc/{entry}/environ").read_bytes()
        except OSError:
            continue
        if wanted in environment.split(b"\0") and (info := read_process(int(entry))):
            found.append(info)
    return found


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")
