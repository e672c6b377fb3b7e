"""What came back for each request, byte for byte, and the two files that keep it: sends and events.

Nothing is read from the bytes here. The columns are those of ``docs/artifacts.md``.
"""

import contextlib
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pdkv.artifacts import atomic_path
from pdkv.redaction import redact, redact_answer, secret_values

Phase = Literal["warmup", "load"]
Outcome = Literal["answered", "timeout", "refused", "closed", "cancelled"]

SENDS_COLUMNS: list[tuple[str, pa.DataType]] = [
    ("phase", pa.string()),
    ("point", pa.int16()),
    ("request", pa.int32()),
    ("target", pa.string()),
    ("part", pa.string()),
    ("prompt", pa.int32()),
    ("user", pa.int32()),
    ("input_tokens", pa.int32()),
    ("output_tokens", pa.int32()),
    ("scheduled_s", pa.float64()),
    ("t_send_s", pa.float64()),
    ("t_end_s", pa.float64()),
    ("connection", pa.string()),
    ("outcome", pa.string()),
    ("error", pa.string()),
]
SENDS_SCHEMA = pa.schema(SENDS_COLUMNS)
EVENTS_COLUMNS: list[tuple[str, pa.DataType]] = [
    ("phase", pa.string()),
    ("point", pa.int16()),
    ("request", pa.int32()),
    ("t_s", pa.float64()),
    ("data", pa.binary()),
]
EVENTS_SCHEMA = pa.schema(EVENTS_COLUMNS)
ROW_GROUP_BYTES = 32 << 20


class Answer:
    """One request: when it was due, sent and over, how that ended, and the pieces of bytes the socket gave.

    Times are monotonic seconds. ``t_send_s`` is None where nothing was sent, ``connection`` where none was had.
    """

    __slots__ = (
        "connection",
        "error",
        "outcome",
        "part",
        "piece_bytes",
        "piece_lengths",
        "piece_times_s",
        "prompt",
        "scheduled_s",
        "t_end_s",
        "t_send_s",
        "user",
    )

    def __init__(self, part: str, prompt: int, user: int | None, scheduled_s: float) -> None:
        self.part = part
        self.prompt = prompt
        self.user = user
        self.scheduled_s = scheduled_s
        self.t_send_s: float | None = None
        self.t_end_s: float | None = None
        self.connection: Literal["new", "reused"] | None = None
        self.outcome: Outcome = "cancelled"
        self.error: str | None = None
        self.piece_times_s = array("d")
        self.piece_lengths = array("q")
        self.piece_bytes = b""

    def keep(self, stamps_and_pieces: list[float | bytes]) -> None:
        """Take over ``[stamp, bytes, stamp, bytes, …]`` as three flat buffers, a tenth of the size as objects."""
        pieces: list[bytes] = stamps_and_pieces[1::2]  # type: ignore[assignment]
        self.piece_times_s = array("d", stamps_and_pieces[0::2])  # type: ignore[arg-type]
        self.piece_lengths = array("q", map(len, pieces))
        self.piece_bytes = b"".join(pieces)


class Recorder:
    """Writes ``sends.parquet`` and ``events.parquet`` into a folder, load point by load point.

    A context manager: at its end both files appear under their names, also after an error (what was measured
    until then is evidence), but not after an interruption. Memory is that of the point being appended.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._sends: list[pa.Table] = []
        self._requests: dict[tuple[str, int], int] = {}
        self._files = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._events = self._files.enter_context(self._events_writer())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None or issubclass(kind, Exception):
            kind = error = trace = None  # for the files, an error elsewhere is a normal end
            with atomic_path(self.folder / "sends.parquet") as temporary:
                pq.write_table(
                    pa.concat_tables([SENDS_SCHEMA.empty_table(), *self._sends]), temporary, compression="zstd"
                )
        self._files.__exit__(kind, error, trace)

    def append(
        self, phase: Phase, point: int, target: str, input_tokens: int, output_tokens: int, answers: list[Answer]
    ) -> None:
        """Add the answers of one run, in send order; runs of the same phase and point are numbered on.

        A server may echo what it inherited in an answer: secrets are covered in it, here and for good.
        """
        secrets = secret_values()
        for answer in answers:
            answer.piece_bytes = redact_answer(answer.piece_bytes, secrets)
            answer.error = answer.error and redact(answer.error, secrets)
        first = self._requests.get((phase, point), 0)
        self._requests[phase, point] = first + len(answers)
        columns: dict[str, Any] = {
            name: [getattr(a, name) for a in answers] for name in SENDS_SCHEMA.names if hasattr(Answer, name)
        }
        same = {
            "phase": phase,
            "point": point,
            "target": target,
            "input_tokens": input_tokens,
            "output_tokens": output_tokens,
        }
        columns |= {name: [value] * len(answers) for name, value in same.items()}
        columns["request"] = range(first, first + len(answers))
        self._sends.append(pa.table(columns, schema=SENDS_SCHEMA))
        for group in _groups(enumerate(answers, first)):
            self._events.write_batch(_events_batch(phase, point, group))

    @contextlib.contextmanager
    def _events_writer(self) -> Iterator[pq.ParquetWriter]:
        with (
            atomic_path(self.folder / "events.parquet") as temporary,
            pq.ParquetWriter(temporary, EVENTS_SCHEMA, compression="zstd") as writer,
        ):
            yield writer


def _groups(numbered: Iterable[tuple[int, Answer]]) -> Iterator[list[tuple[int, Answer]]]:
    """Whole requests, together about ``ROW_GROUP_BYTES``: a reader holds one group at a time."""
    group: list[tuple[int, Answer]] = []
    size = 0
    for number, answer in numbered:
        group.append((number, answer))
        size += len(answer.piece_bytes)
        if size >= ROW_GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _events_batch(phase: Phase, point: int, group: list[tuple[int, Answer]]) -> pa.RecordBatch:
    """The pieces of a group as rows, made from whole buffers: no Python object per piece."""
    lengths = np.concatenate([np.frombuffer(answer.piece_lengths, np.int64) for _, answer in group])
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    data = pa.py_buffer(b"".join(answer.piece_bytes for _, answer in group))
    rows = len(lengths)
    requests = np.repeat([number for number, _ in group], [len(answer.piece_lengths) for _, answer in group])
    return pa.record_batch(
        [
            pa.repeat(phase, rows),
            pa.repeat(pa.scalar(point, pa.int16()), rows),
            pa.array(requests.astype(np.int32)),
            pa.array(np.concatenate([np.frombuffer(answer.piece_times_s, np.float64) for _, answer in group])),
            pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets.data), data]),
        ],
        schema=EVENTS_SCHEMA,
    )
