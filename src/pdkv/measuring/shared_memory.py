"""Shared memory that an engine which was killed leaves in ``/dev/shm``: found and removed where it is surely ours.

Segments of dead engines would pile up until an innocent later one dies of a bus error. A segment is ours if it was not
there before the server started, one of the server's processes had it mapped, and no living process has any more.
Standard library only, as :mod:`keeper`.
"""

import json
import os
from collections.abc import Iterable
from pathlib import Path

FOLDER = Path("/dev/shm")


def free_bytes() -> int | None:
    """Room in ``/dev/shm``; None where there is no such folder."""
    try:
        found = os.statvfs(FOLDER)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def list_segments() -> set[Path]:
    """All that lies in ``/dev/shm``."""
    try:
        return set(FOLDER.iterdir())
    except OSError:
        return set()


def mapped_segments(pids: Iterable[int]) -> set[Path]:
    """Segments that one of these processes has mapped; a file in a folder there (a model, say) is none."""
    found = set()
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        except OSError:  # ended, or another user's
            continue
        found |= {Path(line[line.index(f"{FOLDER}/") :]) for line in lines if f"{FOLDER}/" in line}
    return {path for path in found if path.parent == FOLDER and not path.name.endswith(" (deleted)")}


def mapped_by_none_but(pids: Iterable[int]) -> set[Path]:
    """Segments that one of these processes has mapped, and no other process that lives."""
    own = set(pids)
    found = mapped_segments(own)
    return found - mapped_segments(_living() - own) if found else found


def note_segments(note: Path, pids: Iterable[int], others: set[Path]) -> None:
    """Keep in a file which segments these processes have mapped, but for ``others``: for when all are killed."""
    ours = sorted(mapped_segments(pids) - others)
    note.write_text(json.dumps([[str(path), path.stat().st_ino] for path in ours if path.is_file()]), encoding="utf-8")


def noted_segments(note: Path) -> set[Path]:
    """Those of a note that are still there and still the same."""
    try:
        noted = {Path(path): inode for path, inode in json.loads(note.read_text(encoding="utf-8"))}
        there = {path for path in noted if path.parent == FOLDER and path.is_file()}
        return {path for path in there if path.stat().st_ino == noted[path]}
    except (OSError, ValueError, TypeError):
        return set()


def remove_abandoned(segments: Iterable[Path]) -> list[dict[str, str | int]]:
    """Remove those of ``segments`` that no living process maps: ``{path, bytes}`` of each."""
    there = {path for path in segments if path.is_file()}
    if not there:
        return []
    in_use = mapped_segments(_living())
    removed: list[dict[str, str | int]] = []
    for path in sorted(there - in_use):
        try:
            size = path.stat().st_size
            path.unlink()
        except OSError:
            continue
        removed.append({"path": str(path), "bytes": size})
    return removed


def _living() -> set[int]:
    return {int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()}
