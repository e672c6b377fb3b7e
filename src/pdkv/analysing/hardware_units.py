"""What a cell ran on, counted: the unit in which throughput per device is given."""

from collections.abc import Mapping
from typing import Any

from pdkv.analysing.comparability import total_cores

PER_DEVICE = "output_throughput_per_device"
GOODPUT_PER_DEVICE = "goodput_per_device"
KV_PER_DEVICE = "kv_cache_tokens_per_device"


def hardware_units(cell: Mapping[str, Any]) -> tuple[int, str] | None:
    """``(4, "GPU")``: the GPUs of a cell, or without any the cores of the host that its trials may use.

    Instances are no unit: two on half the cores each are not twice the hardware of one on all. ``None`` where it is not
    known: a server that the user runs, a cell that never started.
    """
    if cell.get("gpus"):
        return int(cell["gpus"]), "GPU"
    cores = total_cores(cell.get("environment") or {})
    endpoint = ((cell.get("config") or {}).get("mode") or {}).get("endpoint")
    return None if endpoint or not cores else (int(cores), "core")


def throughput_per_device(cell: Mapping[str, Any], throughput: float | None) -> float | None:
    """Tokens or requests per second and device; ``None`` where one of both is not known."""
    units = hardware_units(cell)
    return None if units is None or throughput is None else throughput / units[0]
