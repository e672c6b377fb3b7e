"""The device sampler: what it writes by contract, and what it does when a device misbehaves."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pynvml
import pytest
from fake_nvml import GIB, FakeGpu, FakeNvml, not_supported

from pdkv.measuring import host_readings
from pdkv.measuring.device_sampling import sample_gpu, sample_host, ticks, watch_gpu
from pdkv.measuring.devices import SCHEMA, DeviceSampler, start_sampler
from pdkv.measuring.gpu_processes import PROCESS_FIELDS, GpuProcessReader
from pdkv.measuring.gpu_readings import FIELDS, LINK_FIELDS, LINK_QUERIES, GpuLostError, GpuReader
from pdkv.measuring.host_readings import CoreReader, ProcessTrees
from pdkv.measuring.process_tree import ProcessUsage, read_process, read_usage

ONE, TWO = "GPU-1a2b", "GPU-9f3c"
BUSY = "import time\nwhile True: sum(range(1000))"


def await_(truth: Callable[[], Any], within_s: float = 10.0) -> Any:
    deadline_s = time.monotonic() + within_s
    while not (found := truth()):
        assert time.monotonic() < deadline_s, "did not happen in time"
        time.sleep(0.01)
    return found


class Trace:
    """Rows that sampling threads write."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def of(self, device: str) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["device"] == device and "t_s" in row]

    def missing(self, device: str) -> dict[str, str]:
        found = [row["missing"] for row in self.rows if row["device"] == device and "missing" in row]
        return dict(found[-1]) if found else {}


@pytest.fixture
def start_gpus() -> Iterator[Callable[..., Trace]]:
    """Starts a sampling thread for each card of a fake NVML, at 50 Hz, by default with its energy in every sample."""
    stop, threads = threading.Event(), []

    def start(*gpus: FakeGpu, energy_period_s: float = 0.0) -> Trace:
        trace = Trace()
        for gpu in gpus:
            arguments = (FakeNvml(*gpus), gpu.uuid, 0.02, energy_period_s, trace.rows.append, stop)
            threads.append(threading.Thread(target=sample_gpu, args=arguments))
            threads[-1].start()
        return trace

    yield start
    stop.set()
    for thread in threads:
        thread.join(10)


@pytest.fixture
def spawn() -> Iterator[Callable[[str], "subprocess.Popen[str]"]]:
    """Starts a Python program; all are killed at the end."""
    processes = []

    def start(program: str) -> "subprocess.Popen[str]":
        processes.append(subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


# GPUs


def test_units_are_those_of_the_contract() -> None:
    gpu = FakeGpu(ONE, memory_used=3 * GIB, answers={"nvmlDeviceGetTotalEnergyConsumption": 1_250_000})
    assert GpuReader(FakeNvml(gpu), ONE).read() == {
        "util": 0.5,
        "mem_util": 0.2,
        "mem_bytes": 3 * GIB,
        "power_w": 60.0,
        "energy_j": 1250.0,
        "sm_clock_mhz": 1980,
        "mem_clock_mhz": 3201,
        "temp_c": 41,
        "throttle": 4,
    }


def test_a_field_that_is_not_supported_is_left_out_with_its_reason_and_asked_once() -> None:
    gpu = FakeGpu(
        ONE, answers={"nvmlDeviceGetPowerUsage": not_supported, "nvmlDeviceGetUtilizationRates": not_supported}
    )
    reader = GpuReader(FakeNvml(gpu), ONE)
    for _ in range(3):
        assert set(reader.read()) == set(FIELDS) - {"power_w", "util", "mem_util"}
    assert reader.missing == dict.fromkeys(("power_w", "util", "mem_util"), "Not Supported")
    assert gpu.queries.count("nvmlDeviceGetPowerUsage") == 1


def test_a_field_that_fails_once_is_asked_again() -> None:
    outcomes = iter([pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT), None])

    def power() -> int:
        error = next(outcomes)
        if error is not None:
            raise error
        return 70_000

    reader = GpuReader(FakeNvml(FakeGpu(ONE, answers={"nvmlDeviceGetPowerUsage": power})), ONE)
    assert "power_w" not in reader.read()
    assert reader.read()["power_w"] == 70.0


