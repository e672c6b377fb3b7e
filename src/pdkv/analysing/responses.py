"""Bytes of the socket become requests: HTTP, server-sent events and JSON are read here, after the load.

An event arrives with the piece that carries its last byte. It bears tokens if its ``token_ids`` are not empty; only
where a server sends no token ids at all, if its text is not. The columns are those of ``docs/artifacts.md``.
"""

import contextlib
import gc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httptools
import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from pdkv.analysing.event_stream import NO_SHAPE, split_events, token_shape
from pdkv.analysing.pieces import Pieces, read_pieces
from pdkv.artifacts import read_parquet

EXCERPT = 300  # characters of what a server said that go into an error's text
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


@dataclass(slots=True)
class Response:
    """What one response said. ``token_t_s`` are monotonic seconds; a count in ``token_n`` is None where not known.

    ``error`` is the first thing wrong with the content; that the connection broke or the time ran out is not in the
    bytes but in the record of the send.
    """

    http_status: int | None = None
    token_t_s: npt.NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    token_n: Sequence[int | None] = ()
    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str | None = None
    error: str | None = None


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
        return Response(http_status=status, error=f"HTTP {status}: {_said(body)}" if status else None)
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
    stream = _Stream()
    stream.read(payloads)
    numbers, counts = stream.tokens()
    token_t_s = times_s[np.searchsorted(body_after_piece, ends[numbers])]
    return stream.response(token_t_s, counts, body)


class _Stream:
    """Collects what the events of one completion stream say."""

    def __init__(self) -> None:
        self.id_events: list[int] = []  # numbers of the events with token ids, and how many
        self.id_counts: list[int] = []
        self.text_events: list[int] = []
        self.usage: dict[str, Any] | None = None
        self.finish_reason: str | None = None
        self.done = False
        self.error: str | None = None

    def read(self, payloads: list[bytes]) -> None:
        """Read the data of all events: one loop, for there are millions."""
        loads, id_events, id_counts = orjson.loads, self.id_events, self.id_counts
        head, middle, tail = NO_SHAPE
        text = len(head)
        for number, payload in enumerate(payloads):
            if payload.startswith(head) and payload.endswith(tail):
                text_end = payload.find(b'"', text)
                if payload.startswith(middle, text_end) and payload[text_end + len(middle) : -len(tail)].isdigit():
                    id_events.append(number)
                    id_counts.append(1)
                    continue
            if not payload:
                continue
            if payload == b"[DONE]":
                self.done = True
                continue
            try:
                content = loads(payload)
                choices = content.get("choices")
                if choices:
                    choice = choices[0]
                    ids = choice.get("token_ids")
                    if ids:
                        id_events.append(number)
                        id_counts.append(len(ids))
                    elif choice.get("text"):
                        self.text_events.append(number)
                    if reason := choice.get("finish_reason"):
                        self.finish_reason = reason
                    elif ids and len(ids) == len(choices) == 1 and not content.get("usage"):
                        head, middle, tail = token_shape(payload, ids[0]) or (head, middle, tail)
                        text = len(head)
                elif content.get("error") or content.get("object") == "error":
                    self.error = self.error or f"error in mid-stream: {_message(content)}"
                if usage := content.get("usage"):
                    self.usage = usage
            except (orjson.JSONDecodeError, AttributeError, TypeError, LookupError):
                self.error = self.error or f"not a completion event: {_said(payload)}"

    def tokens(self) -> tuple[list[int], Sequence[int | None]]:
        """Numbers of the token-bearing events and the tokens in each."""
        if self.id_events:
            return self.id_events, self.id_counts
        told = (self.usage or {}).get("completion_tokens")
        one_each = told == len(self.text_events)
        return self.text_events, [1 if one_each else None] * len(self.text_events)

    def response(self, token_t_s: npt.NDArray[np.float64], counts: Sequence[int | None], body: bytes) -> Response:
        usage = self.usage or {}
        details = usage.get("prompt_tokens_details") or {}
        received = sum(self.id_counts) if self.id_counts else None
        told = usage.get("completion_tokens")
        return Response(
            http_status=200,
            token_t_s=token_t_s,
            token_n=counts,
            input_tokens=usage.get("prompt_tokens"),
            cached_tokens=details.get("cached_tokens"),
            output_tokens=received if told is None else told,
            finish_reason=self.finish_reason,
            error=self.error or self._fault(told, received, len(counts), body),
        )

    def _fault(self, told: int | None, received: int | None, events: int, body: bytes) -> str | None:
        if not self.done:
            return "stream without [DONE]" + ("" if events else f": {_said(body)}")
        if not events:
            return "stream without a token"
        if told is None and received is None:
            return "neither usage nor token ids: number of output tokens not known"
        if told is not None and (told != received if received is not None else told < events):
            return f"usage says {told} output tokens, {events if received is None else received} were received"
        return None if self.finish_reason else "stream without a finish reason"


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


def _message(content: dict[str, Any]) -> str:
    error = content.get("error")
    inner = error if isinstance(error, dict) else content
    return str(inner.get("message") or error or content)[:EXCERPT]


def _said(body: bytes) -> str:
    """The message of an error body, or how the body begins."""
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError:
        content = None
    if isinstance(content, dict):
        return _message(content)
    return body[:EXCERPT].decode("utf-8", "replace").strip()
