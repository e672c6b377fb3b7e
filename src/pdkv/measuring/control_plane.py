"""Plain HTTP to servers on the side of the load: health, model list, metrics.

The standard library's client: no proxy from the environment can come between, and nothing needs to be imported twice.
"""

import http.client
import json
from typing import Any
from urllib.parse import urlsplit


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
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
        response = connection.getresponse()
        return response.status, response.read().decode("utf-8", "replace")
    except http.client.HTTPException as error:
        raise ConnectionError(f"{type(error).__name__}: {error}") from error
    finally:
        connection.close()
