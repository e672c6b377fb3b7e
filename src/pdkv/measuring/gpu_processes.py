"""Which processes compute on a GPU, with the memory and the share of the chip that each of them takes.

NVML names processes as the host knows them. Inside a container these may be other numbers than here, or none at all:
what cannot be found out stays unknown.
"""

import time
from collections.abc import Iterator
from typing import Any

import pynvml

from pdkv.measuring.gpu_visibility import Nvml
from pdkv.measuring.host_readings import Row
from pdkv.measuring.process_tree import read_process

# The driver computes for 2 to 3 ms before it tells the shares (580.159 on an H200).
SHARES_EVERY_S = 5.0
PROCESS_FIELDS = ("gpu_process", "gpu_process.util", "gpu_process.mem_util")


class GpuProcessReader:
    """Reads the processes of one device. ``missing`` tells what it does not give: ``{field: reason}``."""

    def __init__(self, nvml: Nvml, uuid: str, shares_every_s: float = SHARES_EVERY_S) -> None:
        self.missing: dict[str, str] = {}
        self._nvml = nvml
        self._uuid = uuid
        self._seen_us = 0
        self._shares_every_s = shares_every_s
        self._shares_due_s = 0.0

    def read(self) -> list[Row]:
        """A row per process: ``pid``, ``process`` (its name; null where this pid is none of ours to see),
        ``mem_bytes``, and every few seconds ``util`` and ``mem_util`` (0–1, of the driver's newest sample).
        """
        try:
            handle = self._nvml.nvmlDeviceGetHandleByUUID(self._uuid)
            processes = self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        except pynvml.NVMLError as error:
            self.missing |= dict.fromkeys(PROCESS_FIELDS, str(error))
            return []
        shares = {}
        if processes and time.monotonic() >= self._shares_due_s:
            self._shares_due_s = time.monotonic() + self._shares_every_s
            shares = self._shares(handle)
        return [
            {
                "pid": process.pid,
                "process": known.name if (known := read_process(process.pid)) else None,
                "mem_bytes": process.usedGpuMemory,
                **shares.get(process.pid, {}),
            }
            for process in processes
        ]

    def _shares(self, handle: Any) -> dict[int, Row]:
        """Utilisation by process; a process without a new sample is left out."""
        try:
            samples = self._nvml.nvmlDeviceGetProcessUtilization(handle, self._seen_us)
        except pynvml.NVMLError as error:
            if error.value != pynvml.NVML_ERROR_NOT_FOUND:  # that only says: no sample since the last reading
                self.missing |= dict.fromkeys(PROCESS_FIELDS[1:], str(error))
            return {}
        self._seen_us = max((sample.timeStamp for sample in samples), default=self._seen_us)
        # The newest sample of a process comes last.
        return {sample.pid: dict(_percents(sample)) for sample in sorted(samples, key=lambda sample: sample.timeStamp)}


def _percents(sample: Any) -> Iterator[tuple[str, float]]:
    """Drivers are known to fill the rest of their buffer with numbers that are no percents."""
    for field, percent in (("util", sample.smUtil), ("mem_util", sample.memUtil)):
        if 0 <= percent <= 100:
            yield field, percent / 100
