"""Another node of a trial, seen from the one that measures: leased, described, spoken with, given back.

The other end is :mod:`node_agent`, a step of the job on that node.
"""

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pdkv.errors import StageFailed, UserError
from pdkv.measuring.cores import Binding
from pdkv.measuring.job_nodes import Node, nodes_of_job, step_environment
from pdkv.measuring.pipe_messages import PipeMessages

AGENT = "pdkv.measuring.node_agent"
GIVEN_BACK_WITHIN_S = 15.0
ANSWERS_WITHIN_S = 60.0  # an agent that obeys: what it is asked takes seconds
LEASES_WITHIN_S = 180.0  # without a word: while it waits for others it says so every minute
Say = Callable[[str], None]


@dataclass
class OtherNode:
    """A node with what its agent told of it: ``environment``, ``cores``, ``gpus``, and ports for each instance."""

    node: Node
    instances: list[dict[str, Any]]
    environment: dict[str, Any] = field(default_factory=dict)
    cores: list[int] = field(default_factory=list)
    gpus: list[str] = field(default_factory=list)
    ports: list[int] = field(default_factory=list)
    kv_ports: list[int] = field(default_factory=list)
    mark: str = ""
    waited_s: float = 0.0
    _agent: "subprocess.Popen[bytes] | None" = None
    _messages: PipeMessages | None = None
    _lost: StageFailed | None = None
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def step(self, command: Sequence[str]) -> list[str]:
        """``command`` on this node, with the GPUs of all its instances in sight."""
        return self.node.step(command, sum(instance["gpus"] for instance in self.instances))

    def open(self, plan: Mapping[str, Any], trial: str, say: Say) -> None:
        """Start the agent and have it lease the devices of its instances. Raises :class:`UserError` as leases do.

        Also where no step begins within ``limits.launch_timeout_s``. ``waited_s``: for others to give devices back.
        """
        agent = self._agent = subprocess.Popen(
            self.step([sys.executable, "-X", "utf8", "-P", "-m", AGENT]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env=step_environment(),
            start_new_session=True,  # Ctrl-C at a terminal goes to the measurement alone
        )
        assert agent.stdout is not None
        self._messages = PipeMessages(agent.stdout)
        own = {key: plan[key] for key in ("engine", "trial", "memory")} | {"instances": self.instances}
        self._write({"plan": own, "trial": trial, "address": self.node.address})
        limit_s = float(plan["trial"]["limits"]["launch_timeout_s"])
        waits_since: list[float] = []

        def say_and_note(text: str) -> None:
            waits_since.append(time.monotonic())
            say(text)

        try:
            self._hear(say, limit_s)  # that it is there
            told = self._hear(say_and_note, max(limit_s, LEASES_WITHIN_S))
        except StageFailed as failure:
            raise UserError(
                failure.reason, remedy="see whether srun starts a step there at all, or raise limits.launch_timeout_s"
            ) from None
        self.waited_s = time.monotonic() - waits_since[0] if waits_since else 0.0
        for key, value in told.items():
            setattr(self, key, value)

    def require_memory(self) -> None:
        """As of this node's own devices: raises :class:`StageFailed` (launch)."""
        self._ask("require_memory")

    def bind(self, pid: int, cores: Sequence[int], *, ranks: int, free_main_threads: bool) -> Binding:
        """:func:`pdkv.measuring.cores.bind_to_cores` there."""
        order = {"pid": pid, "cores": list(cores), "ranks": ranks, "free_main_threads": free_main_threads}
        return Binding(**self._ask("bind", **order))

    def beside(self) -> set[str]:
        """The trials that were seen on that node since the lease."""
        return set(self._ask("look_beside"))

    def leftovers(self) -> list[dict[str, Any]]:
        """What is left of the trial there, whose processes have been killed."""
        try:
            left = list(self._ask("end"))
        except StageFailed as failure:
            return [{"name": f"node {self.node.name}", "pid": None, "process": failure.reason}]
        return [each if "gpu" in each else {**each, **self.rename(each["process"])} for each in left]

    def rename(self, process: str) -> dict[str, Any]:
        """A process of that node as it is told here, where its number would be another one's."""
        return {"pid": None, "process": f"{process} on node {self.node.name}"}

    def close(self) -> None:
        """Give everything back. May be called again."""
        agent, self._agent = self._agent, None
        if agent is None or agent.stdin is None:
            return
        with contextlib.suppress(OSError):
            agent.stdin.close()
        has_begun = self._messages is not None and self._messages.heard
        try:
            agent.wait(GIVEN_BACK_WITHIN_S if has_begun else 0.0)
        except subprocess.TimeoutExpired:  # srun ends its step when it is told to
            agent.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                agent.wait(GIVEN_BACK_WITHIN_S)
            agent.kill()
            agent.wait()

    def _ask(self, order: str, **details: Any) -> Any:
        with self._turn:  # instances of one node become ready in threads of their own
            if self._lost:  # what it says now would be taken for the answer to something else
                raise self._lost
            self._write({"do": order, **details})
            return self._hear(lambda _text: None, ANSWERS_WITHIN_S)

    def _write(self, message: Mapping[str, Any]) -> None:
        assert self._agent is not None and self._agent.stdin is not None
        with contextlib.suppress(OSError):  # an agent that died is noticed when it does not answer
            self._agent.stdin.write(json.dumps(message).encode() + b"\n")

    def _hear(self, say: Say, within_s: float) -> Any:
        assert self._messages is not None
        while True:
            try:
                message = self._messages.take(within_s)
            except TimeoutError:
                raise self._lose(f"node {self.node.name} told nothing within {within_s:g} s") from None
            if message is None:
                gone = f"nothing answers on node {self.node.name} any more: srun's words are in the job's log"
                raise self._lose(gone)
            if "say" in message:
                say(f"{self.node.name}: {message['say']}")
            elif "problem" in message:
                raise UserError(f"on node {self.node.name}: {message['problem']}", remedy=message["remedy"])
            elif "failed" in message:
                stage, reason = message["failed"]
                raise StageFailed(stage, f"on node {self.node.name}: {reason}")
            elif "done" in message:
                return message["done"]

    def _lose(self, how: str) -> StageFailed:
        printed = self._messages.foreign if self._messages else ""
        self._lost = StageFailed("launch", ": ".join(filter(None, (how, printed))))
        return self._lost


@dataclass
class TrialNodes:
    """The nodes of a trial: ``here`` measures, ``others`` hold instances too. None and empty where one node has all."""

    here: Node | None = None
    others: list[OtherNode] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        """In the order in which the plan counts them."""
        return [self.here.name, *(other.node.name for other in self.others)] if self.here else []

    @property
    def addresses(self) -> list[str]:
        """At which servers of this node listen, if not at the loopback address alone."""
        return ["127.0.0.1", self.here.address] if self.here else []

    @property
    def waited_s(self) -> float:
        """For others to give back devices of the other nodes."""
        return sum(other.waited_s for other in self.others)

    def describe(self, environment: dict[str, Any]) -> dict[str, Any]:
        """The environment of the trial: that of this node, and under ``nodes`` those of the others.

        How busy others kept the hosts is that of the busiest.
        """
        if not self.others:
            return environment
        shares = [each["foreign_cpu_share"] for each in (environment, *(other.environment for other in self.others))]
        known = [share for share in shares if share is not None]
        busiest = max(known) if len(known) == len(shares) else None
        return {**environment, "foreign_cpu_share": busiest, "nodes": [other.environment for other in self.others]}

    def require_memory(self) -> None:
        """Raise :class:`StageFailed` (launch) where an instance of another node can't start on its GPUs."""
        for other in self.others:
            other.require_memory()

    def beside(self) -> set[str]:
        """The trials that were seen on the other nodes."""
        return set().union(*(other.beside() for other in self.others))

    def leftovers(self) -> list[dict[str, Any]]:
        """What is left of the trial on the other nodes."""
        return [left for other in self.others for left in other.leftovers()]


@contextlib.contextmanager
def join_nodes(plan: Mapping[str, Any], trial: str, say: Say) -> Iterator[TrialNodes]:
    """The nodes that a plan's instances are dealt to, each with its agent until the block ends.

    Raises :class:`UserError` where the job has too few, or where one has too few free devices.
    """
    count = 1 + max((instance.get("node", 0) for instance in plan["instances"]), default=0)
    if count == 1:
        yield TrialNodes()
        return
    here, *others = nodes_of_job(count)
    nodes = TrialNodes(here, [OtherNode(node, instances_on(plan, n)) for n, node in enumerate(others, 1)])
    try:
        for other in nodes.others:
            other.open(plan, trial, say)
        yield nodes
    finally:
        for other in nodes.others:
            other.close()


def instances_on(plan: Mapping[str, Any], number: int) -> list[dict[str, Any]]:
    """The planned instances of one node."""
    return [instance for instance in plan["instances"] if instance.get("node", 0) == number]
