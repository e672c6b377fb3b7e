"""The client against the golden server: how an exchange ends, and what is kept of it."""

import contextlib
import re
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import golden_server
import numpy as np
import pytest

from pdkv.analysing.completion_stream import Response
from pdkv.analysing.pieces import Pieces
from pdkv.analysing.responses import read_response
from pdkv.errors import UserError
from pdkv.measuring.client import Target
from pdkv.measuring.evidence import Answer
from pdkv.measuring.load import LoadPoint, run_point
from pdkv.measuring.prompts import Prompts

PROMPTS = Prompts(1, "w", 16, 100, 30_000)
TOKENS = 6


@pytest.fixture(scope="module")
def golden() -> Iterator[golden_server.RunningServer]:
    with golden_server.running("--ttft-s", "0.05", "--itl-s", "0.01") as server:
        yield server


def ask(server: Any, scenario: str, requests: int = 1, *, timeout_s: float = 20.0, url: str = "") -> list[Answer]:
    target = Target("golden", url or server.url, f"golden/{scenario}")
    point = LoadPoint(0, "closed", requests, concurrency=1)
    return run_point(target, point, PROMPTS, TOKENS, timeout_s=timeout_s).answers


def read(answer: Answer) -> Response:
    ends = [sum(answer.piece_lengths[: number + 1]) for number in range(len(answer.piece_lengths))]
    data = [answer.piece_bytes[a:b] for a, b in zip([0, *ends], ends, strict=False)]
    return read_response(Pieces(np.array(answer.piece_times_s), data))


def truth_of(server: Any, answer: Answer) -> dict[str, Any]:
    found = re.search(rb'"id":"([^"]+)"', answer.piece_bytes)
    assert found
    return dict(server.truth()[found[1].decode()])


COMPLETE = ("steady", "several", "one-segment", "split", "empty-first", "pings", "crlf", "until-close")


@pytest.mark.parametrize("scenario", COMPLETE)
def test_complete_answers(golden: golden_server.RunningServer, scenario: str) -> None:
    """Every token is found, none before the server wrote it, and the first is not the empty event or the ping."""
    answers = ask(golden, scenario, 2)
    assert [answer.outcome for answer in answers] == ["answered", "answered"]
    for answer in answers:
        response, truth = read(answer), truth_of(golden, answer)
        assert response.error is None
        assert response.output_tokens == TOKENS
        assert sum(count or 0 for count in response.token_n) == TOKENS
        written_s = truth["token_s"] * (TOKENS if scenario == "one-segment" else 1)
        assert len(response.token_t_s) == len(written_s)
        assert all(0 <= got - sent < 5 for got, sent in zip(response.token_t_s, written_s, strict=True))
        assert answer.t_send_s is not None
        assert answer.t_send_s <= truth["received_s"]


@pytest.mark.parametrize(
    ("scenario", "outcome", "error"),
    [
        ("error-midway", "answered", "error in mid-stream: EngineCore died"),
        ("wrong-usage", "answered", "usage says 7 output tokens, 6 were received"),
        ("no-done", "answered", "stream without [DONE]"),
        ("status-500", "answered", "HTTP 500: no memory left"),
        ("truncated", "closed", "stream without [DONE]"),
    ],
)
def test_failed_answers(golden: golden_server.RunningServer, scenario: str, outcome: str, error: str) -> None:
    before = len(golden.truth())
    answers = ask(golden, scenario, 2)
    assert [answer.outcome for answer in answers] == [outcome] * 2
    assert [read(answer).error for answer in answers] == [error] * 2
    assert len(golden.truth()) == before + 2, "nothing is sent twice after a byte of an answer came"


@pytest.mark.parametrize("scenario", ["hang", "pings-forever"])
def test_hang_ends_at_the_timeout_though_bytes_keep_coming(golden: golden_server.RunningServer, scenario: str) -> None:
    answers = ask(golden, scenario, 2, timeout_s=0.6)
    for answer in answers:
        assert answer.outcome == "timeout"
        assert answer.error == "not answered within 0.6 s"
        assert answer.t_send_s is not None
        assert answer.t_end_s is not None
        assert 0.55 <= answer.t_end_s - answer.t_send_s < 5
        assert answer.connection == "new"  # the connection of a request that timed out is not used again
        assert len(answer.piece_times_s) >= (4 if scenario == "pings-forever" else 1)


def test_connection_is_kept(golden: golden_server.RunningServer) -> None:
    assert [answer.connection for answer in ask(golden, "steady", 3)] == ["new", "reused", "reused"]


