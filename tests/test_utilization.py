"""Traces of devices with known behaviour: what may be said of them, and what not."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pdkv.analysing.sampling import counter_resolution, missing_fields, sampler_resolution
from pdkv.analysing.utilization import attach_stages, describe_trace, trace_devices
from pdkv.artifacts import read_json, write_json, write_parquet

COLUMNS = ["util", "mem_util", "mem_bytes", "power_w", "energy_j", "sm_clock_mhz", "temp_c", "throttle"]
STAGES: dict[str, Any] = {
    "stages": [
        {"name": "launch", "start_s": 101.0, "end_s": 105.0},
        {"name": "warmup", "start_s": 105.0, "end_s": 107.0},
        {"name": "load", "start_s": 107.5, "end_s": 117.5},
        {"name": "shutdown", "start_s": 117.5, "end_s": 118.0},
    ],
    "points": [{"point": 0, "start_s": 107.5, "end_s": 112.5}, {"point": 1, "start_s": 112.5, "end_s": 117.5}],
    "environment": {"foreign_cpu_share": 0.02},
}
Signal = Callable[[np.ndarray], Any]


def device(
    name: str = "GPU-a",
    *,
    kind: str = "gpu",
    source: str = "nvml",
    instance: str | None = "single",
    role: str | None = "single",
    start_s: float = 100.0,
    end_s: float = 119.0,
    hz: float = 20.0,
    **signals: Signal,
) -> pd.DataFrame:
    """Samples of one device; each signal gives its values at the sample times, what is not given is null."""
    times = np.arange(start_s, end_s, 1 / hz)
    frame = pd.DataFrame({"t_s": times})
    for key, value in {"source": source, "device": name, "kind": kind, "instance": instance, "role": role}.items():
        frame[key] = value
    for column in COLUMNS:
        frame[column] = signals[column](times) if column in signals else np.nan
    return frame.assign(took_s=0.001)


def constant(value: float) -> Signal:
    return lambda times: np.full(len(times), value)


def trace(*devices: pd.DataFrame, stages: dict[str, Any] = STAGES, reasons: str | None = None) -> dict[str, Any]:
    return describe_trace(attach_stages(pd.concat(devices, ignore_index=True), stages), stages, reasons)


def entry(
    result: dict[str, Any], stage: str = "load", point: int | None = None, device: str = "GPU-a"
) -> dict[str, Any]:
    wanted = (device, stage, point)
    return next(each for each in result["devices"] if (each["device"], each["stage"], each["point"]) == wanted)


def check(result: dict[str, Any], name: str) -> dict[str, Any]:
    return next(each for each in result["checks"] if each["name"] == name)


def test_samples_get_the_stage_and_point_of_their_time() -> None:
    frame = attach_stages(device(hz=10), STAGES).set_index("t_s")
    at = {
        t_s: frame.iloc[frame.index.get_indexer([t_s], method="nearest")[0]]
        for t_s in (100.0, 103.0, 107.2, 110.0, 115.0, 118.5)
    }
    assert [None if pd.isna(at[t_s]["stage"]) else at[t_s]["stage"] for t_s in at] == [
        None,
        "launch",
        None,
        "load",
        "load",
        None,
    ]
    assert [None if pd.isna(at[t_s]["point"]) else int(at[t_s]["point"]) for t_s in at] == [
        None,
        None,
        None,
        0,
        1,
        None,
    ]


def test_means_maxima_and_counts_per_stage_and_point() -> None:
    def util(times: np.ndarray) -> Any:
        return np.where(times >= 112.49, 0.75, 0.25)

    result = trace(device(util=util, mem_bytes=constant(5e9), mem_util=constant(0.5)))
    assert entry(result)["util_mean"] == pytest.approx(0.5, abs=0.01)
    assert entry(result)["util_max"] == 0.75
    assert entry(result, point=0)["util_mean"] == pytest.approx(0.25, abs=0.01)
    assert entry(result, point=1)["util_mean"] == pytest.approx(0.75, abs=0.01)
    assert entry(result, point=1)["mem_bytes_max"] == 5e9
    assert entry(result, point=1)["samples"] in (99, 100, 101)
    assert entry(result)["power_mean_w"] is None


def test_clock_and_share_at_the_power_limit() -> None:
    def reasons(times: np.ndarray) -> Any:  # at the power limit in the first half of the load
        return np.where(times < 112.49, 0x04, 0x01)

    result = trace(device(util=constant(1.0), sm_clock_mhz=constant(1500.0), throttle=reasons))
    assert entry(result)["power_limited_share"] == pytest.approx(0.5, abs=0.01)
    assert entry(result, point=0)["power_limited_share"] == pytest.approx(1.0, abs=0.02)
    assert entry(result, point=1)["power_limited_share"] == pytest.approx(0.0, abs=0.02)
    assert entry(result)["sm_clock_mean_mhz"] == 1500.0
    silent = trace(device(util=constant(1.0)))
    assert (entry(silent)["power_limited_share"], entry(silent)["sm_clock_mean_mhz"]) == (None, None)


def test_energy_by_counter_and_by_power_are_both_shown() -> None:
    def counter(times: np.ndarray) -> Any:  # 50 W, in steps of 100 ms
        return 1000.0 + np.floor((times - 100.0) / 0.1 + 1e-6) * 5.0

    result = trace(device(energy_j=counter, power_w=constant(60.0)))
    point = entry(result, point=0)
    assert point["energy_counter_j"] == pytest.approx(250.0, abs=5.0)  # one step of the counter
    assert point["energy_power_j"] == pytest.approx(300.0, abs=0.1)
    assert point["energy_difference"] == pytest.approx(0.2, abs=0.03)
    assert (point["energy_j"], point["energy_from"]) == (point["energy_counter_j"], "counter")


@pytest.mark.fault("devices", "an energy counter goes back", "null; energy is taken from power, and that is said")
def test_a_counter_that_goes_back_says_nothing() -> None:
    def counter(times: np.ndarray) -> Any:
        return np.where(times < 110.0, times, times - 100.0)

    point = entry(trace(device(energy_j=counter, power_w=constant(60.0))), point=0)
    assert point["energy_counter_j"] is None
    assert (point["energy_j"], point["energy_from"]) == (pytest.approx(300.0, abs=0.1), "power")
    alone = entry(trace(device(energy_j=counter)), point=0)
    assert (alone["energy_j"], alone["energy_from"], alone["energy_difference"]) == (None, None, None)


@pytest.mark.fault(
    "devices",
    "a utilisation counter repeats itself for a second",
    "its real resolution is stated, nothing finer is claimed",
)
def test_a_counter_refreshed_once_a_second_is_recognised() -> None:
    rng = np.random.default_rng(7)
    per_second = rng.uniform(0.1, 0.9, size=30).round(2)
    frame = device(util=lambda times: per_second[(times - 100.0).astype(int)])
    assert sampler_resolution(frame) == pytest.approx(0.05)
    assert counter_resolution(frame) == pytest.approx(1.0, abs=0.06)
    result = trace(frame)
    assert result["resolution_s"] == {
        "sampler": pytest.approx(0.05), "by_kind": {"gpu": pytest.approx(0.05)}, "counter": pytest.approx(1.0, abs=0.06)
    }  # fmt: skip


def test_gpus_and_cores_have_each_their_own_period() -> None:
    cores = [device(f"cpu{n}", kind="core", source="psutil", hz=10.0, util=constant(0.5)) for n in range(4)]
    result = trace(device(util=constant(0.5)), *cores)
    assert result["resolution_s"]["by_kind"] == {"core": pytest.approx(0.1), "gpu": pytest.approx(0.05)}
    assert check(result, "sampler kept pace")["evidence"].startswith("a sample of each gpu every 50 ms, ")
    assert "; a sample of each core every 100 ms, " in check(result, "sampler kept pace")["evidence"]
    slow = trace(device(util=constant(0.5), hz=4.0), *cores)
    assert check(slow, "sampler kept pace")["state"] == "suspect"  # many quick cores do not hide a slow GPU


def test_a_counter_as_fine_as_the_sampler_has_no_coarser_resolution() -> None:
    rng = np.random.default_rng(7)
    assert counter_resolution(device(util=lambda times: rng.uniform(size=len(times)))) is None
    assert counter_resolution(device(util=constant(0.0))) is None  # an idle device does not show it


def test_a_field_that_a_device_never_gave_is_missing_with_its_reason() -> None:
    result = trace(device(util=constant(0.5), mem_bytes=constant(1e9)))
    assert {each["util_mean"] for each in result["devices"]} == {0.5}
    assert {each["energy_j"] for each in result["devices"]} == {None}
    (missing,) = result["missing"]
    assert missing["devices"] == ["GPU-a"]
    assert missing["fields"] == ["mem_util", "power_w", "energy_j", "sm_clock_mhz", "temp_c", "throttle"]
    assert "not available on this device" in missing["reason"]


def test_the_sampler_s_own_reason_is_preferred() -> None:
    frame = device(util=constant(0.5))
    missing = missing_fields(frame, json.dumps({"GPU-a": {"mem_util": "not supported on a MIG slice"}}))
    reasons = {field: each["reason"] for each in missing for field in each["fields"]}
    assert reasons["mem_util"] == "not supported on a MIG slice"
    assert reasons["power_w"] != reasons["mem_util"]


def test_a_host_has_no_power_and_says_so() -> None:
    cores = [device(f"cpu{n}", kind="core", source="psutil", util=constant(0.9)) for n in range(2)]
    process = device("pid:7", kind="process", source="psutil", util=constant(1.7), mem_bytes=constant(2e9))
    result = trace(*cores, process)
    assert result["source"] == ["psutil"]
    (missing,) = result["missing"]
    assert missing["devices"] == ["cpu0", "cpu1"]
    assert "power_w" in missing["fields"]
    assert check(result, "host not used by others")["state"] == "passed"
    assert not [each for each in result["checks"] if "clocks" in each["name"]]


def test_phases_join_the_devices_of_a_role() -> None:
    decode = [
        device("GPU-b", instance="decode-0", role="decode", util=constant(0.4), power_w=constant(100.0)),
        device("GPU-c", instance="decode-1", role="decode", util=constant(0.8), power_w=constant(300.0)),
    ]
    prefill = device("GPU-a", instance="prefill-0", role="prefill", util=constant(0.1))
    phases = {(each["role"], each["stage"], each["point"]): each for each in trace(prefill, *decode)["phases"]}
    load = phases["decode", "load", 0]
    assert (load["devices"], load["util_mean"], load["util_max"]) == (2, pytest.approx(0.6), 0.8)
    assert (load["power_mean_w"], load["energy_j"]) == (pytest.approx(200.0), pytest.approx(2000.0, rel=0.01))
    assert phases["prefill", "load", 0]["util_mean"] == pytest.approx(0.1)
    assert phases["prefill", "load", 0]["energy_j"] is None


def test_rows_about_the_processes_of_a_gpu_are_no_samples_of_the_gpu() -> None:
    gpu = device(util=constant(0.5), mem_bytes=constant(9e9))
    processes = device(kind="gpu_process", util=constant(0.1), mem_bytes=constant(4e9))
    result, alone = trace(gpu, processes), trace(gpu)
    assert [each for each in result["devices"] if each["kind"] == "gpu"] == alone["devices"]
    assert (result["resolution_s"], result["missing"]) == (alone["resolution_s"], alone["missing"])
    assert result["checks"] == alone["checks"]


def test_levels_take_the_window_and_the_tokens_of_the_load(tmp_path: Path) -> None:
    write_json(tmp_path / "stages.json", "stages/1", STAGES)
    throughput = {"unit": "tok/s", "n": 8, "value": 100.0}
    window = {"start_s": 108.0, "end_s": 112.0}
    points = [{"point": 0, "window": window, "metrics": {"output_throughput": throughput}}]
    write_json(tmp_path / "metrics.json", "metrics/1", {"points": points})
    table = pa.Table.from_pandas(device(util=constant(0.5), power_w=constant(50.0)), preserve_index=False)
    write_parquet(tmp_path / "samples.parquet", table)
    trace_devices(tmp_path)
    with_tokens, without = read_json(tmp_path / "trace.json", "trace/1")["levels"]
    assert (with_tokens["start_s"], with_tokens["end_s"], with_tokens["output_tokens"]) == (108.0, 112.0, 400)
    assert with_tokens["energy_per_output_token"] == pytest.approx(0.5)
    assert (without["full_load"], without["energy_per_output_token"]) == (False, None)


def test_processes_of_a_role_add_up() -> None:
    processes = [device(f"pid:{n}", kind="process", source="psutil", util=constant(0.5)) for n in (1, 2, 3)]
    phases = [each for each in trace(*processes)["phases"] if each["stage"] == "load" and each["point"] is None]
    assert [each["util_mean"] for each in phases] == [pytest.approx(1.5)]


@pytest.mark.parametrize("lost", ["null rows", "no rows"])
def test_a_device_that_is_lost_leaves_the_others_and_is_named(lost: str) -> None:
    gone = device("GPU-b", util=constant(0.5), power_w=constant(50.0))
    dead = gone["t_s"] >= 109.0
    if lost == "null rows":
        gone.loc[dead, COLUMNS] = np.nan
    else:
        gone = gone[~dead]
    result = trace(device(util=constant(0.5), power_w=constant(50.0)), gone)
    watched = check(result, "devices watched to the end")
    assert watched["state"] == "suspect"
    assert "GPU-b for the last" in watched["evidence"]
    assert "GPU-a" not in watched["evidence"]
    assert entry(result)["energy_j"] == pytest.approx(500.0, rel=0.01)
    assert entry(result, device="GPU-b")["energy_j"] is None  # a tenth of the load says nothing about the whole
    assert check(trace(device(util=constant(0.5))), "devices watched to the end")["state"] == "passed"


def test_a_device_that_never_answered_is_named() -> None:
    watched = check(trace(device(util=constant(0.5)), device("GPU-b")), "devices watched to the end")
    assert (watched["state"], watched["evidence"]) == ("suspect", "no values from GPU-b at all")
    assert check(trace(device()), "devices watched to the end")["state"] == "unknown"


@pytest.mark.parametrize(
    ("mask", "state", "words"),
    [
        (0x0, "passed", "power limit in 0%"),
        (0x1, "passed", "no slowdown"),  # idle
        (0x4, "passed", "power limit in 100%"),
        (0x8, "suspect", "hardware slowdown in 100%"),
        (0x20, "suspect", "software thermal slowdown"),
        (0x44, "suspect", "hardware thermal slowdown"),
    ],
)
def test_throttled_clocks(mask: int, state: str, words: str) -> None:
    clocks = check(trace(device(util=constant(0.5), throttle=constant(mask))), "clocks not throttled")
    assert clocks["state"] == state
    assert words in clocks["evidence"]


def test_throttling_outside_of_the_load_does_not_matter_and_silence_is_unknown() -> None:
    starting = device(throttle=lambda times: np.where(times < 107.0, 8, 0))
    assert check(trace(starting), "clocks not throttled")["state"] == "passed"
    assert check(trace(device(util=constant(0.5))), "clocks not throttled")["state"] == "unknown"


@pytest.mark.parametrize(
    ("before", "after", "foreign", "back"),
    [
        (0.5e9, 0.5e9, "passed", "passed"),
        (0.5e9, 9e9, "passed", "suspect"),
        (20e9, 20e9, "suspect", "passed"),
        (np.nan, 0.5e9, "unknown", "unknown"),
        (0.5e9, np.nan, "passed", "unknown"),
    ],
)
def test_memory_before_and_after(before: float, after: float, foreign: str, back: str) -> None:
    def memory(times: np.ndarray) -> Any:
        return np.where(times < 101.0, before, np.where(times >= 118.0, after, 120e9))

    result = trace(device(util=constant(0.5), mem_bytes=memory))
    assert check(result, "no foreign memory on the devices")["state"] == foreign
    assert check(result, "device memory back to base")["state"] == back


def test_memory_that_was_not_sampled_names_the_device_and_when() -> None:
    def until_shutdown(times: np.ndarray) -> Any:
        return np.where(times < 118.0, 0.0, np.nan)

    seen = device(util=constant(0.5), mem_bytes=constant(0.0))
    unseen = device("GPU-2", util=constant(0.5), mem_bytes=until_shutdown)
    result = trace(seen, unseen)
    evidence = check(result, "device memory back to base")["evidence"]
    assert evidence == "memory was not sampled after the shutdown on GPU-2"


@pytest.mark.parametrize(("busy", "ours", "state"), [(0.9, 1.7, "passed"), (0.9, 1.0, "suspect"), (0.5, 1.2, "passed")])
def test_foreign_work_on_the_host(busy: float, ours: float, state: str) -> None:
    cores = [device(f"cpu{n}", kind="core", source="psutil", util=constant(busy)) for n in range(2)]
    process = device("pid:7", kind="process", source="psutil", util=constant(ours))
    assert check(trace(*cores, process), "host not used by others")["state"] == state


def test_a_running_server_is_not_called_foreign_work() -> None:
    cores = device("cpu0", kind="core", source="psutil", util=constant(1.0))
    assert check(trace(cores, stages={**STAGES, "instances": []}), "host not used by others")["state"] == "unknown"


def test_without_process_samples_the_share_before_the_launch_counts() -> None:
    cores = device("cpu0", kind="core", source="psutil", util=constant(0.9))
    assert check(trace(cores), "host not used by others")["evidence"] == "others took 2% of the cores before the launch"
    unknown = {**STAGES, "environment": {}}
    assert check(trace(cores, stages=unknown), "host not used by others")["state"] == "unknown"


@pytest.mark.parametrize(
    ("t_s", "moved", "state"),
    [(105.0, 12, "passed"), (107.4, 12, "passed"), (112.45, 0, "passed"), (112.45, 3, "suspect")],
)
def test_threads_that_left_their_cores_during_a_load_level(t_s: float, moved: int, state: str) -> None:
    binding = {"t_s": t_s, "when": "before point 1", "instance": "decode-0", "threads": 20, "moved": moved}
    kept = check(
        trace(device(util=constant(0.5)), stages={**STAGES, "bindings": [binding]}), "instances kept to their cores"
    )
    assert kept["state"] == state


@pytest.mark.parametrize(("hz", "state"), [(20.0, "passed"), (10.0, "passed"), (4.0, "suspect")])
def test_a_slow_sampler_is_told(hz: float, state: str) -> None:
    assert check(trace(device(util=constant(0.5), hz=hz)), "sampler kept pace")["state"] == state


def test_a_stage_that_never_ended_is_left_out() -> None:
    cut = {**STAGES, "stages": [*STAGES["stages"][:2], {"name": "load", "start_s": 107.5, "end_s": None}], "points": []}
    result = trace(device(util=constant(0.5)), stages=cut)
    assert {each["stage"] for each in result["devices"]} == {"launch", "warmup"}


def test_a_trial_folder_holds_strict_json_and_the_samples_with_their_stages(tmp_path: Path) -> None:
    write_json(tmp_path / "stages.json", "stages/1", STAGES)
    samples = pd.concat([device(util=constant(0.5), throttle=constant(0)), device("GPU-b", role=None, instance=None)])
    table = pa.Table.from_pandas(samples, preserve_index=False)
    write_parquet(tmp_path / "samples.parquet", table.replace_schema_metadata({"missing": '{"GPU-b": {"util": "no"}}'}))
    trace_devices(tmp_path)
    content = read_json(tmp_path / "trace.json", "trace/1")
    assert "NaN" not in (tmp_path / "trace.json").read_text()
    assert {each["reason"] for each in content["missing"] if "util" in each["fields"]} == {"no"}
    kept = pq.read_table(tmp_path / "trace.parquet")
    assert kept.num_rows == len(samples)
    assert {"stage", "point"} <= set(kept.column_names)
    assert set(kept.column("stage").to_pylist()) == {None, "launch", "warmup", "load", "shutdown"}
    assert kept.schema.field("point").type == pa.int16()


def test_no_samples_at_all(tmp_path: Path) -> None:
    result = trace(device(end_s=100.0))
    assert (result["devices"], result["phases"], result["source"]) == ([], [], [])
    assert result["resolution_s"] == {"sampler": None, "by_kind": {}, "counter": None}
    assert {each["state"] for each in result["checks"]} == {"unknown"}
