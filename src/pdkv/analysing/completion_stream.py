"""What the events of one completion stream say: tokens, usage, how it ended, what was wrong with it.

An event bears tokens if its ``token_ids`` are not empty; only where a server sends no token ids at all, if its text is
not.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from pdkv.analysing.event_stream import NO_SHAPE, token_shape

EXCERPT = 300  # characters of what a server said that go into an error's text


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


class CompletionStream:
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
                self.error = self.error or f"not a completion event: {said(payload)}"

    def tokens(self) -> tuple[list[int], Sequence[int | None]]:
        """Numbers of the token-bearing events and the tokens in each."""
        if self.id_events:
            return self.id_events, self.id_counts
        told = (self.usage or {}).get("completion_tokens")
        one_each = told == len(self.text_events)
        return self.text_events, [1 if one_each else None] * len(self.text_events)

    def response(self, token_t_s: npt.NDArray[np.float64], counts: Sequence[int | None], body: bytes) -> Response:
        """All of it, with the arrival and the tokens of each token-bearing event; ``body`` is what may explain none."""
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
            return "stream without [DONE]" + ("" if events else f": {said(body)}")
        if not events:
            return "stream without a token"
        if told is None and received is None:
            return "neither usage nor token ids: number of output tokens not known"
        if told is not None and (told != received if received is not None else told < events):
            return f"usage says {told} output tokens, {events if received is None else received} were received"
        return None if self.finish_reason else "stream without a finish reason"


def _message(content: dict[str, Any]) -> str:
    error = content.get("error")
    inner = error if isinstance(error, dict) else content
    return str(inner.get("message") or error or content)[:EXCERPT]


def said(body: bytes) -> str:
    """The message of an error body, or how the body begins."""
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError:
        content = None
    if isinstance(content, dict):
        return _message(content)
    return body[:EXCERPT].decode("utf-8", "replace").strip()
