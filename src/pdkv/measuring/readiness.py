"""When servers are ready: healthy, and each has answered one real completion."""

import contextlib
import json
import queue
import threading
import time
from collections.abc import Callable, Sequence

from pdkv.errors import StageFailed
from pdkv.log_text import excerpt
from pdkv.measuring.control_plane import http_get, http_post
from pdkv.measuring.server_process import POLL_S, ServerProcess

PROBE_TOKENS = list(range(10, 18))


def await_ready(
    servers: Sequence[ServerProcess],
    model: str,
    timeout_s: float,
    *,
    when_healthy: Callable[[ServerProcess], None] = lambda _server: None,
    while_waiting: Callable[[], None] = lambda: None,
) -> None:
    """Wait until each server is healthy and has answered one real completion of ``model``.

    ``when_healthy`` is called, in another thread, before a server gets its completion; ``while_waiting`` often.
    Raises :class:`StageFailed` (launch) with the end of the log when a server ends before, answers with an error, or is
    not ready ``timeout_s`` after it was started.
    """
    given_up = threading.Event()
    answers: queue.SimpleQueue[tuple[ServerProcess, str | None]] = queue.SimpleQueue()
    for server in servers:
        arguments = (server, model, server.start_s + timeout_s, when_healthy, given_up, answers)
        threading.Thread(target=_probe, args=arguments, daemon=True).start()
    try:
        waiting = list(servers)
        while waiting:
            for server in servers:
                if server.has_ended():
                    raise StageFailed("launch", server.ending(), excerpt=excerpt(server.log_tail()))
            if time.monotonic() > waiting[0].start_s + timeout_s:
                raise _not_ready(waiting, timeout_s)
            while_waiting()
            with contextlib.suppress(queue.Empty):
                server, problem = answers.get(timeout=POLL_S)
                if problem:
                    raise StageFailed("launch", f"{server.name} {problem}", excerpt=excerpt(server.log_tail()))
                waiting.remove(server)
    finally:
        given_up.set()


def _not_ready(waiting: list[ServerProcess], timeout_s: float) -> StageFailed:
    names = ", ".join(server.name for server in waiting)
    late = f"{names} not ready within {timeout_s:g} s (limits.launch_timeout_s)"
    silence = next((server.silence for server in waiting if server.silence), "")
    return StageFailed("launch", f"{late}: {silence}" if silence else late, excerpt=excerpt(waiting[0].log_tail()))


def _probe(
    server: ServerProcess,
    model: str,
    deadline_s: float,
    when_healthy: Callable[[ServerProcess], None],
    given_up: threading.Event,
    answers: "queue.SimpleQueue[tuple[ServerProcess, str | None]]",
) -> None:
    """In a thread of its own: the first completion of several servers may take long, and on all at the same time."""
    while not given_up.is_set() and time.monotonic() < deadline_s:
        try:
            status, _ = http_get(f"{server.url}/health", 2)
            if status == 200:
                when_healthy(server)
                problem = _complete_once(server.url, model, max(1.0, deadline_s - time.monotonic()))
                server.ready_s = time.monotonic() - server.start_s
                answers.put((server, problem))
                return
        except OSError:
            pass  # not listening yet, or just ended: the watching thread sees which
        given_up.wait(POLL_S)


def _complete_once(url: str, model: str, timeout_s: float) -> str | None:
    """What is wrong with the answer to a completion of one token; None if it is right."""
    body = {"model": model, "prompt": PROBE_TOKENS, "max_tokens": 1, "temperature": 0, "ignore_eos": True}
    status, text = http_post(f"{url}/v1/completions", body, timeout_s)
    if status != 200:
        return f"is healthy but answers a completion with HTTP {status}: {text[:300]}"
    try:
        answer = json.loads(text)
    except json.JSONDecodeError:
        return f"answers a completion with something that is not JSON: {text[:300]}"
    if answer.get("model") != model:
        return f"serves {answer.get('model')!r}, not {model!r}: another server answers on its port"
    return None
