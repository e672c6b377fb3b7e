"""Text of a server log as a person wants to read it: clean lines, why it failed, and the lines that show it.

Both wings need this (a failed launch is explained while it is measured, facts are read from the same text later), so it
knows no file and no artefact.
"""

import re

MAX_LINE = 300  # characters of a line that are still read in a report

_ESCAPE = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
# What stands before a message: a container's or launcher's mark, vLLM's process names, level, time and source line.
_CONTAINER = re.compile(r"^(?:[\w.-]+\s+\| |\d+: )")
_PROCESS = re.compile(r"^(?:\([\w ]*pid=\d+\) ?)+")
_HEADER = re.compile(r"^(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\] ?")
_EXCEPTION = re.compile(
    r"^(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|OutOfMemory|Failure))"
    r"(?:: ?(?P<message>.*))?$"
)
_FATAL = re.compile(
    r"^(?:.*\berror: .+|ERROR: .+|Fatal Python error: .+|terminate called .+|thread '.*' panicked at .*|"
    r"Bus error.*|Segmentation fault.*|Killed.*|.*: command not found|.*: No such file or directory|"
    r".*: Permission denied|.*[Oo]ut of memory.*)$"
)
# Errors that only say that some other process failed first.
_CONSEQUENCE = re.compile(
    r"root cause|EngineDeadError|EngineCore encountered an issue|WorkerProc initialization failed|Failed core proc|"
    r"Engine process failed to start|cancelled|CancelledError"
)
# Errors that say still less: the other end of a pipe is gone.
_BROKEN_PIPE = re.compile(r"^(?:BrokenPipeError|ConnectionResetError|EOFError)\b")
_SHUTDOWN = re.compile(r"\[shutdown\]|received signal|Received SIGTERM|Gracefully stopping")
_UNASKED = re.compile(r"\[shutdown\].* unexpectedly")
_CARETS = re.compile(r"^[\s^~]*$")


def clean_lines(text: str) -> list[str]:
    """The lines of a log without escape codes and control characters; every redraw of a progress bar is a line."""
    text = _ESCAPE.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return [_CONTROL.sub("", line).rstrip() for line in text.split("\n")]


def failure_reason(text: str) -> str | None:
    """Why a server failed, in one line: the last error that is not the mere consequence of another one.

    Lines after the start of a shutdown do not count: an engine that is told to stop logs errors too. ``None`` where the
    log names no error.
    """
    lines = _shown_lines(text)
    cause = _find_cause(lines)
    return _shorten(_whole_message(lines, cause)) if cause is not None else None


def excerpt(text: str, lines: int = 30) -> str:
    """At most ``lines`` lines of the log that show why a server failed: up to the error, then the end of the log.

    Marks of processes and log headers are left out, as are the lines of carets in tracebacks; long lines are cut.
    """
    shown = _shown_lines(text)
    cause = _find_cause(shown)
    if cause is None:  # what happened before the stop says more than the stop itself, unless nobody asked for it
        unasked = next((number for number, line in enumerate(shown) if _UNASKED.search(line)), -1)
        shown = shown[: max(_shutdown_start(shown), unasked + 1)] or shown
    kept = [line for line in shown if not _CARETS.match(line)]
    if cause is None or shown[cause] not in kept[:-lines]:
        return "\n".join(_shorten(line) for line in kept[-lines:])
    end = len(kept) - kept[::-1].index(shown[cause])  # just behind the last time that the error was written
    if end > len(kept) - 1:
        chosen = kept[end - lines : end]
    else:
        tail = kept[max(end, len(kept) - 2) :]
        chosen = [*kept[max(0, end - (lines - len(tail) - 1)) : end], "…", *tail]
    return "\n".join(_shorten(line) for line in chosen)


def _shown_lines(text: str) -> list[str]:
    """Lines as an excerpt shows them; of a progress bar only what it showed last."""
    text = _ESCAPE.sub("", text).replace("\r\n", "\n")
    last_drawn = [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]
    return [_undress(_CONTROL.sub("", line).rstrip()) for line in last_drawn]


def _undress(line: str) -> str:
    """The line without the marks of container, process, level, time and source, where vLLM wrote them."""
    bare = _CONTAINER.sub("", line)
    message = _PROCESS.sub("", bare)
    header = _HEADER.match(message)
    if header and header["level"] != "ERROR":
        return message  # the level is worth reading, and a warning's traceback must not be taken for the failure
    if header:
        return message[header.end() :]
    return message if message != bare else line


def _find_cause(lines: list[str]) -> int | None:
    """Index of the line that names the cause."""
    consequence = broken_pipe = None
    for number in range(_shutdown_start(lines) - 1, -1, -1):
        line = _CONTAINER.sub("", lines[number])
        if not (_EXCEPTION.match(line) or _FATAL.match(line)) or _HEADER.match(line):
            continue
        if _BROKEN_PIPE.match(line):
            broken_pipe = number if broken_pipe is None else broken_pipe
        elif _CONSEQUENCE.search(line):
            consequence = number if consequence is None else consequence
        else:
            return number
    return broken_pipe if consequence is None else consequence


def _shutdown_start(lines: list[str]) -> int:
    return next((number for number, line in enumerate(lines) if _SHUTDOWN.search(line)), len(lines))


def _whole_message(lines: list[str], number: int) -> str:
    """The error line; where it only counts errors (pydantic), with the first of them."""
    line = _CONTAINER.sub("", lines[number])
    following = lines[number + 1].strip() if number + 1 < len(lines) else ""
    if re.search(r"\d+ validation errors? for ", line) and following:
        return f"{line}: {following.partition(' [type=')[0]}"
    exception = _EXCEPTION.match(line)
    if exception and not exception["message"]:
        code = next((above.strip() for above in reversed(lines[:number]) if not _CARETS.match(above)), "")
        return f"{line.rstrip(': ')}: {following if line.endswith(':') else code}".rstrip(": ")
    return line


def _shorten(line: str) -> str:
    if len(line) <= MAX_LINE:
        return line
    return f"{line[:MAX_LINE]}… ({len(line):,} characters)"