@pytest.mark.parametrize("scenario", ["refuse-second", "close-after"])
@pytest.mark.fault(
    "load",
    "the server closes kept connections when it likes",
    "the request goes out again on another connection; none fails, none is answered twice",
)
def test_connection_that_the_server_has_closed(golden: golden_server.RunningServer, scenario: str) -> None:
    """Open loop with pauses: all succeed, each is processed once, and is timed from the sending that was answered."""
    target = Target("golden", golden.url, f"golden/{scenario}")
    before = len(golden.truth())
    point = LoadPoint(0, "constant", 8, rate=3.0)
    answers = run_point(target, point, PROMPTS, TOKENS, timeout_s=20).answers
    assert [answer.outcome for answer in answers] == ["answered"] * 8
    assert all(read(answer).error is None for answer in answers)
    assert {answer.connection for answer in answers} == {"new"}
    assert len(golden.truth()) == before + 8
    for answer in answers:
        truth = truth_of(golden, answer)
        assert answer.t_send_s is not None
        assert 0 <= truth["received_s"] - answer.t_send_s < 5
        assert answer.scheduled_s <= answer.t_send_s + 0.001


@pytest.mark.fault(
    "load", "a new connection is closed before an answer", "the request fails by name and is not sent again"
)
def test_closed_without_an_answer_is_sent_again_only_on_a_used_connection() -> None:
    """A server that takes a request on a fresh connection and hangs up fails it at once: no endless asking."""
    with one_shot_server(lambda connection: None) as (url, taken):
        (answer,) = ask(None, "steady", url=url)
        assert answer.outcome == "closed"
        assert answer.error == "connection closed before a response"
        assert len(taken) == 1


@pytest.mark.fault(
    "load", "nothing listens at the server's address", "the request is refused by name, without a time of sending"
)
def test_no_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (answer,) = ask(None, "steady", url=f"http://127.0.0.1:{port}")
    assert answer.outcome == "refused"
    assert "no connection" in (answer.error or "")
    assert (answer.t_send_s, answer.connection) == (None, None)


@pytest.mark.fault("load", "the server's name does not resolve", "the request is refused by name")
def test_name_that_does_not_resolve() -> None:
    (answer,) = ask(None, "steady", url="http://no-such-host.invalid:80")
    assert answer.outcome == "refused"


def test_answer_that_is_not_http() -> None:
    with one_shot_server(lambda connection: connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")) as (url, _):
        (answer,) = ask(None, "steady", url=url)
        assert answer.outcome == "closed"
        assert (answer.error or "").startswith("not an HTTP response")
        assert answer.piece_bytes.startswith(b"SSH")


def test_request_larger_than_the_socket_buffer(golden: golden_server.RunningServer) -> None:
    prompts = Prompts(1, "w", 400_000, 100, 30_000)
    record = run_point(Target("golden", golden.url, "golden"), LoadPoint(0, "closed", 2, concurrency=1), prompts, 2)
    assert [read(answer).input_tokens for answer in record.answers] == [400_000] * 2


@pytest.mark.parametrize(
    ("url", "line", "host"),
    [
        ("http://h:8000", b"POST /v1/completions HTTP/1.1", b"Host: h:8000"),
        ("http://h:8000/", b"POST /v1/completions HTTP/1.1", b"Host: h:8000"),
        ("http://h/v1", b"POST /v1/completions HTTP/1.1", b"Host: h:80"),
        ("http://h:1/team/llm/v1/", b"POST /team/llm/v1/completions HTTP/1.1", b"Host: h:1"),
        ("http://[::1]:9", b"POST /v1/completions HTTP/1.1", b"Host: [::1]:9"),
    ],
)
def test_request_head(url: str, line: bytes, host: bytes) -> None:
    head, _, body = Target("x", url, "m", {"Authorization": "Bearer k"}).request(b"{}").partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0] == line
    assert {host, b"Authorization: Bearer k", b"Content-Length: 2"} <= set(lines)
    assert body == b"{}"


@pytest.mark.parametrize("url", ["https://h:8000", "h:8000", "ftp://h", "http://h:port", "http://"])
def test_url_that_cannot_be_asked(url: str) -> None:
    with pytest.raises(UserError) as caught:
        Target("x", url, "m").address()
    assert "http://HOST:PORT" in caught.value.remedy


@contextlib.contextmanager
def one_shot_server(respond: Callable[[socket.socket], None]) -> Iterator[tuple[str, list[bytes]]]:
    """Takes a request on each connection, lets ``respond`` answer, and closes; the requests are in the list."""
    taken: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.1)
        stop = threading.Event()

        def serve() -> None:
            while not stop.is_set():
                with contextlib.suppress(OSError):
                    connection, _ = listener.accept()
                    with connection:
                        if request := connection.recv(1 << 16):
                            taken.append(request)
                            respond(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", taken
        finally:
            stop.set()
            thread.join()
