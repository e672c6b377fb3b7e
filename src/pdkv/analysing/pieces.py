"""The rows of ``events.parquet`` as whole requests, one row group in memory at a time."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pdkv.artifacts import open_parquet

Key = tuple[str, int, int]
Number = TypeVar("Number", bound=np.generic)


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
    with open_parquet(path) as file:
        for number in range(file.num_row_groups):
            group = file.read_row_group(number).combine_chunks()
            if group.num_rows:
                yield from _runs_of(group)


def _runs_of(group: pa.Table) -> Iterator[tuple[Key, Pieces]]:
    points, requests = _values(group["point"], np.int16), _values(group["request"], np.int32)
    times_s = _values(group["t_s"], np.float64)
    changes = (np.diff(points) != 0) | (np.diff(requests) != 0)  # the phase never changes without the point
    starts = [0, *(np.flatnonzero(changes) + 1).tolist()]
    data = _bytes(group["data"])
    for start, end in zip(starts, [*starts[1:], len(data)], strict=True):
        key = str(group["phase"][start]), int(points[start]), int(requests[start])
        yield key, Pieces(times_s[start:end], data[start:end])


def _bytes(column: "pa.ChunkedArray[Any]") -> list[bytes]:
    """The values of a binary column, cut from its buffer: Arrow's own way makes two objects of each."""
    values: list[bytes] = []
    for chunk in column.chunks:
        _, offsets, data = chunk.buffers()
        if offsets and data:
            limits = np.frombuffer(memoryview(offsets), np.int32)[chunk.offset :][: len(chunk) + 1].tolist()
            whole = data.to_pybytes()
            values += [whole[start:end] for start, end in pairwise(limits)]
    return values


def _values(column: "pa.ChunkedArray[Any]", kind: type[Number]) -> npt.NDArray[Number]:
    """The values of a column without nulls."""
    return np.concatenate([chunk.to_numpy() for chunk in column.chunks]).astype(kind, copy=False)
