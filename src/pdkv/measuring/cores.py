"""Which processor cores a trial and each instance of a CPU engine have, and that they really compute there."""

import os
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from pdkv.measuring.process_tree import descendants

MIN_CORES_OF_GPU = 4  # of an engine: the API server, the engine, its worker, and something for client and router


def split_cores(cores: Sequence[int], ranks: Sequence[int]) -> tuple[list[list[int]], list[int]]:
    """Neighbouring cores for each instance by its number of ranks, and those of the client, router and samplers.

    With more than two cores per rank the client has the first core for itself; with fewer it shares all of them with
    the instances. Where there are fewer cores than ranks, ranks of an instance share before instances do.
    """
    available = sorted(cores)
    own = len(available) > 2 * sum(ranks)
    client, computing = (available[:1], available[1:]) if own else (available, available)
    if len(computing) < len(ranks):
        return [[computing[number % len(computing)]] for number in range(len(ranks))], client
    sizes = [1 + (len(computing) - len(ranks)) * count // sum(ranks) for count in ranks]
    for number in range(len(computing) - sum(sizes)):  # what rounding left over, one each from the front
        sizes[number % len(sizes)] += 1
    shares, first = [], 0
    for size in sizes:
        shares.append(computing[first : first + size])
        first += size
    return shares, client


def split_among_ranks(cores: Sequence[int], ranks: int) -> list[list[int]]:
    """Neighbouring cores for each rank of an instance, as many for each: all wait for the slowest.

    What is left over serves the instance's other processes. Where there are fewer cores than ranks, ranks share.
    """
    each = len(cores) // ranks
    if each == 0:
        return [[cores[rank % len(cores)]] for rank in range(ranks)]
    return [list(cores[rank * each : (rank + 1) * each]) for rank in range(ranks)]


def format_binding(cores: Sequence[int], ranks: int) -> str:
    """``0-3`` or, for two ranks, ``0-1|2-3``: what ``VLLM_CPU_OMP_THREADS_BIND`` wants."""
    return "|".join(format_cores(share) for share in split_among_ranks(cores, ranks))


def cores_of_gpus(cores: Sequence[int], mine: Collection[int], count: int) -> list[int]:
    """The cores that go with the GPUs numbered ``mine`` of ``count``: each GPU has as many, neighbours, to itself.

    So trials on different GPUs stay off each other's cores without a word between them, and a trial has the same cores
    whether or not another one runs beside it. Hardware threads of one core stay together. Where there would be fewer
    than :data:`MIN_CORES_OF_GPU` for each GPU, all trials share all cores.
    """
    whole = _physical_cores(cores)
    if count < 2 or len(cores) // count < MIN_CORES_OF_GPU or len(whole) < count:
        return sorted(cores)
    own = (whole[len(whole) * gpu // count : len(whole) * (gpu + 1) // count] for gpu in sorted(mine))
    return sorted(thread for part in own for core in part for thread in core)


def _physical_cores(cores: Sequence[int]) -> list[tuple[int, ...]]:
    """The hardware threads among ``cores``, those of one core together."""
    siblings: dict[str, list[int]] = {}
    for core in sorted(cores):
        try:
            key = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list").read_text(encoding="ascii")
        except OSError:
            key = str(core)
        siblings.setdefault(key, []).append(core)
    return [tuple(threads) for threads in siblings.values()]


def format_cores(cores: Sequence[int]) -> str:
    """``0-3,6``: as ``taskset`` and vLLM's thread binding spell a set of cores."""
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][-1] + 1:
            runs[-1].append(core)
        else:
            runs.append([core])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


@dataclass(frozen=True)
class Binding:
    """Threads of an instance that were found, and how many of them had to be moved to the instance's cores."""

    processes: int
    threads: int
    moved: int


def bind_to_cores(pid: int, cores: Sequence[int], *, ranks: int = 1, free_main_threads: bool) -> Binding:
    """Move every thread at or below process ``pid`` that may run elsewhere onto ``cores``.

    Threads that the engine bound to one of these cores stay where they are. ``free_main_threads``: the first thread of
    each process gets all of ``cores`` (of a rank: the rank's), because a KV connector may have bound it to the last
    core of the NUMA node, on top of another compute thread or of another instance.
    """
    of_ranks = split_among_ranks(cores, ranks)
    processes = [pid, *(process.pid for process in descendants(pid))]
    threads = moved = 0
    for process in processes:
        rank = _rank(process) if ranks > 1 else None
        own = set(cores if rank is None else of_ranks[rank % ranks])
        for thread in _threads(process):
            try:
                now = os.sched_getaffinity(thread)
                threads += 1
                is_main = free_main_threads and thread == process
                if now != own if is_main else not now <= set(cores):
                    os.sched_setaffinity(thread, own)
                    moved += 1
            except OSError:  # ended in between
                continue
    return Binding(len(processes), threads, moved)


def _rank(pid: int) -> int | None:
    """Which rank of tensor parallelism a process is: vLLM gives it a title, ``VLLM::Worker_TP1``. None for others."""
    try:
        title = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return None
    found = re.match(rb"VLLM::\w*_TP(\d+)", title)
    return int(found[1]) if found else None


def _threads(pid: int) -> list[int]:
    try:
        return sorted(int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []
