"""The process between a measurement and one server: whatever happens above it, nothing below it stays alive.

``python -m pdkv.measuring.keeper`` reads its order, one line of JSON ``{argv, env, cores, log, grace_s, remove}``, from
standard input, starts the server in a session of its own and writes ``{"pid": N}``. It ends the server when it is told
to stop (SIGTERM), when standard input closes (that is how it learns that the measurement was killed), or when the
server ends by itself. Any further line tells it to watch what descends from the server now: for each of these that ends
badly it writes ``{"died": {pid, name, signal, status}}``, both null where that can't be known. Last it writes
``{"code": N}``, ends everything that descends from the server, runs ``remove``, the command that ends a container of a
daemon, and writes ``{"killed": […], "left": […], "removed": […]}`` (processes, and shared memory).

It is a process of its own because neither SIGKILL nor a crash of the measurement may leave an engine on a device, and a
subreaper, because workers of an engine leave its process group and are orphaned when the engine is killed.
"""

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from typing import Any

from pdkv.measuring.process_tree import (
    ProcessInfo,
    become_subreaper,
    descendants,
    die_with_parent,
    full_name,
    kill_descendants,
    read_wait_status,
    reap_children,
)
from pdkv.measuring.shared_memory import list_segments, mapped_segments, remove_abandoned

ORPHAN_GRACE_S = 1.0
REMOVE_WITHIN_S = 30.0  # podman is patient for 10 s before it kills
POLL_S = 0.02


def main() -> int:
    """Keep one server until it has ended or must end."""
    wake = _wake_on_signals()
    become_subreaper()
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):  # the measurement was stopped before it could say what to start
        return 0
    order = json.loads(line)
    if order["cores"]:
        os.sched_setaffinity(0, order["cores"])
    others = list_segments()
    try:
        process = _start_server(order)  # kept: a Popen that is dropped takes away how its process has ended
    except OSError as error:
        _say({"error": f"cannot start {order['argv'][0]}: {error.strerror or error}"})
        return 127
    server = process.pid
    _say({"pid": server})
    code = _watch(server, wake)
    ours = mapped_segments(process.pid for process in descendants(os.getpid())) - others
    if code is None:
        code = _stop_server(server, float(order["grace_s"]))
    _say({"code": code})
    _wait_until(lambda: not _living(), ORPHAN_GRACE_S)
    killed, left = kill_descendants(os.getpid())
    outside = _remove_container(order["remove"])
    removed = remove_abandoned(ours)
    _say({"killed": _named(killed), "left": [*_named(left), *outside], "removed": removed})
    return 0


def _wake_on_signals() -> int:
    """Signals end no keeper: they are read as bytes from the returned file descriptor."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, lambda _number, _frame: None)
    return reader


def _start_server(order: dict[str, Any]) -> "subprocess.Popen[bytes]":
    with open(order["log"], "ab") as log:  # noqa: PTH123
        return subprocess.Popen(
            order["argv"],
            env=order["env"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent,  # safe: this process has one thread
        )


def _watch(server: int, wake: int) -> int | None:
    """Wait until the server has ended (its return code) or must be ended (None)."""
    watched: dict[int, tuple[ProcessInfo, str]] = {}
    while True:
        readable, _, _ = select.select([sys.stdin, wake, *watched], [], [])
        for handle in [each for each in watched if each in readable]:  # at once: its parent takes away how it ended
            _tell_death(*watched.pop(handle), handle)
            os.close(handle)
        if wake in readable:
            signals = os.read(wake, 4096)
            codes = reap_children()
            if server in codes:
                return codes[server]
            if any(number != signal.SIGCHLD for number in signals):
                return None
        if sys.stdin in readable:
            if not os.read(sys.stdin.fileno(), 4096):
                return None
            watched |= _open_descendants(server, {process.pid for process, _ in watched.values()})


def _open_descendants(server: int, known: set[int]) -> dict[int, tuple[ProcessInfo, str]]:
    """What descends from the server, by a handle that can be read once the process has ended; with its full name."""
    opened = {}
    for process in descendants(server):
        if process.pid not in known:
            with contextlib.suppress(OSError):  # it has just ended, or the kernel is older than such handles
                opened[os.pidfd_open(process.pid)] = (process, full_name(process))
    return opened


def _tell_death(process: ProcessInfo, name: str, handle: int) -> None:
    found = read_wait_status(process, handle)
    if found == 0:
        return
    code = None if found is None else os.waitstatus_to_exitcode(found)
    killed_by = -code if code is not None and code < 0 else None
    status = code if code is not None and code >= 0 else None
    _say({"died": {"pid": process.pid, "name": name, "signal": killed_by, "status": status}})


def _stop_server(server: int, grace_s: float) -> int | None:
    """SIGTERM to the server's group, SIGKILL to what is left of it after ``grace_s``. Returns the return code."""
    codes: dict[int, int] = {}

    def has_ended() -> bool:
        codes.update(reap_children())
        return server in codes

    for number, patience_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 5.0)):
        if has_ended():
            break
        os.killpg(server, number)  # its own session, so its pid is its group
        _wait_until(has_ended, patience_s)
    return codes.get(server)


def _remove_container(remove: list[str]) -> list[dict[str, Any]]:
    """End the server's container, whatever became of its client; the container where it may still be there."""
    if not remove:
        return []
    try:
        done = subprocess.run(remove, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=REMOVE_WITHIN_S)
    except (OSError, subprocess.SubprocessError) as error:
        problem = str(error)
    else:
        problem = done.stderr.strip() if done.returncode else ""
    if not problem or re.search("no such container", problem, re.IGNORECASE):  # it removed itself (--rm)
        return []
    return [{"pid": None, "name": f"container {remove[-1]}: {problem[-200:]}"}]


def _living() -> list[ProcessInfo]:
    reap_children()
    return descendants(os.getpid())


def _wait_until(condition: Any, patience_s: float) -> None:
    deadline = time.monotonic() + patience_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(POLL_S)


def _named(processes: list[ProcessInfo]) -> list[dict[str, Any]]:
    return [{"pid": process.pid, "name": process.name} for process in processes]


def _say(message: dict[str, Any]) -> None:
    try:
        print(json.dumps(message), flush=True)
    except BrokenPipeError:  # nobody is left to hear it; the work is done all the same
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


if __name__ == "__main__":
    sys.exit(main())
