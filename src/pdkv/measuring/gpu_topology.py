"""Which GPUs are joined by NVLink, and which of the free ones a trial had better take. An index stays inside NVML."""

from collections.abc import Collection, Sequence
from itertools import combinations, islice

import pynvml

from pdkv.measuring.gpu_visibility import Gpu, Nvml, answer

Pair = frozenset[str]
MAX_SETS = 20_000  # what is tried of them; a host with 16 GPUs has 12,870 sets of 8


def nvlinked_pairs(nvml: Nvml, gpus: Sequence[Gpu]) -> frozenset[Pair]:
    """Pairs of UUIDs that reach each other's memory over NVLink. Slices of a card, and cards that do not say: none."""
    handles = {gpu.uuid: answer(nvml.nvmlDeviceGetHandleByUUID, gpu.uuid) for gpu in gpus}
    known = [(uuid, handle) for uuid, handle in handles.items() if handle is not None]
    return frozenset(
        frozenset((one, other))
        for (one, first), (other, second) in combinations(known, 2)
        if answer(nvml.nvmlDeviceGetP2PStatus, first, second, pynvml.NVML_P2P_CAPS_INDEX_NVLINK)
        == pynvml.NVML_P2P_STATUS_OK
    )


def choose_gpus(
    gpus: Sequence[str], count: int, *, group: int, links: Collection[Pair], shunned: Collection[str] = ()
) -> tuple[str, ...]:
    """``count`` of ``gpus`` (UUIDs), in the order in which ``group`` after ``group`` makes one instance.

    Links within an instance count most (tensor parallelism talks at every layer), then those between instances (the KV
    cache goes over them), then that none is ``shunned``; among equals the first in the given order.
    """

    def merit(chosen: tuple[str, ...]) -> tuple[int, int, int]:
        inner = sum(_count_links(part, links) for part in _split(chosen, group))
        return inner, _count_links(chosen, links), -sum(uuid in shunned for uuid in chosen)

    tried = [_arrange(chosen, group, links) for chosen in islice(combinations(gpus, count), MAX_SETS)]
    return max(tried, key=merit)  # of equals the first


def _arrange(chosen: Sequence[str], group: int, links: Collection[Pair]) -> tuple[str, ...]:
    """Instance after instance: the first GPU that is left, and those that most of its partners have links with."""
    left, arranged = list(chosen), []
    while left:
        part = [left.pop(0)]
        while len(part) < group and left:
            best = max(left, key=lambda uuid: sum(frozenset((uuid, other)) in links for other in part))
            left.remove(best)
            part.append(best)
        arranged += part
    return tuple(arranged)


def _split(chosen: Sequence[str], group: int) -> list[Sequence[str]]:
    return [chosen[first : first + group] for first in range(0, len(chosen), group)]


def _count_links(chosen: Sequence[str], links: Collection[Pair]) -> int:
    return sum(frozenset(pair) in links for pair in combinations(chosen, 2))
