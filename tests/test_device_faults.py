"""A trial on GPUs whose driver is missing, goes away, says little, or whose GPU somebody else wants: invented cards."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest
from fake_nvml import GIB, FakeGpu, FakeNvml, write_pynvml
from study_processes import require_free_leases, require_no_process
from test_trial import write_number
from trial_plans import fake_plan
from whole_trials import MeasuredTrial

from pdkv.analysing.utilization import trace_devices
from pdkv.artifacts import read_json, write_json
from pdkv.measuring.deployment import Deployment

Measure = Callable[[dict[str, Any]], MeasuredTrial]


def on_gpu(plan: dict[str, Any]) -> dict[str, Any]:
    plan["engine"] |= {"kind": "cuda", "device": "cuda"}
    for instance in plan["instances"]:
        instance["gpus"] = 1
    return plan


def put_in(monkeypatch: pytest.MonkeyPatch, folder: Path, cards: str, setup: str = "") -> None:
    """The same cards for the measurement and for the process that samples them."""
    monkeypatch.setenv("PYTHONPATH", str(write_pynvml(folder / "nvml", cards, setup)), prepend=os.pathsep)
    names: dict[str, Any] = {"FakeGpu": FakeGpu, "FakeNvml": FakeNvml}
    exec(setup, names)
    nvml = eval(f"FakeNvml({cards})", names)
    monkeypatch.setattr("pdkv.measuring.trial_devices.open_nvml", lambda: nvml)


def checks_of(trial: MeasuredTrial) -> dict[str, dict[str, str]]:
    """What the trace of the devices says of the trial."""
    trace_devices(trial.folder)
    trace = read_json(trial.folder / "trace.json", "trace/1")
    return {check["name"]: dict(check) for check in trace["checks"]}


# ---- nothing can be leased: the cell fails, and leaves evidence that can be read -----------------------------------


def refused(trial: MeasuredTrial) -> str:
    """The reason; and nothing was started."""
    assert trial.failure and trial.failure.stage == "launch"
    assert not list((trial.folder / "server").iterdir())
    assert trial.sends() == [] and trial.stages["instances"] == []
    assert checks_of(trial)["devices watched to the end"]["state"] == "unknown"
    return trial.failure.reason


@pytest.mark.fault(
    "devices", "NVML is missing", "failed at launch before anything is started, with what to do; the study goes on"
)
def test_no_nvml(measure: Measure, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_driver() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr("pdkv.measuring.gpu_visibility.pynvml.nvmlInit", no_driver)
    assert refused(measure(on_gpu(fake_plan()))) == (
        "w/single/bf16/r1 needs GPUs, and NVML sees no NVIDIA driver here: use a host with GPUs, or engine: cpu"
    )


@pytest.mark.fault(
    "devices",
    "a GPU fell off the bus since the study began",
    "failed at launch, with how many there are and are needed",
)
def test_fewer_gpus_than_planned(measure: Measure, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    put_in(monkeypatch, tmp_path, 'FakeGpu("GPU-1"), FakeGpu("GPU-2", lost_after=0)')
    monkeypatch.setattr(
        FakeNvml, "nvmlDeviceGetUUID", lambda self, gpu: self._query(gpu, "nvmlDeviceGetUUID", gpu.uuid)
    )
    assert refused(measure(on_gpu(fake_plan("1p1d")))).startswith("w/1p1d/bf16/r1 needs 2 GPUs, and 1 can be used")


@pytest.mark.fault(
    "devices",
    "a foreign process holds the GPU before the launch",
    "waits two minutes, then failed at launch with its name",
)
def test_a_foreign_process_from_the_start(measure: Measure, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    put_in(monkeypatch, tmp_path, f'FakeGpu("GPU-1", memory_used={40 * GIB}, processes=[({os.getppid()}, {40 * GIB})])')
    monkeypatch.setattr("pdkv.measuring.leases.lease_gpus.__kwdefaults__", {**_lease_defaults(), "foreign_wait_s": 0.3})
    reason = refused(measure(on_gpu(fake_plan())))
    assert f"{os.getppid()} (" in reason and "GPU-1" in reason


def _lease_defaults() -> dict[str, Any]:
    from pdkv.measuring.leases import lease_gpus

    return dict(lease_gpus.__kwdefaults__ or {})


# ---- in the middle of a load ---------------------------------------------------------------------------------------

COUNT = """
import time
began_s = time.monotonic()
def answer_until(end_s, value):
    import pynvml
    def answer():
        if time.monotonic() > began_s + end_s:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return value
    return answer
