"""What is warmed, in which order, how often, and what is kept of it."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pdkv.measuring.client import Target
from pdkv.measuring.warmup import ask_once, have_settled, read_body, ways_to_warm, why_not_served


def target(name: str, port: int = 1) -> Target:
    return Target(name, f"http://127.0.0.1:{port}", "m")


class TestWays:
    def test_every_pair_of_prefill_and_decode(self) -> None:
        by_role = {"prefill": [target("p0"), target("p1")], "decode": [target("d0"), target("d1"), target("d2")]}
        pairs, singles = ways_to_warm(by_role, "NixlConnector")
        assert [(p.name, d.name) for p, d in pairs] == [(p, d) for p in ("p0", "p1") for d in ("d0", "d1", "d2")]
        assert singles == []

    def test_replicas_one_by_one(self) -> None:
        pairs, singles = ways_to_warm({"replica": [target("a"), target("b")]}, None)
        assert (pairs, [one.name for one in singles]) == ([], ["a", "b"])

    def test_a_connector_with_rules_of_its_own_is_left_to_the_router(self) -> None:
        assert ways_to_warm({"prefill": [target("p")], "decode": [target("d")]}, "MooncakeConnector") == ([], [])


@pytest.mark.parametrize(
    ("before", "now", "settled"),
    [
        ([1.0], [1.2], True),
        ([1.0], [0.8], True),
        ([1.0], [1.21], False),
        ([1.0, 5.0], [1.0, 1.0], False),
        ([], [1.0], False),
        ([], [], False),
    ],
)
def test_settled_means_every_way_within_a_fifth(before: list[float], now: list[float], settled: bool) -> None:
    assert have_settled(before, now) is settled


@pytest.fixture
def answering() -> Iterator[Callable[[list[tuple[float, bytes]]], int]]:
    """A server that plays pieces of bytes, each after a pause, to one client and then closes."""
    listeners = []

    def start(pieces: list[tuple[float, bytes]]) -> int:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def play() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                for pause_s, piece in pieces:
                    time.sleep(pause_s)
                    connection.sendall(piece)

        threading.Thread(target=play, daemon=True).start()
        return int(listener.getsockname()[1])

    yield start
    for listener in listeners:
        listener.close()


HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def test_an_answer_is_kept_piece_by_piece(answering: Callable[[list[tuple[float, bytes]]], int]) -> None:
    port = answering([(0, HEAD), (0.2, b"3\r\none\r\n"), (0.2, b"3\r\ntwo\r\n0\r\n\r\n")])
    answer = ask_once(target("single", port), b"{}", 7, 5)
    assert (answer.outcome, answer.error, answer.prompt, answer.part) == ("answered", None, 7, "warmup")
    assert answer.piece_bytes == HEAD + b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"
    first, second, third = answer.piece_times_s
    assert answer.t_send_s is not None
    assert answer.t_send_s <= first <= second - 0.15 <= third - 0.3
    assert read_body(answer.piece_bytes) == "onetwo"
    assert why_not_served(answer) is None


@pytest.mark.fault(
    "launch",
    "a server hangs in warm-up, though it is healthy",
    "the request ends after limits.request_timeout_s, with that reason",
)
def test_a_hanging_server_is_a_time_out(answering: Callable[[list[tuple[float, bytes]]], int]) -> None:
    answer = ask_once(target("single", answering([(0, HEAD), (5, b"")])), b"{}", 0, 0.3)
    assert (answer.outcome, answer.error) == ("timeout", "not answered within 0.3 s")
    assert why_not_served(answer) == "not answered within 0.3 s"


def test_an_error_is_told_with_its_text(answering: Callable[[list[tuple[float, bytes]]], int]) -> None:
    body = b'{"error":"no memory left"}'
    head = b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: %d\r\n\r\n" % len(body)
    answer = ask_once(target("single", answering([(0, head + body)])), b"{}", 0, 5)
    assert answer.outcome == "answered"
    assert why_not_served(answer) == 'HTTP/1.1 500 Internal Server Error: {"error":"no memory left"}'


def test_nobody_there(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    answer = ask_once(target("single", port), b"{}", 0, 5)
    assert (answer.outcome, answer.t_send_s) == ("refused", None)


def test_a_body_that_was_cut_is_read_as_far_as_it_came() -> None:
    assert read_body(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf") == "half"
    assert read_body(b"no http") == ""
