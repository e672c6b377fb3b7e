"""The processes of one study on this machine, found by its folder: some to be killed, and none to be left."""

import fcntl
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from pdkv.measuring.process_tree import ProcessInfo, read_process, send_signal

KINDS = {
    "snakemake": b"snakemake",
    "measure": b"\0measure\0",
    "keeper": b"pdkv.measuring.keeper",
    "engine": b"\0serve\0",
}


def processes_of(folder: Path) -> list[ProcessInfo]:
    """Every living process whose environment (as given at its start), command or working folder names ``folder``.

    Leases in or beside the folder are in the environment of all that a study starts.
    """
    return [process for process, _ in _found(folder)]


def processes_by_kind(folder: Path) -> dict[str, list[ProcessInfo]]:
    """Those that a fault may strike: snakemake, measure, keeper, engine."""
    kinds: dict[str, list[ProcessInfo]] = {kind: [] for kind in KINDS}
    for process, command in _found(folder):
        for kind, word in KINDS.items():
            if word in command:
                kinds[kind].append(process)
                break
    return kinds


def _found(folder: Path) -> Iterator[tuple[ProcessInfo, bytes]]:
    wanted = os.fsencode(folder)
    for entry in os.listdir("/proc"):  # noqa: PTH208
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        about = Path("/proc", entry)
        try:
            command = (about / "cmdline").read_bytes()
            known = wanted in command or wanted in (about / "environ").read_bytes()
            known = known or (about / "cwd").readlink().is_relative_to(folder)
        except OSError:  # gone meanwhile
            continue
        if known and (info := read_process(int(entry))):
            yield info, command


def kill_all(folder: Path) -> None:
    """As a power cut does: nobody has time to tidy up."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for process in processes_of(folder):
            send_signal(process, number)
    require_no_process(folder)


def require_no_process(folder: Path, within_s: float = 20.0) -> None:
    """Nothing of the study lives ``within_s`` from now."""
    give_up_s = time.monotonic() + within_s
    while living := processes_of(folder):
        assert time.monotonic() < give_up_s, f"still alive: {living}"
        time.sleep(0.05)


def require_free_leases(folder: Path) -> None:
    """No lock in a folder of leases is held."""
    for lock in folder.glob("*"):
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
