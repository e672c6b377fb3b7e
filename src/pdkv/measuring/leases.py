"""Exclusive use of GPUs, and of the host by a CPU engine, among all measurements on a host, whoever runs them.

A lease is a set of locked files (:mod:`lease_files`), so it ends with its process.
"""

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from pdkv.errors import UserError
from pdkv.measuring.gpu_topology import choose_gpus, nvlinked_pairs
from pdkv.measuring.gpu_use import GpuUse, look_at_use
from pdkv.measuring.gpu_visibility import Nvml, visible_gpus
from pdkv.measuring.lease_files import prepare_folder, read_holder, try_lock, unlock
from pdkv.units import format_duration

HOST = "host-cpu"
QUEUE = "queue-"
POLL_S = 0.5
SAY_EVERY_S = 60.0
FOREIGN_WAIT_S = 120.0  # for GPUs that others than pdkv use: nobody knows when they will be done

Say = Callable[[str], None]


@dataclass
class Lease:
    """Held from the moment it is made until :meth:`release`, the end of its context, or the end of the process.

    ``uuids`` are the GPUs, in the order for ``CUDA_VISIBLE_DEVICES`` (empty for the host); ``warnings`` name GPUs
    on which others, outside of pdkv, compute with next to no memory.
    """

    uuids: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    _handles: dict[Path, int] = field(default_factory=dict, repr=False)

    def release(self) -> None:
        """Give everything back; doing it twice does no harm."""
        while self._handles:
            unlock(self._handles.popitem()[1])

    def names_beside(self) -> set[str]:
        """The trials that hold other leases on this host at this moment."""
        folders = {file.parent for file in self._handles}
        others = (file for folder in folders for file in folder.iterdir() if file not in self._handles)
        holders = (read_holder(file) for file in others if not file.name.startswith(QUEUE))
        return {holder[1] for holder in holders if holder}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


def lease_gpus(
    count: int,
    env: Mapping[str, str],
    nvml: Nvml,
    *,
    trial: str,
    group: int = 1,
    wait_s: float = 0.0,
    foreign_wait_s: float = FOREIGN_WAIT_S,
    say: Say = lambda message: None,
    folder: Path | None = None,
) -> Lease:
    """Lease ``count`` of the GPUs that ``env`` makes visible: ``group`` of them make one instance.

    Takes GPUs that nobody uses, of these the ones best joined by NVLink. Waits up to ``wait_s`` for other measurements
    (each of which has a limit of its own) and up to ``foreign_wait_s`` for whatever else has them, other programs or a
    lock that no measurement has signed, and tells ``say`` for whom. It takes all or none, so two that wait for each
    other's GPUs cannot block each other, and those who wait are served one after another, so that a trial that needs
    many GPUs is not passed by all that need one. Raises :class:`UserError` at once if fewer are
    visible than needed, and after the wait if they are still taken.
    """
    gpus = visible_gpus(nvml, env)
    if len(gpus) < count:
        shown = env.get("CUDA_VISIBLE_DEVICES")
        where = "on this host" if shown is None else f"with CUDA_VISIBLE_DEVICES={shown}"
        raise UserError(
            f"{trial} needs {count} GPUs, and {len(gpus) or 'none'} can be used {where}",
            remedy="use a host (or a job) with more GPUs, make more of them visible, or leave this mode out",
        )
    place = prepare_folder(folder)
    uuids = [gpu.uuid for gpu in gpus]
    links = nvlinked_pairs(nvml, gpus)

    def choose(free: Sequence[str], shunned: Sequence[str]) -> tuple[str, ...]:
        return choose_gpus(free, count, group=group, links=links, shunned=shunned)

    def attempt() -> Lease | None:
        return _lease_free(place, nvml, uuids, count, choose, trial)

    def find_strangers() -> list[GpuUse]:
        uses = (look_at_use(nvml, uuid) for uuid in uuids)
        return [use for use in uses if use.is_taken and read_holder(place / use.uuid) is None]

    return _Wait(
        files=[place / uuid for uuid in uuids],
        wanted=f"{count} of {len(gpus)} GPUs",
        wait_s=wait_s,
        say=say,
        queue=place / f"{QUEUE}{hashlib.sha256(' '.join(sorted(uuids)).encode()).hexdigest()[:16]}",
        find_strangers=find_strangers,
        foreign_wait_s=foreign_wait_s,
        spare=len(gpus) - count,
    ).until(attempt, trial)


