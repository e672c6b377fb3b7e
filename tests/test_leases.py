"""Leases of GPUs and of the host: exclusive, given back on death, and they say who holds what."""

import json
import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pynvml
import pytest
from fake_nvml import GIB, FakeGpu, FakeNvml, not_supported

from pdkv.errors import UserError
from pdkv.measuring import leases
from pdkv.measuring.leases import Lease, lease_gpus, lease_host
from pdkv.measuring.trial_devices import lease_devices

ONE, TWO = "GPU-1a2b", "GPU-9f3c"


@pytest.fixture
def nvml() -> FakeNvml:
    return FakeNvml(FakeGpu(ONE, bus=1), FakeGpu(TWO, bus=2))


@pytest.fixture
def lease(tmp_path: Path, nvml: FakeNvml) -> Callable[..., Lease]:
    def lease(count: int, trial: str = "w/default/fp16/r1", **options: Any) -> Lease:
        arguments = {"env": {}, "nvml": nvml, "folder": tmp_path, **options}
        return lease_gpus(count, trial=trial, **arguments)

    return lease


@pytest.fixture
def other_process(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """Another process, that holds the host and GPU-1a2b."""
    program = f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from fake_nvml import FakeGpu, FakeNvml
from pdkv.measuring.leases import lease_gpus, lease_host
folder = Path({str(tmp_path)!r})
host = lease_host(trial="w/other/fp8/r2", folder=folder)
gpus = lease_gpus(1, {{}}, FakeNvml(FakeGpu({ONE!r})), trial="w/other/fp8/r2", folder=folder)
print("held", flush=True)
time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_two_leases_never_share_a_gpu(lease: Callable[..., Lease]) -> None:
    with lease(1) as first, lease(1) as second:
        assert (first.uuids, second.uuids) == ((ONE,), (TWO,))
        with pytest.raises(UserError, match="no lease of 1 of 2 GPUs"):
            lease(1)
    with lease(2) as both:
        assert both.uuids == (ONE, TWO)


def test_all_or_none(lease: Callable[..., Lease]) -> None:
    with lease(1):
        with pytest.raises(UserError):
            lease(2)
        with lease(1) as other:  # what the refused one had taken meanwhile is free again
            assert other.uuids == (TWO,)


def test_releasing_twice_does_no_harm(lease: Callable[..., Lease]) -> None:
    first = lease(1)
    first.release()
    with lease(1) as second:
        first.release()
        assert second.uuids == (ONE,)
        with lease(1) as third:
            assert third.uuids == (TWO,)


def test_more_than_there_are_is_refused_at_once(lease: Callable[..., Lease]) -> None:
    with pytest.raises(UserError, match="needs 3 GPUs, and 2 can be used on this host"):
        lease(3, wait_s=1000)
    with pytest.raises(UserError, match="needs 2 GPUs, and 1 can be used with CUDA_VISIBLE_DEVICES=0,7,1"):
        lease(2, env={"CUDA_VISIBLE_DEVICES": "0,7,1"}, wait_s=1000)
    with pytest.raises(UserError, match="needs 1 GPUs, and none can be used"):
        lease(1, env={"CUDA_VISIBLE_DEVICES": ""}, wait_s=1000)


def test_only_visible_gpus_are_leased(lease: Callable[..., Lease]) -> None:
    with lease(1, env={"CUDA_VISIBLE_DEVICES": "GPU-9f3c"}) as mine:
        assert mine.uuids == (TWO,)


def test_the_message_names_the_holder(
    lease: Callable[..., Lease], other_process: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    said: list[str] = []
    with pytest.raises(UserError) as raised:
        lease(2, wait_s=0.2, say=said.append)
    holder = f"{ONE} is held by process {other_process.pid} (w/other/fp8/r2)"
    assert said == [f"waiting for 2 of 2 GPUs: {holder}"]
    assert raised.value.problem == f"no lease of 2 of 2 GPUs within 0.2 s: {holder}"
    with pytest.raises(UserError, match=f"cores of this host.*process {other_process.pid}"):
        lease_host(trial="x", folder=tmp_path)


@pytest.mark.fault("host", "a measurement that holds GPUs is killed", "its lease is free at once")
def test_the_death_of_the_holder_frees_everything(
    lease: Callable[..., Lease], other_process: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    def end_it(message: str) -> None:
        assert str(other_process.pid) in message
        other_process.kill()
        other_process.wait()

    with lease(2, wait_s=30, say=end_it) as mine:
        assert mine.uuids == (ONE, TWO)
    with lease_host(trial="x", folder=tmp_path) as host:
        assert host.uuids == ()


@pytest.mark.fault(
    "host", "notes of dead measurements in the lease folder after a reboot", "they hold nothing and name nobody"
)
def test_a_note_of_a_dead_holder_names_nobody(lease: Callable[..., Lease], tmp_path: Path) -> None:
    (tmp_path / TWO).write_text(json.dumps({"pid": 1, "trial": "long gone"}))
    with lease(1, env={"CUDA_VISIBLE_DEVICES": "0"}), pytest.raises(UserError) as raised:
        lease(2)
    assert f"{ONE} is held by process {os.getpid()}" in raised.value.problem
    assert "long gone" not in raised.value.problem


def test_a_note_cannot_write_to_the_terminal(lease: Callable[..., Lease], tmp_path: Path) -> None:
    with lease(2):
        (tmp_path / ONE).write_text(json.dumps({"pid": 7, "trial": "a\x1b[2Jb"}))
        (tmp_path / TWO).write_text("no json")
        with pytest.raises(UserError) as raised:
            lease(1)
    assert f"{ONE} is held by process 7 (a[2Jb)" in raised.value.problem


# What others than pdkv do on a GPU


def occupy(gpu: FakeGpu, gib: float, *pids: int) -> None:
    gpu.memory_used = int(gib * GIB)
    gpu.processes = [(pid, gpu.memory_used) for pid in pids]


def test_a_gpu_whose_memory_a_stranger_holds_is_left_to_him(lease: Callable[..., Lease], nvml: FakeNvml) -> None:
    occupy(nvml.gpus[0], 3, os.getpid())
    with lease(1) as quiet:
        assert (quiet.uuids, quiet.warnings) == ((TWO,), ())
        with pytest.raises(UserError) as raised:
            lease(1)
    user = f"{ONE} is used by process {os.getpid()} ({psutil.Process().name()}), 3.00 GiB of its memory taken"
    holder = f"{TWO} is held by process {os.getpid()} (w/default/fp16/r1)"
    assert raised.value.problem == f"no lease of 1 of 2 GPUs within 0.0 s: {user}; {holder}"


@pytest.mark.fault(
    "devices", "a foreign process on every GPU that is visible", "waits two minutes, then says who holds what"
)
def test_strangers_are_waited_for_and_then_named(lease: Callable[..., Lease], nvml: FakeNvml) -> None:
    occupy(nvml.gpus[0], 3, 4_194_999)  # of another container: it has no name here
    said: list[str] = []
    with pytest.raises(UserError) as raised:
        lease(2, wait_s=1000, foreign_wait_s=0.1, say=said.append)
    user = f"{ONE} is used by process 4194999, 3.00 GiB of its memory taken"
    assert said == [f"waiting for 2 of 2 GPUs: {user}"]
    assert raised.value.problem == f"no lease of 2 of 2 GPUs within 0.1 s: {user}"
    assert "CUDA_VISIBLE_DEVICES" in raised.value.remedy
    with lease(2, wait_s=1000, say=lambda message: occupy(nvml.gpus[0], 0)) as both:
        assert both.uuids == (ONE, TWO)


def test_use_is_told_as_far_as_it_can_be_seen(lease: Callable[..., Lease], nvml: FakeNvml) -> None:
    occupy(nvml.gpus[0], 2)  # no process is listed: it lives in another container
    nvml.gpus[1].processes = [(4_194_999, None)]
    nvml.gpus[1].answers = {"nvmlDeviceGetMemoryInfo": not_supported}
    with pytest.raises(UserError) as raised:
        lease(1)
    assert raised.value.problem.endswith(
        f"{ONE} is used by a process that can't be seen from here, 2.00 GiB of its memory taken; "
        f"{TWO} is used by process 4194999, unknown of its memory taken"
    )


def test_a_stranger_who_comes_between_look_and_lock_is_seen(
    lease: Callable[..., Lease], nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lock_late(*arguments: Any) -> Any:
        occupy(nvml.gpus[0], 3, 4711)
        return real(*arguments)

    real = leases._lock_all
    monkeypatch.setattr(leases, "_lock_all", lock_late)
    with lease(1) as mine:
        assert mine.uuids == (TWO,)


def test_what_the_driver_keeps_is_no_use(lease: Callable[..., Lease], nvml: FakeNvml) -> None:
    nvml.gpus[0].memory_used = GIB // 4
    with lease(1) as mine:
        assert (mine.uuids, mine.warnings) == ((ONE,), ())


def test_a_small_process_is_avoided_and_else_told(lease: Callable[..., Lease], nvml: FakeNvml) -> None:
    occupy(nvml.gpus[0], 0.25, 4_194_999)
    with lease(1) as first, lease(1) as second:
        assert (first.uuids, first.warnings) == ((TWO,), ())
        assert second.warnings == (f"{ONE} is used by process 4194999, 256 MiB of its memory taken",)


# NVLink


def test_gpus_joined_by_nvlink_go_together(tmp_path: Path) -> None:
    names = ["GPU-a", "GPU-b", "GPU-c", "GPU-d"]  # bridges join a with c, and b with d
    nvml = FakeNvml(*(FakeGpu(name, bus=bus) for bus, name in enumerate(names)))
    nvml.gpus[0].joined = {"GPU-c"}
    nvml.gpus[1].joined = {"GPU-d"}

    def take(count: int, group: int = 1) -> Lease:
        return lease_gpus(count, {}, nvml, trial="t", group=group, folder=tmp_path)

    with take(4, group=2) as all_of_them:
        assert all_of_them.uuids == ("GPU-a", "GPU-c", "GPU-b", "GPU-d")
    with take(1) as one, take(2) as pair:
        assert (one.uuids, pair.uuids) == (("GPU-a",), ("GPU-b", "GPU-d"))
    nvml.gpus[2].memory_used = 3 * GIB
    with take(2) as pair:
        assert pair.uuids == ("GPU-b", "GPU-d")


@pytest.mark.parametrize("answer", [not_supported, pynvml.NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED])
def test_without_nvlink_cudas_order_stays(lease: Callable[..., Lease], nvml: FakeNvml, answer: Any) -> None:
    for gpu in nvml.gpus:
        gpu.answers = {"nvmlDeviceGetP2PStatus": answer}
    with lease(2) as both:
        assert both.uuids == (ONE, TWO)


# Beside each other, and one after the other


def test_a_lease_knows_who_is_beside_it(tmp_path: Path, lease: Callable[..., Lease]) -> None:
    with lease(1, trial="w/default/fp16/r1") as first:
        assert first.names_beside() == set()
        with lease(1, trial="w/default/fp8/r1") as second, lease_host(trial="w/cpu/fp16/r1", folder=tmp_path):
            assert first.names_beside() == {"w/default/fp8/r1", "w/cpu/fp16/r1"}
            assert second.names_beside() == {"w/default/fp16/r1", "w/cpu/fp16/r1"}
        assert first.names_beside() == set()


def test_who_waits_for_many_gpus_is_not_passed_by_those_who_need_one(
    lease: Callable[..., Lease], tmp_path: Path
) -> None:
    order: list[str] = []

    def take(count: int, trial: str, waits: threading.Event) -> None:
        with lease(count, trial=trial, wait_s=30, say=lambda message: waits.set()):
            order.append(trial)

    first_of_all = lease(1)
    both_waits, single_waits = threading.Event(), threading.Event()
    both = threading.Thread(target=take, args=(2, "both", both_waits))
    both.start()
    assert both_waits.wait(10)
    single = threading.Thread(target=take, args=(1, "single", single_waits))  # one GPU is free all the time
    single.start()
    assert single_waits.wait(10)
    assert order == []
    first_of_all.release()
    both.join(10)
    single.join(10)
    assert order == ["both", "single"]


def test_the_host_is_leased_once(tmp_path: Path) -> None:
    held = pytest.raises(UserError, match=r"host-cpu is held by process \d+ \(a\)")
    with lease_host(trial="a", folder=tmp_path), held:
        lease_host(trial="b", folder=tmp_path)
    lease_host(trial="b", folder=tmp_path).release()


class Hours:
    """A clock on which every look at the devices is an hour after the last one; ``after`` some of them, ``happens``."""

    def __init__(self, after: int, happens: Callable[[], None]) -> None:
        self.looks, self.after, self.happens = 0, after, happens

    def monotonic(self) -> float:
        return self.looks * 3600.0

    def sleep(self, _seconds: float) -> None:
        self.looks += 1
        if self.looks == self.after:
            self.happens()


@pytest.mark.fault(
    "devices",
    "the GPUs or cores of a trial are held by other trials for a day",
    "waits as long as one of them lives, and says for whom",
)
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_living_measurements_are_waited_for_however_long(
    device: str, lease: Callable[..., Lease], nvml: FakeNvml, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PDKV_LEASE_DIR", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("pdkv.measuring.trial_devices.open_nvml", lambda: nvml)
    plan = {"engine": {"device": device}, "instances": [{"gpus": 1}, {"gpus": 1}]}
    said: list[str] = []
    with lease(1, trial="w/long/fp16/r1") as gpu, lease_host(trial="w/long/fp16/r2", folder=tmp_path) as host:

        def end_both() -> None:
            gpu.release()
            host.release()

        clock = Hours(24, end_both)
        monkeypatch.setattr("pdkv.measuring.leases.time", clock)
        with lease_devices(plan, "w/two/fp16/r1", said.append) as devices:
            assert devices.gpus == ([ONE, TWO] if device == "cuda" else [])
    assert clock.looks == 24
    assert len(said) == 24
    assert {"w/long/fp16/r1" in text or "w/long/fp16/r2" in text for text in said} == {True}


def test_a_lock_that_no_measurement_has_signed_is_not_waited_for_without_end(
    lease: Callable[..., Lease], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lease(2):
        for file in (ONE, TWO):
            (tmp_path / file).write_text("no json")
        clock = Hours(100, lambda: pytest.fail("waited without end"))
        monkeypatch.setattr("pdkv.measuring.leases.time", clock)
        with pytest.raises(UserError, match=r"no lease of 1 of 2 GPUs within 2 min 00 s: they changed hands"):
            lease(1, wait_s=math.inf)
    assert clock.looks == 1


def test_the_folder_is_for_everyone(tmp_path: Path) -> None:
    folder = tmp_path / "leases"
    before = os.umask(0o077)
    try:
        lease_host(trial="a", folder=folder).release()
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o7777 == 0o1777
    assert (folder / "host-cpu").stat().st_mode & 0o7777 == 0o666


def test_a_link_in_place_of_a_lock_file_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder = tmp_path / "leases"
    folder.mkdir()
    (folder / "host-cpu").symlink_to(victim)
    with pytest.raises(UserError, match="can't be opened"):
        lease_host(trial="a", folder=folder)
    assert victim.read_text() == "precious"


@pytest.mark.fault("host", "the folder of leases cannot be written", "refused with the way out")
def test_a_folder_that_is_none_is_refused_with_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PDKV_LEASE_DIR", str(tmp_path / "file"))
    with pytest.raises(UserError) as raised:
        lease_host(trial="a")
    assert "PDKV_LEASE_DIR" in raised.value.remedy
