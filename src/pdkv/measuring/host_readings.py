"""One reading of the host: how busy each core is, and what each of our process trees uses.

Both come from counters that the kernel keeps in steps of 10 ms, so a single sample at 10 Hz is good to about 0.1;
nothing is lost between samples, and means over a second or more are good to 0.01.
"""

import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from pdkv.measuring.process_tree import ProcessInfo, all_pids, read_process, read_usage

# Looking for new processes lists all of them: at most once a second, and never more than this share of the time.
SCAN_EVERY_S = 1.0
MAX_SCAN_SHARE = 0.005

Row = dict[str, Any]


class CoreReader:
    """Utilisation of the cores ``cores`` (by the kernel's numbers) since the reading before."""

    def __init__(self, cores: Collection[int]) -> None:
        self._cores = set(cores)
        self._online: list[int] = []
        self._before = self._read_counters()

    def read(self) -> list[Row]:
        """One row per core; ``util`` is None where the counters have not moved since the reading before."""
        now = self._read_counters()
        rows = []
        for core, (busy, total) in now.items():
            busy_before, total_before = self._before.get(core, (busy, total))
            passed = total - total_before
            util = min(1.0, max(0.0, busy - busy_before) / passed) if passed > 0 else None
            rows.append({"device": f"cpu{core}", "kind": "core", "util": util})
        self._before = now
        return rows

    def _read_counters(self) -> dict[int, tuple[float, float]]:
        """(busy, total) seconds of each core. Time stolen by the hypervisor is neither idle nor used by this host."""
        times = psutil.cpu_times(percpu=True)
        if len(times) != len(self._online):  # hardly ever, and looking costs as much as all the rest
            self._online = _online_cores(len(times))
        counters = {}
        for core, each in zip(self._online, times, strict=True):
            if core in self._cores:
                busy = each.user + each.nice + each.system + each.irq + each.softirq
                counters[core] = (busy, busy + each.idle + each.iowait + each.steal)
        return counters


@dataclass
class _Member:
    started: int
    root: int
    cpu_s: float


class ProcessTrees:
    """CPU time and resident memory of processes together with their descendants.

    A process belongs to the nearest watched ancestor, so trees never overlap even if one root started another; it
    stays with its tree when its parent dies. A new process is counted from when it is found (at most a second late).
    """

    def __init__(self) -> None:
        self._roots: dict[int, tuple[str, str | None]] = {}
        self._members: dict[int, _Member] = {}
        self._seen: set[int] = set()
        self._read_s = time.monotonic()
        self._scan_due_s = 0.0

    def watch(self, pid: int, instance: str, role: str | None) -> None:
        """Give rows for ``pid`` and its descendants from the reading on that follows the next :meth:`refresh`."""
        self._roots[pid] = (instance, role)
        self._seen.clear()  # what belonged to nobody, or to an ancestor's tree, may belong to this one
        self._scan_due_s = 0.0

    def owner_of(self, pid: int) -> tuple[str, str | None] | None:
        """(instance, role) of the tree that a process belongs to; None for others, and until it was found."""
        member = self._members.get(pid)
        return None if member is None else self._roots[member.root]

    def refresh(self) -> None:
        """Look for new members of the trees, if that is due."""
        began_s = time.monotonic()
        if self._roots and began_s >= self._scan_due_s:
            self._find_members()
            ended_s = time.monotonic()
            self._scan_due_s = ended_s + max(SCAN_EVERY_S, (ended_s - began_s) / MAX_SCAN_SHARE)

    def read(self) -> list[Row]:
        """One row per tree that has a living process: CPU seconds per second, and the sum of resident memory.

        Memory that processes of a tree share is counted in each of them.
        """
        now_s = time.monotonic()
        elapsed_s = now_s - self._read_s
        self._read_s = now_s
        used, memory = self._read_members()
        rows = []
        for root, mem_bytes in memory.items():
            instance, role = self._roots[root]
            row = {"device": f"pid:{root}", "kind": "process", "instance": instance, "role": role}
            rows.append({**row, "util": used[root] / elapsed_s, "mem_bytes": mem_bytes})
        return rows

    def _read_members(self) -> tuple[dict[int, float], dict[int, int]]:
        """CPU seconds since the reading before, and resident bytes, by root."""
        used: dict[int, float] = {}
        memory: dict[int, int] = {}
        for pid, member in list(self._members.items()):
            now = read_usage(pid)
            if now is None or now.started != member.started:
                del self._members[pid]
                self._seen.discard(pid)
                continue
            used[member.root] = used.get(member.root, 0.0) + max(0.0, now.cpu_s - member.cpu_s)
            memory[member.root] = memory.get(member.root, 0) + now.mem_bytes
            member.cpu_s = now.cpu_s
        return used, memory

    def _find_members(self) -> None:
        """Look for descendants of the roots among the processes that have come since the last look."""
        living = all_pids()
        come = {pid: info for pid in living - self._seen if (info := read_process(pid)) is not None}
        self._seen = living
        order = {root: number for number, root in enumerate(self._roots)}
        for pid, info in come.items():
            root = self._nearest_root(pid, come)
            member = self._members.get(pid)
            if member is not None and member.started == info.started:
                # An orphan keeps its root; one that was found before its own root was watched goes over to that.
                if root is not None and order[root] > order[member.root]:
                    member.root = root
            elif root is not None:
                usage = read_usage(pid)
                if usage is not None and usage.started == info.started:
                    self._members[pid] = _Member(info.started, root, usage.cpu_s)

    def _nearest_root(self, pid: int, come: dict[int, ProcessInfo]) -> int | None:
        while pid not in self._roots:
            if pid not in come:  # seen before: whose it is has been found out
                return self._members[pid].root if pid in self._members else None
            pid = come[pid].parent
        return pid


def _online_cores(count: int) -> list[int]:
    """The kernel's numbers of the ``count`` cores that are online, which may have gaps."""
    numbers: list[int] = []
    with suppress(OSError, ValueError):
        for part in Path("/sys/devices/system/cpu/online").read_text(encoding="ascii").strip().split(","):
            first, _, last = part.partition("-")
            numbers += range(int(first), int(last or first) + 1)
    return numbers if len(numbers) == count else list(range(count))
