"""Being told to stop: the first SIGINT, SIGTERM or SIGHUP raises, and what cleans up afterwards is left in peace."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(KeyboardInterrupt):
    """A person or a scheduler stopped the measurement: no result, and no fault of the cell.

    The exit status that says so is ``128 + signal_number``.
    """

    def __init__(self, signal_number: int) -> None:
        self.signal_number = signal_number
        super().__init__(f"interrupted by {signal.Signals(signal_number).name}")


@contextlib.contextmanager
def raise_when_told_to_stop() -> Iterator[None]:
    """Within the block, the first stop signal raises :class:`Interrupted` in the main thread; later ones do nothing.

    Only the first, because a second one would break off the ending of the servers that the first one began. A signal
    that was ignored before (``nohup``) stays ignored.
    """
    told: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        if not told:
            told.append(number)
            raise Interrupted(number)

    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    for number, handler in before.items():
        if handler != signal.SIG_IGN or number == signal.SIGTERM:
            signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
