"""One reading of a GPU through NVML, field by field: what a device does not offer is asked once and then left out."""

from collections.abc import Callable
from typing import Any

import pynvml

from pdkv.measuring.gpu_visibility import Nvml, used_memory

FIELDS = ("util", "mem_util", "mem_bytes", "power_w", "energy_j", "sm_clock_mhz", "temp_c", "throttle")

Reading = dict[str, float | int]


class GpuLostError(Exception):
    """The device does not answer any more and will not before the driver or the machine starts anew."""


class GpuReader:
    """Reads one device. ``missing`` tells why a field has not been given: ``{field: reason}``."""

    def __init__(self, nvml: Nvml, uuid: str) -> None:
        self.missing: dict[str, str] = {}
        self._nvml = nvml
        self._uuid = uuid
        self._handle: Any = None
        self._unsupported: set[Callable[..., Reading]] = set()

    def read(self) -> Reading:
        """Those of ``FIELDS`` that the device gives now. Raises :class:`GpuLostError` when it is gone.

        A passing failure (a time-out, say) leaves its fields out this time; a field that is not supported is not
        asked for again, because refusals too cost time.
        """
        reading: Reading = {}
        try:
            if self._handle is None:
                self._handle = self._nvml.nvmlDeviceGetHandleByUUID(self._uuid)
            for query, fields in _QUERIES.items():
                if query not in self._unsupported:
                    reading |= self._ask(query, fields)
        except _GONE as error:
            self.missing |= dict.fromkeys(FIELDS, str(error))
            raise GpuLostError(str(error)) from None
        return reading

    def _ask(self, query: Callable[..., Reading], fields: tuple[str, ...]) -> Reading:
        try:
            return query(self._nvml, self._handle)
        except _GONE:
            raise
        except pynvml.NVMLError as error:
            self.missing |= dict.fromkeys(fields, str(error))
            if isinstance(error, _NEVER):
                self._unsupported.add(query)
            return {}


_NVML_ERRORS: dict[int, type[Exception]] = pynvml.NVMLError._valClassMapping
_NEVER = tuple(
    _NVML_ERRORS[code]
    for code in (
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
    )
)
_GONE = tuple(
    _NVML_ERRORS[code]
    for code in (
        pynvml.NVML_ERROR_GPU_IS_LOST,
        pynvml.NVML_ERROR_RESET_REQUIRED,
        pynvml.NVML_ERROR_NOT_FOUND,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    )
)


def _utilization(nvml: Nvml, handle: Any) -> Reading:
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)  # whole percents of the driver's own sample period
    return {"util": rates.gpu / 100, "mem_util": rates.memory / 100}


def _memory(nvml: Nvml, handle: Any) -> Reading:
    return {"mem_bytes": used_memory(nvml, handle)}


def _power(nvml: Nvml, handle: Any) -> Reading:
    return {"power_w": nvml.nvmlDeviceGetPowerUsage(handle) / 1000}  # from milliwatts


def _energy(nvml: Nvml, handle: Any) -> Reading:
    return {"energy_j": nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000}  # from millijoules


def _clock(nvml: Nvml, handle: Any) -> Reading:
    return {"sm_clock_mhz": nvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)}


def _temperature(nvml: Nvml, handle: Any) -> Reading:
    return {"temp_c": nvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)}


def _throttle(nvml: Nvml, handle: Any) -> Reading:
    return {"throttle": nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)}


_QUERIES: dict[Callable[..., Reading], tuple[str, ...]] = {
    _utilization: ("util", "mem_util"),
    _memory: ("mem_bytes",),
    _power: ("power_w",),
    _energy: ("energy_j",),
    _clock: ("sm_clock_mhz",),
    _temperature: ("temp_c",),
    _throttle: ("throttle",),
}
