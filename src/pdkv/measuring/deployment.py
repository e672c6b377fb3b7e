"""All servers of a trial as one thing: its instances and the router before them, or a server that the user runs."""

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pdkv.errors import StageFailed
from pdkv.log_text import excerpt
from pdkv.measuring.client import Target
from pdkv.measuring.control_plane import http_get
from pdkv.measuring.engine import Instance, place_instances
from pdkv.measuring.other_node import TrialNodes
from pdkv.measuring.ports import PortReservation
from pdkv.measuring.process_tree import ProcessInfo, descendants, find_marked, kill_processes
from pdkv.measuring.readiness import await_ready
from pdkv.measuring.router import Router, place_router
from pdkv.measuring.scraper import Source, sources_of
from pdkv.measuring.server_process import ServerProcess, stop_servers
from pdkv.measuring.shared_memory import FOLDER, free_bytes
from pdkv.measuring.trial_mark import MARK, make_mark
from pdkv.redaction import redact
from pdkv.units import format_bytes

ENDPOINT = "endpoint"
# vLLM's workers, where they are processes of their own, get segments of 160 and 240 MiB (0.32) and refuse to start
# where one does not fit; hardly a page of them is touched, so that instances beside each other do not add up.
SHARED_MEMORY_BYTES = 256 << 20
DEATH_IS_KNOWN_S = 0.3  # after a server has died, until its keeper has said so


