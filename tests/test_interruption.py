"""A stop signal is never lost, and never breaks off what the first one began."""

import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable

import pytest

from pdkv.measuring.event_loop import run_until_stopped
from pdkv.measuring.interruption import Interrupted, raise_if_told_to_stop, raise_when_told_to_stop


class Referent:
    """Something that weak references can point to."""


class SignalsWhenDeleted:
    def __del__(self) -> None:
        signal.raise_signal(signal.SIGTERM)


def signal_in_weakref_callback() -> None:
    referent = Referent()
    kept = weakref.ref(referent, lambda _: signal.raise_signal(signal.SIGTERM))
    del referent
    assert kept() is None


def signal_in_del() -> None:
    SignalsWhenDeleted()


swallowing = pytest.mark.parametrize("swallow", [signal_in_weakref_callback, signal_in_del])
discarded = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@discarded
@swallowing
def test_a_request_whose_raising_was_discarded_is_raised_at_the_next_safe_point(swallow: Callable[[], None]) -> None:
    with raise_when_told_to_stop():
        swallow()
        with pytest.raises(Interrupted) as caught:
            raise_if_told_to_stop()
    assert caught.value.signal_number == signal.SIGTERM


@discarded
@swallowing
def test_a_second_signal_raises_where_the_first_was_discarded(swallow: Callable[[], None]) -> None:
    with raise_when_told_to_stop():
        swallow()
        with pytest.raises(Interrupted):
            signal.raise_signal(signal.SIGINT)


@discarded
@swallowing
def test_a_load_does_not_begin_after_a_discarded_request(swallow: Callable[[], None]) -> None:
    begun = []

    async def load() -> None:
        begun.append(True)

    with raise_when_told_to_stop():
        swallow()
        with pytest.raises(Interrupted):
            run_until_stopped(load())
    assert not begun


def test_cleaning_up_is_left_in_peace() -> None:
    cleaned = []
    with pytest.raises(Interrupted) as caught, raise_when_told_to_stop():
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            try:
                raise OSError("met while cleaning up")
            except OSError:
                signal.raise_signal(signal.SIGINT)
                raise_if_told_to_stop()
            cleaned.append(True)
    assert cleaned
    assert caught.value.signal_number == signal.SIGTERM


def test_nothing_is_raised_without_a_signal_or_after_the_block() -> None:
    with raise_when_told_to_stop():
        raise_if_told_to_stop()
        with pytest.raises(Interrupted):
            signal.raise_signal(signal.SIGTERM)
    raise_if_told_to_stop()


def test_what_was_ignored_before_stays_ignored() -> None:
    code = (
        "import signal; from pdkv.measuring.interruption import raise_when_told_to_stop, raise_if_told_to_stop\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "with raise_when_told_to_stop():\n"
        "    signal.raise_signal(signal.SIGHUP); raise_if_told_to_stop(); print('went on')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ)
    assert done.stdout == "went on\n", done.stderr