@pytest.mark.fault("devices", "a MIG slice", "asked itself: no utilisation, its own memory, never its card's")
def test_a_slice_is_asked_itself_and_not_its_card() -> None:
    no_utilization = {"nvmlDeviceGetUtilizationRates": not_supported}
    piece = FakeGpu("MIG-aa", memory_total=20 * GIB, memory_used=GIB, answers=no_utilization)
    reading = GpuReader(FakeNvml(FakeGpu(ONE, memory_used=60 * GIB, slices=[piece])), "MIG-aa").read()
    assert reading["mem_bytes"] == GIB
    assert "util" not in reading


def test_memory_without_the_reserved_part_falls_back_where_the_driver_is_old() -> None:
    class OldNvml(FakeNvml):
        def nvmlDeviceGetMemoryInfo(self, gpu: FakeGpu, version: int | None = None) -> Any:
            if version is not None:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
            return super().nvmlDeviceGetMemoryInfo(gpu)

    assert GpuReader(OldNvml(FakeGpu(ONE, memory_used=GIB)), ONE).read()["mem_bytes"] == GIB


@pytest.mark.fault("devices", "one of two GPUs is lost", "the other one's trace goes on")
def test_a_lost_gpu_ends_its_own_trace_only(start_gpus: Callable[..., Trace]) -> None:
    trace = start_gpus(FakeGpu(ONE), FakeGpu(TWO, lost_after=30))
    await_(lambda: trace.missing(TWO))
    lost_s = trace.of(TWO)[-1]["t_s"]
    await_(lambda: trace.of(ONE)[-1]["t_s"] > lost_s + 0.1)
    assert set(trace.of(TWO)[0]) >= set(FIELDS)
    assert not set(trace.of(TWO)[-1]) & set(FIELDS)  # one last row, without values
    assert trace.missing(TWO) == dict.fromkeys(FIELDS, "GPU is lost")
    assert set(trace.of(ONE)[-1]) >= set(FIELDS)
    assert trace.missing(ONE) == {}


def test_a_gpu_that_is_not_there_counts_as_lost() -> None:
    with pytest.raises(GpuLostError, match="Not Found"):
        GpuReader(FakeNvml(), ONE).read()


@pytest.mark.fault(
    "devices", "a GPU that answers its first query after seconds", "no other device is delayed; lateness is recorded"
)
def test_a_slow_first_query_delays_no_other_device_and_is_recorded(start_gpus: Callable[..., Trace]) -> None:
    trace = start_gpus(FakeGpu(ONE), FakeGpu(TWO, first_query_s=1.0))
    slow = await_(lambda: trace.of(TWO))[0]
    assert slow["took_s"] >= 1.0
    meanwhile = [row for row in trace.of(ONE) if slow["t_s"] <= row["t_s"] <= slow["t_s"] + slow["took_s"]]
    assert len(meanwhile) > 20  # of 50
    await_(lambda: len(trace.of(TWO)) >= 3)
    first, second, third = trace.of(TWO)[:3]
    assert second["t_s"] >= first["t_s"] + 1.0
    assert third["t_s"] - second["t_s"] > 0.01  # no burst to catch up


