"""A server whose token times are known: it plays scripted bytes at scripted times and writes down when it did.

Speaks HTTP/1.1 with chunked server-sent events as vLLM's ``/v1/completions`` does, in one thread around ``epoll``:
``python tests/golden_server.py --port 0 --ttft-s 0.05 --itl-s 0.02`` prints the port it listens on and runs until
SIGTERM. A request chooses its scenario by the last part of its model name (``golden/hang``), by the header
``x-golden``, or else gets that of ``--scenario``; the names are the keys of ``SCENARIOS``.

``GET /truth`` answers, by request id, ``{"received_s", "prompt_tokens", "prompt" (a digest), "token_s": [...],
"token_n": [...]}`` in monotonic seconds, each token's time taken just before the write that carries its event's last
byte. The request id is the header ``x-request-id`` or ``golden-N``; it is the ``id`` of every event. ``/health``,
``/v1/models``, ``/version`` and ``/metrics`` are there as far as a load needs them.
"""

import argparse
import contextlib
import hashlib
import heapq
import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

KEEP_ALIVE = b": keep-alive\n\n"
HEAD = b"HTTP/1.1 200 OK\r\nserver: golden\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
PLAYED_BETWEEN_READS = 8
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
    )
}


@dataclass
class Connection:
    socket: socket.socket
    received: bytearray = field(default_factory=bytearray)
    unsent: bytes = b""
    requests: int = 0
    open: bool = True


@dataclass(slots=True)
class Playing:
    """An answer that is being played: its next step, and those after it."""

    connection: Connection
    step: Step
    rest: Iterator[Step]
    received_s: float
    token_s: list[float]
    token_n: list[int]


