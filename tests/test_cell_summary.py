import json
from pathlib import Path
from typing import Any

import pytest
from request_tables import answered, failed, simulate_closed_loop
from trial_folders import ENVIRONMENT, check, write_trial

from pdkv.analysing.cell_summary import stage_durations, summarize_cell
from pdkv.artifacts import read_json

OOM = {"stage": "launch", "reason": "out of memory", "excerpt": "torch.OutOfMemoryError"}


def one_user(ttfts: list[float]) -> list[dict[str, Any]]:
    """A request after the other, one of ramp before them."""
    rows, now = [answered(0.0, [0.5, 1.0], part="ramp")], 1.0
    for ttft in ttfts:
        rows.append(answered(now, [now + ttft, now + ttft + 1]))
        now += ttft + 1
    return rows


def summarize(tmp_path: Path, *launches: Path) -> dict[str, Any]:
    summarize_cell(list(launches), tmp_path / "cell.json")
    return read_json(tmp_path / "cell.json", "cell/1")


def test_pools_requests_of_launches(tmp_path: Path) -> None:
    ttfts = [[10.0] * 100, [10.0] * 100, [10.0] * 95 + [100.0] * 5]
    # The slow ones come first and last alike, so that the steady-state check has nothing to say.
    folders = [
        write_trial(tmp_path / f"r{i}", one_user(t), repeat=i, concurrencies=(1,)) for i, t in enumerate(ttfts, 1)
    ]
    point = summarize(tmp_path, *folders)["points"][0]
    assert point["metrics"]["ttft"]["p99"] == 100
    assert point["metrics"]["ttft"]["n"] == 300
    assert [launch["ttft"]["p99"] for launch in point["per_launch"]] == [10, 10, 100]
    throughputs = [launch["output_throughput"]["value"] for launch in point["per_launch"]]
    assert point["metrics"]["output_throughput"]["value"] == pytest.approx(sum(throughputs) / 3)
    assert point["launches"] == 3
    assert point["repeats"] == [1, 2, 3]


def test_events_with_several_tokens_add_up_over_launches(tmp_path: Path) -> None:
    def rows(n: int | None) -> list[dict[str, Any]]:
        return [
            answered(2.0 * t, [2 * t + 0.5, 2 * t + 1.0], token_n=[1, n], part="measured" if t else "ramp")
            for t in range(9)
        ]

    folders = [write_trial(tmp_path / f"r{i}", rows(3), repeat=i, concurrencies=(1,)) for i in (1, 2)]
    assert summarize(tmp_path, *folders)["points"][0]["multi_token_events"] == 16
    unknown = write_trial(tmp_path / "r3", rows(None), repeat=3, concurrencies=(1,))
    assert summarize(tmp_path, *folders, unknown)["points"][0]["multi_token_events"] is None


def test_no_percentile_exceeds_the_maximum(tmp_path: Path) -> None:
    folders = [write_trial(tmp_path / f"r{i}", simulate_closed_loop(2, 24, seed=i), repeat=i) for i in (1, 2)]
    for metric in ("ttft", "tpot", "itl", "e2el"):
        found = summarize(tmp_path, *folders)["points"][0]["metrics"][metric]
        assert found["min"] <= found["median"] <= found["p90"] <= found["p99"] <= found["max"]


def test_failed_launch_is_listed_and_not_counted(tmp_path: Path) -> None:
    good = write_trial(tmp_path / "r1", simulate_closed_loop(2, 24), repeat=1)
    bad = write_trial(tmp_path / "r2", [], repeat=2, failure=OOM)
    cell = summarize(tmp_path, good, bad)
    assert cell["state"] == "suspect"
    assert [trial["state"] for trial in cell["trials"]] == ["valid", "failed"]
    assert cell["trials"][1]["failure"] == OOM
    assert cell["points"][0]["launches"] == 1
    assert cell["points"][0]["excluded"] == [{"repeat": 2, "reason": "failed at launch: out of memory"}]


def test_all_failed_has_no_points_but_its_reasons(tmp_path: Path) -> None:
    cell = summarize(tmp_path, write_trial(tmp_path / "r1", [], failure=OOM, environment={}))
    assert cell["state"] == "failed"
    assert cell["points"] == []
    assert cell["trials"][0]["failure"]["excerpt"] == "torch.OutOfMemoryError"
    assert cell["trials"][0]["stages"]["load_s"] is None
    assert cell["trials"][0]["stages"]["overhead_s"] is None