def test_the_energy_counter_is_read_seldom_and_in_the_first_sample(start_gpus: Callable[..., Trace]) -> None:
    """It keeps the processor busy for milliseconds, so it must not be asked at the pace of the others."""
    gpu = FakeGpu(ONE)
    trace = start_gpus(gpu, energy_period_s=0.2)
    await_(lambda: len([row for row in trace.of(ONE) if "energy_j" in row]) >= 4)
    rows = list(trace.of(ONE))
    with_energy = [row["t_s"] for row in rows if "energy_j" in row]
    assert "energy_j" in rows[0]
    assert all(set(row) >= set(FIELDS) - {"energy_j"} for row in rows)
    gaps = [after - before for before, after in pairwise(with_energy)]
    assert min(gaps) > 0.15  # late by less than half a sample
    assert trace.missing(ONE) == {}


def test_an_energy_counter_that_is_not_there_is_asked_for_once(start_gpus: Callable[..., Trace]) -> None:
    gpu = FakeGpu(ONE, answers={"nvmlDeviceGetTotalEnergyConsumption": not_supported})
    trace = start_gpus(gpu, energy_period_s=0.05)
    await_(lambda: len(trace.of(ONE)) >= 10)
    assert trace.missing(ONE) == {"energy_j": "Not Supported"}
    assert gpu.queries.count("nvmlDeviceGetTotalEnergyConsumption") == 1


# Links of GPUs and processes on them


def test_traffic_has_the_units_of_the_contract() -> None:
    gpu = FakeGpu(ONE, nvlink_kib=(2048, 1024), answers={"nvmlDeviceGetPcieThroughput": 5000})
    assert GpuReader(FakeNvml(gpu), ONE, LINK_QUERIES).read() == {
        "pcie_rx_bytes_s": 5_000_000,
        "pcie_tx_bytes_s": 5_000_000,
        "nvlink_rx_bytes": 2048 * 1024,
        "nvlink_tx_bytes": 1024 * 1024,
    }


@pytest.mark.parametrize("links", [0, 18])
def test_a_card_without_nvlink_gives_no_zeros(links: int) -> None:
    counters = (0, 0) if links == 0 else None  # there are drivers that count 0 over no links, and such that refuse
    reader = GpuReader(FakeNvml(FakeGpu(ONE, nvlinks=links, nvlink_kib=counters)), ONE, LINK_QUERIES)
    assert set(reader.read()) == {"pcie_rx_bytes_s", "pcie_tx_bytes_s"}
    assert reader.missing == dict.fromkeys(("nvlink_rx_bytes", "nvlink_tx_bytes"), "Not Supported")


def test_two_processes_on_a_gpu_with_their_shares() -> None:
    own = os.getpid()
    gpu = FakeGpu(ONE, processes=[(own, 3 * GIB), (4_194_999, None)], process_samples=[(own, 10, 40, 7)])
    reader = GpuProcessReader(FakeNvml(gpu), ONE)
    mine, other = reader.read()
    name = psutil.Process().name()
    assert mine == {"pid": own, "process": name, "mem_bytes": 3 * GIB, "util": 0.4, "mem_util": 0.07}
    assert other == {"pid": 4_194_999, "process": None, "mem_bytes": None}  # of another container: no name, no share
    assert reader.missing == {}


def test_shares_are_those_since_the_reading_before() -> None:
    gpu = FakeGpu(ONE, processes=[(7, GIB)], process_samples=[(7, 10, 90, 9), (7, 20, 40, 4)])
    reader = GpuProcessReader(FakeNvml(gpu), ONE, shares_every_s=0)
    assert reader.read()[0]["util"] == 0.4  # the newest
    assert "util" not in reader.read()[0]  # none since: NVML says "not found", which is no lost device
    gpu.process_samples.append((7, 30, 4_294_967_295, 100))
    assert reader.read()[0]["mem_util"] == 1.0
    assert "util" not in reader.read()[0]  # 4,294,967,295 is no percentage
    assert reader.missing == {}