@dataclass
class Deployment:
    """Servers placed for one trial. ``client_cores`` None: the client may run anywhere.

    ``has_workers``: the engines start processes that they speak with over shared memory.
    """

    model: str
    instances: list[Instance] = field(default_factory=list)
    router: Router | None = None
    endpoint: str | None = None
    client_cores: list[int] | None = None
    mark: str = ""
    has_workers: bool = False
    nodes: TrialNodes = field(default_factory=TrialNodes)
    bindings: list[dict[str, Any]] = field(default_factory=list)
    _started: list[ServerProcess] = field(default_factory=list)
    _killed: list[ProcessInfo] = field(default_factory=list)
    _bystanders: Sequence[ProcessInfo] = ()

    @classmethod
    def place(
        cls,
        plan: Mapping[str, Any],
        log_folder: Path,
        ports: PortReservation,
        gpus: Sequence[str],
        nodes: TrialNodes | None = None,
    ) -> "Deployment":
        """Everything that the plan asks for, with ports, cores and GPUs chosen; nothing is started.

        ``ports`` and ``gpus`` are those of this node; the others in ``nodes`` have their own.
        """
        nodes = nodes or TrialNodes()
        model = plan["served_model"]
        if plan["endpoint"]:
            return cls(model, endpoint=plan["endpoint"])
        mark = make_mark()
        cores = sorted(os.sched_getaffinity(0))
        instances, client_cores = place_instances(
            plan, log_folder, ports=ports, cores=cores, gpus=gpus, mark=mark, nodes=nodes
        )
        router = place_router(plan, instances, log_folder, ports, mark)
        has_workers = plan["engine"]["device"] == "cpu" or (plan["asked"].get("tensor_parallel_size") or 1) > 1
        return cls(model, instances, router, None, client_cores, mark, has_workers, nodes)

    def start(self) -> None:
        """Start all instances at the same time. Whatever was started runs until :meth:`stop`.

        Raises :class:`StageFailed` (launch) where ``/dev/shm`` has no room for them.
        """
        if self.has_workers:
            _require_shared_memory()
        self._start([instance.server for instance in self.instances])

    def await_ready(self, timeout_s: float, while_waiting: Callable[[], None] = lambda: None) -> None:
        """Return when every instance, and then the router before them, has answered.

        Instances are moved to their cores before their first completion, which takes long on one core for two.
        Raises :class:`StageFailed` (launch).
        """
        servers = [instance.server for instance in self.instances]
        await_ready(servers, self.model, timeout_s, when_healthy=self._bind_server, while_waiting=while_waiting)
        if self.router:
            self._start([self.router.server])
            await_ready([self.router.server], self.model, timeout_s, while_waiting=while_waiting)
        for server in servers:
            server.watch_descendants()

    def find_containers(self) -> bool:
        """Whether servers run in containers of a daemon; from now on their pids are those of what runs in there."""
        found = [instance.server.find_container() for instance in self.instances]
        return any(found)

    def engine_version(self) -> str | None:
        """What the first instance says of itself, None if it does not."""
        with contextlib.suppress(OSError, ValueError, AttributeError):
            status, text = http_get(f"{self.instances[0].server.url}/version", 2)
            version = json.loads(text).get("version") if status == 200 else None
            return str(version) if version else None
        return None

    @property
    def entry(self) -> Target:
        """Where the load is sent."""
        if self.endpoint:
            return Target(ENDPOINT, self.endpoint, self.model)
        server = self.router.server if self.router else self.instances[0].server
        return Target(server.name, server.url, self.model)

    def targets_by_role(self) -> dict[str, list[Target]]:
        """Every instance as a target of its own."""
        targets: dict[str, list[Target]] = {}
        for instance in self.instances:
            targets.setdefault(instance.role, []).append(Target(instance.name, instance.server.url, self.model))
        return targets

    def sources(self) -> list[Source]:
        """The pages on which the servers speak about themselves."""
        if self.endpoint:
            return sources_of(ENDPOINT, self.endpoint.rstrip("/").removesuffix("/v1"))
        pages = [source for instance in self.instances for source in sources_of(instance.name, instance.server.url)]
        if self.router:
            pages.append(Source("router", "metrics", self.router.metrics_url))
        return pages

    def require_alive(self, stage: str, patience_s: float = 0.0) -> None:
        """Raise :class:`StageFailed` if a server has ended, or ends within ``patience_s``."""
        give_up_s = time.monotonic() + patience_s
        while not any(server.has_ended() for server in self._started) and time.monotonic() < give_up_s:
            time.sleep(0.02)
        for server in self._started:
            if server.has_ended():
                raise StageFailed(stage, server.ending(), excerpt=excerpt(server.log_tail()))

    def explain(self, failure: StageFailed) -> StageFailed:
        """The failure with its cause where a server has ended, else with the end of a log; free of secrets."""
        try:
            self.require_alive(failure.stage, DEATH_IS_KNOWN_S)
        except StageFailed as cause:
            return StageFailed(failure.stage, redact(cause.reason), excerpt=cause.excerpt)
        log = self._started[0].log_tail() if self._started and not failure.excerpt else ""
        return StageFailed(failure.stage, redact(failure.reason), excerpt=failure.excerpt or excerpt(log))

    def stop(self) -> list[dict[str, Any]]:
        """End all servers and whatever still carries the trial's mark. Returns what is left. May be called again."""
        left = [*stop_servers(self._started), *self.nodes.leftovers()]
        killed, living = kill_processes(self._find_strays())
        self._killed += killed
        return left + [{"name": "unknown", "pid": process.pid, "process": process.name} for process in living]

    def _find_strays(self) -> list[ProcessInfo]:
        """What servers that lost their keepers have left: it carries the mark, or came to this process, a subreaper."""
        if not self._started:
            return []
        below = [process for process in descendants(os.getpid()) if process not in self._bystanders]
        marked = find_marked(f"{MARK}={self.mark}") if self.mark else []
        return list({process.pid: process for process in (*below, *marked)}.values())

    def aftermath(self) -> list[str]:
        """What had to be cleaned up by force, a line each."""
        lines = [f"unkept: had to kill process {each.pid} ({each.name})" for each in self._killed]
        for server in self._started:
            lines += [f"{server.name}: had to kill process {each['pid']} ({each['name']})" for each in server.killed]
            lines += [f"{server.name}: removed {each['path']}, {each['bytes']} bytes" for each in server.removed]
        return lines

    def records(self) -> list[dict[str, Any]]:
        """The instances as ``stages.json`` keeps them; of the user's own server only the URL is known."""
        if self.endpoint:
            named = {"name": ENDPOINT, "role": "single", "index": 0, "url": self.endpoint}
            return [named | dict.fromkeys(("pid", "port", "argv", "env", "cores", "gpus", "ready_s", "log"))]
        return [instance.record() for instance in self.instances]

    def bind(self, when: str) -> None:
        """See that every instance computes on its own cores; what was found is kept in :attr:`bindings`."""
        for instance in self.instances:
            self._bind(instance, when)

    def _bind(self, instance: Instance, when: str) -> None:
        if binding := instance.bind():
            found = {"t_s": time.monotonic(), "when": when, "instance": instance.name}
            self.bindings.append({**found, "threads": binding.threads, "moved": binding.moved})

    def _bind_server(self, server: ServerProcess) -> None:
        self._bind(next(instance for instance in self.instances if instance.server is server), "healthy")

    def _start(self, servers: Sequence[ServerProcess]) -> None:
        if not self._started:
            self._bystanders = descendants(os.getpid())  # those that sample the devices
        for server in servers:
            self._started.append(server)
            server.start()


def _require_shared_memory() -> None:
    """Known before the launch rather than after a minute of it, or from a bus error."""
    free = free_bytes()
    if free is not None and free < SHARED_MEMORY_BYTES:
        raise StageFailed(
            "launch",
            f"{FOLDER} has {format_bytes(free)} free, vLLM needs {format_bytes(SHARED_MEMORY_BYTES)}: remove what "
            f"ended programs have left there (ls -l {FOLDER}), or give it more room (--shm-size=1g for a container, "
            f"else mount -o remount,size=1g {FOLDER})",
        )
