"""The router in front of several instances: prefill and decode, or replicas."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pdkv.measuring.engine import Instance, fill_placeholders
from pdkv.measuring.ports import PortReservation
from pdkv.measuring.server_environment import without_proxy
from pdkv.measuring.server_process import ServerProcess
from pdkv.measuring.trial_mark import MARK


@dataclass
class Router:
    """A router that was placed; its own counters are at ``metrics_url``."""

    server: ServerProcess
    metrics_url: str

    def record(self) -> dict[str, Any]:
        """The router as ``stages.json`` keeps it."""
        server = self.server
        return {
            "pid": server.pid,
            "port": server.port,
            "url": server.url,
            "argv": server.argv,
            "log": f"server/{server.log.name}",
            "metrics_url": self.metrics_url,
        }


def place_router(
    plan: Mapping[str, Any], instances: Sequence[Instance], log_folder: Path, ports: PortReservation, mark: str
) -> Router | None:
    """The router that a plan asks for, in front of placed instances; None where the plan has none. Starts nothing."""
    if plan["router"] is None:
        return None
    values = {"port": str(ports.take()), "metrics_port": str(ports.take())}
    values |= {f"url:{instance.name}": instance.server.url for instance in instances}
    server = ServerProcess(
        name="router",
        argv=[fill_placeholders(word, values) for word in plan["router"]["argv"]],
        env={MARK: mark}
        | without_proxy({instance.server.host for instance in instances})
        | {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ},  # our own Python
        port=int(values["port"]),
        log=log_folder / "router.log",
    )
    return Router(server, f"http://127.0.0.1:{values['metrics_port']}/metrics")
