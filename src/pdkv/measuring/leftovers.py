"""What a trial that was killed leaves behind: processes, shared memory, half files; found, and removed if asked to.

Only what is surely of a dead trial of ours is touched: processes by the mark and the start time of their owner, or by
the server log of a trial of the same study that they write to while no keeper is above them; folders by the lock that
their measurement would hold, shared memory by the note in such a folder, or because such processes alone map it.
"""

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pdkv.artifacts import read_json
from pdkv.errors import UserError
from pdkv.measuring.process_tree import ProcessInfo, all_processes, kill_processes, read_process
from pdkv.measuring.shared_memory import mapped_by_none_but, mapped_segments, noted_segments, remove_abandoned
from pdkv.measuring.trial_folder import GATHERING, SEGMENTS, SERVER_LOGS
from pdkv.measuring.trial_mark import find_orphans, trial_began
from pdkv.units import format_bytes

KEEPER = b"pdkv.measuring.keeper"
OLD_S = 60.0  # a temporary file that nobody has written to for so long is nobody's


@dataclass(frozen=True)
class Leftovers:
    """``folders`` hold the half evidence of a dead trial, ``files`` are temporary, ``locks`` are Snakemake's own."""

    processes: tuple[ProcessInfo, ...]
    segments: tuple[Path, ...]
    folders: tuple[Path, ...]
    files: tuple[Path, ...]
    locks: tuple[Path, ...]

    def describe(self) -> list[str]:
        """A line each."""
        return [
            *(f"process {each.pid} ({each.name}) of a dead trial" for each in self.processes),
            *(f"{path}, {format_bytes(_size(path))}, shared memory of a dead trial" for path in self.segments),
            *(f"{path}, evidence of a trial that did not come to its end" for path in self.folders),
            *(f"{path}, a file that was not written to its end" for path in self.files),
            *(f"{path}, a lock of a snakemake that is dead" for path in self.locks),
        ]


def find_leftovers(root: Path, *, at_work: bool) -> Leftovers:
    """Leftovers on this host and below ``root``, the folder of ``results/``.

    ``at_work``: a run of the workflow is under way in ``root``, so temporary files and Snakemake's locks are its own.
    """
    folders = [folder for folder in sorted(_below(root / "results", GATHERING)) if _is_abandoned(folder)]
    files: list[Path] = []
    if not at_work:
        below = [path for name in ("results", "reports") for path in _below(root / name, ".*.tmp") if path.is_file()]
        files = [path for path in sorted(below) if GATHERING not in path.parts and _is_old(path)]
    locks = [] if at_work else sorted((root / ".snakemake/locks").glob("*.lock"))
    processes = _find_processes(Path(os.path.realpath(root / "results")))  # also of a link to itself
    segments = {path for folder in folders for path in noted_segments(folder / SEGMENTS)} | _find_segments(processes)
    return Leftovers(tuple(processes), tuple(sorted(segments)), tuple(folders), tuple(files), tuple(locks))


def _below(folder: Path, pattern: str) -> Iterator[Path]:
    """Nothing of a folder that this user may not look into."""
    with contextlib.suppress(PermissionError):
        yield from folder.rglob(pattern)


def end_orphans(trial_folder: Path) -> list[ProcessInfo]:
    """End the processes that dead trials have left on this host, before they spoil the next one; those that went.

    The shared memory that they alone had mapped goes too.
    ``trial_folder`` is that of the next one: what only its log gives away is ended if it is of the same results.
    """
    processes = _find_processes(_results_around(trial_folder))
    segments = _find_segments(processes)
    ended = kill_processes(processes)[0]
    remove_abandoned(segments)
    return ended


def _find_segments(processes: Sequence[ProcessInfo]) -> set[Path]:
    """What these processes alone map and is no older than their trial: a trial that was killed in launch noted none."""
    living = [each for each in processes if (now := read_process(each.pid)) and now.started == each.started]
    alone = mapped_by_none_but(each.pid for each in living)
    booted_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    found = set()
    for process in living if alone else []:
        began_s = booted_s + trial_began(process) / os.sysconf("SC_CLK_TCK")
        found |= {path for path in alone & mapped_segments([process.pid]) if _is_own_since(path, began_s)}
    return found


