"""Servers in containers of a daemon (``docker run``): what their command lacks, and how such a container is ended.

What is started there is only a client. The server is a child of the daemon: in no process tree of ours, without the
environment that we give, and it outlives its client. So it gets its variables by name, a name of its own, and is
removed by that name, whatever became of the client. Apptainer and podman without a service need none of that to be
ended, as what they start descends from them.
"""

import contextlib
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from pdkv.errors import UserError

CLIENTS = {"docker", "nerdctl", "podman"}
ANSWERS_WITHIN_S = 10.0
# What a server that is reached at 127.0.0.1 and speaks with its workers through shared memory can't do without.
NEEDED = {"--rm": ("--rm",), "--init": ("--init",), "--network=host": ("--network", "--net"), "--ipc=host": ("--ipc",)}
NEEDED["--ipc=host"] += ("--shm-size",)
INHERITING = {"apptainer", "singularity"}  # their containers have our environment, unless told otherwise
CLEANING = {"--cleanenv", "-e", "--containall", "-C"}
DETACHED = {"--detach", "-d", "-dit", "-itd", "-td", "-id"}


@dataclass(frozen=True)
class ContainerRun:
    """A completed ``docker run``. ``remove`` ends the container, ``ask_pid`` prints the pid of its first process."""

    argv: list[str]
    remove: list[str]
    ask_pid: list[str]


def complete_run(argv: Sequence[str], name: str, variables: Iterable[str]) -> ContainerRun | None:
    """``docker run IMAGE …`` with all that it lacks; None where ``argv`` runs no client of a container's daemon.

    ``name`` is the container's, ``variables`` are names of what it gets of the client's environment.
    """
    place = _place_of_run(argv)
    if place is None:
        return None
    before, after = list(argv[:place]), list(argv[place + 1 :])
    given = {word.partition("=")[0] for word in after}
    needed = [option for option, spellings in NEEDED.items() if given.isdisjoint(spellings)]
    passed = [word for variable in sorted(variables) for word in ("--env", variable)]
    return ContainerRun(
        argv=[*before, "run", *needed, "--name", name, *passed, *after],
        remove=[*before, "rm", "--force", name],
        ask_pid=[*before, "inspect", "--format", "{{.State.Pid}}", name],
    )


def require_runnable(command: Sequence[str]) -> None:
    """Raise :class:`UserError` for options under which a server is lost, or is not the one that was asked for."""
    place = _place_of_run(command)
    for word in [] if place is None else command[place + 1 :]:
        option = word.partition("=")[0]
        if option in DETACHED:
            raise UserError(
                f"engine.command: with {word} the client would not stay as long as its server",
                remedy=f"leave {word} out",
            )
        if option == "--name":
            raise UserError(
                f"engine.command: {word}: each server of a trial gets a name of its own", remedy=f"leave {word} out"
            )
    if any(PurePath(word).name in INHERITING for word in command):
        for word in CLEANING.intersection(command):
            raise UserError(
                f"engine.command: with {word} the variables of a trial would not reach its server",
                remedy=f"leave {word} out",
            )


def pid_of(run: ContainerRun) -> int | None:
    """The first process of the container, as this host sees it; None where that can't be found out."""
    with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError):
        told = subprocess.run(run.ask_pid, capture_output=True, text=True, timeout=ANSWERS_WITHIN_S, check=True)
        return int(told.stdout.strip()) or None
    return None


def _place_of_run(argv: Sequence[str]) -> int | None:
    """Where the verb ``run`` of a client stands."""
    for number, word in enumerate(argv):
        if PurePath(word).name in CLIENTS:
            return next((place for place in range(number + 1, len(argv)) if argv[place] == "run"), None)
    return None
