"""The process that samples devices: ``python -m pdkv.measuring.device_sampling``, run by :mod:`devices`.

It appends one JSON object a line to a file: a sample (fields as in samples.parquet, unknown ones left out), or
``{device, missing: {field: reason}}``. Commands come as JSON lines on standard input: ``{watch: {pid, instance,
role}}`` and ``{stop: true}``. When the input ends without a stop, its owner has died: it removes the file and ends.

Each GPU has a thread of its own, so that a slow or hanging device delays no other device's samples, and a second one
for what takes long to ask or hardly changes: the traffic of its links and the processes on it.
"""

import argparse
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import orjson

from pdkv.measuring.host_readings import CoreReader, ProcessTrees, Row

READY = "ready"
_LINE = orjson.OPT_APPEND_NEWLINE
WATCHED_KINDS = ("gpu", "core", "process")  # a device is there when it has given a row of one of these

Write = Callable[[Row], None]
Owner = Callable[[int], tuple[str, str | None] | None]


class SampleFile:
    """Rows of several threads in one file, and the news that every device has given its first."""

    def __init__(self, file: IO[bytes], expected: Collection[str]) -> None:
        self._file = file
        self._awaited = set(expected)
        self._lock = threading.Lock()

    def write(self, row: Row) -> None:
        """Append a row."""
        line = orjson.dumps({key: value for key, value in row.items() if value is not None}, option=_LINE)
        with self._lock:
            self._file.write(line)
            if row.get("kind") in WATCHED_KINDS and row["device"] in self._awaited:
                self._awaited.remove(row["device"])
                if not self._awaited:
                    print(READY, flush=True)

    def flush(self) -> None:
        """Hand everything to the system, so that a kill loses no more than what came since."""
        with self._lock:
            self._file.flush()


def sample_gpu(
    nvml: Any, uuid: str, period_s: float, energy_period_s: float, write: Write, stop: threading.Event
) -> None:
    """Write a sample of the GPU every ``period_s`` until ``stop``, or until the device is lost.

    The first sample, and then one every ``energy_period_s``, holds the energy counter too: it is dear to read.
    ``t_s`` is when the query began, ``late_s`` how long after it was due, ``took_s`` how long it took. A lost device
    gives one last row without values.
    """
    from pdkv.measuring.gpu_readings import CHEAP_QUERIES, FIELDS, GpuLostError, GpuReader

    sample = {"source": "nvml", "device": uuid, "kind": "gpu"}
    try:
        nvml.nvmlInit()  # takes seconds where the driver has to wake the cards first
    except nvml.NVMLError as error:
        write({"device": uuid, "missing": dict.fromkeys(FIELDS, str(error))})
        write({"t_s": time.monotonic(), **sample, "took_s": 0.0})
        return
    reader = GpuReader(nvml, uuid)
    tell = _Missing(uuid, write)
    lost = False
    energy_due_s = 0.0
    for tick in ticks(period_s, stop):
        values: dict[str, float | int] = {}
        with_energy = tick.t_s >= energy_due_s - period_s / 2
        if with_energy:
            energy_due_s = max(energy_due_s, tick.t_s) + energy_period_s
        try:
            values = reader.read(None if with_energy else CHEAP_QUERIES)
        except GpuLostError:
            lost = True
        took_s = time.monotonic() - tick.t_s
        write({"t_s": tick.t_s, **sample, **values, "took_s": took_s, "late_s": tick.late_s})
        tell(reader.missing)
        if lost:
            return


def watch_gpu(
    nvml: Any, uuid: str, period_s: float, write: Write, stop: threading.Event, owner_of: Owner = lambda pid: None
) -> None:
    """Write the traffic of a GPU's links and the processes on it every ``period_s``, until ``stop`` or its loss.

    ``owner_of`` tells whose a process is, ``(instance, role)``, None for a process that is none of ours.
    """
    from pdkv.measuring.gpu_processes import PROCESS_FIELDS, GpuProcessReader
    from pdkv.measuring.gpu_readings import LINK_FIELDS, LINK_QUERIES, GpuLostError, GpuReader

    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        write({"device": uuid, "missing": dict.fromkeys((*LINK_FIELDS, *PROCESS_FIELDS), str(error))})
        return
    links, processes = GpuReader(nvml, uuid, LINK_QUERIES), GpuProcessReader(nvml, uuid)
    tell = _Missing(uuid, write)
    for tick in ticks(period_s, stop):
        row = {"t_s": tick.t_s, "source": "nvml", "device": uuid, "late_s": tick.late_s}
        for process in processes.read():
            instance, role = owner_of(process["pid"]) or (None, None)
            took_s = time.monotonic() - tick.t_s
            write({**row, "kind": "gpu_process", **process, "instance": instance, "role": role, "took_s": took_s})
        began_s = row["t_s"] = time.monotonic()
        try:
            traffic = links.read()
        except GpuLostError:
            return
        finally:
            tell(links.missing | processes.missing)
        if traffic:
            write({**row, "kind": "gpu_link", **traffic, "took_s": time.monotonic() - began_s})


