"""Being told to stop: a stop signal raises, is remembered, and what cleans up afterwards is left in peace."""

import contextlib
import signal
import sys
from collections.abc import Iterator
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Stop signals since the outermost block began. Of the process, as signal handlers are.
_told: list[int] = []


class Interrupted(KeyboardInterrupt):
    """A person or a scheduler stopped the measurement: no result, and no fault of the cell.

    The exit status that says so is ``128 + signal_number``.
    """

    def __init__(self, signal_number: int) -> None:
        self.signal_number = signal_number
        super().__init__(f"interrupted by {signal.Signals(signal_number).name}")


@contextlib.contextmanager
def raise_when_told_to_stop() -> Iterator[None]:
    """Within the block, a stop signal raises :class:`Interrupted` in the main thread and is remembered.

    Remembered, because Python discards what is raised amid a ``__del__`` or the callback of a weak reference:
    :func:`raise_if_told_to_stop` then raises it again. Signals that come while an ``Interrupted`` is on its way out do
    nothing: they would break off the ending of the servers that it began. A signal that was ignored before
    (``nohup``) stays ignored.
    """

    def stop(number: int, _frame: FrameType | None) -> None:
        _told.append(number)
        raise_if_told_to_stop()

    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    _told.clear()
    for number, handler in before.items():
        if handler != signal.SIG_IGN or number == signal.SIGTERM:
            signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _told.clear()


def raise_if_told_to_stop() -> None:
    """For the places where a measurement can end well: raise :class:`Interrupted` if a stop signal has come."""
    if _told and not _is_being_interrupted():
        raise Interrupted(_told[0])


def was_told_to_stop() -> bool:
    """Whether a stop signal has come, for places where raising would do harm."""
    return bool(_told)


def _is_being_interrupted() -> bool:
    """Whether the code that runs was entered by an :class:`Interrupted`: a ``finally``, or the end of a ``with``."""
    error = sys.exception()
    while error is not None:
        if isinstance(error, Interrupted):
            return True
        error = error.__context__
    return False
