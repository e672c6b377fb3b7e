"""A server whose token times are known: it plays scripted bytes at scripted times and writes down when it did.

Speaks HTTP/1.1 with chunked server-sent events as vLLM's ``/v1/completions`` does, in one thread around ``epoll``:
``python tests/golden_server.py --port 0 --ttft-s 0.05 --itl-s 0.02`` prints the port it listens on and runs until
SIGTERM. A request chooses its scenario by the last part of its model name (``golden/hang``), by the header
``x-golden``, or else gets that of ``--scenario``; see ``golden_scenarios.py``.

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
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from golden_scenarios import SCENARIOS, Ask, Step, refuse_second, serial_prefill

PLAYED_BETWEEN_READS = 8


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
