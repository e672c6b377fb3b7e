"""Atomic, versioned JSON, JSON lines, CSV and Parquet: a file either holds everything or is not there.

And it holds what pdkv wrote: JSON carries a digest of its content, a CSV has one beside it, Parquet has checksums. What
was cut, edited or made by another version raises a :class:`UserError` that names the file, and is never used.
"""

import csv
import errno
import hashlib
import io
import json
import math
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from pdkv.errors import UserError

MAKE_AGAIN = "delete it and run snakemake again"
# A disk or a folder that takes no more, or is not what it was: what only a person can mend, wherever it is met.
UNWRITABLE = {
    errno.ENOENT: "leave results/ and reports/ where they are while snakemake runs,",
    errno.ENOTDIR: "move away what is no folder on the way to it,",
    errno.EISDIR: "move away the folder of that name,",
    errno.EEXIST: "move away what has that name,",
    errno.ENOSPC: "make room on this disk",
    errno.EDQUOT: "make room below the quota of this disk",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f)",
    errno.EROFS: "make this disk writable",
    errno.EACCES: "give this user the right to write there",
    errno.EPERM: "give this user the right to write there",
    errno.EIO: "see what is wrong with this disk (dmesg)",
}


def name_unwritable(error: OSError, path: Path) -> OSError:
    """The same error with ``path`` in it, where it says that something can't be written and does not say what."""
    if error.errno not in UNWRITABLE or error.filename is not None:
        return error
    return OSError(error.errno, os.strerror(error.errno), str(path))


def explain_unwritable(error: OSError) -> UserError | None:
    """What a person can do about a file that could not be written; None for every other error of the system."""
    if error.errno not in UNWRITABLE:
        return None
    if error.errno == errno.ENOENT and (error.filename is None or Path(os.fsdecode(error.filename)).parent.exists()):
        return None  # a file alone is missing: that is a fault of this program, or told where it is read
    remedy = f"{UNWRITABLE[error.errno]} and run snakemake again: what is measured already stays"
    return UserError(f"cannot write {error.filename or 'a file'}: {os.strerror(error.errno)}", remedy=remedy)


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary path in the folder of ``path`` that takes its place when the block ends without an exception.

    The ``OSError`` of a full disk leaves it with the name of ``path``: writing to an open file names none.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except OSError as error:
        raise name_unwritable(error, path) from error.__cause__
    finally:
        temporary.unlink(missing_ok=True)


class Stored(dict[str, Any]):
    """An object of a stored file: a key that should be there and is not is a fault of the file, not of the reader."""

    __slots__ = ("path",)
    path: Path

    def __missing__(self, key: str) -> Any:
        """``stored[key]`` where there is no such key."""
        raise UserError(f"{self.path} is not what pdkv wrote: it lacks the key {key!r}", remedy=MAKE_AGAIN)


def write_json(path: Path, schema: str, content: dict[str, Any]) -> None:
    """Write ``content`` as strict JSON under ``schema`` (``name/version``), with a digest of it.

    NaN and infinities become null: strict JSON has no other word for "not known".
    """
    whole = {"schema": schema, **finite(content)}
    text = json.dumps({**whole, "digest": _digest(whole)}, indent=1, ensure_ascii=False, allow_nan=False)
    write_text(path, text + "\n")


