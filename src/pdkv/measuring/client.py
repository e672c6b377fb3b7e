"""One streamed HTTP request becomes time-stamped bytes.

The hot path stamps and keeps, nothing else: requests are encoded before, SSE and JSON are read after the load. The
response parser (C code) only says when a response is over. Requests go to the socket by ``send`` itself, because the
event loop would hold them back until its turn ends, after the stamp was taken.
"""

import asyncio
import functools
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

import httptools

from pdkv.errors import UserError
from pdkv.measuring.evidence import Answer, Outcome

CONNECT_TOGETHER = 32  # connections opened at once: a burst of hundreds overruns the listen queue of many servers
End = tuple[Outcome, str | None]


@dataclass(frozen=True)
class Target:
    """A server to ask: ``name`` as evidence calls it, base ``url`` (a path prefix and a final ``/v1`` may be in it)."""

    name: str
    url: str
    model: str
    headers: Mapping[str, str] = field(default_factory=dict)

    def address(self) -> tuple[str, int]:
        """Host and port of the URL. Raises :class:`UserError` for anything but plain HTTP."""
        try:
            parts = urlsplit(self.url)
            host, port = parts.hostname, parts.port or 80
        except ValueError as error:
            raise UserError(f"{self.url!r} is not a URL: {error}", remedy="give it as http://HOST:PORT") from None
        if parts.scheme != "http" or not host:
            found = f"{self.url} is encrypted" if parts.scheme == "https" else f"{self.url} is not an http:// URL"
            raise UserError(
                f"{found}: the load client speaks plain HTTP only",
                remedy="give the server's own address, as http://HOST:PORT, or put a plain-HTTP forwarder before it",
            )
        return host, port

    def request(self, body: bytes) -> bytes:
        """The whole HTTP request that posts ``body`` to the completions API."""
        host, port = self.address()
        prefix = urlsplit(self.url).path.rstrip("/").removesuffix("/v1")
        authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        extra = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
        head = (
            f"POST {prefix}/v1/completions HTTP/1.1\r\nHost: {authority}\r\nContent-Type: application/json\r\n"
            f"Accept: text/event-stream\r\n{extra}Content-Length: {len(body)}\r\n\r\n"
        )
        return head.encode("latin-1") + body


