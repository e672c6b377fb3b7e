import pytest
from fake_nvml import GIB, FakeGpu, FakeNvml, not_supported

from pdkv.errors import UserError
from pdkv.measuring.gpu_visibility import list_gpus, visible_gpus

FIRST = "GPU-1a2b0000-0000-0000-0000-000000000001"
SECOND = "GPU-9f3c0000-0000-0000-0000-000000000002"


@pytest.fixture
def nvml() -> FakeNvml:
    """NVML's index 0 sits on bus 41, its index 1 on bus 07: CUDA counts them the other way round."""
    return FakeNvml(FakeGpu(FIRST, bus=41), FakeGpu(SECOND, bus=7))


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        (None, [SECOND, FIRST]),
        ("0,1", [SECOND, FIRST]),
        ("1,0", [FIRST, SECOND]),
        (" 1 , 0 ", [FIRST, SECOND]),
        ("GPU-9f3c", [SECOND]),
        ("gpu-9f3c", []),
        (f"{FIRST},{SECOND}", [FIRST, SECOND]),
        ("0,7,1", [SECOND]),
        ("0,,1", [SECOND]),
        ("0,GPU-dead,1", [SECOND]),
        ("", []),
        ("-1", []),
        ("0,-1,1", [SECOND]),
        ("NoDevFiles", []),
    ],
)
@pytest.mark.fault(
    "devices",
    "CUDA's order of the devices is not NVML's, or CUDA_VISIBLE_DEVICES is empty, -1 or wrong in the middle",
    "each role's trace is of the device that its engine uses; none means none",
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(nvml: FakeNvml, value: str | None, seen: list[str]) -> None:
    env = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    assert [gpu.uuid for gpu in visible_gpus(nvml, env)] == seen


@pytest.mark.fault("devices", "a short UUID fits two devices", "refused, with both")
def test_an_ambiguous_short_uuid_is_refused() -> None:
    nvml = FakeNvml(FakeGpu("GPU-9f3c1"), FakeGpu("GPU-9f3c2", bus=1))
    with pytest.raises(UserError, match="GPU-9f3c fits GPU-9f3c1 and GPU-9f3c2"):
        visible_gpus(nvml, {"CUDA_VISIBLE_DEVICES": "GPU-9f3c"})


def test_a_full_uuid_that_begins_another_is_not_ambiguous() -> None:
    nvml = FakeNvml(FakeGpu("GPU-9f3c"), FakeGpu("GPU-9f3c2", bus=1))
    assert [gpu.uuid for gpu in visible_gpus(nvml, {"CUDA_VISIBLE_DEVICES": "GPU-9f3c"})] == ["GPU-9f3c"]


def test_a_device_named_twice_is_refused(nvml: FakeNvml) -> None:
    with pytest.raises(UserError, match="twice"):
        visible_gpus(nvml, {"CUDA_VISIBLE_DEVICES": "0,GPU-9f3c"})


@pytest.mark.fault(
    "devices", "device numbers on a machine with unequal cards", "refused until CUDA_DEVICE_ORDER is stated"
)
def test_numbers_over_unequal_cards_need_a_stated_order() -> None:
    nvml = FakeNvml(FakeGpu(FIRST, bus=41, name="A"), FakeGpu(SECOND, bus=7, name="B"))
    with pytest.raises(UserError, match="CUDA_DEVICE_ORDER=PCI_BUS_ID"):
        visible_gpus(nvml, {"CUDA_VISIBLE_DEVICES": "0"})
    ordered = {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert [gpu.uuid for gpu in visible_gpus(nvml, ordered)] == [SECOND]
    assert {gpu.uuid for gpu in visible_gpus(nvml, {})} == {FIRST, SECOND}


def test_what_slurm_sets_counts_only_the_cards_of_the_job(nvml: FakeNvml) -> None:
    # With device constraints NVML sees the job's cards only, and Slurm numbers them from 0.
    job = FakeNvml(nvml.gpus[1])
    env = {"CUDA_VISIBLE_DEVICES": "0", "SLURM_JOB_GPUS": "3", "GPU_DEVICE_ORDINAL": "0"}
    assert [gpu.uuid for gpu in visible_gpus(job, env)] == [SECOND]


def test_a_partitioned_card_is_its_slices_with_their_own_memory() -> None:
    card = FakeGpu(FIRST, slices=[FakeGpu("MIG-aa", memory_total=20 * GIB), FakeGpu("MIG-bb", memory_total=40 * GIB)])
    nvml = FakeNvml(card, FakeGpu(SECOND, bus=1))
    assert [(gpu.uuid, gpu.memory_bytes) for gpu in list_gpus(nvml)] == [
        ("MIG-aa", 20 * GIB),
        ("MIG-bb", 40 * GIB),
        (SECOND, 80 * GIB),
    ]
    assert [gpu.uuid for gpu in visible_gpus(nvml, {"CUDA_VISIBLE_DEVICES": "MIG-b"})] == ["MIG-bb"]
    assert [gpu.uuid for gpu in visible_gpus(nvml, {"CUDA_VISIBLE_DEVICES": "0,1"})] == ["MIG-aa", SECOND]


def test_memory_that_the_device_does_not_tell_is_unknown_not_zero() -> None:
    nvml = FakeNvml(FakeGpu(FIRST, answers={"nvmlDeviceGetMemoryInfo": not_supported}))
    assert list_gpus(nvml)[0].memory_bytes is None
