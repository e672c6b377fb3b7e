"""The nodes of the Slurm job in which a trial is measured, and how a command is started on another one of them.

A job step (``srun``) carries standard input and output, so what speaks with a child over pipes here speaks with one on
another node in the same words, and the step's end is the end of all that it started.
"""

import ipaddress
import os
import re
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pdkv.errors import UserError

ANSWERS_WITHIN_S = 30.0
# Of an allocation's variables a step needs the job; the others would be read as options of its own (SLURM_GPUS=4).
KEPT = {"SLURM_JOB_ID", "SLURM_CONF", "SLURM_CLUSTER_NAME"}
OPTIONS_OF_STEPS = ("SLURM_", "SRUN_")


@dataclass(frozen=True)
class Node:
    """A node of the job: its name as Slurm has it, and the address at which the others reach it."""

    name: str
    address: str

    def step(self, command: Sequence[str], gpus: int) -> list[str]:
        """``command`` as a step of the job on this node, with the ``gpus`` that the job has there.

        ``--overlap``: each server is a step, and so is what watches over them; all have all of the node's share.
        """
        options = ["--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={self.name}", "--export=ALL", "--unbuffered"]
        return ["srun", *options, *([f"--gpus={gpus}"] if gpus else []), *command]


def step_environment(inherited: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment in which ``srun`` is called."""
    return {name: value for name, value in inherited.items() if name in KEPT or not name.startswith(OPTIONS_OF_STEPS)}


def nodes_of_job(count: int) -> list[Node]:
    """``count`` nodes of this job, that on which this process runs first.

    Raises :class:`UserError` outside of a Slurm job, and in one that has fewer.
    """
    job, here = os.environ.get("SLURM_JOB_ID"), os.environ.get("SLURMD_NODENAME")
    if not job or not here:
        raise UserError(
            f"a mode with nodes: {count} needs a Slurm job of {count} nodes, and this is none",
            remedy="run the study with --profile profiles/slurm (docs/pd-across-nodes.md), or leave nodes out",
        )
    names = _ask("scontrol", "show", "hostnames", _field("NodeList", "show", "job", job)).split()
    if here not in names or len(names) < count:
        raise UserError(
            f"job {job} has the nodes {', '.join(names) or 'none'}, the trial on {here} needs {count}",
            remedy="let the profile ask for them: leave nodes and slurm_extra out of set-resources",
        )
    chosen = [here, *(name for name in names if name != here)][:count]
    nodes = [Node(name, _address_of(name)) for name in chosen]
    _require_reachable(nodes)
    return nodes


def job_log() -> str | None:
    """The log of this Slurm job, seen from the working directory if it lies below it; None outside of a job."""
    job = os.environ.get("SLURM_JOB_ID")
    try:
        path = Path(_field("StdOut", "show", "job", job)) if job else None
    except UserError:
        return None
    if path is None:
        return None
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _address_of(name: str) -> str:
    """The IPv4 address of a node, from here."""
    told = _field("NodeAddr", "show", "node", name)
    try:
        return socket.gethostbyname(told)
    except OSError as error:
        raise UserError(
            f"the address of node {name}, {told}, can't be resolved: {error}",
            remedy="nodes must reach each other by the addresses that Slurm has (scontrol show node)",
        ) from None


def _require_reachable(nodes: Sequence[Node]) -> None:
    """Raise :class:`UserError` where a server would listen at an address that leads the others to themselves.

    On one host, of which Slurm was told that it is several nodes, such an address is as good as any.
    """
    inward = [node for node in nodes if ipaddress.ip_address(node.address).is_loopback]
    if inward and len({_field("NodeHostName", "show", "node", node.name) for node in nodes}) > 1:
        told = ", ".join(f"{node.address} for {node.name}" for node in inward)
        raise UserError(
            f"the addresses of the job's nodes lead back to the host that asks for them: {told}",
            remedy="have /etc/hosts of every node (often 127.0.1.1 for its own name) or NodeAddr in slurm.conf give "
            "the address at which the other nodes reach it",
        )


def _field(key: str, *question: str) -> str:
    """One value out of what ``scontrol`` shows on one line; it may hold blanks, and ends where the next key begins."""
    told = _ask("scontrol", "--oneliner", *question)
    found = re.search(rf"(?:^|\s){key}=(\S.*?)(?=\s+[A-Z][\w:/]*=|\s*$)", told)
    if found is None:
        raise UserError(
            f"scontrol {' '.join(question)} tells no {key}: {told[:200]}", remedy="ask whoever runs the cluster"
        )
    return found[1]


def _ask(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWERS_WITHIN_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        problem = getattr(error, "stderr", None) or error
        raise UserError(
            f"{' '.join(command)} failed: {str(problem).strip()[:200]}", remedy="ask whoever runs the cluster"
        ) from None
    return done.stdout.strip()