class Client:
    """Asks one target over persistent connections; those that the server drops while idle are replaced unseen."""

    def __init__(self, target: Target, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.in_flight = 0
        self.max_in_flight = 0
        self._address = target.address()
        self._peers: list[tuple[int, tuple[object, ...]]] = []
        self._idle: list[_Connection] = []
        self._all: set[_Connection] = set()

    async def open(self, count: int) -> None:
        """Open ``count`` connections ahead of the load. A server that refuses is noticed when it is asked."""
        for first in range(0, count, CONNECT_TOGETHER):
            together = min(CONNECT_TOGETHER, count - first)
            opened = await asyncio.gather(*(self._connect() for _ in range(together)), return_exceptions=True)
            self._idle += [connection for connection in opened if isinstance(connection, _Connection)]

    async def ask(self, request: bytes, answer: Answer) -> None:
        """Send ``request`` and fill ``answer``; every failure is noted there, none is raised.

        A kept connection may be closed by the server just as it is used. If no byte of an answer came, the request
        goes out again on another connection, and ``t_send_s`` is that of the last sending.
        """
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        try:
            while not await self._ask_once(request, answer):
                pass
        finally:
            self.in_flight -= 1

    async def _ask_once(self, request: bytes, answer: Answer) -> bool:
        """One sending; False if it fell on a connection that had been closed."""
        try:
            connection = self._take()
            if connection is None:
                connection = await asyncio.wait_for(self._connect(), self.timeout_s)
        except OSError as error:  # TimeoutError is one
            answer.outcome, answer.error, answer.t_end_s = (
                "refused",
                f"no connection: {error or 'timed out'}",
                time.monotonic(),
            )
            return True
        answer.connection = "reused" if connection.used else "new"
        end = connection.send(request, self.timeout_s)
        answer.t_send_s = connection.t_send_s
        try:
            answer.outcome, answer.error = await end
        finally:  # also when cancelled: the record then holds what had come
            answer.t_end_s = connection.t_end_s or time.monotonic()
            answer.keep(connection.pieces)
            if connection.alive and end.done() and not end.cancelled():
                self._idle.append(connection)
            else:
                connection.drop()
                self._all.discard(connection)
        return not (answer.outcome == "closed" and answer.connection == "reused" and not answer.piece_bytes)

    def close(self) -> None:
        """Drop all connections."""
        for connection in self._all:
            connection.drop()
        self._all.clear()
        self._idle.clear()

    def _take(self) -> "_Connection | None":
        while self._idle:
            connection = self._idle.pop()
            if connection.alive:
                return connection
            self._all.discard(connection)
        return None

    async def _connect(self) -> "_Connection":
        loop = asyncio.get_running_loop()
        if not self._peers:
            found = await loop.getaddrinfo(*self._address, type=socket.SOCK_STREAM)
            self._peers = [(family, peer) for family, _, _, _, peer in found]
        failure = OSError("the name has no address")
        for family, peer in list(self._peers):
            plain = socket.socket(family, socket.SOCK_STREAM)
            plain.setblocking(False)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                await loop.sock_connect(plain, peer)
            except OSError as error:
                plain.close()
                failure = error
                continue
            except BaseException:
                plain.close()
                raise
            self._peers = [(family, peer)]  # a name with several addresses: stay with the one that answered
            _, connection = await loop.create_connection(functools.partial(_Connection, plain), sock=plain)
            self._all.add(connection)
            return connection
        raise failure


class _Connection(asyncio.Protocol):
    """One HTTP/1.1 connection that carries one request at a time."""

    def __init__(self, plain: socket.socket) -> None:
        self.alive = False
        self.used = False
        self.pieces: list[float | bytes] = []
        self.t_send_s = 0.0
        self.t_end_s: float | None = None
        self._socket = plain
        self._end: asyncio.Future[End] | None = None

    def send(self, request: bytes, timeout_s: float) -> "asyncio.Future[End]":
        """Write the request now; the future tells how the exchange ended."""
        loop = asyncio.get_running_loop()
        self.used = True
        self.t_end_s = None
        self.pieces = []
        self._keep = self.pieces.append
        self._parser = httptools.HttpResponseParser(self)
        self._feed = self._parser.feed_data
        self._framed = self._head_complete = False
        end = self._end = loop.create_future()
        self._timer = loop.call_later(timeout_s, self._finish, "timeout", f"not answered within {timeout_s:g} s")
        self.t_send_s = time.monotonic()
        try:
            sent = self._socket.send(request)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._finish("closed", f"while sending: {error}")
            return end
        if sent < len(request):
            self._transport.write(request[sent:])
        return end

    def drop(self) -> None:
        """Close at once."""
        self.alive = False
        self._transport.abort()

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.alive = True

    def data_received(self, data: bytes, monotonic=time.monotonic) -> None:  # type: ignore[no-untyped-def]
        now = monotonic()
        if self._end is None:  # bytes that nobody asked for: what comes next could not be told from an answer
            self.drop()
            return
        self._keep(now)
        self._keep(data)
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            self._finish("closed", f"not an HTTP response: {error}")

    def eof_received(self) -> None:
        self.alive = False
        if self._end is not None and self._head_complete and not self._framed:
            self._finish("answered", None)  # without a length, the end of the connection is the end of the body

    def connection_lost(self, error: Exception | None) -> None:
        self.alive = False
        if self._end is not None:
            after = "in mid-response" if self.pieces else "before a response"
            self._finish("closed", f"connection closed {after}" + (f": {error}" if error else ""))

    # What the response parser calls

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._framed = True

    def on_headers_complete(self) -> None:
        self._head_complete = self._parser.get_status_code() >= 200

    def on_message_complete(self) -> None:
        if not self._head_complete:  # 100 Continue: the response is still to come
            return
        if not self._parser.should_keep_alive():
            self.alive = False
        self._finish("answered", None)

    def _finish(self, outcome: Outcome, error: str | None) -> None:
        end, self._end = self._end, None
        if end is None:
            return
        self._timer.cancel()
        if outcome == "answered" and self.pieces:
            self.t_end_s = float(self.pieces[-2])
        else:
            self.t_end_s = time.monotonic()
            self.alive = False
        if not end.done():
            end.set_result((outcome, error))
