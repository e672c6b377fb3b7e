"""Warm-up: every instance, every pair of prefill and decode, then the way that the load will take.

The first requests of an instance cost seconds (lazy imports, kernels that are compiled at first use, the handshake of
a pair), and a router that deals in turn may never bring two instances of a larger deployment together. So each is
addressed itself, with requests of the load's own lengths, one at a time; nothing here exceeds the load's concurrency.
"""

import http.client
import io
import itertools
import json
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pdkv.errors import StageFailed
from pdkv.measuring.client import Target
from pdkv.measuring.evidence import Answer, Recorder
from pdkv.measuring.load import LoadPoint, run_point
from pdkv.measuring.prompts import Prompts, encode_body

SETTLED_WITHIN = 0.2  # two rounds in a row differ by no more than this share
EXTRA_ROUNDS = 4
ROUTED_REQUESTS = 2  # per user
DIRECT_PAIR_CONNECTORS = ("NixlConnector",)
# What a router tells the prefill instance: keep the KV cache of this prompt, a decode instance will fetch it.
REMOTE_DECODE = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


@dataclass
class Warmup:
    """What to warm: ``pairs`` of prefill and decode, ``singles`` that serve alone, ``entry`` where the load will go.

    ``concurrency`` is the lowest of the load's; ``addressed`` becomes the way each recorded request took, in order.
    """

    entry: Target
    pairs: Sequence[tuple[Target, Target]]
    singles: Sequence[Target]
    prompts: Prompts
    output_tokens: int
    concurrency: int
    rounds: int
    timeout_s: float
    recorder: Recorder
    progress: Callable[[str], None]
    addressed: list[dict[str, str]] = field(default_factory=list)
    prompt_count: int = 0

    def run(self) -> None:
        """Warm everything. Raises :class:`StageFailed` (warmup) at the first request that is not served."""
        self._warm_directly()
        self._warm_entry()

    def _warm_directly(self) -> None:
        """Rounds over all pairs and instances, at least ``rounds`` and until two in a row took about the same time."""
        before: list[float] = []
        most = self.rounds + EXTRA_ROUNDS
        for number in range(most if self.pairs or self.singles else 0):
            now = [self._ask_pair(*pair) for pair in self.pairs] + [self._ask_single(one) for one in self.singles]
            self.progress(f"round {number + 1}")
            if number + 1 >= max(2, self.rounds) and have_settled(before, now):
                return
            before = now

    def _warm_entry(self) -> None:
        """A few requests the way of the load, at its lowest concurrency: the router's own first use, batches."""
        count = ROUTED_REQUESTS * self.concurrency
        point = LoadPoint(-1, "closed", count, concurrency=self.concurrency)
        record = run_point(
            self.entry,
            point,
            self.prompts,
            self.output_tokens,
            phase="warmup",
            first_prompt=self._next_prompts(count),
            timeout_s=self.timeout_s,
        )
        self._record({"instance": self.entry.name}, self.entry.name, record.answers)

    def _ask_single(self, target: Target) -> float:
        number = self._next_prompts(1)
        body = encode_body(target.model, self._tokens(number), self.output_tokens)
        answer = ask_once(target, body, number, self.timeout_s)
        self._record({"instance": target.name}, target.name, [answer])
        return _duration(answer)

    def _ask_pair(self, prefill: Target, decode: Target) -> float:
        """What the router does for each request: prefill keeps the KV cache and says where, decode fetches it.

        Recorded as the one request that a router's client would have seen: sent when prefill was asked, answered with
        the bytes of decode.
        """
        number = self._next_prompts(1)
        body = json.loads(encode_body(prefill.model, self._tokens(number), self.output_tokens))
        answer = ask_once(prefill, _encode(_prefill_only(body)), number, self.timeout_s)
        way, name = {"prefill": prefill.name, "decode": decode.name}, f"{prefill.name}+{decode.name}"
        if why_not_served(answer):
            self._record(way, prefill.name, [answer])
        text = read_body(answer.piece_bytes)
        transfer = _transfer_params(text)
        if transfer is None:
            problem = f"{prefill.name} prefilled a prompt but did not say where its KV cache is: {text[:300]}"
            raise StageFailed("warmup", problem)
        asked_s = answer.t_send_s
        answer = ask_once(decode, _encode({**body, "kv_transfer_params": transfer}), number, self.timeout_s)
        answer.t_send_s = asked_s
        self._record(way, name, [answer])
        return _duration(answer)

    def _record(self, way: dict[str, str], target: str, answers: list[Answer]) -> None:
        """Keep the answers, served or not; raise if one was not."""
        self.recorder.append("warmup", -1, target, self.prompts.input_tokens, self.output_tokens, answers)
        self.addressed += [way] * len(answers)
        for answer in answers:
            if problem := why_not_served(answer):
                raise StageFailed("warmup", f"{target} did not serve a warm-up request: {problem}")

    def _next_prompts(self, count: int) -> int:
        first, self.prompt_count = self.prompt_count, self.prompt_count + count
        return first

    def _tokens(self, number: int) -> list[int]:
        return self.prompts.tokens(-1, "warmup", number)


