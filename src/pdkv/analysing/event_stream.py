"""Server-sent events: a body of bytes becomes the data of its events and where each ends.

Lines end with LF, CR LF or CR and nothing else; what Python's text calls line ends is content here.
"""

import re
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

FIELD = b"data: "
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# Atomic groups: a CR LF is one line end, never a CR followed by an empty line's LF.
BLANK_LINE = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
LINE_END = re.compile(rb"\r\n|\n|\r")


class TokenShape(NamedTuple):
    """What events of one stream with one token each have in common: all but the text and the token's number.

    An event that is ``head``, a text without quotes, ``middle``, digits and ``tail`` needs no JSON parser.
    """

    head: bytes
    middle: bytes
    tail: bytes


NO_SHAPE = TokenShape(b"\0", b"", b"")  # no event begins like this
_TEXT, _TOKENS = b'"text":"', b'"token_ids":['


def token_shape(payload: bytes, token: int) -> TokenShape | None:
    """The shape of an event that carries ``token`` and nothing else; None if it is written in another way."""
    text = payload.find(_TEXT) + len(_TEXT)
    text_end = payload.find(b'"', text)
    number = payload.find(_TOKENS, text_end) + len(_TOKENS)
    tail = payload[number:].removeprefix(str(token).encode())
    alike = text >= len(_TEXT) and number >= len(_TOKENS) and tail.startswith(b"]")
    if not alike or b"\\" in payload[text:text_end] or payload.count(_TOKENS) > 1:
        return None
    return TokenShape(payload[:text], payload[text_end:number], tail)


def split_events(body: bytes) -> tuple[list[bytes], npt.NDArray[np.int64]]:
    """``(data, ends)``: each event's data, and the offset in ``body`` just behind its blank line.

    Comments, pings and events without data are there with empty data. What follows the last blank line is an event
    too if it is not empty: some servers end the body with a single line end, and a cut one is not JSON.
    """
    payloads = body[len(FIELD) : -2].split(b"\n\n" + FIELD)
    if (
        body.startswith(FIELD)
        and body.endswith(b"\n\n")
        and body.count(b"\n") == 2 * len(payloads)
        and b"\r" not in body
    ):
        # nearly always: one data line an event, split by C code
        return payloads, np.cumsum(np.fromiter(map(len, payloads), np.int64, len(payloads)) + len(FIELD) + 2)
    return _split_any_events(body)


def _split_any_events(body: bytes) -> tuple[list[bytes], npt.NDArray[np.int64]]:
    """The same for events that are more than one data line each, or with other line ends."""
    if b"\r" in body:
        blanks = list(BLANK_LINE.finditer(body))
        starts = [0, *(blank.end() for blank in blanks)]
        events = [body[start : blank.start()] for start, blank in zip(starts, blanks, strict=False)]
        events.append(body[starts[-1] :])
        ends = np.array([*starts[1:], len(body)], dtype=np.int64)
    else:
        events = body.split(b"\n\n")
        ends = np.cumsum(np.fromiter(map(len, events), np.int64, len(events)) + 2)
        ends[-1] = len(body)
    if events and events[0].startswith(BYTE_ORDER_MARK):
        events[0] = events[0][len(BYTE_ORDER_MARK) :]
    return [_data(event) for event in events], ends


def _data(event: bytes) -> bytes:
    """The data lines of an event, joined; empty for a comment or a ping."""
    lines = []
    for line in LINE_END.split(event):
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            lines.append(value)
        elif name == b"event" and value == b"ping":
            return b""
    return b"\n".join(lines)
