import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from request_tables import answered, failed, simulate_closed_loop
from trial_folders import ENVIRONMENT, check, config_of, write_trial

from pdkv.artifacts import read_json, write_json
from pdkv.cell_summary import summarize_cell
from pdkv.comparison import COLUMNS, compare

Rows = list[dict[str, Any]]
OOM = {"stage": "launch", "reason": "out of memory", "excerpt": ""}


def load(seed: int, pace: float = 1.0, measured: int = 24) -> Rows:
    return simulate_closed_loop(2, measured, seed=seed, ttft_s=0.2 * pace, tpot_s=0.02 * pace, jitter=0.005)


def even(tpot_s: float) -> Rows:
    """Eight measured requests of one user that are all the same."""
    rows = [
        answered(float(t), [t + 0.2 + i * tpot_s for i in range(4)], e2el_s=0.2 + 3 * tpot_s, tpot_s=tpot_s)
        for t in range(9)
    ]
    return [row | {"ttft_s": 0.2, "part": "measured" if i else "ramp"} for i, row in enumerate(rows)]


class Study:
    def __init__(self, results: Path) -> None:
        self.results = results
        self.cells: list[Path] = []

    def add(self, mode: str, dtype: str, launches: Sequence[Rows], **trial: Any) -> Path:
        folder = self.results / mode / dtype
        trials = [
            write_trial(folder / f"r{i}", rows, mode=mode, dtype=dtype, repeat=i, **trial)
            for i, rows in enumerate(launches, 1)
        ]
        summarize_cell(trials, folder / "cell.json")
        self.cells.append(folder / "cell.json")
        return folder / "cell.json"

    def compare(self) -> list[dict[str, str]]:
        output = self.results / "comparisons.csv"
        compare(self.cells, ["default", "fp16"], output)
        return list(csv.DictReader(io.StringIO(output.read_text(encoding="utf-8"))))

    def row(self, effect: str = "baseline", metric: str = "tpot", stat: str = "mean", **names: str) -> dict[str, str]:
        wanted = {"effect": effect, "metric": metric, "stat": stat, **names}
        found = [row for row in self.compare() if all(row[key] == value for key, value in wanted.items())]
        assert len(found) == 1, found
        return found[0]


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return Study(tmp_path)


def rewrite(cell: Path, change: Callable[[dict[str, Any]], None]) -> None:
    content = read_json(cell, "cell/1")
    change(content)
    write_json(cell, "cell/1", {key: value for key, value in content.items() if key != "schema"})


def test_which_cells_meet(study: Study) -> None:
    for mode in ("default", "1p1d", "2x"):
        for dtype in ("fp16", "fp8"):
            study.add(mode, dtype, [load(1)])
    rows = study.compare()
    assert tuple(rows[0]) == COLUMNS
    pairs = {(r["effect"], f"{r['mode']}/{r['dtype']}", f"{r['base_mode']}/{r['base_dtype']}") for r in rows}
    others = ("default/fp8", "1p1d/fp16", "1p1d/fp8", "2x/fp16", "2x/fp8")
    assert pairs == {
        *(("baseline", cell, "default/fp16") for cell in others),
        *(("dtype", f"{mode}/fp8", f"{mode}/fp16") for mode in ("default", "1p1d", "2x")),
        *(("mode", f"{mode}/{dtype}", f"default/{dtype}") for mode in ("1p1d", "2x") for dtype in ("fp16", "fp8")),
        *(("hardware", f"1p1d/{dtype}", f"2x/{dtype}") for dtype in ("fp16", "fp8")),
    }


@pytest.mark.parametrize(("gpus", "compared"), [(1, True), (2, False)])
def test_hardware_effect_needs_equal_hardware(study: Study, gpus: int, compared: bool) -> None:
    study.add("1p1d", "fp16", [load(1)], gpus=1)
    study.add("2x", "fp16", [load(1)], gpus=gpus)
    assert bool([row for row in study.compare() if row["effect"] == "hardware"]) is compared


def test_one_launch_has_an_effect_and_no_verdict(study: Study) -> None:
    study.add("default", "fp16", [load(1)])
    study.add("default", "fp8", [load(2, 1.1)])
    row = study.row()
    assert float(row["ratio"]) == pytest.approx(1.1, rel=0.02)
    assert float(row["ratio"]) == pytest.approx(float(row["value"]) / float(row["base_value"]))
    assert (row["ci_low"], row["ci_high"], row["launches"], row["base_launches"]) == ("", "", "1", "1")
    assert row["verdict"] == "not decided: one launch"
    assert "24 values cannot carry a p99" in study.row(metric="ttft", stat="p99")["note"]


