"""One reading of a GPU through NVML, field by field: what a device does not offer is asked once and then left out."""

from collections.abc import Callable, Mapping
from typing import Any

import pynvml

from pdkv.measuring.gpu_visibility import Nvml, used_memory

Reading = dict[str, float | int]
Query = Callable[[Nvml, Any], Reading]
Queries = Mapping[Query, tuple[str, ...]]
"""Queries with the fields that each gives: one that is refused must not take others' fields with it."""


class GpuLostError(Exception):
    """The device does not answer any more and will not before the driver or the machine starts anew."""


class GpuReader:
    """Asks one device ``queries``. ``missing`` tells why a field has not been given: ``{field: reason}``."""

    def __init__(self, nvml: Nvml, uuid: str, queries: Queries | None = None) -> None:
        self.missing: dict[str, str] = {}
        self._queries = QUERIES if queries is None else queries
        self._nvml = nvml
        self._uuid = uuid
        self._handle: Any = None
        self._unsupported: set[Query] = set()

    def read(self, queries: Queries | None = None) -> Reading:
        """Those fields of ``queries``, of all if None, that the device gives now.

        Raises :class:`GpuLostError` when it is gone.

        A passing failure (a time-out, say) leaves its fields out this time; a field that is not supported is not
        asked for again, because refusals too cost time.
        """
        reading: Reading = {}
        try:
            if self._handle is None:
                self._handle = self._nvml.nvmlDeviceGetHandleByUUID(self._uuid)
            for query, fields in (self._queries if queries is None else queries).items():
                if query not in self._unsupported:
                    reading |= self._ask(query, fields)
        except _GONE as error:
            self.missing |= dict.fromkeys(fields_of(self._queries), str(error))
            raise GpuLostError(str(error)) from None
        return reading

    def _ask(self, query: Query, fields: tuple[str, ...]) -> Reading:
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


def _sm_clock(nvml: Nvml, handle: Any) -> Reading:
    return {"sm_clock_mhz": nvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)}


def _memory_clock(nvml: Nvml, handle: Any) -> Reading:
    return {"mem_clock_mhz": nvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM)}


def _temperature(nvml: Nvml, handle: Any) -> Reading:
    return {"temp_c": nvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)}


def _throttle(nvml: Nvml, handle: Any) -> Reading:
    return {"throttle": nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)}


def _pcie_received(nvml: Nvml, handle: Any) -> Reading:
    return {"pcie_rx_bytes_s": _pcie(nvml, handle, pynvml.NVML_PCIE_UTIL_RX_BYTES)}


def _pcie_sent(nvml: Nvml, handle: Any) -> Reading:
    return {"pcie_tx_bytes_s": _pcie(nvml, handle, pynvml.NVML_PCIE_UTIL_TX_BYTES)}


def _pcie(nvml: Nvml, handle: Any, direction: int) -> int:
    return int(nvml.nvmlDeviceGetPcieThroughput(handle, direction)) * 1000  # from KB/s


def _nvlink(nvml: Nvml, handle: Any) -> Reading:
    """What all links of the card have carried since the driver was loaded, without the protocol's own share."""
    asked = (
        pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT,
        (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, _ALL_LINKS),
        (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, _ALL_LINKS),
    )
    links, received, sent = nvml.nvmlDeviceGetFieldValues(handle, list(asked))
    if links.nvmlReturn == pynvml.NVML_SUCCESS and links.value.uiVal == 0:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)  # some drivers answer 0 for links that are not there
    for value in (received, sent):
        if value.nvmlReturn != pynvml.NVML_SUCCESS:
            raise pynvml.NVMLError(value.nvmlReturn)
    # From KiB.
    return {"nvlink_rx_bytes": received.value.ullVal * 1024, "nvlink_tx_bytes": sent.value.ullVal * 1024}


_ALL_LINKS = 0xFFFFFFFF  # the scope in which NVML sums over the links of a card

QUERIES: Queries = {
    _utilization: ("util", "mem_util"),
    _memory: ("mem_bytes",),
    _power: ("power_w",),
    _energy: ("energy_j",),
    _sm_clock: ("sm_clock_mhz",),
    _memory_clock: ("mem_clock_mhz",),
    _temperature: ("temp_c",),
    _throttle: ("throttle",),
}
# The driver computes for some 5 ms before it tells the energy (580.159 on an H200): at 20 Hz it took a tenth of a core.
CHEAP_QUERIES: Queries = {query: fields for query, fields in QUERIES.items() if query is not _energy}
# A PCIe counter is watched for 20 ms by the driver before it answers: never asked between samples of the others.
LINK_QUERIES: Queries = {
    _pcie_received: ("pcie_rx_bytes_s",),
    _pcie_sent: ("pcie_tx_bytes_s",),
    _nvlink: ("nvlink_rx_bytes", "nvlink_tx_bytes"),
}


def fields_of(queries: Queries) -> tuple[str, ...]:
    """All that some queries may give."""
    return tuple(field for fields in queries.values() for field in fields)


FIELDS = fields_of(QUERIES)
LINK_FIELDS = fields_of(LINK_QUERIES)
