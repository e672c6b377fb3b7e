"""One run of the workflow at a time in a folder, by a lock that no crash leaves behind.

Snakemake's own lock is a file that outlives a killed run and asks for ``--unlock``; the default profile turns it off.
"""

import fcntl
import os
from pathlib import Path

from pdkv.errors import UserError


def lock_run(folder: Path) -> int:
    """Lock the run's ``folder`` until this process ends, however it ends; the file descriptor that holds the lock.

    Raises :class:`UserError` if another run has it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / "pdkv.lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise UserError(
            f"another snakemake is at work in {folder.absolute().parent}", remedy="wait until it has ended, or end it"
        ) from None
    return handle
