"""What the servers say about themselves, fetched on the side and kept as text in ``scrapes.jsonl``.

During a load the fetching is done by a process of its own (``python -m pdkv.measuring.scraper``): a ``/metrics`` page
of a hundred kilobytes, received and encoded in the client's process, would hold up the stamping of tokens for
milliseconds.
"""

import json
import queue
import select
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pdkv.measuring.control_plane import http_get

TIMEOUT_S = 5.0
TIMEOUTS_S = {"server_info": 30.0}  # vLLM looks up the whole system for it: 3 s on two cores, 6 s on one
INTERVAL_S = 1.0
PATHS = {"metrics": "/metrics", "version": "/version", "server_info": "/server_info?config_format=json"}


@dataclass(frozen=True)
class Source:
    """A page of one server: ``kind`` is ``metrics``, ``version`` or ``server_info``."""

    instance: str
    kind: str
    url: str


def sources_of(instance: str, base_url: str) -> list[Source]:
    """Everything an engine instance has to say."""
    return [Source(instance, kind, base_url.rstrip("/") + path) for kind, path in PATHS.items()]


class Scraper:
    """Fetches pages at the moments of a trial and appends them to ``path``, a line each.

    ``scrape`` fetches at once, in this process; ``repeat`` starts fetching the metrics every second, in a process of
    its own, until ``pause``. A context manager: at its end nothing runs any more.
    """

    def __init__(self, path: Path, sources: Sequence[Source]) -> None:
        self.path = path
        self.sources = list(sources)
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self.path.touch()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.pause()

    def scrape(self, when: str, point: int | None = None, *, kinds: Sequence[str] = ("metrics",)) -> None:
        """Fetch each source of these kinds once, all at the same time: an engine may take seconds to describe itself.

        A server that does not answer leaves a line that says so.
        """
        chosen = [source for source in self.sources if source.kind in kinds]
        fetched: queue.SimpleQueue[str] = queue.SimpleQueue()
        for source in chosen:  # daemons: a stop signal must not have to wait for them
            threading.Thread(target=lambda s=source: fetched.put(_describe(s, when, point)), daemon=True).start()
        with self.path.open("a", encoding="utf-8") as lines:
            for _ in chosen:
                lines.write(fetched.get())

    def repeat(self, point: int) -> None:
        """Start fetching metrics every second as ``during`` of a point."""
        metrics = [asdict(source) for source in self.sources if source.kind == "metrics"]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pdkv.measuring.scraper"], stdin=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"path": str(self.path), "point": point, "sources": metrics}) + "\n")
        self._process.stdin.flush()

    def pause(self) -> None:
        """Stop what ``repeat`` started; a fetch that is under way is finished first."""
        process, self._process = self._process, None
        if process is None or process.stdin is None:
            return
        try:
            process.stdin.close()
            process.wait(TIMEOUT_S * 2)
        except (subprocess.TimeoutExpired, OSError):
            process.kill()
            process.wait()


def _describe(source: Source, when: str, point: int | None) -> str:
    """The line of ``scrapes.jsonl`` for one fetch."""
    line = {"t_s": time.monotonic(), "when": when, "point": point, "instance": source.instance, "kind": source.kind}
    fetched = _fetch(source.url, TIMEOUTS_S.get(source.kind, TIMEOUT_S))
    return json.dumps({**line, **fetched}, ensure_ascii=False, allow_nan=False) + "\n"


def _fetch(url: str, timeout_s: float) -> Mapping[str, Any]:
    """``{ok, status, text}``; without an answer the status is None and the text says why."""
    try:
        status, text = http_get(url, timeout_s)
    except OSError as error:
        return {"ok": False, "status": None, "text": str(error)}
    return {"ok": status == 200, "status": status, "text": text}


def main() -> None:
    """Fetch every second until standard input closes: also when the measurement is killed, then."""
    order = json.loads(sys.stdin.readline())
    sources = [Source(**source) for source in order["sources"]]
    due_s = time.monotonic() + INTERVAL_S
    with Path(order["path"]).open("a", encoding="utf-8") as lines:
        while not select.select([sys.stdin], [], [], max(0.0, due_s - time.monotonic()))[0]:
            for source in sources:
                lines.write(_describe(source, "during", order["point"]))
                lines.flush()
            due_s = max(due_s + INTERVAL_S, time.monotonic())


if __name__ == "__main__":
    try:
        main()
    except OSError as gone:  # the folder moved, the disk full: the measurement meets it too, and says what to do
        sys.exit(str(gone))