def _is_own_since(path: Path, began_s: float) -> bool:
    with contextlib.suppress(OSError):
        status = path.stat()
        return status.st_uid == os.getuid() and status.st_ctime >= began_s
    return False


def _results_around(trial_folder: Path) -> Path:
    """The ``results`` that ``WORKLOAD/MODE/DTYPE/rN`` lies in; a trial that lies elsewhere has only itself."""
    around = trial_folder.absolute().parents[3:4]
    return (around[0] if around and around[0].name == "results" else trial_folder).resolve()


def _find_processes(results: Path) -> list[ProcessInfo]:
    """By their marks, and by the server log to which they write: vLLM's processes overwrite their environment.

    What writes to such a log below ``results`` (absolute, without links) and descends from no keeper has lost it, and
    the measurement that would have ended it.
    """
    living = all_processes()
    found = {process.pid: process for process in find_orphans()}
    for process in living.values():
        if process.pid not in found and _writes_server_log(process.pid, results) and not _is_kept(process, living):
            found[process.pid] = process
    return list(found.values())


def _writes_server_log(pid: int, results: Path) -> bool:
    """Whether a process of this user writes to the log that a trial below ``results`` has for one of its servers."""
    with contextlib.suppress(OSError):  # gone, or another user's
        if Path(f"/proc/{pid}").stat().st_uid == os.getuid():
            return any(_is_server_log(Path(f"/proc/{pid}/fd/{fd}").readlink(), results) for fd in (1, 2))
    return False


def _is_server_log(target: Path, results: Path) -> bool:
    """By where it lies (or lay: the next measurement of a trial empties its folder), and by the plan of the trial."""
    log = Path(str(target).removesuffix(" (deleted)"))
    trial = log.parents[2] if log.parent.parts[-2:] == (GATHERING, SERVER_LOGS) else None
    if trial is None or not trial.is_relative_to(results):
        return False
    try:
        servers = {*(instance["name"] for instance in read_json(trial / "plan.json", "plan/1")["instances"]), "router"}
    except (UserError, TypeError):  # no plan, or none of ours
        return False
    return log.name in {f"{name}.log" for name in servers}


def _is_kept(process: ProcessInfo, living: Mapping[int, ProcessInfo]) -> bool:
    ancestor: ProcessInfo | None = process
    while ancestor is not None:
        with contextlib.suppress(OSError):
            if KEEPER in Path(f"/proc/{ancestor.pid}/cmdline").read_bytes().split(b"\0"):
                return True
        ancestor = living.get(ancestor.parent)
    return False


def clean_leftovers(found: Leftovers) -> list[str]:
    """End and remove them; what was done, a line each. Looks again before it touches anything."""
    segments = {*found.segments, *_find_segments(found.processes)}  # what they map is seen only while they live
    done = [f"ended process {each.pid} ({each.name})" for each in kill_processes(found.processes)[0]]
    done += [f"removed {each['path']}, {each['bytes']} bytes" for each in remove_abandoned(segments)]
    for folder in found.folders:
        with _alone_in(folder) as alone:
            if alone:
                shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            done.append(f"removed {folder}")
    for path in (*found.files, *found.locks):
        with contextlib.suppress(OSError):
            path.unlink()
            done.append(f"removed {path}")
    return done


def _is_abandoned(folder: Path) -> bool:
    with _alone_in(folder) as alone:
        return alone


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[bool]:
    """Whether no measurement holds the folder; none can begin in it before the block ends."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield False
        return
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True
    finally:
        os.close(handle)


def _is_old(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return time.time() - path.stat().st_mtime > OLD_S
    return False


def _size(path: Path) -> int | None:
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return None
