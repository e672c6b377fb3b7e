"""Lock files with a note of who holds them. The kernel gives a lock back when its process dies, however it dies.

The files stay: a lock on a file that somebody else has just removed would protect nothing.
"""

import fcntl
import json
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

from pdkv.errors import UserError

# Not TMPDIR: batch systems give each job its own, and two jobs on a host must meet.
SHARED_FOLDER = Path("/tmp/pdkv-leases")
FOLDER_VARIABLE = "PDKV_LEASE_DIR"
MAX_NAME_CHARACTERS = 200
MAX_NOTE_BYTES = 2000


def prepare_folder(folder: Path | None) -> Path:
    """The folder of the lock files, usable by everyone: users share the devices, so they share the locks.

    ``%h`` in the variable is the host's name: one folder would tie hosts to each other that share its disk.
    """
    named = os.environ.get(FOLDER_VARIABLE, "").replace("%h", socket.gethostname())
    chosen = folder or Path(named or SHARED_FOLDER)
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


def try_lock(file: Path, trial: str) -> int | None:
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


def unlock(handle: int) -> None:
    """Give a lock back."""
    with suppress(OSError):
        os.ftruncate(handle, 0)
    os.close(handle)


def read_holder(file: Path) -> tuple[int, str] | None:
    """(pid, trial) of who holds a file, by its note; None if nobody does, or the note says nothing.

    A killed process leaves its note, but not its lock.
    """
    with suppress(OSError, ValueError), os.fdopen(_open(file), "rb") as note_file:
        try:
            fcntl.flock(note_file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            note: Any = json.loads(note_file.read(MAX_NOTE_BYTES))
            # Anyone may have written the note: only a number and printable characters are shown.
            if isinstance(note, dict) and isinstance(note.get("pid"), int):
                trial = str(note.get("trial"))
                return note["pid"], "".join(character for character in trial if character.isprintable())
    return None
