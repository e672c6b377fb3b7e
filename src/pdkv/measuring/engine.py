"""The engine instances of a trial: placed on ports, cores and GPUs, started together, ended together."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pdkv.errors import StageFailed
from pdkv.measuring.container_client import complete_run
from pdkv.measuring.cores import Binding, bind_to_cores, format_binding, split_cores
from pdkv.measuring.job_nodes import Node
from pdkv.measuring.other_node import OtherNode, TrialNodes, instances_on
from pdkv.measuring.ports import PortReservation
from pdkv.measuring.server_process import ServerProcess
from pdkv.measuring.trial_mark import MARK, READABLE

_PLACEHOLDER = re.compile(r"\{(host|port|kv_port|cores|metrics_port|url:[^{}]+)\}")


@dataclass
class Instance:
    """One engine instance. ``cores`` and ``gpus`` are None where the engine was left to choose.

    ``ranks`` of tensor parallelism share out its cores.
    """

    role: str
    index: int
    server: ServerProcess
    cores: list[int] | None
    gpus: list[str]
    has_connector: bool
    ranks: int = 1

    @property
    def name(self) -> str:
        """Name by which evidence and log call it."""
        return self.server.name

    def bind(self) -> Binding | None:
        """See that every thread runs on the instance's cores; None where it has none of its own."""
        if self.cores is None or self.server.pid is None:
            return None
        bind = elsewhere.bind if (elsewhere := self.server.elsewhere) else bind_to_cores
        return bind(self.server.pid, self.cores, ranks=self.ranks, free_main_threads=self.has_connector)

    def record(self) -> dict[str, Any]:
        """The instance as ``stages.json`` keeps it."""
        server = self.server
        return {
            "name": server.name,
            "role": self.role,
            "index": self.index,
            "node": server.node.name if server.node else None,
            "pid": server.pid,
            "port": server.port,
            "url": server.url,
            "argv": server.argv,
            "env": server.env,
            "cores": self.cores,
            "gpus": self.gpus,
            "ready_s": server.ready_s,
            "log": f"server/{server.log.name}",
        }


def place_instances(
    plan: Mapping[str, Any],
    log_folder: Path,
    *,
    ports: PortReservation,
    cores: Sequence[int],
    gpus: Sequence[str],
    mark: str,
    nodes: TrialNodes | None = None,
) -> tuple[list[Instance], list[int] | None]:
    """The instances of a plan with every placeholder filled, none of them started, and the client's cores.

    ``gpus`` are dealt out in order, each to one instance. ``ports``, ``cores``, ``gpus`` and ``mark`` are those of this
    node; the others in ``nodes`` bring their own. Raises :class:`StageFailed` (launch) if GPUs are too few.
    """
    nodes = nodes or TrialNodes()
    specs = instances_on(plan, 0)
    _require_gpus(specs, gpus)
    # Older connectors take a port for each worker, counted up.
    free = [(ports.take_usual(spec["ranks"]), ports.take()) for spec in specs]
    shares, client = split_cores(cores, [spec["ranks"] for spec in specs])
    here = _Place(log_folder, mark, nodes.here, None)
    instances = _place_on(here, plan, specs, free, shares, gpus)
    for other in nodes.others:
        _require_gpus(other.instances, other.gpus)
        there = _Place(log_folder, other.mark, other.node, other)
        shares, _ = split_cores(other.cores, [spec["ranks"] for spec in other.instances])
        free = list(zip(other.kv_ports, other.ports, strict=True))
        instances += _place_on(there, plan, other.instances, free, shares, other.gpus)
    return instances, client if _is_on_cpu(plan) else None


@dataclass(frozen=True)
class _Place:
    """Where instances are put: ``node`` where a trial has several, ``elsewhere`` where it is not this one."""

    log_folder: Path
    mark: str
    node: Node | None
    elsewhere: OtherNode | None


def _place_on(
    place: _Place,
    plan: Mapping[str, Any],
    specs: Sequence[dict[str, Any]],
    free: Sequence[tuple[int, int]],
    shares: Sequence[list[int]],
    gpus: Sequence[str],
) -> list[Instance]:
    """The instances of one node. ``free``: (port of the connector, port of the server) of each."""
    free_gpus = list(gpus)
    instances = []
    for spec, (kv_port, port), share in zip(specs, free, shares, strict=True):
        own_gpus, free_gpus = free_gpus[: spec["gpus"]], free_gpus[spec["gpus"] :]
        values = {"port": str(port), "kv_port": str(kv_port), "cores": format_binding(share, spec["ranks"])}
        values["host"] = place.node.address if place.node else "127.0.0.1"
        env = {name: fill_placeholders(value, values) for name, value in spec["env"].items()}
        env |= {MARK: place.mark, **READABLE}
        if own_gpus:
            env |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(own_gpus)}
        argv = [fill_placeholders(word, values) for word in spec["argv"]]
        container = complete_run(argv, f"pdkv-{place.mark.rpartition('.')[2][:12]}-{spec['name']}", env)
        server = ServerProcess(
            name=spec["name"],
            argv=container.argv if container else argv,
            env=env,
            port=port,
            log=place.log_folder / f"{spec['name']}.log",
            container=container,
            node=place.node,
            elsewhere=place.elsewhere,
        )
        own_cores = share if _is_on_cpu(plan) else None
        has_connector = bool(plan["asked"].get("kv_connector"))
        instances.append(
            Instance(spec["role"], spec["index"], server, own_cores, own_gpus, has_connector, spec["ranks"])
        )
    return instances


def _is_on_cpu(plan: Mapping[str, Any]) -> bool:
    return bool(plan["engine"].get("device", plan["engine"]["kind"]) == "cpu")


def _require_gpus(specs: Sequence[Mapping[str, Any]], gpus: Sequence[str]) -> None:
    needed = sum(spec["gpus"] for spec in specs)
    if needed > len(gpus):
        raise StageFailed("launch", f"the plan needs {needed} GPUs, {len(gpus)} were given to this trial")


def fill_placeholders(text: str, values: Mapping[str, str]) -> str:
    """``--port {port}`` → ``--port 20123``. Only known placeholders: arguments may hold JSON, which has braces too."""
    return _PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), text)
