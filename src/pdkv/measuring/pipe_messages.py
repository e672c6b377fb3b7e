"""Messages of a child, a line of JSON each, out of a pipe to which not it alone writes.

What a job step prints begins with the words of the cluster: of its prologs, of modules that a profile loads.
"""

import json
import os
import select
import threading
import time
from collections import deque
from typing import IO, Any

LOOK_EVERY_S = 0.1  # whether another thread has taken what was waited for
FOREIGN_LINES, FOREIGN_CHARACTERS = 3, 200


class PipeMessages:
    """Reads ``stream``, which must not be buffered. Several threads may wait; each message goes to one of them.

    ``heard``: whether there was any message yet.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self.heard = False
        self._handle = stream.fileno()
        self._rest = b""
        self._ended = False
        self._messages: deque[dict[str, Any]] = deque()
        self._foreign: deque[str] = deque(maxlen=FOREIGN_LINES)
        self._turn = threading.Lock()

    @property
    def foreign(self) -> str:
        """For a message: the last lines that were none of ours; empty if there were none."""
        return f"it printed {' / '.join(self._foreign)}" if self._foreign else ""

    def take(self, within_s: float) -> dict[str, Any] | None:
        """The next message; None at the end of the stream. Raises :class:`TimeoutError`."""
        deadline_s = time.monotonic() + within_s
        while True:
            with self._turn:
                while not self._messages and not self._ended and _is_readable(self._handle, 0):
                    self._read()
                if self._messages:
                    return self._messages.popleft()
                if self._ended:
                    return None
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            _is_readable(self._handle, min(left_s, LOOK_EVERY_S))

    def _read(self) -> None:
        found = os.read(self._handle, 1 << 16)
        *lines, self._rest = (self._rest + found).split(b"\n")
        if not found:
            self._ended = True
            lines, self._rest = [self._rest], b""
        for line in lines:
            self._sort(line.decode("utf-8", "replace"))

    def _sort(self, line: str) -> None:
        """Words without an end of their line may stand before a message."""
        begin = line.find('{"')
        try:
            message = json.loads(line[begin:]) if begin >= 0 else None
        except ValueError:
            message = None
        if isinstance(message, dict):
            self.heard = True
            self._messages.append(message)
            line = line[:begin]
        if line.strip():
            self._foreign.append(line.strip()[:FOREIGN_CHARACTERS])


def _is_readable(handle: int, within_s: float) -> bool:
    """Whether a read returns at once, be it with nothing because the other side has closed."""
    return bool(select.select([handle], [], [], within_s)[0])
