"""Plain HTTP to servers on the side of the load: health, model list, metrics.

The standard library's client: no proxy from the environment can come between, and nothing needs to be imported twice.
A server that never comes to an end with its answer is one that does not answer.
"""

import http.client
import json
import time
from typing import Any
from urllib.parse import urlsplit

MOST_BYTES = 64 << 20  # a hundred times the metrics of a large engine


def http_get(url: str, timeout_s: float) -> tuple[int, str]:
    """Status and body as text. Raises :class:`OSError` where there is no answer."""
    return _exchange("GET", url, None, timeout_s)


def http_post(url: str, content: dict[str, Any], timeout_s: float) -> tuple[int, str]:
    """Post JSON; status and body as text. Raises :class:`OSError` where there is no answer."""
    return _exchange("POST", url, json.dumps(content).encode(), timeout_s)


def _exchange(method: str, url: str, body: bytes | None, timeout_s: float) -> tuple[int, str]:
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=timeout_s)
    path = parts.path + (f"?{parts.query}" if parts.query else "")
    give_up_s = time.monotonic() + timeout_s
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
        response = connection.getresponse()
        return response.status, _read(response, give_up_s).decode("utf-8", "replace")
    except http.client.HTTPException as error:
        raise ConnectionError(f"{type(error).__name__}: {error}") from error
    finally:
        connection.close()


def _read(response: http.client.HTTPResponse, give_up_s: float) -> bytes:
    """The whole body; OSError if it is endless, or cut."""
    body = bytearray()
    while data := response.read1(1 << 16):
        body += data
        if time.monotonic() > give_up_s:
            raise TimeoutError("the answer did not come to its end")
        if len(body) > MOST_BYTES:
            raise OSError(f"the answer is longer than {MOST_BYTES:,} bytes")
    if response.length:
        raise http.client.IncompleteRead(bytes(body), response.length)
    return bytes(body)
