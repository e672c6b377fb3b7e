"""One server under its keeper: started with a log of its own, watched, ended with all it started."""

import contextlib
import json
import math
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pdkv.log_text import failure_reason
from pdkv.measuring.container_client import ContainerRun, pid_of
from pdkv.measuring.host_shortage import describe_shortage, out_of_memory_kills
from pdkv.measuring.job_nodes import Node, step_environment
from pdkv.measuring.other_node import OtherNode
from pdkv.measuring.pipe_messages import PipeMessages
from pdkv.measuring.server_environment import clean_environment
from pdkv.redaction import redact

GRACE_S = 5.0  # between SIGTERM and SIGKILL; vLLM ends in 1–2 s, or not at all while it loads a model
POLL_S = 0.1
ENDED_WITHIN_S = 45.0  # after that grace, with all that it started
STEP_TELLS_WITHIN_S = 30.0  # the pid of a server on another node; before a server is healthy there it has
LAST_WORDS_S = 5.0  # of a keeper that is gone: somebody else may hold its output open
LOG_TAIL_BYTES = 2_000_000  # vLLM without its core writes a traceback for every request until it ends
WHO_KILLS = (
    "the kernel sends it where memory runs out, and so do people and schedulers: see the kernel's log (dmesg) and that "
    "of the job, and give the trial more memory if it was that"
)


@dataclass
class ServerProcess:
    """A server that was started. ``env`` holds only what was set for it; ``pid`` is the server's, not its keeper's.

    ``container``: how to end the one in which it runs, where ``argv`` is only a client of its daemon. ``node``: where
    it listens, if a trial has several; ``elsewhere``: that node if it is not this one, and so ``pid`` one of there.
    """

    name: str
    argv: list[str]
    env: dict[str, str]
    port: int
    log: Path
    container: ContainerRun | None = None
    node: Node | None = None
    elsewhere: OtherNode | None = None
    ready_s: float | None = None
    start_s: float = field(default_factory=time.monotonic)
    died: list[dict[str, Any]] = field(default_factory=list)
    killed: list[dict[str, Any]] = field(default_factory=list)
    left: list[dict[str, Any]] = field(default_factory=list)
    removed: list[dict[str, Any]] = field(default_factory=list)
    _keeper: "subprocess.Popen[bytes] | None" = None
    _messages: PipeMessages | None = None
    _pid: int | None = None
    _code: int | None = None
    _error: str | None = None
    _kills_before: int | None = None

    @property
    def url(self) -> str:
        """Base URL."""
        return f"http://{self.host}:{self.port}"

    @property
    def host(self) -> str:
        """The address at which it listens."""
        return self.node.address if self.node else "127.0.0.1"

    @property
    def pid(self) -> int | None:
        """Process id of the server; None if it could not be started, or if its step on another node does not say."""
        deadline_s = self.start_s + STEP_TELLS_WITHIN_S if self.elsewhere else math.inf
        while self._messages and self._pid is None and self._error is None:
            if not self._read_message(POLL_S) and time.monotonic() > deadline_s:
                break
        return self._pid

    def start(self) -> None:
        """Start keeper and server. Returns at once: several servers start at the same time."""
        environment = {**clean_environment(), **self.env}
        remove = self.container.remove if self.container else []
        order = {"argv": self.argv, "env": environment, "log": str(self.log), "grace_s": GRACE_S, "remove": remove}
        order["cores"] = self.elsewhere.cores if self.elsewhere else []  # here they are inherited
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.start_s = time.monotonic()
        self._kills_before = out_of_memory_kills()
        command = [sys.executable, "-m", "pdkv.measuring.keeper"]
        keeper = self._keeper = subprocess.Popen(
            self.elsewhere.step(command) if self.elsewhere else command,
            env=step_environment() if self.elsewhere else None,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # Ctrl-C at a terminal goes to the measurement, which then tells the keeper
        )
        assert keeper.stdin is not None and keeper.stdout is not None
        self._messages = PipeMessages(keeper.stdout)
        with contextlib.suppress(BrokenPipeError):  # a keeper that died is noticed as a server that ended
            keeper.stdin.write(json.dumps(order).encode() + b"\n")
            keeper.stdin.flush()

    def has_ended(self) -> bool:
        """Whether the server is gone, or never was."""
        while not self._is_over() and self._read_message(0.0):
            pass
        return self._is_over()

    def ending(self) -> str:
        """How the server ended, with the reason from its log: for a message."""
        if self._error not in (None, "ended"):
            return f"{self.name}: {self._error}"
        if self._code is None:
            how = "was lost"
        elif self._code < 0:
            how = f"was killed by signal {-self._code} ({signal.Signals(-self._code).name})"
        else:
            how = f"ended with status {self._code}"
        dead = self.died[0] if self.died and self._code is not None and self._code >= 0 else None
        shortage = "" if self.elsewhere else describe_shortage(self._kills_before, self.log)
        why = shortage or failure_reason(self.log_tail()) or (WHO_KILLS if dead and dead["signal"] == 9 else "")
        return ": ".join(filter(None, (f"{self.name} {how}", _describe_death(dead) if dead else "", why, self.silence)))

    @property
    def silence(self) -> str:
        """What is to be said of a step on another node that never told of its server; empty if it did."""
        if self.elsewhere is None or self._messages is None or self._messages.heard:
            return ""
        silent = f"its step on node {self.elsewhere.node.name} told nothing"
        return ": ".join(filter(None, (silent, self._messages.foreign)))

    def log_tail(self) -> str:
        """The last part of the log, with secrets of the environment hidden."""
        try:
            with self.log.open("rb") as log:
                log.seek(max(0, self.log.stat().st_size - LOG_TAIL_BYTES))
                return redact(log.read().decode("utf-8", "replace"))
        except OSError:
            return ""

    def find_container(self) -> bool:
        """Take the first process in the container for the server, instead of the client; whether it was found."""
        found = pid_of(self.container) if self.container and not self.elsewhere else None
        self._pid = found or self.pid
        return found is not None

    def watch_descendants(self) -> None:
        """Have the keeper tell of what the server has started, if it ends: :attr:`died`."""
        if self._keeper is not None and self._keeper.stdin is not None:
            with contextlib.suppress(OSError):  # a keeper that died is noticed as a server that ended
                self._keeper.stdin.write(b"\n")
                self._keeper.stdin.flush()

    def tell_to_stop(self) -> None:
        """Have the keeper end the server; returns at once."""
        if self._keeper is not None and self._keeper.stdin is not None:
            with contextlib.suppress(OSError):
                self._keeper.stdin.close()

    def wait_stopped(self) -> None:
        """Wait until the server and all that it started are gone; what is not is in :attr:`left`."""
        if self._keeper is None:
            return
        patience_s = GRACE_S if self.silence else GRACE_S + ENDED_WITHIN_S
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._keeper.wait(patience_s)
        if self._keeper.poll() is None and self.elsewhere:
            self._keeper.terminate()  # srun, which then ends its step
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._keeper.wait(GRACE_S)
        if self._keeper.poll() is None:
            self._keeper.kill()  # the kernel then kills the server
            self._keeper.wait()
        while self._read_message(LAST_WORDS_S):
            pass
        self._error = self._error or "ended"

    def _is_over(self) -> bool:
        return self._error is not None or self._code is not None

    def _read_message(self, within_s: float) -> bool:
        """Take one message of the keeper; False at the end, or if none comes."""
        if self._messages is None:
            return False
        try:
            message = self._messages.take(within_s)
        except TimeoutError:
            return False
        if message is None:
            self._error = self._error or "ended"
            return False
        self._pid = message.get("pid", self._pid)
        self._code = message.get("code", self._code)
        self._error = message.get("error", self._error)
        self.died += [message["died"]] if "died" in message else []
        self.killed += message.get("killed", [])
        self.left += message.get("left", [])
        self.removed += message.get("removed", [])
        return True