def _lease_free(
    place: Path,
    nvml: Nvml,
    uuids: Sequence[str],
    count: int,
    choose: Callable[[Sequence[str], Sequence[str]], tuple[str, ...]],
    trial: str,
) -> Lease | None:
    """``count`` of ``uuids`` that nobody uses, as ``choose`` picks them of the free and the shunned; all or none."""
    uses = {uuid: look_at_use(nvml, uuid) for uuid in uuids}
    free = [uuid for uuid in uuids if not uses[uuid].is_taken]
    while len(free) >= count:
        chosen = choose(free, [uuid for uuid in free if not uses[uuid].is_idle])
        lease, held = _lock_all(place, chosen, trial)
        # Asked again: whose lease has just ended may have been the user until now, or a stranger since then.
        uses |= {uuid: look_at_use(nvml, uuid) for uuid in lease.uuids}
        taken = {uuid for uuid in lease.uuids if uses[uuid].is_taken}
        if not held and not taken:
            lease.warnings = tuple(str(uses[uuid]) for uuid in chosen if not uses[uuid].is_idle)
            return lease
        lease.release()
        free = [uuid for uuid in free if uuid not in held | taken]
    return None


def lease_host(
    *, trial: str, wait_s: float = 0.0, say: Say = lambda message: None, folder: Path | None = None
) -> Lease:
    """Lease the processor cores of this host, all of them: a CPU engine next to another measures neither.

    Waits as :func:`lease_gpus` does. Raises :class:`UserError` if they are still taken after ``wait_s``.
    """
    file = prepare_folder(folder) / HOST

    def attempt() -> Lease | None:
        handle = try_lock(file, trial)
        return None if handle is None else Lease(_handles={file: handle})

    return _Wait([file], "the processor cores of this host", wait_s, say).until(attempt, trial)


@dataclass
class _Wait:
    """Patience for ``wanted``, which the holders of ``files`` have, and how it ends.

    ``find_strangers`` tells of GPUs that programs other than pdkv's have taken; while these are more than ``spare``,
    or no measurement is known to hold anything, none that ends can help, and ``foreign_wait_s`` counts.
    """

    files: Sequence[Path]
    wanted: str
    wait_s: float
    say: Say
    queue: Path | None = None
    find_strangers: Callable[[], list[GpuUse]] = list
    foreign_wait_s: float = FOREIGN_WAIT_S
    spare: int = 0

    def until(self, attempt: Callable[[], Lease | None], trial: str) -> Lease:
        """The lease, as soon as ``attempt`` gives one. Raises :class:`UserError` after the wait."""
        began_s = hopeless_s = time.monotonic()
        said, said_s = "", 0.0
        turn = None
        try:
            while True:
                turn = try_lock(self.queue, trial) if self.queue and turn is None else turn
                lease = attempt() if turn is not None or self.queue is None else None
                if lease is not None:
                    return lease
                strangers, holders = self.find_strangers(), self._describe_holders(turn is None)
                now_s = time.monotonic()
                if holders and len(strangers) <= self.spare:
                    hopeless_s = now_s
                for waited_s, limit_s in ((now_s - began_s, self.wait_s), (now_s - hopeless_s, self.foreign_wait_s)):
                    if waited_s >= limit_s:
                        raise self._give_up(strangers, holders, limit_s)
                reasons = "; ".join([*map(str, strangers), *holders])
                if reasons and (reasons != said or now_s - said_s >= SAY_EVERY_S):
                    self.say(f"waiting for {self.wanted}: {reasons}")
                    said, said_s = reasons, now_s
                time.sleep(min(POLL_S, self.wait_s))
        finally:
            if turn is not None:
                unlock(turn)

    def _describe_holders(self, in_queue: bool) -> list[str]:
        files = [*self.files, *([self.queue] if self.queue and in_queue else [])]
        return [holder for file in files if (holder := _describe_holder(file))]

    def _give_up(self, strangers: Sequence[GpuUse], holders: Sequence[str], limit_s: float) -> UserError:
        reasons = "; ".join([*map(str, strangers), *holders]) or "they changed hands"
        remedy = "wait until the other measurement has ended, or end it"
        if strangers:
            remedy = "end the programs that use these GPUs, or name others in CUDA_VISIBLE_DEVICES"
        return UserError(f"no lease of {self.wanted} within {format_duration(limit_s)}: {reasons}", remedy=remedy)


def _lock_all(place: Path, uuids: Iterable[str], trial: str) -> tuple[Lease, set[str]]:
    """A lease of those GPUs that were free, and the UUIDs of the others.

    Always in the same order: of two who want the same GPUs at the same moment, one gets them.
    """
    lease, held = Lease(), set()
    for uuid in sorted(uuids):
        handle = try_lock(place / uuid, trial)
        if handle is None:
            held.add(uuid)
        else:
            lease._handles[place / uuid] = handle
    lease.uuids = tuple(uuid for uuid in uuids if uuid not in held)
    return lease, held


def _describe_holder(file: Path) -> str | None:
    """Who holds a file; None if nobody does."""
    holder = read_holder(file)
    if holder is None:
        return None
    pid, trial = holder
    if file.name.startswith(QUEUE):
        return f"process {pid} ({trial}) waits before it"
    return f"{file.name} is held by process {pid} ({trial})"
