"""The rows of ``events.parquet`` as whole requests, one row group in memory at a time."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pdkv.errors import UserError

Key = tuple[str, int, int]


@dataclass(slots=True)
class Pieces:
    """The bytes of one response as they came: ``times_s[i]`` (monotonic seconds) is the arrival of ``data[i]``."""

    times_s: npt.NDArray[np.float64]
    data: list[bytes]


def read_pieces(path: Path) -> Iterator[tuple[Key, Pieces]]:
    """Yield ``((phase, point, request), pieces)`` in the order of the file; a request's rows stand together."""
    held: tuple[Key, Pieces] | None = None
    for key, pieces in _runs(path):
        if held and held[0] == key:  # the request goes on in the next row group
            joined = np.concatenate([held[1].times_s, pieces.times_s])
            held = key, Pieces(joined, held[1].data + pieces.data)
            continue
        if held:
            yield held
        held = key, pieces
    if held:
        yield held


def _runs(path: Path) -> Iterator[tuple[Key, Pieces]]:
    """Consecutive rows of one request within a row group."""
    try:
        file = pq.ParquetFile(path)
    except (FileNotFoundError, pa.ArrowInvalid) as error:
        raise UserError(f"cannot read {path}: {error}", remedy="delete it and run snakemake again") from None
    with file:
        for number in range(file.num_row_groups):
            group = file.read_row_group(number).combine_chunks()
            if group.num_rows:
                yield from _runs_of(group)


def _runs_of(group: pa.Table) -> Iterator[tuple[Key, Pieces]]:
    phases, points, requests = (group[name].combine_chunks() for name in ("phase", "point", "request"))
    codes = pc.index_in(phases, pc.unique(phases)).to_numpy()
    identity = np.stack([codes, points.to_numpy(), requests.to_numpy()])
    starts = np.flatnonzero(np.any(np.diff(identity, axis=1, prepend=-2) != 0, axis=0)).tolist()
    times_s = group["t_s"].to_numpy()
    data: list[bytes] = group["data"].to_pylist()  # type: ignore[assignment]
    for start, end in zip(starts, [*starts[1:], len(data)], strict=True):
        key = phases[start].as_py(), points[start].as_py(), requests[start].as_py()
        yield key, Pieces(times_s[start:end], data[start:end])
