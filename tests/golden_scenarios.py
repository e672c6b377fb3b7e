"""What the golden server plays: each scenario is a script of bytes and times for one request."""

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

KEEP_ALIVE = b": keep-alive\n\n"
HEAD = b"HTTP/1.1 200 OK\r\nserver: golden\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
TOKEN_IDS = itertools.cycle(range(1000, 10_000))  # all of four digits


class Step(NamedTuple):
    """Write ``data`` ``at_s`` after the request was received; its last byte completes an event of ``tokens`` tokens."""

    at_s: float
    data: bytes
    tokens: int = 0
    close: bool = False


@dataclass
class Ask:
    """What a script needs to know of a request."""

    id: str
    model: str
    prompt_tokens: int
    output_tokens: int
    ttft_s: float
    itl_s: float
    usage: bool
    around_id: tuple[bytes, bytes] | None = None

    def token_s(self, number: int) -> float:
        return self.ttft_s + number * self.itl_s

    def event(self, tokens: int = 1, text: str = " t", finish: bool = False, ids: list[int] | None = None) -> bytes:
        choice = {
            "index": 0,
            "text": text * tokens,
            "logprobs": None,
            "finish_reason": "length" if finish else None,
            "stop_reason": None,
            "token_ids": ids or [next(TOKEN_IDS) for _ in range(tokens)],
        }
        return self.data({"choices": [choice], "usage": None})

    def token_chunk(self) -> bytes:
        """A chunk with one token, as ``chunk(event())`` makes it but without encoding JSON each time."""
        if self.around_id is None:
            before, after = chunk(self.event(ids=[1000])).split(b"1000]")
            self.around_id = before, b"]" + after
        return self.around_id[0] + b"%d" % next(TOKEN_IDS) + self.around_id[1]

    def data(self, content: dict[str, object]) -> bytes:
        whole = {"id": self.id, "object": "text_completion", "created": 1_790_000_000, "model": self.model, **content}
        return b"data: " + json.dumps(whole, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"

    def end(self, at_s: float, output_tokens: int | None = None) -> Iterator[Step]:
        if self.usage:
            count = self.output_tokens if output_tokens is None else output_tokens
            usage = {"prompt_tokens": self.prompt_tokens, "completion_tokens": count}
            usage["total_tokens"] = self.prompt_tokens + count
            yield Step(at_s, chunk(self.data({"choices": [], "usage": usage})))
        yield Step(at_s, chunk(b"data: [DONE]\n\n") + LAST_CHUNK)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def tokens_from(ask: Ask, first: int) -> Iterator[Step]:
    last = ask.output_tokens - 1
    for number in range(first, last):
        yield Step(ask.token_s(number), ask.token_chunk(), 1)
    if first <= last:
        yield Step(ask.token_s(last), chunk(ask.event(finish=True)), 1)


def steady(ask: Ask) -> Iterator[Step]:
    """One token an event, usage, [DONE]."""
    yield Step(ask.ttft_s, HEAD)
    yield from tokens_from(ask, 0)
    yield from ask.end(ask.token_s(ask.output_tokens - 1))


def several(ask: Ask) -> Iterator[Step]:
    """Four tokens an event, as with speculative or multi-step decoding."""
    yield Step(ask.ttft_s, HEAD)
    sent = 0
    while sent < ask.output_tokens:
        n = min(4, ask.output_tokens - sent)
        sent += n
        yield Step(ask.token_s(sent - n), chunk(ask.event(n, finish=sent == ask.output_tokens)), n)
    yield from ask.end(ask.token_s(ask.output_tokens - 1))


def one_segment(ask: Ask) -> Iterator[Step]:
    """All events of the stream in a single write, a chunk each."""
    chunks = b"".join(step.data for step in steady(ask))
    yield Step(ask.ttft_s, chunks, ask.output_tokens)


def split(ask: Ask) -> Iterator[Step]:
    """The second event in two segments, cut inside a character, its text full of what Python calls line ends."""
    yield Step(0, HEAD)
    yield Step(ask.token_s(0), chunk(ask.event()), 1)
    whole = chunk(ask.event(text="a\u2028b\x85c\u2029dé"))
    cut = whole.index("é".encode()) + 1
    yield Step(ask.token_s(1) - ask.itl_s / 2, whole[:cut])
    yield Step(ask.token_s(1), whole[cut:], 1)
    yield from tokens_from(ask, 2)
    yield from ask.end(ask.token_s(ask.output_tokens - 1))


def empty_first(ask: Ask) -> Iterator[Step]:
    """An event without a token right away, as vLLM's chat stream begins."""
    yield Step(0, HEAD + chunk(ask.event(0)))
    yield from list(steady(ask))[1:]


def pings(ask: Ask) -> Iterator[Step]:
    """Comments, empty data and ping events before the first token and between tokens."""
    fifth = ask.ttft_s / 5
    yield Step(0, HEAD)
    yield Step(fifth, chunk(KEEP_ALIVE))
    yield Step(2 * fifth, chunk(KEEP_ALIVE))
    yield Step(3 * fifth, chunk(b"data:\n\n"))
    yield Step(4 * fifth, chunk(b"event: ping\ndata: {}\n\n"))
    for number, step in enumerate(tokens_from(ask, 0)):
        yield step
        yield Step(ask.token_s(number) + ask.itl_s / 2, chunk(KEEP_ALIVE))
    yield from ask.end(ask.token_s(ask.output_tokens - 1) + ask.itl_s / 2)


def crlf(ask: Ask) -> Iterator[Step]:
    """Token events with CRLF line ends."""
    for step in steady(ask):
        event = step.data.partition(b"\r\n")[2][:-2]
        yield Step(step.at_s, chunk(event.replace(b"\n", b"\r\n")), 1) if step.tokens else step


def error_midway(ask: Ask) -> Iterator[Step]:
    """Half the tokens, then an error event, then a well-formed end."""
    half = ask.output_tokens // 2
    yield Step(ask.ttft_s, HEAD)
    yield from itertools.islice(tokens_from(ask, 0), half)
    error = {"error": {"message": "EngineCore died", "type": "InternalServerError", "code": 500}}
    yield Step(ask.token_s(half), chunk(b"data: " + json.dumps(error).encode() + b"\n\n"))
    yield Step(ask.token_s(half), chunk(b"data: [DONE]\n\n") + LAST_CHUNK)


def wrong_usage(ask: Ask) -> Iterator[Step]:
    """Usage that claims one token more than was sent."""
    yield from list(steady(ask))[:-2]
    yield from ask.end(ask.token_s(ask.output_tokens - 1), ask.output_tokens + 1)


def no_done(ask: Ask) -> Iterator[Step]:
    """A complete HTTP response whose stream stops without [DONE]."""
    yield from list(steady(ask))[:-2]
    yield Step(ask.token_s(ask.output_tokens - 1), LAST_CHUNK)


def truncated(ask: Ask) -> Iterator[Step]:
    """Half the tokens, then the connection is closed in mid-body."""
    steps = list(steady(ask))[: 1 + ask.output_tokens // 2]
    yield from steps
    yield Step(steps[-1].at_s, b"", close=True)


def status_500(ask: Ask) -> Iterator[Step]:
    body = b'{"error":{"message":"no memory left","type":"InternalServerError","code":500}}'
    yield Step(ask.ttft_s, b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))


def error_body(ask: Ask) -> Iterator[Step]:
    """HTTP 200, and an error where the stream should be."""
    body = b'{"error":{"message":"the engine is not ready","type":"ServiceUnavailable","code":503}}'
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    yield Step(ask.ttft_s, head + body)


def empty(ask: Ask) -> Iterator[Step]:
    """A well-formed stream without a token."""
    yield Step(ask.ttft_s, HEAD)
    yield from ask.end(ask.ttft_s, 0)


def other_length(ask: Ask, tokens: int) -> Iterator[Step]:
    """Well-formed, with another number of tokens than was asked for."""
    yield from steady(replace(ask, output_tokens=tokens))


def shorter(ask: Ask) -> Iterator[Step]:
    """Half the tokens, then a regular end."""
    yield from other_length(ask, ask.output_tokens // 2)


def longer(ask: Ask) -> Iterator[Step]:
    """Twice the tokens."""
    yield from other_length(ask, ask.output_tokens * 2)


def garbage(ask: Ask) -> Iterator[Step]:
    """Bytes that are no HTTP."""
    yield Step(ask.ttft_s, b"\x16\x03\x01\x00\xa5 SSH-2.0\r\n\x00\xff\r\n\r\n")
    yield Step(ask.ttft_s, b"", close=True)


def drip(ask: Ask) -> Iterator[Step]:
    """Like steady over a slow line: every write arrives in ten parts, spread over the time to the next one."""
    for step in steady(ask):
        size = max(1, len(step.data) // 9)
        parts = [step.data[at : at + size] for at in range(0, len(step.data), size)]
        for number, part in enumerate(parts, 1):
            last = number == len(parts)
            yield Step(step.at_s + ask.itl_s * number / 10, part, step.tokens if last else 0)


def stall(ask: Ask) -> Iterator[Step]:
    """Half the tokens and then nothing, though the connection stays."""
    yield from list(steady(ask))[: 1 + ask.output_tokens // 2]


def hang(ask: Ask) -> Iterator[Step]:
    """A head and nothing more."""
    yield Step(0, HEAD)


def pings_forever(ask: Ask) -> Iterator[Step]:
    """Comments every 0.1 s and never a token."""
    yield Step(0, HEAD)
    for number in itertools.count(1):
        yield Step(0.1 * number, chunk(KEEP_ALIVE))


def until_close(ask: Ask) -> Iterator[Step]:
    """No chunks, no length: the end of the connection is the end of the body."""
    yield Step(ask.ttft_s, b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
    for number in range(ask.output_tokens):
        yield Step(ask.token_s(number), ask.event(finish=number == ask.output_tokens - 1), 1)
    last_s = ask.token_s(ask.output_tokens - 1)
    yield from (
        Step(step.at_s, step.data.split(b"\r\n")[1] if step.data[:1] != b"0" else b"") for step in ask.end(last_s)
    )
    yield Step(last_s, b"", close=True)


def refuse_second(ask: Ask) -> Iterator[Step]:
    """Like steady; the server closes the connection when a second request comes on it."""
    yield from steady(ask)


def close_after(ask: Ask) -> Iterator[Step]:
    """Like steady, closed 0.1 s after a response that promised to keep the connection."""
    yield from steady(ask)
    yield Step(ask.token_s(ask.output_tokens - 1) + 0.1, b"", close=True)


def serial_prefill(ask: Ask) -> Iterator[Step]:
    """Like steady; prefills queue: each takes TTFT seconds of a server that does one at a time."""
    yield from steady(ask)


SCENARIOS: dict[str, Callable[[Ask], Iterator[Step]]] = {
    script.__name__.replace("_", "-"): script
    for script in (
        *(steady, several, one_segment, split, empty_first, pings, crlf, error_midway, wrong_usage, no_done),
        *(truncated, status_500, hang, pings_forever, until_close, refuse_second, close_after, serial_prefill),
        *(error_body, empty, shorter, longer, garbage, drip, stall),
    )
}
