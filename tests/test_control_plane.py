"""Pages beside the load: a server that never ends its answer holds nobody up."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from pdkv.measuring import control_plane
from pdkv.measuring.control_plane import http_get

CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
Answer = Callable[[socket.socket], None]


@contextmanager
def served(answer: Answer) -> Iterator[str]:
    """The address of a server that answers one request so."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection, suppress(OSError):
                connection.recv(1 << 16)
                answer(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/metrics"
        thread.join()


def drip(connection: socket.socket) -> None:
    connection.sendall(CHUNKED)
    while True:
        connection.sendall(b"1\r\nx\r\n")
        time.sleep(0.05)


def pour(connection: socket.socket) -> None:
    connection.sendall(CHUNKED)
    while True:
        connection.sendall(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")


def test_a_page_in_chunks() -> None:
    with served(lambda connection: connection.sendall(CHUNKED + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")) as url:
        assert http_get(url, 5) == (200, "abcde")


@pytest.mark.fault("load", "the metrics page comes in drops and never ends", "given up after its time-out")
def test_a_page_that_drips_for_ever() -> None:
    with served(drip) as url, pytest.raises(TimeoutError, match="did not come to its end"):
        http_get(url, 0.4)


@pytest.mark.fault("load", "the metrics page is endless", "given up before it fills the memory")
def test_a_page_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_plane, "MOST_BYTES", 1 << 20)
    with served(pour) as url, pytest.raises(OSError, match="longer than"):
        http_get(url, 30)


@pytest.mark.fault("load", "the metrics page is shorter than its header says", "no answer, instead of half a one")
@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf", CHUNKED + b"9\r\nhalf"], ids=["length", "chunks"]
)
def test_a_page_that_is_cut(answer: bytes) -> None:
    with served(lambda connection: connection.sendall(answer)) as url, pytest.raises(OSError, match="IncompleteRead"):
        http_get(url, 5)