def read_json(path: Path, schema: str) -> dict[str, Any]:
    """Read what :func:`write_json` wrote, without its digest.

    A file of another schema or version, or one that was changed since, raises :class:`UserError`; so does
    looking up a key that is not there, at any depth.
    """
    try:
        content = json.loads(_read(path).decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON: {error}", remedy=MAKE_AGAIN) from None
    found = content.get("schema") if isinstance(content, dict) else None
    if found != schema:
        raise UserError(f"{path} holds {found!r}, this version reads {schema!r}", remedy=MAKE_AGAIN)
    digest = content.pop("digest", None)  # files of earlier versions have none
    if digest is not None and digest != _digest(content):
        raise UserError(f"{path} was changed after pdkv wrote it", remedy=MAKE_AGAIN)
    stored: dict[str, Any] = _stored(content, path)
    return stored


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text with ``\\n`` line ends under every locale."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(text.encode("utf-8"))


def write_csv(path: Path, text: str) -> None:
    """Write CSV text, and its digest beside it: spreadsheet programs save what they only were to show."""
    digest_file(path).unlink(missing_ok=True)
    write_text(path, text)
    write_text(digest_file(path), hashlib.sha256(text.encode("utf-8")).hexdigest() + "\n")


def read_csv(path: Path) -> list[dict[str, str]]:
    """The rows of what :func:`write_csv` wrote; a file that was changed since raises :class:`UserError`."""
    raw = _read(path)
    try:
        stated = digest_file(path).read_text(encoding="ascii").strip()
    except (OSError, ValueError):  # a file of an earlier version, or copied alone
        stated = None
    if stated is not None and stated != hashlib.sha256(raw).hexdigest():
        raise UserError(f"{path} was changed after pdkv wrote it", remedy=MAKE_AGAIN)
    known: dict[str, str] = {}
    try:
        lines = csv.reader(io.StringIO(raw.decode("utf-8")))
        header = next(lines, [])
        return [_row(header, line, known, path) for line in lines if line]
    except (ValueError, csv.Error) as error:
        raise UserError(f"{path} is not a table: {error}", remedy=MAKE_AGAIN) from None


def _row(header: Sequence[str], line: Sequence[str], known: dict[str, str], path: Path) -> dict[str, str]:
    """A row by its columns. Most texts of a long table stand in it many times: each is kept once, in ``known``."""
    if len(line) != len(header):
        raise UserError(f"{path} is not what pdkv wrote: a row is longer or shorter than the header", remedy=MAKE_AGAIN)
    row = Stored(zip(header, (known.setdefault(text, text) for text in line), strict=True))
    row.path = path
    return cast("dict[str, str]", row)


def digest_file(path: Path) -> Path:
    """Where the digest of a CSV file is kept."""
    return path.with_name(f".{path.name}.sha256")


def write_parquet(path: Path, table: pa.Table) -> None:
    """Write an Arrow table, zstd-compressed, a checksum with each page."""
    with atomic_path(path) as temporary:
        pq.write_table(table, temporary, compression="zstd", write_page_checksum=True)


def read_parquet(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a whole Parquet file, or some of its columns, as an Arrow table.

    Raises :class:`UserError` for a file that is not there, was cut or damaged, or lacks one of the columns.
    """
    with open_parquet(path) as file:  # read_table would import Arrow's data sets first, which takes a while
        lacking = [name for name in columns or () if name not in file.schema_arrow.names]
        if lacking:
            raise UserError(f"{path} is not what pdkv wrote: it lacks the column {lacking[0]!r}", remedy=MAKE_AGAIN)
        return file.read(columns=None if columns is None else list(columns))


@contextmanager
def open_parquet(path: Path) -> Iterator[pq.ParquetFile]:
    """A Parquet file to be read in parts; Arrow's errors within the block become a :class:`UserError`."""
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            yield file
    except FileNotFoundError:
        raise UserError(f"{path} is not there", remedy="run snakemake again: it makes what is missing") from None
    except (pa.ArrowException, OSError, EOFError) as error:
        raise UserError(f"cannot read {path}: {error}", remedy=MAKE_AGAIN) from None


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Read a JSON-lines file; a last line that was cut by a crash is left out."""
    try:
        lines = _read(path).decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8: {error}", remedy=MAKE_AGAIN) from None
    rows = []
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            rows.append(_stored(json.loads(line), path))
        except json.JSONDecodeError as error:
            if number == len(lines):  # no line end after it: the writer was killed in mid-line
                break
            raise UserError(f"{path}:{number} is not valid JSON: {error}", remedy=MAKE_AGAIN) from None
    return rows


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path} is not there", remedy="run snakemake again: it makes what is missing") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}", remedy="give this user the right to read") from None


def _digest(content: dict[str, Any]) -> str:
    """Of what a JSON file says, however it is laid out."""
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


_NESTED = (dict, list)


def _stored(value: Any, path: Path) -> Any:
    """``value`` with each object in it as one of this file. Most values are plain and need no call."""
    if isinstance(value, dict):
        stored = Stored(value)
        stored.path = path
        for key, item in value.items():
            if isinstance(item, _NESTED):
                stored[key] = _stored(item, path)
        return stored
    if isinstance(value, list):
        return [_stored(item, path) if isinstance(item, _NESTED) else item for item in value]
    return value


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
