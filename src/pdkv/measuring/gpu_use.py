"""Who is on a GPU that should be free: how much of its memory is taken, and by which processes."""

from dataclasses import dataclass

from pdkv.measuring.gpu_visibility import Nvml, answer, used_memory
from pdkv.measuring.process_tree import read_process
from pdkv.units import format_bytes

# A card that nobody uses still has some of its memory taken, by the driver and by display managers.
IDLE_BYTES = 512 << 20


@dataclass(frozen=True)
class GpuUse:
    """``processes`` are ``4711 (python3)``, without a name where it can't be seen; ``mem_bytes`` None: not told."""

    uuid: str
    processes: tuple[str, ...]
    mem_bytes: int | None

    @property
    def is_idle(self) -> bool:
        """Nobody computes there, and no more memory is taken than on a card that nobody uses."""
        return not self.processes and not self.is_taken

    @property
    def is_taken(self) -> bool:
        """So much memory that nothing should be measured beside it. Where memory is not told, any process counts."""
        return bool(self.processes) if self.mem_bytes is None else self.mem_bytes >= IDLE_BYTES

    def __str__(self) -> str:
        who = f"process {', '.join(self.processes)}" if self.processes else "a process that can't be seen from here"
        memory = "unknown" if self.mem_bytes is None else format_bytes(self.mem_bytes)
        return f"{self.uuid} is used by {who}, {memory} of its memory taken"


def look_at_use(nvml: Nvml, uuid: str) -> GpuUse:
    """The use of a GPU at this moment; a card that does not answer seems idle."""
    handle = answer(nvml.nvmlDeviceGetHandleByUUID, uuid)
    if handle is None:
        return GpuUse(uuid, (), None)
    processes = answer(nvml.nvmlDeviceGetComputeRunningProcesses, handle) or []
    return GpuUse(uuid, tuple(_name(process.pid) for process in processes), answer(used_memory, nvml, handle))


def _name(pid: int) -> str:
    known = read_process(pid)
    return f"{pid} ({known.name})" if known else str(pid)
