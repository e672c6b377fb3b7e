"""Progress for a person: one live line on a terminal, a few plain lines elsewhere."""

import io
import time

import pytest

from pdkv import progress
from pdkv.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_plain_lines_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(progress.time, "strftime", lambda _: "12:00:00")
    stream = io.StringIO()
    with Progress("short/1p1d/fp8/r1", "3/6", stream) as shown:
        shown.stage("load c=2")
        for done in range(25):
            now[0] = 100 + done
            shown.requests(done, 24)
        shown.measured(92.4, {"launch": 41.0, "warmup": 12.1, "load": 35.0})
    assert stream.getvalue().splitlines() == [
        "12:00:00 [3/6] short · 1p1d · fp8 · r1  load c=2",
        "12:00:00 [3/6] short · 1p1d · fp8 · r1  load c=2  10/24 requests  about 14 s left",
        "12:00:00 [3/6] short · 1p1d · fp8 · r1  load c=2  20/24 requests  about 4.0 s left",
        "12:00:00 [3/6] short · 1p1d · fp8 · r1  measured in 1 min 32 s: launch 41 s, warm-up 12 s, load 35 s",
    ]


def test_a_terminal_has_one_line_that_is_redrawn() -> None:
    terminal = Terminal()
    with Progress("w/default/fp16/r1", "", terminal) as shown:
        shown.stage("warmup")
        shown.waiting("round 2")
        shown.requests(1, 2)
        shown.failed("warmup", "no memory", 3.0)
    drawn = terminal.getvalue().split("\r\x1b[2K")
    assert drawn[1] == "w · default · fp16 · r1  warmup"
    assert drawn[2].startswith("w · default · fp16 · r1  warmup  round 2  0.0 s")
    assert drawn[-2] == "w · default · fp16 · r1  failed in warm-up after 3.0 s: no memory\n"
    assert terminal.getvalue().count("\n") == 1


def test_a_stream_that_knows_only_ascii_or_is_gone_ends_nothing() -> None:
    raw = io.BytesIO()
    ascii_only = io.TextIOWrapper(raw, encoding="ascii")
    Progress("w/default/fp16/r1", "", ascii_only).stage("launch")
    assert raw.getvalue().endswith(b"w ? default ? fp16 ? r1  launch\n")

    class Gone(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    Progress("w", "", Gone()).stage("launch")


def test_a_redraw_costs_next_to_nothing() -> None:
    shown = Progress("w/default/fp16/r1", "3/6", Terminal())
    shown.stage("load c=2")
    shortest_s = min(_seconds(shown, number) for number in range(200))
    assert shortest_s < 0.001  # in the process that stamps tokens


def _seconds(shown: Progress, number: int) -> float:
    start_s = time.perf_counter()
    shown.requests(number + 1, 1000)
    return time.perf_counter() - start_s
