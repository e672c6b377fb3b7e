"""Is a trial alone on its GPUs? What the processes that the driver names there say about it."""

from typing import Any

import pandas as pd
import pytest

from pdkv.analysing.trace_checks import check_trace

GPU = "GPU-a"
BEFORE_S, LOAD_S = 99.0, 110.0
STAGES: dict[str, Any] = {
    "stages": [
        {"name": "launch", "start_s": 100.0, "end_s": 105.0},
        {"name": "load", "start_s": 105.0, "end_s": 120.0},
    ],
    "points": [{"point": 0, "start_s": 105.0, "end_s": 120.0}],
}


def process(
    pid: int, t_s: float = LOAD_S, *, instance: str | None = None, name: str | None = "python3", gib: float | None = 3
) -> dict[str, Any]:
    row = {"t_s": t_s, "kind": "gpu_process", "pid": pid, "instance": instance, "process": name}
    return {**row, "mem_bytes": None if gib is None else gib * 2**30}


OURS = process(7, instance="single", name="VLLM::EngineCore", gib=100)


def look(*rows: dict[str, Any]) -> dict[str, Any]:
    gpu = [{"t_s": t_s, "kind": "gpu", "instance": "single", "mem_bytes": 0, "util": 0.5} for t_s in (BEFORE_S, LOAD_S)]
    frame = pd.DataFrame([*gpu, *rows]).assign(source="nvml", device=GPU)
    for column in ("power_w", "energy_j", "throttle", "pid", "process"):
        frame[column] = frame.get(column)
    frame["stage"] = ["load" if t_s == LOAD_S else None for t_s in frame["t_s"]]
    checks = [check.as_json() for check in check_trace(frame, [], STAGES)]
    return next(check for check in checks if check["name"] == "no foreign process on the devices")


def test_alone() -> None:
    assert look(OURS) == look(process(7, BEFORE_S, instance="single"), OURS)
    assert look(OURS)["state"] == "passed"


def test_a_process_that_is_found_late_to_be_ours_is_ours() -> None:
    assert look(process(7, 104.0), process(7, instance="single"))["state"] == "passed"


@pytest.mark.parametrize(("gib", "held"), [(3, "3.00 GiB"), (None, "unknown memory")])
def test_a_neighbour_is_named_with_what_it_holds(gib: float | None, held: str) -> None:
    found = look(OURS, process(4711, gib=gib))
    assert (found["state"], found["evidence"]) == ("suspect", f"process 4711 (python3) holds {held} on GPU-a")


def test_a_neighbour_that_left_before_the_load_does_not_matter() -> None:
    assert look(OURS, process(4711, BEFORE_S))["state"] == "passed"


def test_pids_of_another_namespace_tell_nothing_unless_they_were_there_before_us() -> None:
    inside = process(7, name=None)  # our own engine, by the host's number
    assert look(inside)["state"] == "unknown"
    assert look(process(7, name="bash"))["state"] == "unknown"  # that number means another process in here
    stranger = [process(4711, t_s, name=None) for t_s in (BEFORE_S, LOAD_S)]
    assert look(inside, *stranger)["state"] == "suspect"
    assert look(inside, *stranger)["evidence"] == "process 4711 (unknown name) holds 3.00 GiB on GPU-a"


def test_a_driver_that_names_nobody_is_no_proof() -> None:
    assert look()["state"] == "unknown"