def test_shares_are_asked_for_every_few_seconds() -> None:
    """The driver computes for milliseconds before it answers."""
    gpu = FakeGpu(ONE, processes=[(7, GIB)], process_samples=[(7, 10, 90, 9)])
    reader = GpuProcessReader(FakeNvml(gpu), ONE, shares_every_s=0.2)
    assert [row["mem_bytes"] for _ in range(3) for row in reader.read()] == [GIB] * 3
    assert gpu.queries.count("nvmlDeviceGetProcessUtilization") == 1
    time.sleep(0.2)
    reader.read()
    assert gpu.queries.count("nvmlDeviceGetProcessUtilization") == 2


def test_shares_that_a_slice_does_not_know_leave_its_processes() -> None:
    refused = {"nvmlDeviceGetProcessUtilization": not_supported}
    reader = GpuProcessReader(
        FakeNvml(FakeGpu(ONE, slices=[FakeGpu("MIG-aa", processes=[(7, GIB)], answers=refused)])), "MIG-aa"
    )
    assert [row["mem_bytes"] for row in reader.read()] == [GIB]
    assert reader.missing == dict.fromkeys(PROCESS_FIELDS[1:], "Not Supported")


def test_functions_that_an_old_driver_lacks_are_missing_fields() -> None:
    def not_found() -> Any:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)

    names = ("ComputeRunningProcesses", "PcieThroughput", "FieldValues")
    nvml = FakeNvml(FakeGpu(ONE, answers={f"nvmlDeviceGet{name}": not_found for name in names}))
    processes, links = GpuProcessReader(nvml, ONE), GpuReader(nvml, ONE, LINK_QUERIES)
    assert (processes.read(), links.read()) == ([], {})
    assert processes.missing == dict.fromkeys(PROCESS_FIELDS, "Function Not Found")
    assert links.missing == dict.fromkeys(LINK_FIELDS, "Function Not Found")


def test_links_and_processes_are_rows_of_their_own_and_say_whose() -> None:
    trace, stop = Trace(), threading.Event()
    gpu = FakeGpu(ONE, processes=[(7, GIB), (8, GIB)], nvlink_kib=(1, 1))
    owner = {7: ("decode-0", "decode")}.get
    watcher = threading.Thread(target=watch_gpu, args=(FakeNvml(gpu), ONE, 0.02, trace.rows.append, stop, owner))
    watcher.start()
    await_(lambda: len(trace.of(ONE)) >= 6)
    stop.set()
    watcher.join(10)
    processes = [row for row in trace.of(ONE) if row["kind"] == "gpu_process"]
    assert {(row["pid"], row["instance"], row["role"]) for row in processes} == {
        (7, "decode-0", "decode"),
        (8, None, None),
    }
    links = [row for row in trace.of(ONE) if row["kind"] == "gpu_link"]
    assert set(links[0]) == {"t_s", "source", "device", "kind", "late_s", "took_s", *LINK_FIELDS}


def test_watching_a_gpu_ends_when_it_is_lost_and_says_why() -> None:
    trace = Trace()
    gpu = FakeGpu(ONE, nvlink_kib=(1, 1), lost_after=20)
    watcher = threading.Thread(target=watch_gpu, args=(FakeNvml(gpu), ONE, 0.01, trace.rows.append, threading.Event()))
    watcher.start()
    watcher.join(10)
    assert not watcher.is_alive()
    assert trace.of(ONE)
    assert trace.missing(ONE) == dict.fromkeys((*LINK_FIELDS, *PROCESS_FIELDS), "GPU is lost")


def test_slow_links_do_not_hold_up_the_samples_of_their_gpu(start_gpus: Callable[..., Trace]) -> None:
    gpu = FakeGpu(ONE, answers={"nvmlDeviceGetPcieThroughput": lambda: time.sleep(0.5) or 0})
    trace, stop = start_gpus(gpu), threading.Event()
    watcher = threading.Thread(target=watch_gpu, args=(FakeNvml(gpu), ONE, 0.02, trace.rows.append, stop))
    watcher.start()
    slow = await_(lambda: [row for row in trace.of(ONE) if row["kind"] == "gpu_link"])[0]
    stop.set()
    watcher.join(10)
    assert slow["took_s"] >= 1.0
    meanwhile = [row for row in trace.of(ONE) if 0 <= row["t_s"] - slow["t_s"] <= slow["took_s"]]
    assert len(meanwhile) > 20  # of 50