def test_two_launches_have_no_verdict_either(study: Study) -> None:
    study.add("default", "fp16", [load(1), load(2)])
    study.add("default", "fp8", [load(3), load(4)])
    assert study.row()["verdict"] == "not decided: two launches"
    assert study.row()["ci_low"] == ""


@pytest.mark.parametrize(("pace", "verdict"), [(1.2, "higher"), (0.8, "lower"), (1.0, "equivalent")])
def test_three_launches_decide(study: Study, pace: float, verdict: str) -> None:
    study.add("default", "fp16", [load(i) for i in (1, 2, 3)])
    study.add("default", "fp8", [load(i, pace) for i in (4, 5, 6)])
    row = study.row()
    assert row["verdict"] == verdict
    assert float(row["ci_low"]) < pace < float(row["ci_high"])
    assert float(row["ci_low"]) < float(row["ratio"]) < float(row["ci_high"])
    throughput = study.row(metric="output_throughput", stat="value")
    assert throughput["verdict"] == {"higher": "lower", "lower": "higher", "equivalent": "equivalent"}[verdict]


def test_spread_between_launches_leaves_it_open(study: Study) -> None:
    study.add("default", "fp16", [load(i, pace) for i, pace in ((1, 0.9), (2, 1.0), (3, 1.1))])
    study.add("default", "fp8", [load(i, pace) for i, pace in ((4, 1.1), (5, 1.0), (6, 0.95))])
    row = study.row()
    assert row["verdict"] == "cannot tell"
    assert "repeats" in row["note"]


def test_a_p99_that_few_requests_cannot_carry_has_no_verdict(study: Study) -> None:
    study.add("default", "fp16", [load(i, measured=12) for i in (1, 2, 3)])
    study.add("default", "fp8", [load(i, 2.0, measured=12) for i in (4, 5, 6)])
    row = study.row(metric="e2el", stat="p99")
    assert row["ratio"]
    assert (row["verdict"], row["ci_low"]) == ("cannot tell", "")
    assert "36 values cannot carry a p99" in row["note"]
    assert study.row(metric="itl", stat="p99")["verdict"] == "higher", "36 requests have 2268 gaps"


@pytest.mark.parametrize(
    ("tpot_s", "ratio", "verdict"), [(0.005, 1, "equivalent"), (0.0051, 1.02, "equivalent"), (0.00511, 1.022, "higher")]
)
def test_no_spread_at_all(study: Study, tpot_s: float, ratio: float, verdict: str) -> None:
    """The margin itself is inside the margin."""
    study.add("default", "fp16", [even(0.005)] * 3, concurrencies=(1,))
    study.add("default", "fp8", [even(tpot_s)] * 3, concurrencies=(1,))
    row = study.row()
    assert [float(row[key]) for key in ("ratio", "ci_low", "ci_high")] == pytest.approx([ratio] * 3)
    assert row["verdict"] == verdict
    assert "no spread seen in 3 launches" in row["note"]


def test_a_zero_base_gives_a_difference(study: Study) -> None:
    base = study.add("default", "fp16", [load(1)])
    cell = study.add("default", "fp8", [load(2)])

    def set_mean(value: float) -> Callable[[dict[str, Any]], None]:
        return lambda content: content["points"][0]["metrics"]["itl"].update(mean=value)

    rewrite(base, set_mean(0.0))
    rewrite(cell, set_mean(0.003))
    row = study.row(metric="itl")
    assert (row["ratio"], row["verdict"]) == ("", "")
    assert "the base is 0, the difference +3" in row["note"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"host_cpu": "Intel Xeon 8481C"}, "host_cpu: Intel Xeon 8481C / AMD EPYC 9354"),
        ({"cores": 64}, "cores: 64 / 2"),
        ({"engine": {**ENVIRONMENT["engine"], "vllm": "0.33.0"}}, "engine.vllm: 0.33.0 / 0.32.0"),
        (
            {"gpus": [{"name": "NVIDIA H200", "memory_bytes": 1, "driver": "570.1"}]},
            "gpu: NVIDIA H200, 1 bytes / unknown",
        ),
    ],
)
def test_other_surroundings_are_refused_by_name(study: Study, change: Mapping[str, Any], words: str) -> None:
    study.add("default", "fp16", [load(1)])
    study.add("default", "fp8", [load(2)], environment={**ENVIRONMENT, **change})
    row = study.row()
    assert (row["ratio"], row["verdict"]) == ("", "")
    assert row["note"].startswith("not comparable: ")
    assert words in row["note"]


