"""A stand-in for object storage: as much of S3's HTTP as Snakemake's storage plugin asks for, kept in memory.

Objects are small here: no uploads in parts, no lists in pages.
"""

import hashlib
import threading
import time
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape


class S3Server:
    """``objects`` holds what is stored, by key, bytes and time. Buckets come into being when they are named.

    ``requests`` counts what it was asked.
    """

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, float]] = {}
        self.requests = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self))

    def __enter__(self) -> "S3Server":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self.close()

    def close(self) -> None:
        """Nobody answers at its address any more, or yet."""
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"


def _handler_of(server: S3Server) -> type[BaseHTTPRequestHandler]:
    objects = server.objects

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def reply(self, status: int, body: bytes = b"", **headers: str) -> None:
            server.requests += 1
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def key(self) -> str:
            """Empty for the bucket itself."""
            return unquote(urlsplit(self.path).path.removeprefix("/")).partition("/")[2]

        def do_PUT(self) -> None:
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.key():
                objects[self.key()] = (data, time.time())
            self.reply(200, ETag=_etag(data))

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            if not self.key():
                prefix = parse_qs(urlsplit(self.path).query).get("prefix", [""])[0]
                self.reply(200, _listing(objects, prefix), Content_Type="application/xml")
            elif found := objects.get(self.key()):
                data, stored_s = found
                self.reply(200, data, ETag=_etag(data), Last_Modified=formatdate(stored_s, usegmt=True))
            else:
                self.reply(404)

        def do_DELETE(self) -> None:
            objects.pop(self.key(), None)
            self.reply(204)

    return Handler


def _etag(data: bytes) -> str:
    return f'"{hashlib.md5(data).hexdigest()}"'


def _listing(objects: dict[str, tuple[bytes, float]], prefix: str) -> bytes:
    found = [
        f"<Contents><Key>{escape(quote(key))}</Key><Size>{len(data)}</Size><ETag>{escape(_etag(data))}</ETag>"
        f"<LastModified>{time.strftime('%Y-%m-%dT%H:%M:%S.000Z', time.gmtime(stored_s))}</LastModified></Contents>"
        for key, (data, stored_s) in sorted(objects.items())
        if key.startswith(prefix)
    ]
    space = "http://s3.amazonaws.com/doc/2006-03-01/"
    encoding, more = "<EncodingType>url</EncodingType>", "<IsTruncated>false</IsTruncated>"
    return f'<ListBucketResult xmlns="{space}">{encoding}{more}{"".join(found)}</ListBucketResult>'.encode()