# Host


def test_ticks_keep_the_period_and_do_not_catch_up() -> None:
    stop = threading.Event()
    times, late = [], []
    for tick in ticks(0.05, stop):
        times.append(tick.t_s)
        late.append(tick.late_s)
        if len(times) == 3:
            time.sleep(0.3)  # six periods
        if len(times) == 8:
            stop.set()
    assert times[3] - times[2] >= 0.3
    assert times[7] - times[3] >= 0.1  # four periods; caught up with, they would have taken no time
    assert late[3] >= 0.2  # due 0.05 s after the third
    assert min(late) >= 0


def test_a_last_sample_comes_after_the_stop() -> None:
    stop = threading.Event()
    times = []
    for tick in ticks(0.1, stop):
        times.append(tick.t_s)
        stop.set()
    assert len(times) == 2
    assert times[1] - times[0] >= 0.1  # whole, for what is counted over it


def test_a_busy_core_is_told_from_the_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    def times(*cores: tuple[float, float, float]) -> list[Any]:
        fields = {"nice": 0.0, "system": 0.0, "irq": 0.0, "softirq": 0.0, "iowait": 0.0}
        names = ("user", "idle", "steal")
        return [type("Times", (), {**fields, **dict(zip(names, core, strict=True))}) for core in cores]

    readings = iter([times((1, 1, 0), (1, 1, 0)), times((1.3, 1.6, 0.1), (1, 1, 0))])
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: next(readings))
    reader = CoreReader([0, 1])
    first, second = reader.read()
    assert first["util"] == pytest.approx(0.3)  # stolen time is not idle, and not ours
    assert second["util"] is None  # nothing passed: not known, not 0
    assert (first["device"], second["device"]) == ("cpu0", "cpu1")


def test_a_tree_belongs_to_the_nearest_root_and_keeps_orphans(spawn: Callable[[str], "subprocess.Popen[str]"]) -> None:
    program = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {BUSY!r}], start_new_session=True)
