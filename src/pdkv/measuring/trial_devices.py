"""The devices of one trial: leased, described, and seen to be free again afterwards."""

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pdkv.errors import StageFailed, UserError
from pdkv.measuring.cores import cores_of_gpus
from pdkv.measuring.environment import fingerprint
from pdkv.measuring.gpu_memory import explain_shortage
from pdkv.measuring.gpu_visibility import Nvml, answer, open_nvml, used_memory, visible_gpus
from pdkv.measuring.leases import Lease, lease_gpus, lease_host

LEASE_WAIT_S = math.inf  # for other measurements on this host: one that lives ends by its limits.trial_hours
FREED_WITHIN_S = 5.0  # a driver takes a moment to clear the memory of a process that has died
IDLE_S = 0.25  # five samples of each GPU before the launch and after the shutdown: what memory is compared with
FREED_TO_BYTES = 256 << 20  # above what was in use before
LOOK_BESIDE_EVERY_S = 5.0  # a trial takes much longer than that to come and go


@dataclass
class TrialDevices:
    """GPUs (by UUID, in the order for CUDA) or the host's cores, held until the end of the context.

    ``cores`` are those of everything that the trial starts, ``beside`` the trials of pdkv that were seen on the same
    host since the lease.
    """

    lease: Lease | None
    nvml: Nvml | None
    waited_s: float
    cores: Sequence[int]
    beside: set[str] = field(default_factory=set)
    _looked_s: float = -math.inf
    _bytes_before: dict[str, int | None] = field(default_factory=dict)
    _cores_before: set[int] = field(default_factory=set)

    @property
    def gpus(self) -> list[str]:
        """UUIDs of the leased GPUs."""
        return list(self.lease.uuids) if self.lease else []

    def describe(self, engine_python: str | None) -> dict[str, Any]:
        """The environment of the trial for ``stages.json``; remembers what the GPUs hold before the launch."""
        self._bytes_before = {uuid: self._used(uuid) for uuid in self.gpus}
        return fingerprint(Path(engine_python) if engine_python else None, gpus=self.gpus, nvml=self.nvml)

    def look_beside(self, *, at_once: bool = False) -> None:
        """Note who else measures on this host; may be called often. ``at_once``: even if the last look was just now."""
        now_s = time.monotonic()
        if self.lease and (at_once or now_s - self._looked_s >= LOOK_BESIDE_EVERY_S):
            self._looked_s = now_s
            self.beside |= self.lease.names_beside()

    def take_cores(self) -> None:
        """From now on this process, and all that it starts, run on :attr:`cores` only, until the end of the context.

        After :meth:`describe`: what a trial could have used is the same for all, what it took depends on its GPUs.
        """
        os.sched_setaffinity(0, self.cores)

    def require_memory(self, plan: Mapping[str, Any]) -> None:
        """Raise :class:`StageFailed` (launch) where an instance can't start on the GPUs it was dealt, with numbers.

        Known now, rather than after minutes of loading. What is not known is no shortage.
        """
        estimates = {each["role"]: each for each in plan["memory"].get("per_gpu", ())}
        utilization = plan["trial"]["engine"]["gpu_memory_utilization"]
        gpus = iter(self.gpus)
        for instance in plan["instances"]:
            for uuid in islice(gpus, instance["gpus"]):
                memory = self._ask(uuid, self.nvml.nvmlDeviceGetMemoryInfo) if self.nvml else None
                if memory is None or instance["role"] not in estimates:
                    continue
                shortage = explain_shortage(estimates[instance["role"]], utilization, memory.total, memory.free)
                if shortage:
                    raise StageFailed("launch", f"{uuid}: {shortage}")

    def stay_idle(self) -> None:
        """Let the sampler see the GPUs while nothing of the trial uses them, for :data:`IDLE_S`."""
        if self.gpus:
            time.sleep(IDLE_S)

    def leftovers(self) -> list[dict[str, Any]]:
        """GPUs that still hold more memory than before the launch, 5 s after the shutdown: ``{gpu, mem_bytes}``.

        Returns as soon as there are none.
        """
        deadline_s = time.monotonic() + FREED_WITHIN_S
        while True:
            held = [
                {"gpu": uuid, "mem_bytes": now - before}
                for uuid, before in self._bytes_before.items()
                if before is not None and (now := self._used(uuid)) is not None and now - before > FREED_TO_BYTES
            ]
            if not held or time.monotonic() > deadline_s:
                return held
            time.sleep(0.1)

    def _used(self, uuid: str) -> int | None:
        return self._ask(uuid, partial(used_memory, self.nvml)) if self.nvml else None

    def _ask(self, uuid: str, question: Callable[[Any], Any]) -> Any:
        handle = answer(self.nvml.nvmlDeviceGetHandleByUUID, uuid) if self.nvml else None
        return None if handle is None else answer(question, handle)

    def __enter__(self) -> Self:
        self._cores_before = os.sched_getaffinity(0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.sched_setaffinity(0, self._cores_before)
        if self.lease:
            self.lease.release()


def lease_devices(plan: Mapping[str, Any], trial: str, say: Callable[[str], None]) -> TrialDevices:
    """What the plan's engine computes on, once no other measurement uses it; nothing for a server of the user's own.

    ``say`` is told for whom it waits: as long as it takes for measurements that hold a lease, two minutes for programs
    other than pdkv's. Raises :class:`UserError` after these, or at once if there are too few GPUs.
    """
    device = plan["engine"]["device"]
    nvml = open_nvml() if device == "cuda" else None
    lease = None
    cores = sorted(os.sched_getaffinity(0))
    began_s = time.monotonic()
    if device == "cuda":
        if nvml is None:
            raise UserError(
                f"{trial} needs GPUs, and NVML sees no NVIDIA driver here",
                remedy="use a host with GPUs, or engine: cpu",
            )
        needed = [instance["gpus"] for instance in plan["instances"]]
        lease = lease_gpus(sum(needed), os.environ, nvml, trial=trial, group=max(needed), wait_s=LEASE_WAIT_S, say=say)
        for warning in lease.warnings:  # others on a GPU of ours: the checks of the trace decide what it means
            say(warning)
        visible = [gpu.uuid for gpu in visible_gpus(nvml, os.environ)]
        cores = cores_of_gpus(cores, [visible.index(uuid) for uuid in lease.uuids], len(visible))
    elif device is not None:
        lease = lease_host(trial=trial, wait_s=LEASE_WAIT_S, say=say)
    return TrialDevices(lease, nvml, time.monotonic() - began_s, cores)
