"""Servers in containers of a daemon (``docker run``): what their command lacks, and how such a container is ended.

What is started there is only a client. The server is a child of the daemon: in no process tree of ours, without the
environment that we give, and it outlives its client. So it gets its variables by name, a name of its own, and is
removed by that name, whatever became of the client. Apptainer and podman without a service need none of that to be
ended, as what they start descends from them.
"""

import contextlib
import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from pdkv.errors import UserError
from pdkv.measuring.container_options import BEFORE_VERB, OF_APPTAINER, OF_RUN, Option, split_options

CLIENTS = {"docker", "nerdctl", "podman"}
ANSWERS_WITHIN_S = 10.0
# What a server that is reached at 127.0.0.1 and speaks with its workers through shared memory can't do without.
NEEDED = {"--rm": ("--rm",), "--init": ("--init",), "--network=host": ("--network", "--net"), "--ipc=host": ("--ipc",)}
NEEDED["--ipc=host"] += ("--shm-size",)
INHERITING = {"apptainer", "singularity"}  # their containers have our environment, unless told otherwise
CLEANING = {"--cleanenv", "-e", "--containall", "-C", "--compat"}
# Verbs of either that leave the server to somebody else: it was there before, or outlives what is started.
LEAVING = {"exec", "start", "attach", "compose", "create", "instance"}
# The GPUs of a server are those of its lease. `all` is what old runtimes of NVIDIA want to hear before they show any.
OWN_GPUS = re.compile(r"CUDA_VISIBLE_DEVICES=|NVIDIA_VISIBLE_DEVICES(?:$|=(?!all\b))")


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


def require_runnable(command: Sequence[str], *, on_gpus: bool = True) -> None:
    """Raise :class:`UserError` for a command under which a server is lost, or is not the one that was asked for."""
    for word in command if on_gpus else ():
        if OWN_GPUS.search(word):
            raise UserError(
                f"engine.command: {word} would choose GPUs over the head of the trial, which leases its own",
                remedy="leave it out, and set CUDA_VISIBLE_DEVICES for the whole of pdkv to offer fewer GPUs",
            )
    client = next((n for n, word in enumerate(command) if PurePath(word).name in CLIENTS | INHERITING), None)
    if client is None:
        return
    _, rest = split_options(command[client + 1 :], BEFORE_VERB)
    verb = rest[1] if rest[:1] == ["container"] and len(rest) > 1 else rest[0] if rest else ""
    name = PurePath(command[client]).name
    if verb in LEAVING and (name in CLIENTS or verb != "exec"):
        raise UserError(
            f"engine.command: {name} {verb} leaves its server to somebody else, and it would not end with the trial",
            remedy=f"use {name} {'run' if name in CLIENTS else 'exec'}, or start the server yourself and name its "
            "address as a mode's endpoint (docs/engine-in-container.md)",
        )
    if name in INHERITING:
        _require_variables(split_options(rest[1:], OF_APPTAINER)[0])
    elif (place := _place_of_run(command)) is not None:
        _require_own_run(split_options(command[place + 1 :], OF_RUN)[0])


def _require_own_run(given: Sequence[Option]) -> None:
    for option in given:
        if option.name in ("--detach", "-d") and option.is_on:
            raise UserError(
                f"engine.command: with {option.word} the client would not stay as long as its server",
                remedy=f"leave {'-d' if option.name == '-d' else option.word} out",
            )
        if option.name == "--name":
            raise UserError(
                f"engine.command: {option.word}: each server of a trial gets a name of its own",
                remedy=f"leave {option.word} out",
            )


def _require_variables(given: Sequence[Option]) -> None:
    for option in given:
        if option.name in CLEANING and option.is_on:
            raise UserError(
                f"engine.command: with {option.word} the variables of a trial would not reach its server",
                remedy=f"leave {option.name} out",
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
