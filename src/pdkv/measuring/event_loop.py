"""Runs a coroutine that takes stamps: on uvloop, without pauses of the cycle collector, until it is told to stop."""

import asyncio
import contextlib
import gc
import signal
import threading
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import uvloop

from pdkv.measuring.interruption import STOP_SIGNALS, raise_if_told_to_stop, was_told_to_stop

Result = TypeVar("Result")
Fault = TypeVar("Fault", bound=BaseException)


def run_until_stopped(work: Coroutine[Any, Any, Result]) -> Result:
    """Run ``work`` and give its result; of several faults in groups of tasks the first is raised.

    On SIGINT, SIGTERM or SIGHUP with a Python handler ``work`` is cancelled, then that handler is called; a handler
    that does not raise is followed by KeyboardInterrupt.
    """
    try:
        with _without_garbage_collection():
            return _run(work)
    except BaseExceptionGroup as group:
        raise first_of(group) from None


def _run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run ``work`` to its end; a stop signal cancels it first and reaches its own handler after that.

    A handler that raises amid a callback of the event loop would be swallowed there as a fault of one connection.
    """
    stopped_by: list[int] = []

    async def stoppable() -> tuple[Result] | None:
        loop = asyncio.get_running_loop()
        task = loop.create_task(work)

        def stop(number: int) -> None:
            stopped_by.append(number)
            task.cancel()

        for number in handlers:
            loop.add_signal_handler(number, stop, number)
        if handlers and was_told_to_stop():  # before the loop took the signals over, and the raising was swallowed
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            return (await task,)
        return None

    handlers: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():  # signals reach Python code nowhere else
        handlers = {number: handler for number in STOP_SIGNALS if callable(handler := signal.getsignal(number))}
    try:
        result = uvloop.run(stoppable())
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if handlers:
        raise_if_told_to_stop()
    if result is not None and not stopped_by:
        return result[0]
    for number in stopped_by[:1]:
        handlers[number](number, None)
    raise KeyboardInterrupt


@contextlib.contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """No pause of the cycle collector while stamps are taken."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()


def first_of(group: BaseExceptionGroup[Fault]) -> Fault:
    """The first of the faults in groups within groups."""
    first = group.exceptions[0]
    return first_of(first) if isinstance(first, BaseExceptionGroup) else first
