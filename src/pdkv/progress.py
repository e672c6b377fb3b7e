"""What a person sees while a trial runs: one line, alive on a terminal, now and then where there is none."""

import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self, TextIO

from pdkv.units import format_duration

PLAIN_INTERVAL_S = 10.0
_STAGES = {"warmup": "warm-up"}
CLEAR_LINE = "\r\x1b[2K"


class Progress:
    """``[3/6] short · 1p1d · fp8 · r1  load c=2  12/24 requests  about 40 s left``.

    ``position`` is ``3/6``: which trial of how many; empty where there is one. A terminal gets a line that is redrawn
    in place, anything else a line with the time of day for each stage and at most one every ten seconds. Drawing costs
    some 20 µs and no thread: it happens beside the stamping of tokens.
    """

    def __init__(self, trial: str, position: str = "", stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        self._head = (f"[{position}] " if position else "") + trial.replace("/", " · ")
        self._what = ""
        self._since_s = time.monotonic()
        self._shown_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._write(CLEAR_LINE)

    def stage(self, what: str) -> None:
        """A new stage begins: ``launch``, ``warmup``, ``load c=2``."""
        self._what = what
        self._since_s = time.monotonic()
        self._show(what)

    def requests(self, done: int, total: int) -> None:
        """So many requests of the stage are done. May be called often."""
        elapsed_s = time.monotonic() - self._since_s
        text = f"{self._what}  {done}/{total} requests"
        if 0 < done < total:
            text += f"  about {format_duration(elapsed_s / done * (total - done))} left"
        if self._live or time.monotonic() - self._shown_s >= PLAIN_INTERVAL_S:
            self._show(text)

    def waiting(self, what: str) -> None:
        """Still in the stage: ``what`` it waits for, with the time since it began."""
        if self._live or time.monotonic() - self._shown_s >= PLAIN_INTERVAL_S:
            self._show(f"{self._what}  {what}  {format_duration(time.monotonic() - self._since_s)}")

    def say(self, message: str) -> None:
        """Something that is worth a line of its own."""
        self._show(message)

    def measured(self, took_s: float, stages_s: Mapping[str, float]) -> None:
        """The trial is over: a last line that stays, with how long it and its stages took."""
        parts = [f"{_STAGES.get(name, name)} {format_duration(each_s)}" for name, each_s in stages_s.items()]
        self._end(f"measured in {format_duration(took_s)}: {', '.join(parts)}")

    def failed(self, stage: str, reason: str, took_s: float) -> None:
        """The trial is over in another way than it should: a last line that stays."""
        self._end(f"failed in {_STAGES.get(stage, stage)} after {format_duration(took_s)}: {reason}")

    def _end(self, result: str) -> None:
        if self._live:
            self._write(f"{CLEAR_LINE}{self._head}  {result}\n")
        else:
            self._show(result)

    def _show(self, text: str) -> None:
        self._shown_s = time.monotonic()
        if self._live:
            self._write(f"{CLEAR_LINE}{self._head}  {text}")
        else:
            self._write(f"{time.strftime('%H:%M:%S')} {self._head}  {text}\n")

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except UnicodeEncodeError:  # a terminal that was told to speak ASCII
            self._stream.write(text.encode("ascii", "replace").decode("ascii"))
            self._stream.flush()
        except OSError:  # the terminal is gone; the measurement goes on
            pass