@pytest.mark.parametrize("source", ["launch", "warmup", "trace"])
def test_invalid_launch_is_kept_out_with_its_reason(tmp_path: Path, source: str) -> None:
    good = write_trial(tmp_path / "r1", simulate_closed_loop(2, 24), repeat=1)
    bad = write_trial(
        tmp_path / "r2", simulate_closed_loop(2, 24), repeat=2, checks={source: [check("kv dtype", "failed")]}
    )
    cell = summarize(tmp_path, good, bad)
    assert cell["trials"][1]["state"] == "invalid"
    assert {**check("kv dtype", "failed"), "source": source} in cell["trials"][1]["checks"]
    assert cell["points"][0]["metrics"]["ttft"]["n"] == 24
    assert cell["points"][0]["excluded"] == [{"repeat": 2, "reason": "kv dtype: as seen"}]


def test_suspect_launch_counts_and_is_marked(tmp_path: Path) -> None:
    bad = write_trial(
        tmp_path / "r1", simulate_closed_loop(2, 24), checks={"trace": [check("foreign load", "suspect")]}
    )
    cell = summarize(tmp_path, bad)
    assert cell["state"] == cell["trials"][0]["state"] == cell["points"][0]["state"] == "suspect"
    assert cell["points"][0]["metrics"]["ttft"]["n"] == 24


def test_only_invalid_launches_leave_numbers_null(tmp_path: Path) -> None:
    cell = summarize(tmp_path, write_trial(tmp_path / "r1", [failed(float(i)) for i in range(8)]))
    assert cell["state"] == "invalid"
    assert cell["points"][0]["launches"] == 0
    assert cell["points"][0]["metrics"]["ttft"]["mean"] is None
    assert cell["points"][0]["metrics"]["output_throughput"]["value"] is None
    assert "requests answered without error" in cell["points"][0]["excluded"][0]["reason"]
    json.dumps(cell, allow_nan=False)


def test_a_bad_point_is_left_out_alone(tmp_path: Path) -> None:
    rows = simulate_closed_loop(2, 24) + [failed(1000.0 + i, point=1) for i in range(8)]
    cell = summarize(tmp_path, write_trial(tmp_path / "r1", rows, concurrencies=(2, 64)))
    assert [point["launches"] for point in cell["points"]] == [1, 0]
    assert [point["state"] for point in cell["points"]] == ["valid", "invalid"]
    assert cell["state"] == "suspect"


def test_launches_on_different_machines_are_named(tmp_path: Path) -> None:
    other = {**ENVIRONMENT, "host_cpu": "Intel Xeon 8481C"}
    folders = [
        write_trial(tmp_path / f"r{i}", simulate_closed_loop(2, 24), repeat=i, environment=environment)
        for i, environment in ((1, ENVIRONMENT), (2, other))
    ]
    cell = summarize(tmp_path, *folders)
    assert cell["state"] == "suspect"
    assert "host_cpu: AMD EPYC 9354 / Intel Xeon 8481C" in cell["checks"][0]["evidence"]


def test_launches_from_shells_that_differ_are_named(tmp_path: Path) -> None:
    settings: list[dict[str, Any]] = [{}, {"inherited": {"NCCL_ALGO": "Ring"}}, {"inherited": {}}]
    folders = [
        write_trial(tmp_path / f"r{i}", simulate_closed_loop(2, 24), repeat=i, environment={**ENVIRONMENT, **inherited})
        for i, inherited in enumerate(settings, 1)
    ]
    cell = summarize(tmp_path, *folders)
    assert cell["state"] == "suspect"
    assert cell["checks"][0]["evidence"] == "NCCL_ALGO: Ring / not set"
    assert "from one shell" in cell["checks"][0]["remedy"]


@pytest.mark.parametrize(
    ("sources", "evidence"),
    [
        (("aa11", "bb22"), "pdkv's measuring code: aa11 / bb22"),
        ((None, "bb22"), "pdkv's measuring code: unknown / bb22"),
        (("aa11", "aa11"), "2 launches"),
        ((None, None), "2 launches"),  # evidence from before it was recorded
    ],
)
def test_launches_measured_by_different_code_are_named(
    tmp_path: Path, sources: tuple[str | None, str | None], evidence: str
) -> None:
    folders = [
        write_trial(tmp_path / f"r{i}", simulate_closed_loop(2, 24), repeat=i, source=source)
        for i, source in enumerate(sources, 1)
    ]
    cell = summarize(tmp_path, *folders)
    alike = sources[0] == sources[1]
    assert cell["state"] == ("valid" if alike else "suspect")
    assert cell["checks"][0]["evidence"] == evidence
    assert cell["environment"].get("source") == sources[0]
    assert alike or cell["checks"][0]["remedy"].endswith("by one version of pdkv")


