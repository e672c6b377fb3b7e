"""The evidence of a launch as one thing: size and digest of each file stand in ``stages.json``.

So a file that was cut, edited, lost or brought from another launch is told by name before anything is read from it.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pdkv.errors import UserError


def seal_files(folder: Path, leave_out: str) -> dict[str, dict[str, Any]]:
    """``{path within folder: {bytes, sha256}}`` of every file below ``folder`` but the one called ``leave_out``."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != leave_out)
    return {path.relative_to(folder).as_posix(): _look_at(path) for path in files}


def check_seals(trial: Path, stages: Mapping[str, Any], *names: str) -> None:
    """Raise :class:`UserError` unless the named files (or all files of a named folder) are those of this launch.

    ``stages`` of an earlier version, which sealed nothing, pass.
    """
    sealed = stages.get("files") or {}
    for name in names:
        for path, seal in sealed.items():
            if path == name or path.startswith(f"{name}/"):
                _check(trial / path, seal, trial)


def _check(path: Path, seal: Mapping[str, Any], trial: Path) -> None:
    remedy = f"bring it back, or delete {trial / 'stages.json'} and run snakemake again: this launch is measured anew"
    try:
        size = path.stat().st_size
        if size == seal["bytes"] and _look_at(path)["sha256"] == seal["sha256"]:
            return
    except FileNotFoundError:
        raise UserError(f"{path} is not there, though it was measured", remedy=remedy) from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}", remedy=remedy) from None
    how = f"has {size:,} bytes, not {seal['bytes']:,}" if size != seal["bytes"] else "holds something else"
    raise UserError(f"{path} is not what was measured: it {how}", remedy=remedy)


def _look_at(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}
