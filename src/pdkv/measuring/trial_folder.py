"""Where a trial's evidence is gathered, and how all of it appears at once."""

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pdkv.artifacts import name_unwritable
from pdkv.errors import UserError
from pdkv.measuring.shared_memory import noted_segments, remove_abandoned
from pdkv.redaction import redact_files
from pdkv.seals import seal_files

GATHERING = ".measuring"
SERVER_LOGS = "server"
SEGMENTS = ".shared-memory.json"  # of the servers while they run: what must go if all of them are killed
TEXTS = {".log", ".json", ".jsonl"}
LAST = "stages.json"  # its presence says that the rest is complete
# For another measurement of the same trial to end: that of a run which was killed takes so long to end its servers.
LOCKED_WITHIN_S = 30.0
POLL_S = 0.1


@contextlib.contextmanager
def gathering_folder(out: Path, debris: Path) -> Iterator[Path]:
    """A folder inside ``out`` whose files move to ``out`` when the block ends well, ``stages.json`` last.

    Otherwise (a signal, a fault) nothing appears, and the server logs move to ``debris``, with secrets hidden. What a
    killed measurement left in the folder is thrown away. Raises :class:`UserError` if another measurement of the same
    trial is running, and does not end within 30 s, and if somebody takes the folder away meanwhile.
    """
    folder = out / GATHERING
    with _locked(folder) as lock:
        try:
            remove_abandoned(noted_segments(folder / SEGMENTS))
            _empty(folder)
            (folder / SERVER_LOGS).mkdir()
            yield folder
            for path in sorted(folder.iterdir(), key=lambda path: path.name == LAST):
                _move(path, out / path.name)
        except BaseException as error:
            with contextlib.suppress(OSError):  # a disk that is full, say: why it ended so matters more than its logs
                _rescue(folder / SERVER_LOGS, debris / SERVER_LOGS)
            if isinstance(error, OSError) and not _is_same(lock, folder):
                raise UserError(
                    f"{folder} is gone: its folder was moved or removed while the trial was measured",
                    remedy="leave results/ where it is while snakemake runs, and run snakemake again",
                ) from None
            if isinstance(error, OSError):
                raise name_unwritable(error, out) from error.__cause__
            raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[int]:
    """The folder is ours, by this handle; the kernel takes it back from a process that dies."""
    give_up_s = time.monotonic() + LOCKED_WITHIN_S
    while (lock := _try_lock(folder)) is None:
        if time.monotonic() > give_up_s:
            raise UserError(
                f"another measurement is running in {folder.parent}",
                remedy="wait for it, or end it, and run snakemake again",
            )
        time.sleep(POLL_S)
    try:
        yield lock
    finally:
        os.close(lock)


def _try_lock(folder: Path) -> int | None:
    """The handle that holds the lock, None if somebody else has it. Who had it removes the folder when he leaves it."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_same(lock, folder):
            return lock
    except BlockingIOError:
        pass
    os.close(lock)
    return None


def _is_same(handle: int, folder: Path) -> bool:
    try:
        return os.fstat(handle).st_ino == folder.stat().st_ino
    except FileNotFoundError:
        return False


def seal_evidence(folder: Path) -> dict[str, dict[str, Any]]:
    """What each file of the evidence holds from now on, for ``stages.json``; secrets are hidden in it first."""
    hide_secrets(folder)
    return seal_files(folder, leave_out=LAST)


def hide_secrets(folder: Path) -> None:
    """What a server said may hold what it inherited: no value of a secret variable leaves this folder."""
    redact_files(path for path in folder.rglob("*") if path.suffix in TEXTS and path.is_file())


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        _remove(path)


def _move(source: Path, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir() and place.exists():
        _remove(place)
    source.replace(place)


def _rescue(logs: Path, place: Path) -> None:
    """Move the server logs to where they may be on another disk, with secrets hidden."""
    if not logs.is_dir():
        return
    hide_secrets(logs)
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.exists():
        _remove(place)
    shutil.move(logs, place)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