@pytest.mark.parametrize("kept_out", ["failed", "invalid"])
def test_a_launch_that_does_not_count_has_no_say_in_the_environment(tmp_path: Path, kept_out: str) -> None:
    other = {**ENVIRONMENT, "engine": {**ENVIRONMENT["engine"], "vllm": None}, "inherited": {"NCCL_ALGO": "Ring"}}
    good = {**ENVIRONMENT, "inherited": {}}
    loads = simulate_closed_loop(2, 24)
    bad: dict[str, Any] = {"failure": OOM} if kept_out == "failed" else {"checks": {"launch": [check("x", "failed")]}}
    cell = summarize(
        tmp_path,
        write_trial(tmp_path / "r1", [] if kept_out == "failed" else loads, repeat=1, environment=other, **bad),
        *(write_trial(tmp_path / f"r{i}", loads, repeat=i, environment=good) for i in (2, 3)),
    )
    assert cell["trials"][0]["state"] == kept_out
    assert (cell["checks"][0]["state"], cell["checks"][0]["evidence"]) == ("passed", "2 launches")
    assert cell["environment"] == good


def test_of_a_cell_whose_launches_all_failed_no_environment_is_checked(tmp_path: Path) -> None:
    other = {**ENVIRONMENT, "engine": {**ENVIRONMENT["engine"], "vllm": None}}
    folders = [
        write_trial(tmp_path / f"r{i}", [], repeat=i, failure=OOM, environment=environment)
        for i, environment in enumerate(({}, ENVIRONMENT, other), 1)
    ]
    cell = summarize(tmp_path, *folders)
    assert (cell["checks"][0]["state"], cell["checks"][0]["evidence"]) == ("unknown", "no launch counts")
    assert cell["environment"] == ENVIRONMENT


def test_variables_of_a_cell_are_those_of_its_first_launch_that_recorded_them(tmp_path: Path) -> None:
    loads, recorded = simulate_closed_loop(2, 24), {"NCCL_ALGO": "Ring"}
    failed_first = {**ENVIRONMENT, "inherited": {"NCCL_ALGO": "Tree"}}
    cell = summarize(
        tmp_path,
        write_trial(tmp_path / "r1", [], repeat=1, failure=OOM, environment=failed_first),
        write_trial(tmp_path / "r2", loads, repeat=2, environment=ENVIRONMENT),
        write_trial(tmp_path / "r3", loads, repeat=3, environment={**ENVIRONMENT, "inherited": recorded}),
    )
    assert cell["checks"][0]["state"] == "passed"
    assert cell["environment"] == {**ENVIRONMENT, "inherited": recorded}


def test_identity_and_hardware_of_the_cell(tmp_path: Path) -> None:
    cell = summarize(
        tmp_path, write_trial(tmp_path / "r1", simulate_closed_loop(2, 24), mode="1p1d", dtype="fp8", gpus=2)
    )
    assert (cell["workload"], cell["mode"], cell["dtype"], cell["gpus"], cell["instances"]) == (
        "w",
        "1p1d",
        "fp8",
        4,
        2,
    )
    assert "repeat" not in cell["config"]
    assert cell["config"]["mode"]["id"] == "1p1d"


def test_stage_durations() -> None:
    stages = {
        "stages": [
            {"name": "launch", "start_s": 1.0, "end_s": 41.0},
            {"name": "warmup", "start_s": 42.0, "end_s": 50.0},
            {"name": "load", "start_s": 50.5, "end_s": 80.5},
            {"name": "shutdown", "start_s": 81.0, "end_s": 83.0},
        ],
        "wall": {"start_s": 0.0, "end_s": 84.0},
    }
    durations = {
        "launch_s": 40.0,
        "warmup_s": 8.0,
        "load_s": 30.0,
        "shutdown_s": 2.0,
        "wall_s": 84.0,
        "overhead_s": 6.0,
    }
    assert stage_durations(stages) == durations
