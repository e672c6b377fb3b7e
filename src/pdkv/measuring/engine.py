"""The engine instances of a trial: placed on ports, cores and GPUs, started together, ended together."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pdkv.errors import StageFailed
from pdkv.measuring.container_client import complete_run
from pdkv.measuring.cores import Binding, bind_to_cores, format_cores, split_cores
from pdkv.measuring.ports import PortReservation
from pdkv.measuring.server_process import ServerProcess
from pdkv.measuring.trial_mark import MARK

_PLACEHOLDER = re.compile(r"\{(port|kv_port|cores|metrics_port|url:[^{}]+)\}")


@dataclass
class Instance:
    """One engine instance. ``cores`` and ``gpus`` are None where the engine was left to choose."""

    role: str
    index: int
    server: ServerProcess
    cores: list[int] | None
    gpus: list[str]
    has_connector: bool

    @property
    def name(self) -> str:
        """Name by which evidence and log call it."""
        return self.server.name

    def bind(self) -> Binding | None:
        """See that every thread runs on the instance's cores; None where it has none of its own."""
        if self.cores is None or self.server.pid is None:
            return None
        return bind_to_cores(self.server.pid, self.cores, free_main_threads=self.has_connector)

    def record(self) -> dict[str, Any]:
        """The instance as ``stages.json`` keeps it."""
        server = self.server
        return {
            "name": server.name,
            "role": self.role,
            "index": self.index,
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
) -> tuple[list[Instance], list[int] | None]:
    """The instances of a plan with every placeholder filled, none of them started, and the client's cores.

    ``gpus`` are dealt out in order, each to one instance. Raises :class:`StageFailed` (launch) if they are too few.
    """
    specs: list[dict[str, Any]] = plan["instances"]
    needed = sum(spec["gpus"] for spec in specs)
    if needed > len(gpus):
        raise StageFailed("launch", f"the plan needs {needed} GPUs, {len(gpus)} were given to this trial")
    on_cpu = plan["engine"].get("device", plan["engine"]["kind"]) == "cpu"
    shares, client = split_cores(cores, [spec["weight"] for spec in specs])
    free_gpus = list(gpus)
    instances = []
    for spec, share in zip(specs, shares, strict=True):
        own_gpus, free_gpus = free_gpus[: spec["gpus"]], free_gpus[spec["gpus"] :]
        kv_port = ports.take_usual(max(1, spec["gpus"]))  # older connectors take one for each worker, counted up
        values = {"port": str(ports.take()), "kv_port": str(kv_port), "cores": format_cores(share)}
        env = {name: fill_placeholders(value, values) for name, value in spec["env"].items()} | {MARK: mark}
        if own_gpus:
            env |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(own_gpus)}
        argv = [fill_placeholders(word, values) for word in spec["argv"]]
        container = complete_run(argv, f"pdkv-{mark.rpartition('.')[2][:12]}-{spec['name']}", env)
        server = ServerProcess(
            name=spec["name"],
            argv=container.argv if container else argv,
            env=env,
            port=int(values["port"]),
            log=log_folder / f"{spec['name']}.log",
            container=container,
        )
        own_cores = share if on_cpu else None
        has_connector = bool(plan["asked"].get("kv_connector"))
        instances.append(Instance(spec["role"], spec["index"], server, own_cores, own_gpus, has_connector))
    return instances, client if on_cpu else None


def fill_placeholders(text: str, values: Mapping[str, str]) -> str:
    """``--port {port}`` → ``--port 20123``. Only known placeholders: arguments may hold JSON, which has braces too."""
    return _PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), text)