def _describe_death(process: dict[str, Any]) -> str:
    """Of a process below a server that then ended by itself, as vLLM does without its engine core."""
    name, pid, number, status = (process[key] for key in ("name", "pid", "signal", "status"))
    if number is not None:
        return f"its process {name} ({pid}) had been killed by signal {number} ({signal.Signals(number).name})"
    if status is not None:
        return f"its process {name} ({pid}) had ended with status {status}"
    return f"its process {name} ({pid}) had ended before"


def stop_servers(servers: Sequence[ServerProcess]) -> list[dict[str, Any]]:
    """End all servers at the same time. Returns what is still there: ``{name, pid, process}``.

    ``pid`` is None for what is no process of a tree of ours: a container, or whatever answers at a server's port.
    """
    for server in servers:
        server.tell_to_stop()
    for server in servers:
        server.wait_stopped()
    left = [
        {"name": server.name, "pid": process["pid"], "process": process["name"]}
        if not server.elsewhere
        else {"name": server.name, **server.elsewhere.rename(process["name"])}
        for server in servers
        for process in server.left
    ]
    for server in servers:
        if not server.left and _is_listened_to(server.host, server.port):
            left.append({"name": server.name, "pid": None, "process": f"whatever listens at port {server.port}"})
    return left


def _is_listened_to(host: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((host, port), 1):
        return True
    return False