"""


@pytest.mark.fault(
    "devices",
    "NVML disappears in the middle of a load",
    "the load is measured to its end; the launch is suspect, with the device and since when",
)
def test_nvml_disappears(measure: Measure, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lost = '"nvmlDeviceGetPowerUsage": answer_until(3.0, 60_000)'
    put_in(monkeypatch, tmp_path, f'FakeGpu("GPU-1", answers={{{lost}}})', COUNT)
    trial = measure(on_gpu(fake_plan(requests=250)))
    assert trial.failure is None
    assert {row["outcome"] for row in trial.sends()} == {"answered"}
    watched = checks_of(trial)["devices watched to the end"]
    assert watched["state"] == "suspect" and watched["evidence"].startswith("no values from GPU-1 for the last")


@pytest.mark.fault(
    "devices",
    "a card lacks fields (vGPU: power, clocks; MIG: utilisation)",
    "null with the driver's reason, no zero; the rest is measured",
)
def test_unsupported_fields(measure: Measure, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = ("PowerUsage", "TotalEnergyConsumption", "ClockInfo", "UtilizationRates", "CurrentClocksThrottleReasons")
    answers = ", ".join(f'"nvmlDeviceGet{name}": not_supported' for name in names)
    put_in(monkeypatch, tmp_path, f'FakeGpu("GPU-1", answers={{{answers}}})', "from fake_nvml import not_supported")
    trial = measure(on_gpu(fake_plan()))
    assert trial.failure is None
    checks = checks_of(trial)
    assert checks["clocks not throttled"]["state"] == "unknown"
    [gpu] = [
        each
        for each in read_json(trial.folder / "trace.json", "trace/1")["devices"]
        if (each["device"], each["kind"], each["stage"], each["point"]) == ("GPU-1", "gpu", "load", None)
    ]
    assert (gpu["util_mean"], gpu["energy_j"]) == (None, None)
    assert gpu["mem_bytes_max"] == 0 or gpu["mem_bytes_max"] is not None
    assert "Not Supported" in json.dumps(read_json(trial.folder / "trace.json", "trace/1"))


@pytest.mark.fault(
    "devices", "the clocks are throttled by heat under load", "suspect, with the driver's reason and share of the load"
)
def test_throttled(measure: Measure, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    put_in(monkeypatch, tmp_path, 'FakeGpu("GPU-1", answers={"nvmlDeviceGetCurrentClocksThrottleReasons": 0x40})')
    clocks = checks_of(measure(on_gpu(fake_plan())))["clocks not throttled"]
    assert clocks["state"] == "suspect" and "hardware thermal slowdown" in clocks["evidence"]
    assert "cooling" in clocks["remedy"]


@pytest.mark.fault(
    "devices", "a foreign process comes to the GPU in the middle of a load", "suspect, with its name and what it holds"
)
def test_a_foreign_process_comes(measure: Measure, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It comes while the servers start: the process that started these tests, which is none of the trial's."""
    engine, stranger = tmp_path / "engine", os.getppid()
    setup = f"""
from pathlib import Path
from types import SimpleNamespace
def processes():
    ours = Path({str(engine)!r})
    pids = [int(ours.read_text()), {stranger}] if ours.exists() else []
    return [SimpleNamespace(pid=pid, usedGpuMemory={3 * GIB}) for pid in pids]
"""
    put_in(
        monkeypatch, tmp_path, 'FakeGpu("GPU-1", answers={"nvmlDeviceGetComputeRunningProcesses": processes})', setup
    )
    start = Deployment.start

    def joined(self: Deployment) -> None:
        start(self)
        write_number(engine, self.instances[0].server.pid or 0)

    monkeypatch.setattr(Deployment, "start", joined)
    found = checks_of(measure(on_gpu(fake_plan(requests=150))))["no foreign process on the devices"]
    assert found["state"] == "suspect", found
    assert f"process {stranger} (" in found["evidence"] and "3.00 GiB" in found["evidence"], found


# ---- two studies want the same GPU ---------------------------------------------------------------------------------


@pytest.mark.fault(
    "host", "two studies on one GPU", "the second waits and says for whom; their measurements do not overlap"
)
def test_two_studies_on_one_gpu(tmp_path: Path) -> None:
    nvml = write_pynvml(tmp_path / "nvml", 'FakeGpu("GPU-1")')
    environment = {
        **os.environ,
        "PDKV_LEASE_DIR": str(tmp_path / "leases"),
        "PYTHONPATH": os.pathsep.join([str(nvml), str(Path(__file__).parent.parent / "src")]),
    }
    trials = [tmp_path / name / "results/w/default/bf16/r1" for name in ("one", "two")]
    runs = []
    for trial in trials:
        write_json(trial / "plan.json", "plan/1", {**on_gpu(fake_plan(requests=100)), "source": ""})
        command = [sys.executable, "-m", "pdkv", "measure", str(trial), "--log", str(trial / "measure.log")]
        runs.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
        time.sleep(0.5)
    said = [run.communicate(timeout=120)[1] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], said
    stages = [read_json(trial / "stages.json", "stages/1") for trial in trials]
    assert {each["instances"][0]["gpus"][0] for each in stages} == {"GPU-1"}
    spans = sorted((each["stages"][0]["start_s"], each["stages"][-1]["end_s"]) for each in stages)
    assert spans[0][1] <= spans[1][0]
    first = min(range(2), key=lambda n: stages[n]["stages"][0]["start_s"])
    assert f"process {runs[first].pid} (w/single/bf16/r1)" in said[1 - first], said
    require_no_process(tmp_path)
    require_free_leases(tmp_path / "leases")
