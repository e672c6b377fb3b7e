"""Bytes of the socket become requests: HTTP, server-sent events and JSON are read here, after the load.

An event arrives with the piece that carries its last byte. The columns are those of ``docs/artifacts.md``.
"""

import contextlib
import gc
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httptools
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pdkv.analysing.completion_stream import CompletionStream, Response, said
from pdkv.analysing.event_stream import split_events
from pdkv.analysing.pieces import Pieces, read_pieces
from pdkv.artifacts import read_parquet

Level = tuple[int | None, float | None]

_COLUMNS: list[tuple[str, pa.DataType]] = [
    ("phase", pa.string()),
    ("point", pa.int16()),
    ("request", pa.int32()),
    ("part", pa.string()),
    ("prompt", pa.int32()),
    ("user", pa.int32()),
    ("target", pa.string()),
    ("concurrency", pa.int32()),
    ("rate", pa.float64()),
    ("status", pa.string()),
    ("error", pa.string()),
    ("http_status", pa.int16()),
    ("connection", pa.string()),
    ("scheduled_s", pa.float64()),
    ("t_send_s", pa.float64()),
    ("t_first_s", pa.float64()),
    ("t_last_s", pa.float64()),
    ("t_end_s", pa.float64()),
    ("asked_input_tokens", pa.int32()),
    ("asked_output_tokens", pa.int32()),
    ("input_tokens", pa.int32()),
    ("cached_tokens", pa.int32()),
    ("output_tokens", pa.int32()),
    ("finish_reason", pa.string()),
    ("ttft_s", pa.float64()),
    ("tpot_s", pa.float64()),
    ("e2el_s", pa.float64()),
    ("token_t_s", pa.list_(pa.float64())),
    ("token_n", pa.list_(pa.int32())),
]
REQUESTS_SCHEMA = pa.schema(_COLUMNS)


def read_requests(sends: Path, events: Path, points: Sequence[Mapping[str, Any]]) -> pa.Table:
    """One row per request of ``sends.parquet``, in its order, read from the bytes in ``events.parquet``.

    ``points`` are those of stages.json (``point``, ``concurrency``, ``rate``). Bytes are held one row group at a time.
    """
    levels: dict[int, Level] = {point["point"]: (point["concurrency"], point["rate"]) for point in points}
    sent = read_parquet(sends).to_pylist()
    rows = {(row["phase"], row["point"], row["request"]): number for number, row in enumerate(sent)}
    read = [Response() for _ in sent]
    with _garbage_collector_at_rest():
        for key, pieces in read_pieces(events):
            read[rows[key]] = read_response(pieces)
    return _table([_request(row, answer, levels) for row, answer in zip(sent, read, strict=True)], read)


def read_response(pieces: Pieces) -> Response:
    """Read one response, complete or not, from its pieces in order of arrival."""
    head_and_body = _HeadAndBody()
    parser = httptools.HttpResponseParser(head_and_body)
    feed, parts = parser.feed_data, head_and_body.parts
    parts_after_piece = []
    try:
        for piece in pieces.data:
            feed(piece)
            parts_after_piece.append(len(parts))
    except httptools.HttpParserError as error:
        return Response(error=f"not an HTTP response: {error}")
    status = parser.get_status_code() if parts_after_piece and head_and_body.begun else None
    body = b"".join(parts)
    if status != 200:
        return Response(http_status=status, error=f"HTTP {status}: {said(body)}" if status else None)
    part_ends = np.concatenate([[0], np.cumsum([len(part) for part in parts], dtype=np.int64)])
    return _read_stream(body, part_ends[parts_after_piece], pieces.times_s)


class _HeadAndBody:
    """What the HTTP parser calls back: parts of the body go straight into a list."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.on_body = self.parts.append
        self.begun = False

    def on_headers_complete(self) -> None:
        self.begun = True


def _read_stream(body: bytes, body_after_piece: npt.NDArray[np.int64], times_s: npt.NDArray[np.float64]) -> Response:
    """Read the events of a body, of which ``body_after_piece`` bytes were there at ``times_s``."""
    payloads, ends = split_events(body)
    stream = CompletionStream()
    stream.read(payloads)
    numbers, counts = stream.tokens()
    token_t_s = times_s[np.searchsorted(body_after_piece, ends[numbers])]
    return stream.response(token_t_s, counts, body)


@contextlib.contextmanager
def _garbage_collector_at_rest() -> Iterator[None]:
    """Nothing made here refers to itself; looking for that, over and over, takes a third of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _request(send: dict[str, Any], answer: Response, levels: Mapping[int, Level]) -> dict[str, Any]:
    """A row without its tokens."""
    error = answer.error
    if send["outcome"] != "answered":
        error = f"{send['outcome']}: {send['error']}" if send["error"] else send["outcome"]
    elif answer.http_status is None:
        error = error or "no response in the evidence"
    concurrency, rate = levels.get(send["point"], (None, None)) if send["phase"] == "load" else (None, None)
    first_s, last_s = (
        (float(answer.token_t_s[0]), float(answer.token_t_s[-1])) if len(answer.token_t_s) else (None, None)
    )
    row = {name: send.get(name) for name in REQUESTS_SCHEMA.names}
    row |= {
        "concurrency": concurrency,
        "rate": rate,
        "status": "error" if error else "ok",
        "error": error,
        "asked_input_tokens": send["input_tokens"],
        "asked_output_tokens": send["output_tokens"],
        "t_first_s": first_s,
        "t_last_s": last_s,
    }
    for name in ("http_status", "input_tokens", "cached_tokens", "output_tokens", "finish_reason"):
        row[name] = getattr(answer, name)
    if not error and first_s is not None and last_s is not None:
        row["ttft_s"] = first_s - send["t_send_s"]
        row["e2el_s"] = last_s - send["t_send_s"]
        if (answer.output_tokens or 0) > 1:
            row["tpot_s"] = (last_s - first_s) / ((answer.output_tokens or 0) - 1)
    return row


def _table(rows: list[dict[str, Any]], read: list[Response]) -> pa.Table:
    plain = pa.schema([column for column in REQUESTS_SCHEMA if column.name not in ("token_t_s", "token_n")])
    table = pa.Table.from_pylist(rows, schema=plain)
    offsets = np.concatenate([[0], np.cumsum([len(answer.token_n) for answer in read])]).astype(np.int32)
    times_s = pa.array(np.concatenate([np.empty(0), *(answer.token_t_s for answer in read)]))
    counts = pa.array([count for answer in read for count in answer.token_n], pa.int32())
    starts = pa.array(offsets, pa.int32())
    table = table.append_column("token_t_s", pa.ListArray.from_arrays(starts, times_s))
    return table.append_column("token_n", pa.ListArray.from_arrays(starts, counts))
