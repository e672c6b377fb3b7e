"""Which GPU is which: ``CUDA_VISIBLE_DEVICES`` as CUDA reads it, resolved to the UUIDs that NVML knows.

CUDA and NVML number the same cards differently, so an index never leaves this module: leases, traces and the
engines' own ``CUDA_VISIBLE_DEVICES`` carry UUIDs.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pynvml

from pdkv.errors import UserError

Nvml = Any
"""The module ``pynvml``, or an object with the same functions."""

UUID_ENTRY = re.compile(r"(GPU|MIG)-\S+")


@dataclass(frozen=True)
class Gpu:
    """A GPU or, where a card is partitioned, one MIG slice of it. ``index`` is NVML's, ``bus`` the PCI address.

    ``name`` and ``memory_bytes`` (of the slice, not of its card) are None where the device does not tell them.
    """

    uuid: str
    index: int
    bus: str
    name: str | None
    memory_bytes: int | None


def open_nvml() -> Nvml | None:
    """NVML, initialized, or None where there is no NVIDIA driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def list_gpus(nvml: Nvml) -> list[Gpu]:
    """All devices in NVML's order; a partitioned card is replaced by its slices.

    A card that no longer answers (fallen off the bus) is left out.
    """
    gpus: list[Gpu] = []
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = answer(nvml.nvmlDeviceGetHandleByIndex, index)
        uuid = answer(nvml.nvmlDeviceGetUUID, handle) if handle is not None else None
        if uuid is None:
            continue
        pci = answer(nvml.nvmlDeviceGetPciInfo, handle)
        bus = _text(pci.busId) if pci is not None else ""
        slices = _mig_slices(nvml, handle)
        gpus += [_describe(nvml, device, index, bus) for device in slices or [handle]]
    return gpus


def visible_gpus(nvml: Nvml, env: Mapping[str, str]) -> list[Gpu]:
    """The GPUs that a CUDA program started with ``env`` would see, in its order.

    As in CUDA: an unset ``CUDA_VISIBLE_DEVICES`` means all, an empty one none, and the first entry that names no
    device ends the list. Raises :class:`UserError` where CUDA's choice cannot be known: a short UUID that fits
    several devices, a device named twice, or indices over unequal cards without ``CUDA_DEVICE_ORDER=PCI_BUS_ID``.
    """
    gpus = list_gpus(nvml)
    asked = env.get("CUDA_VISIBLE_DEVICES")
    if asked is None:
        return sorted(gpus, key=lambda gpu: (gpu.bus, gpu.uuid))
    visible: list[Gpu] = []
    for entry in (part.strip() for part in asked.split(",")):
        gpu = _find_by_uuid(gpus, entry) if UUID_ENTRY.fullmatch(entry) else _find_by_cuda_index(gpus, entry, env)
        if gpu is None:
            break
        if gpu in visible:
            raise UserError(
                f"CUDA_VISIBLE_DEVICES={asked} names {gpu.uuid} twice",
                remedy="name each device once: CUDA refuses doubles",
            )
        visible.append(gpu)
    return visible


def answer(function: Callable[..., Any], *arguments: Any) -> Any:
    """What an NVML function returns, or None where the device or driver cannot tell."""
    try:
        return function(*arguments)
    except pynvml.NVMLError:
        return None


def used_memory(nvml: Nvml, handle: Any) -> int:
    """Bytes in use on a device, without what the driver reserves for itself where the driver tells the two apart.

    Raises ``pynvml.NVMLError`` where the device does not say.
    """
    try:
        return int(nvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2).used)
    except pynvml.NVMLError:
        return int(nvml.nvmlDeviceGetMemoryInfo(handle).used)


def _find_by_uuid(gpus: list[Gpu], entry: str) -> Gpu | None:
    fitting = [gpu for gpu in gpus if gpu.uuid == entry] or [gpu for gpu in gpus if gpu.uuid.startswith(entry)]
    if len(fitting) > 1:
        raise UserError(
            f"CUDA_VISIBLE_DEVICES: {entry} fits {' and '.join(gpu.uuid for gpu in fitting)}",
            remedy="write the UUID in full",
        )
    return fitting[0] if fitting else None


def _find_by_cuda_index(gpus: list[Gpu], entry: str, env: Mapping[str, str]) -> Gpu | None:
    # CUDA sees one slice of a partitioned card, so an index counts cards.
    cards = list({gpu.index: gpu for gpu in reversed(gpus)}.values())
    if not entry.isdecimal() or int(entry) >= len(cards):
        return None
    if env.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID" and len({card.name for card in cards}) > 1:
        listed = ", ".join(f"{card.uuid} ({card.name})" for card in sorted(cards, key=lambda card: card.bus))
        raise UserError(
            f"CUDA_VISIBLE_DEVICES={env['CUDA_VISIBLE_DEVICES']} numbers unequal cards, fastest first by CUDA's own "
            "measure: which card a number means cannot be known",
            remedy=f"set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name the cards by UUID: {listed}",
        )
    return sorted(cards, key=lambda card: card.bus)[int(entry)]


def _mig_slices(nvml: Nvml, handle: Any) -> list[Any]:
    mode = answer(nvml.nvmlDeviceGetMigMode, handle)
    if mode is None or mode[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
        return []
    count = answer(nvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0
    found = (answer(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, number) for number in range(count))
    return [device for device in found if device is not None]


def _describe(nvml: Nvml, handle: Any, index: int, bus: str) -> Gpu:
    name = answer(nvml.nvmlDeviceGetName, handle)
    memory = answer(nvml.nvmlDeviceGetMemoryInfo, handle)
    return Gpu(
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        index=index,
        bus=bus,
        name=None if name is None else _text(name),
        memory_bytes=None if memory is None else int(memory.total),
    )


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
