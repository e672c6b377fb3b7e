"""Atomic, versioned JSON, JSON lines and Parquet: a file either holds everything or is not there."""

import json
import math
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pdkv.errors import UserError


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary path in the folder of ``path`` that takes its place when the block ends without an exception."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, schema: str, content: dict[str, Any]) -> None:
    """Write ``content`` as strict JSON under ``schema`` (``name/version``).

    NaN and infinities become null: strict JSON has no other word for "not known".
    """
    text = json.dumps({"schema": schema, **finite(content)}, indent=1, ensure_ascii=False, allow_nan=False)
    write_text(path, text + "\n")


def read_json(path: Path, schema: str) -> dict[str, Any]:
    """Read what :func:`write_json` wrote. A file of another schema or version raises :class:`UserError`."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is not there", remedy="run snakemake again: it makes what is missing") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid JSON: {error}", remedy="delete it and run snakemake again") from None
    found = content.get("schema") if isinstance(content, dict) else None
    if found != schema:
        raise UserError(
            f"{path} holds {found!r}, this version reads {schema!r}", remedy="delete it and run snakemake again"
        )
    return dict(content)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text with ``\\n`` line ends under every locale."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(text.encode("utf-8"))


def write_parquet(path: Path, table: pa.Table) -> None:
    """Write an Arrow table, zstd-compressed."""
    with atomic_path(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def read_parquet(path: Path) -> pa.Table:
    """Read a whole Parquet file as an Arrow table."""
    try:
        with pq.ParquetFile(path) as file:  # read_table would import Arrow's data sets first, which takes a while
            return file.read()
    except (FileNotFoundError, pa.ArrowInvalid) as error:
        raise UserError(f"cannot read {path}: {error}", remedy="delete it and run snakemake again") from None


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Read a JSON-lines file; a last line that was cut by a crash is left out."""
    lines = path.read_text(encoding="utf-8").split("\n")
    rows = []
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number == len(lines):  # no line end after it: the writer was killed in mid-line
                break
            raise UserError(
                f"{path}:{number} is not valid JSON: {error}", remedy="delete it and run snakemake again"
            ) from None
    return rows


def finite(value: Any) -> Any:
    """The same structure with NaN and infinities as None and tuples as lists."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
