"""On real GPUs: what the fake NVML can't tell. Left out where there are none (see conftest.py)."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pdkv.errors import UserError
from pdkv.measuring.devices import start_sampler
from pdkv.measuring.gpu_readings import FIELDS, LINK_FIELDS
from pdkv.measuring.gpu_topology import nvlinked_pairs
from pdkv.measuring.gpu_use import look_at_use
from pdkv.measuring.gpu_visibility import Gpu, Nvml, open_nvml, visible_gpus
from pdkv.measuring.leases import lease_gpus

pytestmark = pytest.mark.gpu
GIB = 1 << 30
# Without PyTorch: CUDA's own word on which devices it sees, in its order, and a gibibyte of the first one.
ASK_CUDA = """
import ctypes, sys, time, uuid
cuda = ctypes.CDLL("libcuda.so.1")
def check(code):
    if code == 100:  # no device
        print("", flush=True)
        sys.exit()
    assert code == 0, code
check(cuda.cuInit(0))
count = ctypes.c_int()
check(cuda.cuDeviceGetCount(ctypes.byref(count)))
names = []
for number in range(count.value):
    name = (ctypes.c_ubyte * 16)()
    check(cuda.cuDeviceGetUuid(ctypes.byref(name), number))
    names.append("GPU-" + str(uuid.UUID(bytes=bytes(name))))
if sys.argv[1:] == ["hold"]:
    context, memory = ctypes.c_void_p(), ctypes.c_ulonglong()
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    check(cuda.cuCtxSetCurrent(context))
    check(cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(1 << 30)))
print(",".join(names), flush=True)
if sys.argv[1:] == ["hold"]:
    time.sleep(120)
