"""An NVML with invented cards: handed to the code in place of the module ``pynvml``, same functions, same errors."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml

GIB = 1024**3

_MODULE = """
import importlib.util, sys
real = importlib.util.spec_from_file_location("pynvml", {real!r})
module = importlib.util.module_from_spec(real)
sys.modules["pynvml"] = module
real.loader.exec_module(module)
sys.path.append({tests!r})
from fake_nvml import FakeGpu, FakeNvml
{setup}
fake = FakeNvml({gpus})
for name in dir(fake):
    if name.startswith("nvml"):
        setattr(module, name, getattr(fake, name))
"""


def write_pynvml(folder: Path, gpus: str, setup: str = "") -> Path:
    """A folder for PYTHONPATH in which the module ``pynvml`` sees invented cards, in other processes too.

    ``gpus`` is Python: the arguments of :class:`FakeNvml`, with names that ``setup`` makes.
    """
    folder.mkdir()
    text = _MODULE.format(real=pynvml.__file__, tests=str(Path(__file__).parent), setup=setup, gpus=gpus)
    (folder / "pynvml.py").write_text(text, encoding="utf-8")
    return folder


def not_supported(*_: Any) -> Any:
    raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


@dataclass
class FakeGpu:
    """One card or slice. ``answers`` replaces the answer to a function by name: a value, or a callable to call.

    From ``lost_after`` queries on, everything raises "GPU is lost"; the first query takes ``first_query_s``.
    ``process_samples`` are ``(pid, time stamp, SM percent, memory percent)``; ``nvlink_kib`` are the counters
    (received, sent), None where the driver refuses them; ``joined`` holds the UUIDs at the other ends of its links.
    """

    uuid: str
    bus: int = 0
    name: str = "Fake H200"
    memory_total: int = 80 * GIB
    memory_used: int = 0
    processes: list[tuple[int, int | None]] = field(default_factory=list)
    answers: dict[str, Any] = field(default_factory=dict)
    slices: list["FakeGpu"] = field(default_factory=list)
    process_samples: list[tuple[int, int, int, int]] = field(default_factory=list)
    nvlinks: int = 18
    nvlink_kib: tuple[int, int] | None = None
    joined: set[str] = field(default_factory=set)
    lost_after: int | None = None
    first_query_s: float = 0.0
    queries: list[str] = field(default_factory=list)


class FakeNvml:
    """Cards in NVML's order. Only what the code under test calls."""

    def __init__(self, *gpus: FakeGpu, cuda_driver: int = 13000, driver: str = "580.95.05") -> None:
        self.gpus = list(gpus)
        self.cuda_driver = cuda_driver
        self.driver = driver
        self.NVMLError = pynvml.NVMLError

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("NVML_", "nvmlMemory")):
            return getattr(pynvml, name)
        raise AttributeError(name)

    def nvmlInit(self) -> None: ...

    def nvmlShutdown(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        return self.gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeGpu:
        for gpu in self.gpus:
            for device in (gpu, *gpu.slices):
                if device.uuid == uuid:
                    return device
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    def nvmlDeviceGetUUID(self, gpu: FakeGpu) -> str:
        return gpu.uuid

    def nvmlDeviceGetName(self, gpu: FakeGpu) -> str:
        return gpu.name

    def nvmlDeviceGetPciInfo(self, gpu: FakeGpu) -> Any:
        return SimpleNamespace(busId=f"00000000:{gpu.bus:02d}:00.0".encode())

    def nvmlDeviceGetMigMode(self, gpu: FakeGpu) -> list[int]:
        return [1, 1] if gpu.slices else not_supported()

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu: FakeGpu) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: FakeGpu, number: int) -> FakeGpu:
        if number >= len(gpu.slices):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return gpu.slices[number]

    def nvmlSystemGetDriverVersion(self) -> str:
        return self.driver

    def nvmlSystemGetCudaDriverVersion(self) -> int:
        return self.cuda_driver

    def nvmlDeviceGetMemoryInfo(self, gpu: FakeGpu, version: int | None = None) -> Any:
        memory = SimpleNamespace(total=gpu.memory_total, used=gpu.memory_used, free=gpu.memory_total - gpu.memory_used)
        return self._query(gpu, "nvmlDeviceGetMemoryInfo", memory)

    def nvmlDeviceGetUtilizationRates(self, gpu: FakeGpu) -> Any:
        return self._query(gpu, "nvmlDeviceGetUtilizationRates", SimpleNamespace(gpu=50, memory=20))

    def nvmlDeviceGetPowerUsage(self, gpu: FakeGpu) -> int:
        return int(self._query(gpu, "nvmlDeviceGetPowerUsage", 60_000))

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu: FakeGpu) -> int:
        return int(self._query(gpu, "nvmlDeviceGetTotalEnergyConsumption", 1_000_000))

    def nvmlDeviceGetClockInfo(self, gpu: FakeGpu, kind: int) -> int:
        clock = 3201 if kind == pynvml.NVML_CLOCK_MEM else 1980
        return int(self._query(gpu, "nvmlDeviceGetClockInfo", clock))

    def nvmlDeviceGetTemperature(self, gpu: FakeGpu, sensor: int) -> int:
        return int(self._query(gpu, "nvmlDeviceGetTemperature", 41))

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, gpu: FakeGpu) -> int:
        return int(self._query(gpu, "nvmlDeviceGetCurrentClocksThrottleReasons", 4))

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: FakeGpu) -> list[Any]:
        found = [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in gpu.processes]
        answer: list[Any] = self._query(gpu, "nvmlDeviceGetComputeRunningProcesses", found)
        return answer

    def nvmlDeviceGetProcessUtilization(self, gpu: FakeGpu, since: int) -> list[Any]:
        def newer() -> list[Any]:
            names = ("pid", "timeStamp", "smUtil", "memUtil")
            found = [SimpleNamespace(**dict(zip(names, each, strict=True))) for each in gpu.process_samples]
            if not (found := [sample for sample in found if sample.timeStamp > since]):
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)  # as the driver says it
            return found

        samples: list[Any] = self._query(gpu, "nvmlDeviceGetProcessUtilization", newer)
        return samples

    def nvmlDeviceGetPcieThroughput(self, gpu: FakeGpu, counter: int) -> int:
        return int(self._query(gpu, "nvmlDeviceGetPcieThroughput", 1000))

    def nvmlDeviceGetFieldValues(self, gpu: FakeGpu, fields: list[Any]) -> list[Any]:
        def value(number: int | None) -> Any:
            code = pynvml.NVML_ERROR_NOT_SUPPORTED if number is None else pynvml.NVML_SUCCESS
            return SimpleNamespace(nvmlReturn=code, value=SimpleNamespace(uiVal=number or 0, ullVal=number or 0))

        received, sent = gpu.nvlink_kib or (None, None)
        values = [value(gpu.nvlinks), value(received), value(sent)]
        answer: list[Any] = self._query(gpu, "nvmlDeviceGetFieldValues", lambda: values)
        return answer

    def nvmlDeviceGetP2PStatus(self, one: FakeGpu, other: FakeGpu, index: int) -> int:
        joined = other.uuid in one.joined or one.uuid in other.joined
        status = pynvml.NVML_P2P_STATUS_OK if joined else pynvml.NVML_P2P_STATUS_NOT_SUPPORTED
        return int(self._query(one, "nvmlDeviceGetP2PStatus", status))

    def _query(self, gpu: FakeGpu, name: str, default: Any) -> Any:
        gpu.queries.append(name)
        if len(gpu.queries) == 1 and gpu.first_query_s:
            time.sleep(gpu.first_query_s)
        if gpu.lost_after is not None and len(gpu.queries) > gpu.lost_after:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        answer = gpu.answers.get(name, default)
        if isinstance(answer, Callable):  # type: ignore[arg-type]
            return answer()
        return answer