class GoldenServer:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.truth: dict[str, dict[str, object]] = {}
        self.tokens = {"prompt": 0, "generation": 0}
        self.running = True
        self.prefill_free_s = 0.0
        self.due: list[tuple[float, int, Playing]] = []
        self.order = itertools.count()
        self.connections: dict[int, Connection] = {}
        self.listener = socket.create_server((options.host, options.port), backlog=1024)
        self.listener.setblocking(False)
        self.poll = select.epoll()
        self.poll.register(self.listener.fileno(), select.EPOLLIN)

    def run(self) -> None:
        """Serve until :meth:`stop`. Even amid many due tokens new requests are read soon: their clock starts then."""
        while self.running:
            wait_s = max(0.0, self.due[0][0] - time.monotonic()) if self.due else 0.5
            for number, _ in self.poll.poll(min(wait_s, 0.5)):
                if number == self.listener.fileno():
                    self.accept()
                else:
                    self.read(self.connections[number])
            for _ in range(PLAYED_BETWEEN_READS):
                if not self.due or self.due[0][0] > time.monotonic():
                    break
                self.play(heapq.heappop(self.due)[2])

    def stop(self, *_: object) -> None:
        self.running = False

    def accept(self) -> None:
        accepted, _ = self.listener.accept()
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connections[accepted.fileno()] = Connection(accepted)
        self.poll.register(accepted.fileno(), select.EPOLLIN)

    def close(self, connection: Connection) -> None:
        if connection.open:
            connection.open = False
            self.poll.unregister(connection.socket.fileno())
            del self.connections[connection.socket.fileno()]
            connection.socket.close()

    def write(self, connection: Connection, data: bytes) -> None:
        """Write at once; what a slow reader leaves is tried again with the next write."""
        if connection.unsent:
            data = connection.unsent + data
        try:
            connection.unsent = data[connection.socket.send(data) :]
        except BlockingIOError:
            connection.unsent = data
        except OSError:
            self.close(connection)

    def read(self, connection: Connection) -> None:
        try:
            data = connection.socket.recv(1 << 18)
        except OSError:
            data = b""
        if not data:
            self.close(connection)
            return
        connection.received += data
        head, blank, rest = connection.received.partition(b"\r\n\r\n")
        if not blank:
            return
        request_line, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", 0))
        if len(rest) < length:
            return
        connection.received = rest[length:]
        connection.requests += 1
        verb, path, _ = request_line.split(" ")
        if verb == "POST" and path.endswith("/v1/completions"):
            self.complete(connection, headers, json.loads(rest[:length]))
        else:
            self.inform(connection, path)

    def complete(self, connection: Connection, headers: dict[str, str], body: dict[str, object]) -> None:
        now = time.monotonic()
        scenario = headers.get("x-golden") or str(body["model"]).rpartition("/")[2]
        script = SCENARIOS.get(scenario) or SCENARIOS[self.options.scenario]
        if script is refuse_second and connection.requests > 1:
            self.close(connection)
            return
        name = headers.get("x-request-id") or f"golden-{len(self.truth)}"
        prompt = body["prompt"]
        ask = Ask(
            id=name,
            model=str(body["model"]),
            prompt_tokens=len(prompt) if isinstance(prompt, list) else len(str(prompt).split()),
            output_tokens=int(str(body.get("max_tokens") or 16)),
            ttft_s=self.options.ttft_s,
            itl_s=self.options.itl_s,
            usage=bool(body.get("stream_options")),
        )
        if script is serial_prefill:
            self.prefill_free_s = max(now, self.prefill_free_s) + self.options.ttft_s
            ask.ttft_s = self.prefill_free_s - now
        token_s: list[float] = []
        token_n: list[int] = []
        self.truth[name] = {
            "received_s": now,
            "prompt_tokens": ask.prompt_tokens,
            "prompt": hashlib.sha256(repr(prompt).encode()).hexdigest()[:16],
            "token_s": token_s,
            "token_n": token_n,
        }
        self.tokens["prompt"] += ask.prompt_tokens
        steps = script(ask)
        self.enqueue(Playing(connection, next(steps), steps, now, token_s, token_n))

    def enqueue(self, playing: Playing) -> None:
        heapq.heappush(self.due, (playing.received_s + playing.step.at_s, next(self.order), playing))

    def play(self, playing: Playing) -> None:
        step, connection = playing.step, playing.connection
        if not connection.open:
            return
        if step.close:
            self.close(connection)
            return
        if step.tokens:
            playing.token_s.append(time.monotonic())
            playing.token_n.append(step.tokens)
            self.tokens["generation"] += step.tokens
        self.write(connection, step.data)
        if upcoming := next(playing.rest, None):
            playing.step = upcoming
            self.enqueue(playing)

    def inform(self, connection: Connection, path: str) -> None:
        status, kind, text = "200 OK", "application/json", ""
        if path == "/truth":
            text = json.dumps(self.truth)
        elif path == "/v1/models":
            text = json.dumps(
                {"object": "list", "data": [{"id": "golden", "object": "model", "max_model_len": 131_072}]}
            )
        elif path == "/version":
            text = json.dumps({"version": "0.0.0+golden"})
        elif path == "/metrics":
            kind = "text/plain; version=0.0.4"
            text = "".join(
                f'# TYPE vllm:{name}_tokens counter\nvllm:{name}_tokens_total{{engine="0"}} {count}\n'
                for name, count in self.tokens.items()
            )
        elif path != "/health":
            status = "404 Not Found"
        body = text.encode()
        head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
        self.write(connection, head.encode() + body)


@dataclass(frozen=True)
class RunningServer:
    """A golden server in a process of its own."""

    url: str
    process: "subprocess.Popen[str]"

    def truth(self) -> dict[str, dict[str, Any]]:
        with urllib.request.urlopen(f"{self.url}/truth", timeout=10) as answer:
            return dict(json.load(answer))

    def prompts(self) -> list[str]:
        """A digest of each prompt, in order of receipt."""
        return [str(told["prompt"]) for told in self.truth().values()]


@contextlib.contextmanager
def running(*arguments: str, cores: set[int] | None = None) -> Iterator[RunningServer]:
    """Start ``python golden_server.py *arguments`` on a free port, and end it with the block."""
    command = [sys.executable, __file__, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            if cores:
                os.sched_setaffinity(process.pid, cores)
            assert process.stdout
            yield RunningServer(f"http://127.0.0.1:{int(process.stdout.readline())}", process)
        finally:
            process.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ttft-s", type=float, default=0.05)
    parser.add_argument("--itl-s", type=float, default=0.02)
    parser.add_argument("--scenario", default="steady", choices=SCENARIOS)
    parser.add_argument("--truth", type=Path, help="where to write the truth at the end")
    server = GoldenServer(parser.parse_args())
    signal.signal(signal.SIGTERM, server.stop)
    signal.signal(signal.SIGINT, server.stop)
    print(server.listener.getsockname()[1], flush=True)
    server.run()
    if server.options.truth:
        server.options.truth.write_text(json.dumps(server.truth), encoding="utf-8")


if __name__ == "__main__":
    main()
