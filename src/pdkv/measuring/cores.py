"""Which processor cores each instance of a CPU engine computes on, and that it really does."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pdkv.measuring.process_tree import descendants


def split_cores(cores: Sequence[int], weights: Sequence[int]) -> tuple[list[list[int]], list[int]]:
    """Neighbouring cores for each instance by weight, and those of the client, router and samplers.

    With more than two cores per instance the client has the first core for itself; with fewer it shares all of them
    with the instances. Where there are fewer cores than instances, these share too.
    """
    available = sorted(cores)
    own = len(available) > 2 * len(weights)
    client, computing = (available[:1], available[1:]) if own else (available, available)
    if len(computing) < len(weights):
        return [[computing[number % len(computing)]] for number in range(len(weights))], client
    sizes = [1 + int((len(computing) - len(weights)) * weight / sum(weights)) for weight in weights]
    for number in range(len(computing) - sum(sizes)):  # what rounding left over, one each from the front
        sizes[number % len(sizes)] += 1
    shares, first = [], 0
    for size in sizes:
        shares.append(computing[first : first + size])
        first += size
    return shares, client


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


def bind_to_cores(pid: int, cores: Sequence[int], *, free_main_threads: bool) -> Binding:
    """Move every thread at or below process ``pid`` that may run elsewhere onto ``cores``.

    Threads that the engine bound to one of these cores stay where they are. ``free_main_threads``: the first thread of
    each process gets all of ``cores``, because a KV connector may have bound it to the last core of the NUMA node,
    on top of another compute thread or of another instance.
    """
    allowed = set(cores)
    processes = [pid, *(process.pid for process in descendants(pid))]
    threads = moved = 0
    for process in processes:
        for thread in _threads(process):
            try:
                now = os.sched_getaffinity(thread)
                threads += 1
                wrong = now != allowed if free_main_threads and thread == process else not now <= allowed
                if wrong:
                    os.sched_setaffinity(thread, allowed)
                    moved += 1
            except OSError:  # ended in between
                continue
    return Binding(len(processes), threads, moved)


def _threads(pid: int) -> list[int]:
    try:
        return sorted(int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []
