"""How late the load client wakes: bytes that came while it slept or worked on were stamped as late as that.

A client that is starved, stopped or busy reports late tokens as the server's unless somebody watches the client itself.
"""

import asyncio
import time
from array import array
from dataclasses import dataclass

EVERY_S = 0.02
MOST_OF_THE_TIME = 0.99


@dataclass(frozen=True)
class Lateness:
    """Seconds by which the client's event loop came late: at most ``p99_s`` in 99% of its wake-ups, ``max_s`` once."""

    p99_s: float
    max_s: float


class Watch:
    """Wakes up regularly beside the load and notes how late."""

    def __init__(self) -> None:
        self._late_s = array("d")

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            due_s = time.monotonic() + EVERY_S
            await asyncio.sleep(EVERY_S)
            self._late_s.append(time.monotonic() - due_s)

    def lateness(self) -> Lateness | None:
        """What was seen; None where the load was over at once."""
        late_s = sorted(self._late_s)
        if not late_s:
            return None
        return Lateness(max(0.0, late_s[int(MOST_OF_THE_TIME * (len(late_s) - 1))]), max(0.0, late_s[-1]))