print(child.pid, flush=True)
time.sleep(60)
"""
    parent = spawn(program)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    trees = ProcessTrees()
    trees.watch(os.getpid(), "client", "client")  # started the engine, and does not own its time
    trees.refresh()
    trees.read()
    trees.watch(parent.pid, "single", "single")
    trees.refresh()
    try:
        time.sleep(0.5)
        rows = {row["instance"]: row for row in trees.read()}
        assert rows["single"]["util"] > 0.05
        assert rows["single"]["mem_bytes"] > psutil.Process(child).memory_info().rss
        assert rows["single"]["device"] == f"pid:{parent.pid}"
        assert rows["client"]["util"] < rows["single"]["util"]
        parent.kill()
        parent.wait()
        time.sleep(0.3)
        assert {row["instance"]: row for row in trees.read()}["single"]["util"] > 0.05
    finally:
        os.kill(child, signal.SIGKILL)
    await_(lambda: "single" not in {row["instance"] for row in trees.read()})


def test_processes_that_come_later_are_found_by_their_parent(spawn: Callable[[str], "subprocess.Popen[str]"]) -> None:
    """A child, and its child after the child was orphaned: both are of the tree, and of nobody twice."""
    grandchild = (
        f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {BUSY!r}]); import time; time.sleep(60)"
    )
    program = f"import subprocess, sys\ninput()\nsubprocess.run([sys.executable, '-c', {grandchild!r}])"
    parent = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, text=True, start_new_session=True)
    trees = ProcessTrees()
    trees.watch(os.getpid(), "client", "client")
    trees.watch(parent.pid, "single", "single")
    trees.refresh()
    assert {row["instance"] for row in trees.read()} == {"client", "single"}
    assert parent.stdin is not None
    parent.stdin.write("go\n")
    parent.stdin.close()
    try:
        children = await_(lambda: len(found := psutil.Process(parent.pid).children(recursive=True)) == 2 and found)

        def owned() -> bool:
            trees.refresh()
            trees.read()
            return all(trees.owner_of(child.pid) == ("single", "single") for child in children)

        await_(owned)
        assert trees.owner_of(1) is None
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
        parent.wait()


def test_what_a_process_used_is_what_the_kernel_counts(spawn: Callable[[str], "subprocess.Popen[str]"]) -> None:
    busy = spawn(BUSY)
    time.sleep(0.3)
    usage, info, known = read_usage(busy.pid), read_process(busy.pid), psutil.Process(busy.pid)
    times = known.cpu_times()
    assert usage is not None and info is not None
    assert usage.started == info.started
    assert 0 < usage.cpu_s <= times.user + times.system + 0.011  # read a moment earlier, in steps of 10 ms
    assert usage.mem_bytes == pytest.approx(known.memory_info().rss, rel=0.2)
    busy.kill()
    busy.wait()
    assert read_usage(busy.pid) is None


def test_a_number_that_another_process_has_got_since_is_no_member(
    spawn: Callable[[str], "subprocess.Popen[str]"], monkeypatch: pytest.MonkeyPatch
) -> None:
    trees = ProcessTrees()
    trees.watch(spawn(BUSY).pid, "single", "single")
    trees.refresh()
    assert [row["instance"] for row in trees.read()] == ["single"]
    monkeypatch.setattr(host_readings, "read_usage", lambda pid: ProcessUsage(1, 1e6, 1 << 40))
    assert trees.read() == []


def test_commands_are_obeyed_between_samples() -> None:
    stop, trace = threading.Event(), Trace()
    commands: queue.SimpleQueue[int] = queue.SimpleQueue()

    def obey(trees: ProcessTrees) -> None:
        while not commands.empty():
            trees.watch(commands.get(), "single", "single")
        if len(trace.rows) >= 3:
            stop.set()

    commands.put(os.getpid())
    sample_host(None, ProcessTrees(), 0.02, trace.rows.append, stop, obey)
    assert {row["source"] for row in trace.rows} == {"psutil"}
    assert all(row["took_s"] >= 0 for row in trace.rows)


# The whole sampler


def test_samples_follow_the_contract(tmp_path: Path, spawn: Callable[[str], "subprocess.Popen[str]"]) -> None:
    engine = spawn(BUSY)
    before_s = time.monotonic()
    with start_sampler(tmp_path, cores=[0]) as sampler:
        sampler.assign("prefill-0", "prefill", pid=engine.pid, cores=[0])
        sampler.assign("client", "client", pid=os.getpid())
        time.sleep(1.5)
        assert sampler.stop(tmp_path / "samples.parquet") is None
    table = pq.read_table(tmp_path / "samples.parquet")
    assert table.schema.equals(SCHEMA)
    assert json.loads(table.schema.metadata[b"missing"]) == {}
    frame = table.to_pandas()
    assert frame["t_s"].between(before_s, time.monotonic()).all()
    assert set(frame["source"]) == {"psutil"}
    core = frame[frame["device"] == "cpu0"]
    assert set(core["instance"]) == {"prefill-0"}  # from the first row on
    assert core["t_s"].diff().median() == pytest.approx(0.1, abs=0.05)
    own = frame[frame["device"] == f"pid:{engine.pid}"]
    assert (own["kind"].unique(), own["role"].unique()) == (["process"], ["prefill"])
    assert own["util"].mean() > 0.05
    assert own["mem_bytes"].min() > 1_000_000
    assert {"client", "sampler"} <= set(frame["instance"])
    assert frame["power_w"].isna().all()
    assert frame["throttle"].isna().all()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["samples.parquet"]


def test_a_core_that_instances_share_names_neither(tmp_path: Path) -> None:
    with start_sampler(tmp_path, cores=[0]) as sampler:
        sampler.assign("prefill-0", "prefill", cores=[0])
        sampler.assign("decode-0", "decode", cores=[0])
        sampler.stop(tmp_path / "samples.parquet")
    frame = pq.read_table(tmp_path / "samples.parquet").to_pandas()
    assert frame.loc[frame["device"] == "cpu0", "instance"].isna().all()


def test_a_gpu_without_a_driver_is_a_row_without_values_and_a_reason(tmp_path: Path) -> None:
    with start_sampler(tmp_path, gpus=["GPU-nowhere"]) as sampler:
        assert sampler.stop(tmp_path / "samples.parquet") is None
    table = pq.read_table(tmp_path / "samples.parquet")
    frame = table.to_pandas()
    assert (frame["device"] == "GPU-nowhere").sum() == 1
    assert frame.loc[frame["device"] == "GPU-nowhere", list(FIELDS)].isna().all(axis=None)
    assert set(json.loads(table.schema.metadata[b"missing"])["GPU-nowhere"]) >= set(FIELDS)


def test_a_sampler_that_died_keeps_what_it_had_and_says_so(tmp_path: Path) -> None:
    with start_sampler(tmp_path, cores=[0]) as sampler:
        time.sleep(1.3)  # rows are handed to the system once a second
        os.kill(sampler.pid, signal.SIGKILL)
        problem = sampler.stop(tmp_path / "samples.parquet")
    assert problem == "the sampler ended with status -9: no message"
    assert pq.read_table(tmp_path / "samples.parquet").num_rows > 0


@pytest.mark.fault("devices", "the sampler of devices cannot start", "the trial goes on without samples, and says why")
def test_a_sampler_that_cannot_start_says_why(tmp_path: Path) -> None:
    with start_sampler(tmp_path, cores=[0], run_on=[100_000]) as sampler:
        problem = sampler.stop(tmp_path / "samples.parquet")
    assert problem is not None
    assert "OSError" in problem
    assert pq.read_table(tmp_path / "samples.parquet").num_rows == 0


def test_leaving_without_stop_leaves_nothing(tmp_path: Path) -> None:
    with start_sampler(tmp_path, cores=[0]) as sampler:
        pass
    assert list(tmp_path.iterdir()) == []
    assert not psutil.pid_exists(sampler.pid)


def test_the_sampler_ends_with_its_owner(tmp_path: Path) -> None:
    program = f"""
import time
from pathlib import Path
from pdkv.measuring.devices import start_sampler
sampler = start_sampler(Path({str(tmp_path)!r}), cores=[0])
print(sampler.pid, flush=True)
time.sleep(60)
"""
    owner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    owner.kill()
    owner.wait()
    owner.stdout.close()
    await_(lambda: not _lives(pid))
    assert list(tmp_path.iterdir()) == []


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_the_sampler_costs_little(tmp_path: Path, spawn: Callable[[str], "subprocess.Popen[str]"]) -> None:
    sleepers = [spawn("import time; time.sleep(60)") for _ in range(10)]
    with start_sampler(tmp_path, cores=[0, 1]) as sampler:
        assert isinstance(sampler, DeviceSampler)
        for number, process in enumerate(sleepers):
            sampler.assign(f"replica-{number}", "replica", pid=process.pid)
        time.sleep(0.3)
        own = psutil.Process(sampler.pid)
        before = own.cpu_times()
        time.sleep(3)
        after = own.cpu_times()
        sampler.stop(tmp_path / "samples.parquet")
    used_s = after.user + after.system - before.user - before.system
    assert used_s < 3 * 0.06  # 3% of a core is the aim, 1.6% was measured; twice that on a busy machine