def test_more_gpus_of_the_same_kind_are_comparable(study: Study) -> None:
    gpu = {"name": "NVIDIA H200", "memory_bytes": 1, "driver": "570.1"}
    study.add("default", "fp16", [load(1)], environment={**ENVIRONMENT, "gpus": [gpu]})
    study.add("1p1d", "fp16", [load(2)], environment={**ENVIRONMENT, "gpus": [gpu, gpu]})
    assert study.row()["ratio"]


def test_other_settings_outside_the_compared_factor_are_refused(study: Study) -> None:
    model = {**config_of("default", "fp8")["model"], "load_format": "dummy"}
    study.add("default", "fp16", [load(1)])
    study.add("default", "fp8", [load(2)], config={"model": model})
    assert "model.load_format: dummy / auto" in study.row()["note"]
    assert study.row()["ratio"] == ""


def test_failed_and_invalid_cells_have_no_ratio_but_a_reason(study: Study) -> None:
    study.add("default", "fp16", [load(1)])
    study.add("default", "fp8", [[]], failure=OOM, environment={})
    study.add("chunked", "fp16", [load(2)], checks={"launch": [check("kv dtype as asked", "failed")]})
    study.add("chunked", "fp8", [[failed(float(i)) for i in range(8)]])
    rows = [
        row
        for row in study.compare()
        if row["effect"] == "baseline" and row["metric"] == "tpot" and row["stat"] == "mean"
    ]
    assert [row["ratio"] for row in rows] == [""] * 3
    assert [row["verdict"] for row in rows] == [""] * 3
    assert "failed at launch: out of memory" in rows[0]["note"]
    assert "invalid: kv dtype as asked" in rows[1]["note"]
    assert "requests answered without error" in rows[2]["note"]


def test_a_base_that_failed_is_named(study: Study) -> None:
    study.add("default", "fp16", [[]], failure=OOM, environment={})
    study.add("default", "fp8", [load(1)])
    assert study.row()["note"].startswith("default · fp16: failed at launch")


def test_a_point_that_went_wrong_alone(study: Study) -> None:
    rows = load(2) + [failed(1000.0 + i, point=1) for i in range(8)]
    good = load(1) + [row | {"point": 1} for row in load(3)]
    study.add("default", "fp16", [good], concurrencies=(2, 64))
    study.add("default", "fp8", [rows], concurrencies=(2, 64))
    assert study.row(concurrency="2")["ratio"]
    assert "suspect" in study.row(concurrency="2")["note"]
    bad = study.row(concurrency="64")
    assert bad["ratio"] == ""
    assert "requests answered without error" in bad["note"]


def test_cells_that_resolved_to_the_same_are_named(study: Study) -> None:
    study.add("default", "fp16", [load(1)], identity="abc")
    study.add("chunked", "fp16", [load(2)], identity="abc")
    assert "same resolved configuration" in study.row()["note"]
    study.add("1p1d", "fp16", [load(2)], identity="def")
    assert "same resolved" not in study.row(mode="1p1d")["note"]


def test_outputs_of_one_token_have_no_tpot_to_compare(study: Study) -> None:
    rows = [answered(float(t), [t + 0.5], part="measured" if t else "ramp") for t in range(9)]
    study.add("default", "fp16", [rows], concurrencies=(1,))
    study.add("default", "fp8", [rows], concurrencies=(1,))
    assert study.row()["ratio"] == ""
    assert study.row()["note"].startswith("no value")
    assert study.row(metric="ttft")["ratio"]


def test_capacity_is_compared_without_a_load_level(study: Study) -> None:
    study.add("default", "fp16", [load(1)])
    study.add("2x", "fp16", [load(2)])
    row = study.row(metric="kv_cache_tokens", stat="value")
    assert (row["concurrency"], row["ratio"], row["verdict"]) == ("", "2.0", "not decided: one launch")


def test_a_missing_repeat_is_left_out_of_the_interval(study: Study) -> None:
    study.add("default", "fp16", [load(i) for i in (1, 2, 3, 4)])
    study.add("default", "fp8", [load(i, 1.2) for i in (5, 6, 7)])
    row = study.row()
    assert (row["launches"], row["base_launches"], row["verdict"]) == ("3", "4", "higher")
    assert "interval from 3 repeats in common" in row["note"]


def test_nothing_infinite_or_not_a_number_is_written(study: Study) -> None:
    study.add("default", "fp16", [load(i) for i in (1, 2, 3)])
    study.add("default", "fp8", [[failed(float(i)) for i in range(8)]] * 3)
    study.add("1p1d", "fp16", [even(0.005)] * 3)
    for row in study.compare():
        for key in ("value", "base_value", "ratio", "ci_low", "ci_high"):
            assert not row[key] or math.isfinite(float(row[key]))
