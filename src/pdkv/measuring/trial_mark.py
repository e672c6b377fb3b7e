"""The mark that every server of a trial carries in its environment, and by which those of a dead trial are found.

``PDKV_TRIAL=pid.start time.pid namespace.random``: it names the measurement that owns the server, so that another
process can tell whether that one still lives. A pid alone could have been given to somebody else since.
"""

import os
import uuid
from pathlib import Path

from pdkv.measuring.lease_files import FOLDER_VARIABLE
from pdkv.measuring.process_tree import ProcessInfo, descendants, read_process

MARK = "PDKV_TRIAL"
# vLLM's engine core and workers give themselves a title, and setproctitle would write it over the environment in which
# the mark is found: where even the keepers were killed, it is the only way to find them.
READABLE = {"SPT_NOENV": "1"}


def make_mark() -> str:
    """A mark of this process, never the same twice."""
    own = read_process(os.getpid())
    return f"{os.getpid()}.{own.started if own else 0}.{_pid_namespace()}.{uuid.uuid4().hex}"


def is_orphaned(mark: str) -> bool:
    """Whether the measurement that made ``mark`` is surely dead: seen from here, where its pid means the same."""
    parts = mark.split(".")
    if len(parts) != 4 or not all(part.isdigit() for part in parts[:3]) or int(parts[2]) != _pid_namespace():
        return False
    owner = read_process(int(parts[0]))
    return owner is None or owner.started != int(parts[1])


def find_orphans() -> list[ProcessInfo]:
    """Living processes of this user that dead trials have left, with all that descends from them.

    Only of trials that kept their leases where this process would: whoever measures apart also tidies up apart.
    """
    found: dict[int, ProcessInfo] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208 - as in process_tree
        if entry.isdigit() and int(entry) != os.getpid() and (mark := _mark_of(entry)) and is_orphaned(mark):
            info = read_process(int(entry))
            for process in [*([info] if info else []), *descendants(int(entry))]:
                found[process.pid] = process
    return [process for pid, process in found.items() if pid != os.getpid()]


def trial_began(process: ProcessInfo) -> int:
    """When the measurement was started whose mark a process carries, in clock ticks since boot; else the process."""
    parts = (_mark_of(str(process.pid)) or "").split(".")
    return int(parts[1]) if len(parts) == 4 and parts[1].isdigit() else process.started


def _mark_of(pid: str) -> str | None:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # gone, or another user's
        return None
    entries = (entry.partition(b"=") for entry in environment.split(b"\0"))
    known = {name.decode("ascii", "replace"): value.decode("utf-8", "replace") for name, _, value in entries}
    return known.get(MARK) if known.get(FOLDER_VARIABLE) == os.environ.get(FOLDER_VARIABLE) else None


def _pid_namespace() -> int:
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0
