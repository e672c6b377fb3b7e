"""Exclusive use of GPUs, and of the host by a CPU engine, among all measurements on a host, whoever runs them.

A lease is a lock on a file, so the kernel gives it back when its process dies, however it dies. The files stay: a
lock on a file that somebody else has just removed would protect nothing.
"""

import fcntl
import json
import os
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pdkv.errors import UserError
from pdkv.measuring.gpu_visibility import Gpu, Nvml, answer, used_memory, visible_gpus
from pdkv.units import format_bytes, format_duration

# Not TMPDIR: batch systems give each job its own, and two jobs on a host must meet.
SHARED_FOLDER = Path("/tmp/pdkv-leases")
FOLDER_VARIABLE = "PDKV_LEASE_DIR"
HOST = "host-cpu"
POLL_S = 0.5
SAY_EVERY_S = 60.0
# A card that nobody uses still has some of its memory taken, by the driver and by display managers.
FOREIGN_MEMORY_BYTES = 512 << 20
MAX_NAME_CHARACTERS = 200
MAX_NOTE_BYTES = 2000

Say = Callable[[str], None]


@dataclass
class Lease:
    """Held from the moment it is made until :meth:`release`, the end of its context, or the end of the process.

    ``uuids`` are the GPUs, in the order for ``CUDA_VISIBLE_DEVICES`` (empty for the host); ``warnings`` name GPUs
    that others, outside of pdkv, use at this moment.
    """

    uuids: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    _handles: list[int] = field(default_factory=list, repr=False)

    def release(self) -> None:
        """Give everything back; doing it twice does no harm."""
        while self._handles:
            handle = self._handles.pop()
            with suppress(OSError):
                os.ftruncate(handle, 0)
            os.close(handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


def lease_gpus(
    count: int,
    env: Mapping[str, str],
    nvml: Nvml,
    *,
    trial: str,
    wait_s: float = 0.0,
    say: Say = lambda message: None,
    folder: Path | None = None,
) -> Lease:
    """Lease ``count`` of the GPUs that ``env`` makes visible, those first that nobody else uses.

    Waits up to ``wait_s`` for other measurements to end and tells ``say`` for whom. It takes all or none, so two that
    wait for each other's GPUs cannot block each other. Raises :class:`UserError` at once if fewer are visible than
    needed, and after ``wait_s`` if they are still taken.
    """
    gpus = visible_gpus(nvml, env)
    if len(gpus) < count:
        shown = env.get("CUDA_VISIBLE_DEVICES")
        where = "on this host" if shown is None else f"with CUDA_VISIBLE_DEVICES={shown}"
        raise UserError(
            f"{trial} needs {count} GPUs, and {len(gpus) or 'none'} can be used {where}",
            remedy="use a host (or a job) with more GPUs, make more of them visible, or leave this mode out",
        )
    place = _prepare_folder(folder)

    def attempt() -> Lease | None:
        lease = Lease()
        for gpu in sorted(gpus, key=lambda gpu: _describe_use(nvml, gpu) is not None):  # stable: else CUDA's order
            if len(lease.uuids) < count and (handle := _try_lock(place / gpu.uuid, trial)) is not None:
                lease._handles.append(handle)
                lease.uuids += (gpu.uuid,)
        if len(lease.uuids) < count:
            lease.release()
            return None
        # Asked again: whose lease has just ended may have been the user until now.
        leased = [gpu for gpu in gpus if gpu.uuid in lease.uuids]
        lease.warnings = tuple(use for gpu in leased if (use := _describe_use(nvml, gpu)) is not None)
        return lease

    return _wait_for(attempt, [place / gpu.uuid for gpu in gpus], f"{count} of {len(gpus)} GPUs", wait_s, say)


def lease_host(
    *, trial: str, wait_s: float = 0.0, say: Say = lambda message: None, folder: Path | None = None
) -> Lease:
    """Lease the processor cores of this host, all of them: a CPU engine next to another measures neither.

    Waits as :func:`lease_gpus` does. Raises :class:`UserError` if they are still taken after ``wait_s``.
    """
    file = _prepare_folder(folder) / HOST

    def attempt() -> Lease | None:
        handle = _try_lock(file, trial)
        return None if handle is None else Lease(_handles=[handle])

    return _wait_for(attempt, [file], "the processor cores of this host", wait_s, say)


def _wait_for(
    attempt: Callable[[], Lease | None], files: Sequence[Path], wanted: str, wait_s: float, say: Say
) -> Lease:
    began_s = time.monotonic()
    said, said_s = "", 0.0
    while (lease := attempt()) is None:
        now_s = time.monotonic()
        holders = "; ".join(holder for file in files if (holder := _describe_holder(file)))
        if now_s - began_s >= wait_s:
            raise UserError(
                f"no lease of {wanted} within {format_duration(wait_s)}: {holders or 'they changed hands'}",
                remedy="wait until the other measurement has ended, or end it",
            )
        if holders and (holders != said or now_s - said_s >= SAY_EVERY_S):
            say(f"waiting for {wanted}: {holders}")
            said, said_s = holders, now_s
        time.sleep(min(POLL_S, wait_s))
    return lease


def _prepare_folder(folder: Path | None) -> Path:
    """The folder of the lock files, usable by everyone: users share the devices, so they share the locks."""
    chosen = folder or Path(os.environ.get(FOLDER_VARIABLE) or SHARED_FOLDER)
    try:
        with suppress(FileExistsError):
            chosen.mkdir(parents=True)
            chosen.chmod(0o1777)  # as /tmp: anyone may add files, nobody may remove another's
        if not chosen.is_dir() or chosen.is_symlink() or not os.access(chosen, os.W_OK | os.X_OK):
            raise PermissionError("it is not a folder that everyone may write to")
    except OSError as error:
        raise UserError(
            f"leases of devices can't be kept in {chosen}: {error}",
            remedy=f"set {FOLDER_VARIABLE} to a folder that all measuring users of this host may write to",
        ) from None
    return chosen


def _try_lock(file: Path, trial: str) -> int | None:
    """The handle of the locked file with a note of who holds it, or None if another process holds it."""
    try:
        handle = _open(file)
    except OSError as error:
        raise UserError(
            f"the lease file {file} can't be opened: {error}", remedy=f"remove it, or set {FOLDER_VARIABLE}"
        ) from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    os.ftruncate(handle, 0)
    os.pwrite(handle, json.dumps({"pid": os.getpid(), "trial": trial[:MAX_NAME_CHARACTERS]}).encode(), 0)
    return handle


def _open(file: Path) -> int:
    """Open without following a link that someone has laid, and only what is a plain file."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        # Without O_CREAT first: in a folder such as /tmp the kernel refuses it on other users' files.
        handle = os.open(file, flags)
    except FileNotFoundError:
        try:
            handle = os.open(file, flags | os.O_CREAT | os.O_EXCL, 0o666)
            os.fchmod(handle, 0o666)  # whatever the umask: the next one may be another user
        except FileExistsError:  # somebody was faster
            handle = os.open(file, flags)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError("it is not a plain file")
    return handle


def _describe_holder(file: Path) -> str | None:
    """Who holds a file, by its note; None if nobody does: a killed process leaves its note, but not its lock."""
    with suppress(OSError, ValueError), os.fdopen(_open(file), "rb") as note_file:
        try:
            fcntl.flock(note_file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            note: Any = json.loads(note_file.read(MAX_NOTE_BYTES))
            # Anyone may have written the note: only a number and printable characters are shown.
            if isinstance(note, dict) and isinstance(note.get("pid"), int):
                trial = "".join(character for character in str(note.get("trial")) if character.isprintable())
                return f"{file.name} is held by process {note['pid']} ({trial})"
    return None


def _describe_use(nvml: Nvml, gpu: Gpu) -> str | None:
    """Who uses a GPU that is not leased yet, as a warning; None if nobody is seen."""
    handle = answer(nvml.nvmlDeviceGetHandleByUUID, gpu.uuid)
    if handle is None:
        return None
    processes = answer(nvml.nvmlDeviceGetComputeRunningProcesses, handle) or []
    used = answer(used_memory, nvml, handle)
    if not processes and (used is None or used < FOREIGN_MEMORY_BYTES):
        return None
    pids = ", ".join(str(process.pid) for process in processes)
    who = f"process {pids}" if pids else "a process that can't be seen from here"
    return f"{gpu.uuid} is used by {who}, {'unknown' if used is None else format_bytes(used)} of its memory taken"