def have_settled(before: Sequence[float], now: Sequence[float]) -> bool:
    """Whether each way took about as long as in the round before."""
    return len(before) == len(now) > 0 and all(
        abs(new - old) <= SETTLED_WITHIN * old for old, new in zip(before, now, strict=True)
    )


def ways_to_warm(
    instances: Mapping[str, Sequence[Target]], connector: str | None
) -> tuple[list[tuple[Target, Target]], list[Target]]:
    """(pairs, singles) to be addressed directly, from the targets by role.

    Connectors other than NIXL hand the KV cache over by rules of their own: those pairs are warmed by the router only.
    """
    alone = [*instances.get("single", ()), *instances.get("replica", ())]
    if connector not in DIRECT_PAIR_CONNECTORS:
        return [], alone
    return list(itertools.product(instances.get("prefill", ()), instances.get("decode", ()))), alone


def ask_once(target: Target, body: bytes, prompt: int, timeout_s: float) -> Answer:
    """One request over a connection of its own, stamped and kept like those of the load."""
    answer = Answer("warmup", prompt, None, time.monotonic())
    pieces: list[float | bytes] = []
    request = target.request(body).replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)
    try:
        with socket.create_connection(target.address(), timeout_s) as connection:
            answer.connection = "new"
            answer.t_send_s = time.monotonic()
            connection.sendall(request)
            while data := _receive(connection, answer.t_send_s + timeout_s):
                pieces += [time.monotonic(), data]
        answer.outcome = "answered" if pieces else "closed"
        answer.error = None if pieces else "connection closed before a response"
    except TimeoutError:
        answer.outcome, answer.error = "timeout", f"not answered within {timeout_s:g} s"
    except OSError as error:
        answer.outcome, answer.error = "refused" if answer.t_send_s is None else "closed", str(error)
    answer.t_end_s = time.monotonic()
    answer.keep(pieces)
    return answer


def why_not_served(answer: Answer) -> str | None:
    """What is wrong with an answer as far as its first line tells; None if it is HTTP 200."""
    if answer.outcome != "answered":
        return answer.error or answer.outcome
    status_line = answer.piece_bytes.partition(b"\r\n")[0].decode("latin-1")
    if status_line.split(" ")[1:2] == ["200"]:
        return None
    return f"{status_line}: {read_body(answer.piece_bytes)[:300]}"


def read_body(raw: bytes) -> str:
    """The body of an HTTP response as text, without its framing; as far as it came."""
    response = http.client.HTTPResponse(_Replay(raw))  # type: ignore[arg-type]
    try:
        response.begin()
        return response.read().decode("utf-8", "replace")
    except http.client.IncompleteRead as error:
        return error.partial.decode("utf-8", "replace")
    except (http.client.HTTPException, OSError):
        return ""


class _Replay:
    """Bytes in the place of a socket, for the standard library's parser."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    def makefile(self, _mode: str) -> io.BytesIO:
        return io.BytesIO(self._raw)


def _receive(connection: socket.socket, deadline_s: float) -> bytes:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    connection.settimeout(left_s)
    return connection.recv(1 << 16)


def _transfer_params(text: str) -> dict[str, Any] | None:
    try:
        params = json.loads(text).get("kv_transfer_params")
    except (json.JSONDecodeError, AttributeError):
        return None
    return params if isinstance(params, dict) else None


def _prefill_only(body: Mapping[str, Any]) -> dict[str, Any]:
    """The body that makes an instance prefill, keep the KV cache and say where it is, in one unstreamed answer."""
    first = {key: value for key, value in body.items() if key != "stream_options"}
    return {**first, "stream": False, "max_tokens": 1, "kv_transfer_params": REMOTE_DECODE}


def _duration(answer: Answer) -> float:
    return (answer.t_end_s or 0.0) - (answer.t_send_s or 0.0)


def _encode(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()
