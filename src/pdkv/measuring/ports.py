"""Free ports for servers that take tens of seconds until they bind them."""

import contextlib
import random
import socket
from collections.abc import Iterator
from pathlib import Path

from pdkv.errors import UserError

HIGHEST = 65_535
LOWEST = 10_000
TRIES = 500


class PortReservation:
    """Hands out ports that are free on ``addresses`` and keeps them from other measurements on this host.

    Ports lie outside the range from which the system serves outgoing connections, so that none of these takes one
    before its server binds it. What keeps two measurements apart is an abstract Unix socket per port: it needs no file
    and vanishes with its process.
    """

    def __init__(self, *addresses: str) -> None:
        self._addresses = addresses or ("127.0.0.1",)
        self._held: list[socket.socket] = []

    def take(self, count: int = 1) -> int:
        """The first of ``count`` free ports in a row."""
        return self._take((random.choice(_candidates()) for _ in range(TRIES)), count)

    def take_usual(self, count: int = 1) -> int:
        """The first of ``count`` free ports in a row, in one trial after another the same, unless they are in use.

        vLLM counts the port of NIXL's side channel among what its compiled graphs depend on: with a new port in each
        launch, none would ever find the graphs of the one before.
        """
        return self._take(iter(_candidates()[:TRIES]), count)

    def _take(self, candidates: Iterator[int], count: int) -> int:
        for first in candidates:
            with contextlib.ExitStack() as attempt:
                if all(self._claim(port, attempt) for port in range(first, first + count)):
                    attempt.pop_all()
                    return first
        raise UserError(
            f"no {count} free ports in a row were found in {TRIES} tries",
            remedy="end servers that are no longer needed (ss -ltn shows them)",
        )

    def release(self) -> None:
        """Give all ports back."""
        for held in self._held:
            held.close()
        self._held.clear()

    def _claim(self, port: int, attempt: contextlib.ExitStack) -> bool:
        held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        attempt.callback(held.close)
        try:
            held.bind(f"\0pdkv-port-{port}")
            for address in self._addresses:
                with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
                    # As servers do: TIME_WAIT is no obstacle.
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind((address, port))
        except OSError:
            return False
        self._held.append(held)
        return True


@contextlib.contextmanager
def reserved_ports(*addresses: str) -> Iterator[PortReservation]:
    """Ports that are ours until the block ends; of the loopback address, unless others are named."""
    ports = PortReservation(*addresses)
    try:
        yield ports
    finally:
        ports.release()


def _candidates() -> range:
    """The larger of the two stretches below and above the range of outgoing connections."""
    try:
        text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii")
        low, high = (int(number) for number in text.split())
    except (OSError, ValueError):
        low, high = 32_768, 60_999
    below, above = range(LOWEST, low - 100), range(high + 1, HIGHEST - 100)
    widest = max(below, above, key=len)
    return widest if len(widest) > TRIES else range(LOWEST, HIGHEST - 100)
