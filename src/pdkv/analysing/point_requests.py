"""The requests of one load point as NumPy arrays: what every metric and check of a load is computed from.

100,000 requests of 512 tokens are 51 million arrivals. They are kept in Arrow's own layout (one flat array and the
offsets of each request in it), so that nothing loops over requests in Python.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pdkv.analysing.stats import FloatArray

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]

_FLOATS = (
    "t_send_s", "t_first_s", "t_last_s", "t_end_s", "scheduled_s", "ttft_s", "tpot_s", "e2el_s",
    "input_tokens", "output_tokens", "asked_input_tokens", "asked_output_tokens", "user", "prompt",
)  # fmt: skip
# Of requests.parquet, for whoever reads it for its load.
REQUEST_COLUMNS = ("phase", "point", "request", "part", "status", "error", "token_t_s", "token_n", *_FLOATS)


@dataclass(frozen=True)
class PointRequests:
    """Arrays over the requests of a point in send order; null is NaN. Times are seconds of the host's monotonic clock.

    ``values`` holds the numeric columns of requests.parquet by name. ``token_t_s`` (arrivals) and ``token_n`` (tokens
    in each) are flat over all requests; those of request ``i`` are ``token_offsets[i]:token_offsets[i + 1]``. Where a
    server did not say how many tokens an event carried, ``token_n`` is NaN, and then floats altogether.
    """

    table: pa.Table
    ok: BoolArray
    part: npt.NDArray[np.str_]
    values: dict[str, FloatArray]
    token_offsets: IntArray
    token_t_s: FloatArray
    token_n: npt.NDArray[np.int32] | FloatArray

    def __getitem__(self, column: str) -> FloatArray:
        return self.values[column]

    @property
    def measured(self) -> BoolArray:
        """Requests that count in the statistics: of the measured part and successful."""
        counted: BoolArray = self.ok & (self.part == "measured")
        return counted

    @property
    def sent(self) -> BoolArray:
        """Requests that left the client."""
        return ~np.isnan(self["t_send_s"])

    @property
    def events(self) -> IntArray:
        """Token-bearing events of each request."""
        return np.diff(self.token_offsets)

    def per_token(self, mask: BoolArray) -> BoolArray:
        """A mask over requests as a mask over their token-bearing events."""
        return np.repeat(mask, self.events)

    def gaps_s(self, mask: BoolArray) -> FloatArray:
        """Gaps between consecutive token-bearing events within each request of ``mask``, pooled: the ITLs."""
        if self.token_t_s.size < 2:
            return np.empty(0)
        kept = self.per_token(mask)[1:]
        starts = self.token_offsets[1:-1]
        starts = starts[(starts > 0) & (starts < self.token_t_s.size)]
        kept[starts - 1] = False  # the step from the last event of a request to the first of the next
        gaps: FloatArray = np.diff(self.token_t_s)
        return gaps if kept.all() else gaps[kept]


def points_of(table: pa.Table) -> list[int]:
    """The points that the load of a requests table holds, in order."""
    return [int(point) for point in np.unique(table["point"].to_numpy()[_in_load(table)])]


def requests_of_point(table: pa.Table, point: int) -> PointRequests:
    """The load requests of ``point`` (see requests.parquet in docs/artifacts.md), sorted by the order of sending."""
    rows = np.flatnonzero(_in_load(table) & (table["point"].to_numpy() == point))
    orders = table["request"].to_numpy()[rows]
    if not np.all(orders[1:] > orders[:-1]):
        rows = rows[np.argsort(orders, kind="stable")]
    # The usual case is a block in order: a slice shares the memory of the table, a selection copies it.
    if rows.size and np.all(np.diff(rows) == 1):
        return from_table(table.slice(int(rows[0]), rows.size))
    return from_table(table.take(rows))


def from_table(table: pa.Table) -> PointRequests:
    """Arrays over all rows of a requests table, in its order."""
    offsets, token_t_s = _flat(table["token_t_s"], np.dtype(np.float64))
    _, token_n = _flat(table["token_n"], np.dtype(np.int32))
    return PointRequests(
        table=table,
        ok=_texts(table["status"]) == "ok",
        part=_texts(table["part"]),
        values={name: _floats(table[name]) for name in _FLOATS},
        token_offsets=offsets,
        token_t_s=token_t_s,
        token_n=token_n,
    )


def _in_load(table: pa.Table) -> BoolArray:
    in_load: BoolArray = _texts(table["phase"]) == "load"
    return in_load


def _texts(column: "pa.ChunkedArray[Any]") -> npt.NDArray[np.str_]:
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.str_)


def _floats(column: "pa.ChunkedArray[Any]") -> FloatArray:
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.float64)


def _flat(column: "pa.ChunkedArray[Any]", dtype: np.dtype[Any]) -> tuple[IntArray, Any]:
    """(offsets, values) of a list column; a null list is an empty one, a null value NaN among floats."""
    lengths, values = [np.zeros(1, np.int64)], []
    lists: Iterable[Any] = column.chunks
    for chunk in lists:
        limits = chunk.offsets.to_numpy().astype(np.int64)
        lengths.append(np.where(chunk.is_valid(), np.diff(limits), 0) if chunk.null_count else np.diff(limits))
        held = chunk.flatten() if chunk.null_count else chunk.values[limits[0] : limits[-1]]
        values.append(held.to_numpy(zero_copy_only=False))
    # A single chunk, the usual case, shares its memory.
    flat = values[0] if len(values) == 1 else np.concatenate([np.empty(0, dtype), *values])
    return np.cumsum(np.concatenate(lengths)), flat
