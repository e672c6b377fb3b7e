"""Energy and duty cycles at the load levels of trials with known tokens and watts."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pdkv.analysing.load_activity import describe_levels

Signal = Callable[[Any], Any]
COLUMNS = ("util", "mem_util", "mem_bytes", "power_w", "energy_j")
POINTS = [{"point": 0, "start_s": 10.0, "end_s": 40.0}, {"point": 1, "start_s": 40.0, "end_s": 70.0}]


def device(
    name: str, role: str | None = "single", kind: str = "gpu", end_s: float = 80.0, **signals: Signal
) -> pd.DataFrame:
    """20 Hz from 0 s; each signal gives its values at the sample times, what is not given is null."""
    times = np.arange(0, end_s, 0.05)
    values = {column: signals[column](times) if column in signals else np.nan for column in COLUMNS}
    return pd.DataFrame({"t_s": times, "device": name, "kind": kind, "instance": role, "role": role, **values})


def constant(value: float) -> Signal:
    return lambda times: np.full(len(times), value)


def counter(watts: float, step_s: float = 0.1) -> Signal:
    return lambda times: 1e6 + np.floor(times / step_s + 1e-6) * step_s * watts


def jitter(mean: float, seed: int = 1) -> Signal:
    """Utilisation that takes a new value with each sample."""
    return lambda times: mean + np.random.default_rng(seed).uniform(-0.02, 0.02, len(times))


def measured(window: tuple[float, float] | None = (15.0, 35.0), tok_s: float | None = 400.0) -> list[dict[str, Any]]:
    span = None if window is None else {"start_s": window[0], "end_s": window[1]}
    return [{"point": 0, "window": span, "metrics": {"output_throughput": {"unit": "tok/s", "n": 24, "value": tok_s}}}]


def level(*devices: pd.DataFrame, facts: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return describe_levels(
        pd.concat(devices, ignore_index=True), {"points": POINTS}, measured() if facts is None else facts
    )[0]


def busy_only_in_the_window(times: Any) -> Any:
    return np.cumsum(np.where((times >= 15) & (times < 35), 600.0, 100.0)) * 0.05


def test_energy_and_tokens_are_of_the_same_window() -> None:
    """Two GPUs of 600 and 200 W at 400 tok/s: 2 J a token, whatever the ramp and the drain take."""
    found = level(
        device("GPU-a", "prefill", util=jitter(0.3), energy_j=counter(200.0)),
        device("GPU-b", "decode", util=jitter(0.9), energy_j=busy_only_in_the_window),
    )
    assert (found["start_s"], found["end_s"], found["full_load"]) == (15.0, 35.0, True)
    assert found["energy_j"] == pytest.approx(16_000, rel=0.01)
    assert found["power_w"] == pytest.approx(800, rel=0.01)
    assert (found["output_tokens"], found["requests"]) == (8000, 24)
    assert found["energy_per_output_token"] == pytest.approx(2.0, rel=0.01)
    assert found["tokens_per_joule"] == pytest.approx(0.5, rel=0.01)
    watts = {each["role"]: each["power_w"] for each in found["roles"]}
    assert watts == {"prefill": pytest.approx(200, rel=0.01), "decode": pytest.approx(600, rel=0.01)}
    assert {each["energy_from"] for each in found["devices"]} == {"counter"}


def test_without_a_counter_power_is_integrated() -> None:
    found = level(device("GPU-a", util=jitter(0.5), power_w=constant(300.0)))
    assert found["energy_per_output_token"] == pytest.approx(300 / 400)
    assert found["devices"][0]["energy_from"] == "power"


def test_a_card_without_power_gives_no_energy_of_the_whole() -> None:
    found = level(device("GPU-a", util=jitter(0.5), power_w=constant(300.0)), device("GPU-b", util=jitter(0.5)))
    assert (found["energy_j"], found["energy_per_output_token"], found["tokens_per_joule"]) == (None, None, None)
    assert [each["energy_j"] for each in found["devices"]] == [pytest.approx(6000), None]
    assert found["roles"][0]["power_w"] is None
    assert found["roles"][0]["imbalance"]["energy_j"] is None


def test_a_device_that_is_lost_under_load_says_nothing_of_the_level() -> None:
    lost = device("GPU-b", "decode", end_s=20.0, util=jitter(0.9), energy_j=counter(500.0))
    found = level(device("GPU-a", "prefill", util=jitter(0.2), energy_j=counter(200.0)), lost)
    prefill, decode = found["roles"]
    assert prefill["duty_cycle"] == pytest.approx(0.2, abs=0.01)
    assert prefill["energy_j"] == pytest.approx(4000, rel=0.02)
    assert (decode["duty_cycle"], decode["bursts"], decode["energy_j"]) == (None, None, None)
    assert (found["idle_share"], found["energy_per_output_token"]) == (None, None)


@pytest.mark.parametrize("facts", [[], measured(window=None), measured(tok_s=None)])
def test_without_a_full_load_there_is_no_energy_per_token(facts: list[dict[str, Any]]) -> None:
    found = level(device("GPU-a", util=jitter(0.5), energy_j=counter(300.0)), facts=facts)
    assert found["energy_per_output_token"] is None
    assert found["roles"][0]["duty_cycle"] == pytest.approx(0.5, abs=0.01)
    if not found["full_load"]:
        assert (found["start_s"], found["end_s"], found["output_tokens"]) == (10.0, 40.0, None)


def test_a_window_of_a_few_steps_of_the_energy_counter_is_too_short() -> None:
    coarse = device("GPU-a", util=jitter(0.5), energy_j=counter(300.0, step_s=1.0))
    assert level(coarse)["energy_per_output_token"] == pytest.approx(0.75, rel=0.05)
    assert level(coarse, facts=measured(window=(15.0, 34.0)))["energy_per_output_token"] is None
    fine = device("GPU-a", util=jitter(0.5), energy_j=counter(300.0))
    assert level(fine, facts=measured(window=(15.0, 34.0)))["energy_per_output_token"] == pytest.approx(0.75, rel=0.02)


def test_decode_devices_that_are_loaded_unevenly() -> None:
    one, other = (
        device(name, "decode", util=jitter(util), energy_j=counter(watts))
        for name, util, watts in (("GPU-a", 0.9, 600.0), ("GPU-b", 0.6, 400.0))
    )
    (decode,) = level(one, other)["roles"]
    assert decode["devices"] == 2
    assert decode["duty_cycle"] == pytest.approx(0.75, abs=0.01)
    assert decode["imbalance"]["duty_cycle"] == pytest.approx(0.4, abs=0.02)
    assert decode["imbalance"]["energy_j"] == pytest.approx(0.4, abs=0.01)
    assert decode["imbalance"]["busy_share"] == 0.0
    (single,) = level(one)["roles"]
    assert set(single["imbalance"].values()) == {None}


def test_idle_share_is_of_all_gpus_and_their_time() -> None:
    def half_idle(times: Any) -> Any:
        return np.where(times % 4 < 2, 0.0, 0.8) + np.where(np.arange(len(times)) % 2, 0.0, 0.004)

    found = level(device("GPU-a", "prefill", util=half_idle), device("GPU-b", "decode", util=jitter(0.9)))
    assert found["idle_share"] == pytest.approx(0.25, abs=0.01)


def test_rows_of_another_kind_about_the_same_gpu_do_not_count() -> None:
    gpu = device("GPU-a", util=jitter(0.5), energy_j=counter(300.0))
    process = device("GPU-a", kind="gpu_process", util=constant(0.1), mem_bytes=constant(7e9))
    assert level(gpu, process) == level(gpu)
    with_columns = gpu.assign(mem_clock_mhz=2600.0, nvlink_tx_bytes=np.nan)
    assert level(with_columns) == level(gpu)


def test_cores_of_the_instances_where_there_is_no_gpu() -> None:
    cores = [device(f"cpu{n}", kind="core", util=jitter(0.8, seed=n)) for n in range(2)]
    spare = device("cpu2", None, kind="core", util=constant(0.0))
    found = level(*cores, spare)
    assert (found["kind"], len(found["devices"]), found["energy_j"]) == ("core", 2, None)
    assert found["roles"][0]["busy_share"] == 1.0


def test_a_gpu_that_was_never_sampled_leaves_no_energy_of_the_whole() -> None:
    seen = device("GPU-a", util=jitter(0.5), energy_j=counter(300.0))
    for gpus, energy in ((["GPU-a"], pytest.approx(0.75, rel=0.01)), (["GPU-a", "GPU-b"], None)):
        stages = {"points": POINTS, "instances": [{"name": "single", "gpus": gpus}]}
        assert describe_levels(seen, stages, measured())[0]["energy_per_output_token"] == energy


def test_no_devices_and_no_end() -> None:
    assert describe_levels(device("GPU-a", None), {"points": POINTS}, measured()) == []
    unfinished = {"points": [{"point": 0, "start_s": 10.0, "end_s": None}]}
    assert describe_levels(device("GPU-a", util=jitter(0.5)), unfinished, []) == []