"""


@pytest.fixture(scope="module")
def nvml() -> Nvml:
    return open_nvml()


@pytest.fixture(scope="module")
def gpus(nvml: Nvml) -> list[Gpu]:
    return visible_gpus(nvml, os.environ)


@pytest.fixture
def hold() -> Iterator[Callable[[str], int]]:
    """Takes a gibibyte of a GPU in another process; its pid."""
    holders = []

    def start(uuid: str) -> int:
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": uuid}
        command = [sys.executable, "-c", ASK_CUDA, "hold"]
        holders.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
        assert holders[-1].stdout is not None
        assert holders[-1].stdout.readline().strip() == uuid
        return holders[-1].pid

    yield start
    for holder in holders:
        holder.kill()
        holder.communicate()


def seen_by_cuda(env: dict[str, str]) -> list[str]:
    hidden = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    done = subprocess.run([sys.executable, "-c", ASK_CUDA], env=environment | env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [name for name in done.stdout.strip().split(",") if name]


def test_visible_devices_are_those_that_cuda_sees(nvml: Nvml, gpus: list[Gpu]) -> None:
    first, last = gpus[0].uuid, gpus[-1].uuid
    backwards = ",".join(str(number) for number in reversed(range(len(gpus))))
    values = [
        "0",
        backwards,
        first,
        last[:12],
        f"{last},{first}" if len(gpus) > 1 else last,
        "0,77,0",
        "",
        "-1",
        "GPU-0",
    ]
    for env in [{}, *({"CUDA_VISIBLE_DEVICES": value} for value in values)]:
        ordered = {**env, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        assert [gpu.uuid for gpu in visible_gpus(nvml, ordered)] == seen_by_cuda(ordered), ordered


def test_a_data_centre_card_gives_every_field_at_its_pace(tmp_path: Path, gpus: list[Gpu]) -> None:
    uuids = [gpu.uuid for gpu in gpus]
    with start_sampler(tmp_path, gpus=uuids, cores=sorted(os.sched_getaffinity(0))) as sampler:
        sampler.assign("single", "single", pid=os.getpid(), gpus=uuids)
        time.sleep(10)  # CPU time is counted in steps of 10 ms: over 5 s they alone may be a quarter of a percent
        assert sampler.stop(tmp_path / "samples.parquet") is None
    table = pq.read_table(tmp_path / "samples.parquet")
    frame, missing = table.to_pandas(), json.loads(table.schema.metadata[b"missing"])
    for uuid in uuids:
        samples = frame[(frame["device"] == uuid) & (frame["kind"] == "gpu")]
        links = frame[(frame["device"] == uuid) & (frame["kind"] == "gpu_link")]
        assert len(samples) >= 10 * 9.5
        often = tuple(field for field in FIELDS if field != "energy_j")
        seconds = samples["t_s"].iloc[-1] - samples["t_s"].iloc[0]
        with_energy = samples["energy_j"].count()
        assert seconds - 1 <= with_energy <= seconds + 2 or "energy_j" in missing.get(uuid, {})
        for fields, rows in ((often, samples), (LINK_FIELDS, links)):
            for field in fields:
                assert rows[field].notna().mean() > 0.9 or field in missing.get(uuid, {}), field
        assert {"util", "mem_bytes", "power_w", "sm_clock_mhz"} <= set(samples.columns[samples.notna().any()])
        assert samples["energy_j"].dropna().is_monotonic_increasing
        assert links["nvlink_tx_bytes"].dropna().is_monotonic_increasing
        print(
            f"\n{uuid}: missing {missing.get(uuid, {})}; query {samples['took_s'].median() * 1e3:.2f} ms, late "
            f"{samples['late_s'].median() * 1e3:.2f} ms, p99 {samples['late_s'].quantile(0.99) * 1e3:.2f} ms; links "
            f"{links['took_s'].median() * 1e3:.1f} ms: {links[list(LINK_FIELDS)].iloc[-1].to_dict()}"
        )
        assert samples["late_s"].quantile(0.95) < 0.02
    own = frame[frame["instance"] == "sampler"]["util"].iloc[10:]
    print(f"the sampler took {own.mean():.2%} of a core for {len(uuids)} GPUs")
    assert own.mean() < 0.02 * max(1, len(uuids))


def test_a_process_on_a_gpu_is_seen_with_its_memory(
    tmp_path: Path, nvml: Nvml, gpus: list[Gpu], hold: Callable[[str], int]
) -> None:
    uuid = gpus[0].uuid
    before = look_at_use(nvml, uuid)
    pid = hold(uuid)
    use = look_at_use(nvml, uuid)
    print(f"\nprocesses as NVML names them: {use.processes}, ours is {pid}")
    assert use.mem_bytes is not None and before.mem_bytes is not None
    assert GIB <= use.mem_bytes - before.mem_bytes < 3 * GIB
    with start_sampler(tmp_path, gpus=[uuid]) as sampler:
        sampler.assign("single", "single", pid=pid, gpus=[uuid])
        time.sleep(3)
        assert sampler.stop(tmp_path / "samples.parquet") is None
    frame = pq.read_table(tmp_path / "samples.parquet").to_pandas()
    rows: list[dict[str, Any]] = frame[frame["kind"] == "gpu_process"].to_dict("records")
    print(f"rows of processes: {rows[-2:]}")
    ours = [row for row in rows if row["pid"] == pid]
    # In a container NVML may name pids of the host, or nobody: then no row may be called ours.
    assert {row["instance"] for row in rows[2:] if row["pid"] != pid} <= {None}
    assert not ours or ours[-1]["instance"] == "single"


def test_a_gpu_that_a_stranger_holds_is_not_leased(
    tmp_path: Path, nvml: Nvml, gpus: list[Gpu], hold: Callable[[str], int]
) -> None:
    hold(gpus[0].uuid)
    env = {"CUDA_VISIBLE_DEVICES": gpus[0].uuid}
    with pytest.raises(UserError, match="of its memory taken"):
        lease_gpus(1, env, nvml, trial="t", folder=tmp_path)
    if len(gpus) > 1:
        with lease_gpus(1, {}, nvml, trial="t", folder=tmp_path) as lease:
            assert lease.uuids[0] != gpus[0].uuid


def test_what_is_leased_is_visible_and_joined_as_nvml_says(tmp_path: Path, nvml: Nvml, gpus: list[Gpu]) -> None:
    links = nvlinked_pairs(nvml, gpus)
    print(f"\n{len(gpus)} GPUs, {len(links)} pairs joined by NVLink")
    assert {uuid for pair in links for uuid in pair} <= {gpu.uuid for gpu in gpus}
    with lease_gpus(len(gpus), {}, nvml, trial="t", group=len(gpus), folder=tmp_path) as lease:
        assert seen_by_cuda({"CUDA_VISIBLE_DEVICES": ",".join(lease.uuids)}) == list(lease.uuids)
