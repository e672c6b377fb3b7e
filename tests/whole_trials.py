"""A trial measured from end to end and read as Snakemake's rules read it; and what must be gone when it is over."""

import fcntl
import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from pdkv.analysing.launch_facts import read_launch
from pdkv.analysing.load_facts import read_load
from pdkv.artifacts import read_json, read_parquet, write_json
from pdkv.errors import StageFailed
from pdkv.measuring.process_tree import find_marked
from pdkv.measuring.trial import measure_trial
from pdkv.measuring.trial_mark import MARK

PATIENCE_S = 5.0


@dataclass(frozen=True)
class MeasuredTrial:
    """What a measurement left, with ``launch.json`` and ``metrics.json`` made from it."""

    folder: Path
    failure: StageFailed | None

    @property
    def stages(self) -> dict[str, Any]:
        return read_json(self.folder / "stages.json", "stages/1")

    @property
    def metrics(self) -> dict[str, Any]:
        return read_json(self.folder / "metrics.json", "metrics/1")

    @property
    def state(self) -> str:
        """Of the launch and of the load: the worse of the two."""
        checks = [*self.checks("launch"), *self.checks("metrics")]
        states = {check["state"] for check in checks}
        return "invalid" if "failed" in states else "suspect" if "suspect" in states else "valid"

    def checks(self, file: str) -> list[dict[str, str]]:
        content: dict[str, Any] = read_json(self.folder / f"{file}.json", f"{file}/1")
        return list(content["checks"])

    def check(self, name: str) -> dict[str, str]:
        found = [check for file in ("launch", "metrics") for check in self.checks(file) if check["name"] == name]
        assert len(found) == 1, [check["name"] for file in ("launch", "metrics") for check in self.checks(file)]
        return found[0]

    def sends(self, phase: str = "load") -> list[dict[str, Any]]:
        return [row for row in read_parquet(self.folder / "sends.parquet").to_pylist() if row["phase"] == phase]

    def requests(self) -> list[dict[str, Any]]:
        rows = read_parquet(self.folder / "requests.parquet").to_pylist()
        return [row for row in rows if row["phase"] == "load"]


def measure_whole(plan: Mapping[str, Any], folder: Path) -> MeasuredTrial:
    """Measure and read; then nothing of it may live, listen, or be held."""
    write_json(folder / "plan.json", "plan/1", {**plan, "source": ""})
    before = set(psutil.Process().children(recursive=True))
    failure = measure_trial(plan, folder)
    for read in (read_launch, read_load):
        read(folder)
    measured = MeasuredTrial(folder, failure)
    require_nothing_left(measured.stages, before)
    return measured


def require_nothing_left(stages: Mapping[str, Any], before: set[psutil.Process]) -> None:
    """No process by its mark, none below this one that began meanwhile, no port taken, no lease held."""
    servers = [*stages["instances"], *([stages["router"]] if stages["router"] else [])]
    marks = {server["env"][MARK] for server in stages["instances"]}
    give_up_s = time.monotonic() + PATIENCE_S
    while living := [p for p in psutil.Process().children(recursive=True) if p not in before and is_alive(p)]:
        assert time.monotonic() < give_up_s, f"still alive: {living}"
        time.sleep(0.02)
    for mark in marks:
        assert find_marked(f"{MARK}={mark}") == []
    for server in servers:
        require_free_port(server["port"])
    for lock in Path(os.environ["PDKV_LEASE_DIR"]).glob("*"):
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert stages["leftovers"] == []


def is_alive(process: psutil.Process) -> bool:
    """By pid and start time, as psutil compares them; one that has ended and was not waited for is gone."""
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def require_free_port(port: int) -> None:
    """Neither reserved by a measurement nor bound by a server."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as reservation:
        reservation.bind(f"\0pdkv-port-{port}")
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", port))