class _Missing:
    """Says why fields of a device are missing, whenever that has changed."""

    def __init__(self, uuid: str, write: Write) -> None:
        self._uuid = uuid
        self._write = write
        self._told: dict[str, str] = {}

    def __call__(self, missing: dict[str, str]) -> None:
        if missing != self._told:
            self._told = dict(missing)
            self._write({"device": self._uuid, "missing": self._told})


def sample_host(
    cores: CoreReader | None,
    trees: ProcessTrees,
    period_s: float,
    write: Write,
    stop: threading.Event,
    obey: Callable[[ProcessTrees], None],
) -> None:
    """Write a sample of every core and process tree every ``period_s`` until ``stop``.

    ``obey`` carries out the commands that have come.
    """
    for tick in ticks(period_s, stop):
        for reader in (cores, trees):
            if reader is None:
                continue
            began_s = time.monotonic()
            rows = reader.read()
            took_s = time.monotonic() - began_s
            for row in rows:
                write({"t_s": began_s, "source": "psutil", **row, "took_s": took_s, "late_s": tick.late_s})
        obey(trees)
        trees.refresh()


class Tick(NamedTuple):
    """A moment to sample: when it is (monotonic seconds), and how long after it was due."""

    t_s: float
    late_s: float


def ticks(period_s: float, stop: threading.Event) -> Iterator[Tick]:
    """Moments ``period_s`` apart until ``stop`` is set, and the next one due: samples reach to behind the end.

    A late one is not caught up with by a burst.
    """
    due_s = time.monotonic()
    stopped = False
    while not stopped:
        stopped = stop.wait(max(0.0, due_s - time.monotonic()))
        if stopped:
            time.sleep(max(0.0, due_s - time.monotonic()))
        now_s = time.monotonic()
        yield Tick(now_s, now_s - due_s)
        due_s += period_s
        if due_s <= now_s:
            due_s = now_s + period_s


class Commands:
    """Commands from the owner, read in a thread; ``stop`` is set by the command, or when the owner is gone."""

    def __init__(self, source: IO[str], stop: threading.Event) -> None:
        self.orphaned = False
        self._source = source
        self._stop = stop
        self._watches: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def obey(self, trees: ProcessTrees) -> None:
        """Pass what has come on to ``trees``; called between samples, in their thread."""
        while not self._watches.empty():
            trees.watch(**self._watches.get())

    def _listen(self) -> None:
        for line in self._source:
            command = json.loads(line)
            if "stop" in command:
                break
            self._watches.put(command["watch"])
        else:
            self.orphaned = True
        self._stop.set()


def main(arguments: list[str] | None = None) -> None:
    """Sample until told to stop."""
    options = _parse(arguments)
    if options.run_on:
        os.sched_setaffinity(0, options.run_on)
    stop = threading.Event()
    commands = Commands(sys.stdin, stop)
    trees = ProcessTrees()
    trees.watch(os.getpid(), "sampler", None)
    with options.file.open("ab") as file:
        samples = SampleFile(file, {f"pid:{os.getpid()}", *options.gpu})
        for uuid in options.gpu:
            import pynvml  # only here: loading it takes as long as all the rest

            often = (pynvml, uuid, options.gpu_period_s, options.energy_period_s, samples.write, stop)
            seldom = (pynvml, uuid, options.link_period_s, samples.write, stop, trees.owner_of)
            threading.Thread(target=sample_gpu, args=often, daemon=True).start()
            threading.Thread(target=watch_gpu, args=seldom, daemon=True).start()
        threading.Thread(target=_flush_regularly, args=(samples, stop), daemon=True).start()
        cores = CoreReader(options.core) if options.core else None
        sample_host(cores, trees, options.cpu_period_s, samples.write, stop, commands.obey)
        samples.flush()
        if commands.orphaned:
            options.file.unlink(missing_ok=True)


def _flush_regularly(samples: SampleFile, stop: threading.Event) -> None:
    while not stop.wait(1.0):
        samples.flush()


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m pdkv.measuring.device_sampling", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--gpu", action="append", default=[], help="UUID, once for each GPU")
    parser.add_argument("--core", action="append", type=int, default=[], help="number, once for each core")
    parser.add_argument("--run-on", action="append", type=int, default=[], help="cores that the sampler may use")
    parser.add_argument("--gpu-period-s", type=float, required=True)
    parser.add_argument("--energy-period-s", type=float, required=True)
    parser.add_argument("--link-period-s", type=float, required=True)
    parser.add_argument("--cpu-period-s", type=float, required=True)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
    os._exit(0)  # at once: a thread may hang in the driver, and the file is whole
