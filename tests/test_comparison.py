import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from request_tables import answered, failed, simulate_closed_loop
from sample_results import Sample, write_sample
from trial_folders import ENVIRONMENT, check, config_of, write_trial

from pdkv.analysing.cell_summary import summarize_cell
from pdkv.analysing.comparability import differing_environments
from pdkv.analysing.comparison import COLUMNS, compare, comparison_rows
from pdkv.analysing.host_load import CHECK
from pdkv.analysing.trace_checks import check_trace
from pdkv.artifacts import read_json, write_json

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

    def compare(self, **settings: float) -> list[dict[str, str]]:
        output = self.results / "comparisons.csv"
        compare(self.cells, ["default", "fp16"], output, **settings)
        return list(csv.DictReader(io.StringIO(output.read_text(encoding="utf-8"))))

    def row(self, factor: str = "baseline", metric: str = "tpot", stat: str = "mean", **names: str) -> dict[str, str]:
        wanted = {"factor": factor, "metric": metric, "stat": stat, **names}
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
    pairs = {(r["factor"], f"{r['mode']}/{r['dtype']}", f"{r['base_mode']}/{r['base_dtype']}") for r in rows}
    others = ("default/fp8", "1p1d/fp16", "1p1d/fp8", "2x/fp16", "2x/fp8")
    assert pairs == {
        *(("baseline", cell, "default/fp16") for cell in others),
        *(("dtype", f"{mode}/fp8", f"{mode}/fp16") for mode in ("default", "1p1d", "2x")),
        *(("mode", f"{mode}/{dtype}", f"default/{dtype}") for mode in ("1p1d", "2x") for dtype in ("fp16", "fp8")),
        *(("hardware", f"1p1d/{dtype}", f"2x/{dtype}") for dtype in ("fp16", "fp8")),
        *(("interaction", f"{mode}/fp8", "default/fp16") for mode in ("1p1d", "2x")),
    }


def test_each_row_names_its_levels_and_what_is_held(study: Study) -> None:
    for mode in ("default", "1p1d", "2x"):
        for dtype in ("fp16", "fp8"):
            study.add(mode, dtype, [load(1)])
    rows = [row for row in study.compare() if (row["mode"], row["dtype"]) == ("1p1d", "fp8")]
    assert {(r["factor"], r["level_a"], r["level_b"], r["held"]) for r in rows} == {
        ("baseline", "1p1d/fp8", "default/fp16", ""),
        ("dtype", "fp8", "fp16", "mode=1p1d"),
        ("mode", "1p1d", "default", "dtype=fp8"),
        ("hardware", "1p1d", "2x", "dtype=fp8"),
        ("interaction", "1p1d", "default", "effect of fp8 against fp16"),
    }


@pytest.mark.parametrize(("gpus", "compared"), [(1, True), (2, False)])
def test_hardware_effect_needs_equal_hardware(study: Study, gpus: int, compared: bool) -> None:
    study.add("1p1d", "fp16", [load(1)], gpus=1)
    study.add("2x", "fp16", [load(1)], gpus=gpus)
    assert bool([row for row in study.compare() if row["factor"] == "hardware"]) is compared


def test_one_launch_has_an_effect_and_no_verdict(study: Study) -> None:
    study.add("default", "fp16", [load(1)])
    study.add("default", "fp8", [load(2, 1.1)])
    row = study.row()
    assert float(row["ratio"]) == pytest.approx(1.1, rel=0.02)
    assert float(row["ratio"]) == pytest.approx(float(row["value"]) / float(row["base_value"]))
    assert (row["ci_low"], row["ci_high"], row["launches"], row["base_launches"]) == ("", "", "1", "1")
    assert (row["verdict"], row["more_repeats"]) == ("not decided: one launch", "2")
    assert study.row(metric="ttft", stat="p99")["more_repeats"] == "4"
    assert "24 values in a launch cannot carry a p99" in study.row(metric="ttft", stat="p99")["note"]


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
    study.add("default", "fp16", [load(i) for i in (1, 2, 3)])
    study.add("default", "fp8", [load(i, pace) for i, pace in ((4, 1.12), (5, 1.02), (6, 1.1))])
    row = study.row()
    assert row["verdict"] == "cannot tell"
    assert row["more_repeats"].isdecimal()
    assert f"about {row['more_repeats']} more repeats would likely decide" in row["note"]


def test_where_no_number_of_repeats_would_help_it_says_so(study: Study) -> None:
    study.add("default", "fp16", [load(i, pace) for i, pace in ((1, 0.7), (2, 1.0), (3, 1.3))])
    study.add("default", "fp8", [load(i, pace) for i, pace in ((4, 1.3), (5, 1.0), (6, 0.7))])
    row = study.row()
    assert (row["verdict"], row["more_repeats"]) == ("cannot tell", ">47")
    assert "more than 47 more repeats would be needed" in row["note"]


def test_the_margin_is_the_studys(study: Study) -> None:
    study.add("default", "fp16", [load(i) for i in (1, 2, 3)])
    study.add("default", "fp8", [load(i, 1.1) for i in (4, 5, 6)])
    found = [
        row["verdict"]
        for margin in (0.02, 0.15)
        for row in study.compare(margin=margin)
        if (row["factor"], row["metric"], row["stat"]) == ("baseline", "tpot", "mean")
    ]
    assert found == ["higher", "equivalent"]


def test_a_repeat_is_a_block(study: Study) -> None:
    """Each repeat 10% slower than the one before it, in both cells: that cancels, and the ratio is the same in all."""
    paces = (1.0, 1.1, 1.21)
    study.add("default", "fp16", [even(0.005 * pace) for pace in paces], concurrencies=(1,))
    study.add("default", "fp8", [even(0.006 * pace) for pace in paces], concurrencies=(1,))
    row = study.row()
    assert [float(row[key]) for key in ("ratio", "ci_low", "ci_high")] == pytest.approx([1.2] * 3)
    assert row["verdict"] == "higher"


def test_the_ratio_is_the_mean_of_the_repeats_ratios(study: Study) -> None:
    study.add("default", "fp16", [even(tpot_s) for tpot_s in (0.004, 0.005, 0.006)], concurrencies=(1,))
    study.add("default", "fp8", [even(tpot_s) for tpot_s in (0.006, 0.005, 0.006)], concurrencies=(1,))
    assert float(study.row()["ratio"]) == pytest.approx(1.5 ** (1 / 3))


def square(study: Study, paces: Sequence[float], launches: int = 3) -> None:
    """default/fp16, default/fp8, 1p1d/fp16, 1p1d/fp8 at these paces."""
    cells = [(mode, dtype) for mode in ("default", "1p1d") for dtype in ("fp16", "fp8")]
    for number, ((mode, dtype), pace) in enumerate(zip(cells, paces, strict=True)):
        study.add(mode, dtype, [load(10 * number + i, pace) for i in range(launches)])


@pytest.mark.parametrize(
    ("paces", "verdict"), [((1, 1.1, 2, 2.6), "higher"), ((1, 1.2, 2, 2.1), "lower"), ((1, 1.2, 2, 2.4), "equivalent")]
)
def test_interaction_is_a_ratio_of_ratios(study: Study, paces: Sequence[float], verdict: str) -> None:
    square(study, paces)
    row = study.row("interaction")
    default_16, default_8, pd_16, pd_8 = paces
    assert (row["mode"], row["dtype"], row["base_mode"], row["base_dtype"]) == ("1p1d", "fp8", "default", "fp16")
    assert float(row["value"]) == pytest.approx(pd_8 / pd_16, rel=0.02)
    assert float(row["base_value"]) == pytest.approx(default_8 / default_16, rel=0.02)
    assert float(row["ratio"]) == pytest.approx(pd_8 / pd_16 / (default_8 / default_16), rel=0.02)
    assert float(row["ci_low"]) < float(row["ratio"]) < float(row["ci_high"])
    assert (row["verdict"], row["launches"], row["base_launches"]) == (verdict, "3", "3")


def test_interaction_of_one_launch_has_no_verdict(study: Study) -> None:
    square(study, (1, 1.1, 2, 2.6), launches=1)
    assert study.row("interaction")["verdict"] == "not decided: one launch"
    assert float(study.row("interaction")["ratio"]) == pytest.approx(1.18, rel=0.02)


def test_interaction_needs_all_four_cells(study: Study) -> None:
    study.add("default", "fp16", [load(1)])
    study.add("default", "fp8", [load(1)])
    study.add("1p1d", "fp8", [load(1)])
    assert not [row for row in study.compare() if row["factor"] == "interaction"]
    study.add("1p1d", "fp16", [[]], failure=OOM, environment={})
    row = study.row("interaction")
    assert (row["ratio"], row["verdict"]) == ("", "")
    assert row["note"] == "1p1d · fp16: failed at launch: out of memory"


def test_no_interaction_between_16_bit_formats(study: Study) -> None:
    for mode in ("default", "1p1d"):
        for dtype in ("fp16", "bf16", "fp8"):
            study.add(mode, dtype, [load(1)])
    assert {row["dtype"] for row in study.compare() if row["factor"] == "interaction"} == {"fp8"}


def test_throughput_per_gpu(study: Study) -> None:
    """Twice the GPUs for 1.6 times the tokens: higher in all, lower for each."""
    for mode, pace, gpus in (("default", 1.0, 1), ("1p1d", 1 / 1.6, 1)):
        study.add(mode, "fp16", [load(i, pace) for i in (1, 2, 3)], gpus=gpus)
    total = study.row(metric="output_throughput", stat="value")
    each = study.row(metric="output_throughput_per_device", stat="value")
    assert float(each["value"]) == pytest.approx(float(total["value"]) / 2)
    assert float(each["base_value"]) == pytest.approx(float(total["base_value"]))
    assert float(each["ratio"]) == pytest.approx(float(total["ratio"]) / 2)
    assert (total["verdict"], each["verdict"]) == ("higher", "lower")


def test_without_gpus_both_instances_share_the_cores(study: Study) -> None:
    study.add("default", "fp16", [load(1)])
    study.add("1p1d", "fp16", [load(2)])
    total, each = (study.row(metric=m, stat="value") for m in ("output_throughput", "output_throughput_per_device"))
    assert float(each["value"]) == pytest.approx(float(total["value"]) / 2), "of two cores"
    assert float(each["ratio"]) == pytest.approx(float(total["ratio"]))


def test_a_p99_that_few_requests_cannot_carry_has_no_verdict(study: Study) -> None:
    study.add("default", "fp16", [load(i, measured=12) for i in (1, 2, 3)])
    study.add("default", "fp8", [load(i, 2.0, measured=12) for i in (4, 5, 6)])
    row = study.row(metric="e2el", stat="p99")
    assert row["ratio"]
    assert (row["verdict"], row["ci_low"]) == ("cannot tell", "")
    assert "12 values in a launch cannot carry a p99" in row["note"]
    assert row["more_repeats"] == "", "more requests are wanted, not more launches"


def test_a_p99_wants_five_launches(study: Study) -> None:
    """12 requests have 756 gaps: enough values, but a rare stall may show in three launches of three by chance."""
    study.add("default", "fp16", [load(i, measured=12) for i in range(5)])
    cell = study.add("default", "fp8", [load(i, 2.0, measured=12) for i in range(5)])
    assert study.row(metric="itl", stat="p99")["verdict"] == "higher"
    rewrite(
        cell,
        lambda content: content["points"][0].update(
            repeats=[1, 2, 3], per_launch=content["points"][0]["per_launch"][:3]
        ),
    )
    row = study.row(metric="itl", stat="p99")
    assert (row["verdict"], row["ci_low"], row["more_repeats"]) == ("cannot tell", "", "2")
    assert "3 launches cannot carry the interval of a p99: 5 can" in row["note"]
    assert study.row(metric="itl", stat="p90")["verdict"] == "higher"


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


INHERITED = {"NCCL_ALGO": "Ring", "UCX_TLS": None}


@pytest.mark.fault(
    "host",
    "servers of two cells got another NCCL, UCX, TORCH or CUDA variable from the shell",
    "not compared, with the variable and both values",
)
@pytest.mark.parametrize(
    ("base", "cell", "words"),
    [
        (INHERITED, INHERITED, ""),
        (INHERITED, {**INHERITED, "NCCL_ALGO": "Tree"}, "NCCL_ALGO: Tree / Ring"),
        (INHERITED, {"UCX_TLS": None}, "NCCL_ALGO: not set / Ring"),
        (INHERITED, {**INHERITED, "UCX_TLS": "tcp"}, ""),  # the base has one of its own, from its plan
        (INHERITED, {"NCCL_ALGO": "Ring"}, ""),
        (INHERITED, None, ""),  # measured before variables were recorded
    ],
)
def test_other_variables_of_the_shell_are_refused_by_name(
    study: Study, base: Mapping[str, Any], cell: Mapping[str, Any] | None, words: str
) -> None:
    study.add("default", "fp16", [load(1)], environment={**ENVIRONMENT, "inherited": base})
    study.add("default", "fp8", [load(2)], environment=ENVIRONMENT | ({"inherited": cell} if cell is not None else {}))
    row = study.row()
    assert row["note"].startswith(f"not comparable: {words}") if words else row["ratio"]


@pytest.mark.parametrize(
    ("base", "cell", "words"),
    [
        ("aa11", "bb22", "pdkv's measuring code: bb22 / aa11"),
        (None, "bb22", "pdkv's measuring code: bb22 / unknown"),
        ("aa11", "aa11", ""),
        (None, None, ""),
    ],
)
def test_what_different_code_measured_is_not_compared(
    study: Study, base: str | None, cell: str | None, words: str
) -> None:
    """Else a change of the load client would stand in the report as an effect of the mode."""
    study.add("default", "fp16", [load(1)], source=base)
    study.add("default", "fp8", [load(2)], source=cell)
    row = study.row()
    assert row["note"].startswith(f"not comparable: {words}") if words else row["ratio"]
    assert bool(row["ratio"]) is not bool(words)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (["a" * 60, "b"], ["a" * 60, "b"]),
        (["a" * 61, None, "b"], ["a" * 60 + "…", "not set", "b"]),
        (["a" * 80 + "b", "a" * 80 + "c"], ["…" + "a" * 20 + "b", "…" + "a" * 20 + "c"]),
        (["a" * 60, "a" * 61], ["…" + "a" * 20, "…" + "a" * 21]),
        (["b", "a" * 80, "a" * 81], ["b", "a" * 80, "a" * 81]),
    ],
)
def test_long_values_are_cut_to_where_they_differ(values: list[str | None], told: list[str]) -> None:
    (text,) = differing_environments(
        *(ENVIRONMENT | {"inherited": {} if value is None else {"UCX_TLS": value}} for value in values)
    )
    assert text == f"UCX_TLS: {' / '.join(told)}"


def busy_checks(state: str) -> dict[str, Any]:
    return {"trace": [check(CHECK, state)]}


@pytest.mark.parametrize(
    ("cell", "base", "compared"),
    [
        ("passed", "suspect", False),
        ("suspect", "suspect", True),
        ("passed", "passed", True),
        ("unknown", "passed", False),
    ],
)
def test_an_idle_and_a_busy_host_are_not_compared(study: Study, cell: str, base: str, compared: bool) -> None:
    study.add("default", "fp16", [load(1)], checks=busy_checks(base))
    study.add("default", "fp8", [load(2)], checks=busy_checks(cell))
    row = study.row()
    assert bool(row["ratio"]) is compared
    assert ("host load: " in row["note"]) is not compared


def test_one_launch_on_a_busy_host_makes_the_cell_a_busy_one(study: Study) -> None:
    study.add("default", "fp16", [load(1)], checks=busy_checks("passed"))
    cell = study.add("default", "fp8", [load(2), load(3)], checks=busy_checks("passed"))
    rewrite(cell, lambda content: content["trials"][0]["checks"][-1].update(state="suspect"))
    assert study.row()["note"].startswith("not comparable: host load: busy in 1 of 2 launches / idle")


@pytest.mark.parametrize(("share", "compared"), [(0.05, True), (0.5, False)])
def test_without_a_trace_the_look_before_the_launch_counts(study: Study, share: float, compared: bool) -> None:
    study.add("default", "fp16", [load(1)], environment={**ENVIRONMENT, "foreign_cpu_share": 0.0})
    study.add("default", "fp8", [load(2)], environment={**ENVIRONMENT, "foreign_cpu_share": share})
    assert bool(study.row()["ratio"]) is compared


def test_the_check_of_the_host_has_the_name_that_is_looked_for() -> None:
    """It is made by another module, under a name of its own."""
    sample = {"source": "psutil", "device": "cpu0", "kind": "core", "stage": "load", "took_s": 0.001, "util": 0.5}
    unknown = dict.fromkeys(("mem_bytes", "power_w", "energy_j"))
    frame = pd.DataFrame([{**sample, **unknown, "t_s": t_s} for t_s in (0.0, 0.1)])
    checks = check_trace(frame, [], {"environment": {"foreign_cpu_share": 0.5}, "bindings": [], "stages": []})
    assert [found.state for found in checks if found.name == CHECK] == ["suspect"]


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


@pytest.mark.parametrize(
    ("section", "change", "words"),
    [
        ("mode", {"args": {"max-num-seqs": 8}}, "mode.args.max-num-seqs: 8 / unknown"),
        ("engine", {"token_budget": 512}, "engine.token_budget: 512 / 2048"),
        ("limits", {"warmup_rounds": 9}, "limits.warmup_rounds: 9 / unknown"),
        ("workload", {"output_tokens": 32}, "workload.output_tokens: 32 / 16"),
    ],
)
def test_within_a_mode_only_the_dtype_may_differ(
    study: Study, section: str, change: dict[str, Any], words: str
) -> None:
    config = config_of("default", "fp8")
    study.add("default", "fp16", [load(1)])
    study.add("default", "fp8", [load(2)], config={section: {**config[section], **change}})
    assert study.row("dtype")["note"] == f"not comparable: {words}"
    assert bool(study.row("baseline")["ratio"]) is (section == "mode"), "there the mode may differ too"


def test_other_time_limits_do_not_matter(study: Study) -> None:
    study.add("default", "fp16", [load(1)])
    study.add("default", "fp8", [load(2)], config={"limits": {"launch_timeout_s": 60}})
    assert study.row()["ratio"]


def test_interaction_is_refused_for_any_of_its_cells(study: Study) -> None:
    square(study, (1, 1.1, 2, 2.6), launches=1)
    study.add("1p1d", "fp16", [load(1)], environment={**ENVIRONMENT, "cores": 64})
    del study.cells[2]
    assert study.row("interaction")["note"] == "not comparable: cores: 64 / 2; cores: 2 / 64"


def test_cores_that_a_scheduler_gives_with_each_gpu_are_equal_cores(study: Study) -> None:
    study.add("default", "fp16", [load(1)], environment={**ENVIRONMENT, "cores": 8, "gpus_visible": 1})
    study.add("1p1d", "fp16", [load(2)], environment={**ENVIRONMENT, "cores": 16, "gpus_visible": 2})
    assert study.row("mode")["ratio"]
    study.add("2x", "fp16", [load(2)], environment={**ENVIRONMENT, "cores": 8, "gpus_visible": 2})
    assert study.row("mode", mode="2x")["note"] == "not comparable: cores per GPU: 4 / 8"


def test_failed_and_invalid_cells_have_no_ratio_but_a_reason(study: Study) -> None:
    study.add("default", "fp16", [load(1)])
    study.add("default", "fp8", [[]], failure=OOM, environment={})
    study.add("chunked", "fp16", [load(2)], checks={"launch": [check("kv dtype as asked", "failed")]})
    study.add("chunked", "fp8", [[failed(float(i)) for i in range(8)]])
    rows = [
        row
        for row in study.compare()
        if row["factor"] == "baseline" and row["metric"] == "tpot" and row["stat"] == "mean"
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
    assert "from 3 repeats in common" in row["note"]


def test_repeats_that_have_nothing_in_common(study: Study) -> None:
    """Cells of which other launches failed are not paired: the values are divided, and nothing is decided."""
    base = study.add("default", "fp16", [load(i) for i in (1, 2, 3)])
    study.add("default", "fp8", [load(i, 1.2) for i in (4, 5, 6)])
    rewrite(base, lambda content: content["points"][0].update(repeats=[4, 5, 6]))
    row = study.row()
    assert float(row["ratio"]) == pytest.approx(float(row["value"]) / float(row["base_value"]))
    assert (row["verdict"], row["ci_low"]) == ("not decided: too few launches of the same repeat", "")


def test_a_launch_that_measured_nothing_counts_for_nothing(study: Study) -> None:
    """A load that was never full has no throughput, while its latencies are known."""
    study.add("default", "fp16", [load(i) for i in (1, 2, 3)])
    cell = study.add("default", "fp8", [load(i, 1.2) for i in (4, 5, 6)])
    rewrite(cell, lambda content: content["points"][0]["per_launch"][1]["output_throughput"].update(value=None))
    row = study.row(metric="output_throughput", stat="value")
    assert (row["launches"], row["base_launches"], row["verdict"]) == ("2", "3", "not decided: two launches")
    assert study.row()["verdict"] == "higher"


def test_a_zero_in_one_launch_leaves_no_interval(study: Study) -> None:
    base = study.add("default", "fp16", [load(i) for i in (1, 2, 3)])
    study.add("default", "fp8", [load(i, 1.2) for i in (4, 5, 6)])
    rewrite(base, lambda content: content["points"][0]["per_launch"][1]["tpot"].update(mean=0.0))
    row = study.row()
    assert float(row["ratio"]) == pytest.approx(float(row["value"]) / float(row["base_value"]))
    assert (row["verdict"], row["ci_low"]) == ("cannot tell", "")


def test_nothing_infinite_or_not_a_number_is_written(study: Study) -> None:
    study.add("default", "fp16", [load(i) for i in (1, 2, 3)])
    study.add("default", "fp8", [[failed(float(i)) for i in range(8)]] * 3)
    study.add("1p1d", "fp16", [even(0.005)] * 3)
    for row in study.compare():
        for key in ("value", "base_value", "ratio", "ci_low", "ci_high"):
            assert not row[key] or math.isfinite(float(row[key]))


def test_goodput_by_other_service_levels_is_refused_with_the_difference(tmp_path: Path) -> None:
    sample = Sample(
        modes=("default", "unchunked"), launches=3, ttft_limit_ms=150.0, failed=frozenset(), suspect=frozenset()
    )
    cells = [read_json(path, "cell/1") for path in write_sample(tmp_path, sample)]
    cells[1]["slo"] = {**cells[1]["slo"], "target_share": 0.95}
    cells[2]["slo"] = None
    for point in cells[2]["points"]:  # summarised before the study had service levels
        for metrics in (point["metrics"], *point["per_launch"]):
            del metrics["goodput"], metrics["slo_share"]
    rows = [row for row in comparison_rows(cells, "default", "fp16") if row["metric"] == "goodput"]
    notes = {(row["factor"], row["mode"], row["dtype"]): (row["ratio"], row["note"]) for row in rows}
    assert notes["dtype", "default", "fp8"] == (None, "not comparable: target_share: 0.95 / 0.9")
    none = "not comparable: ttft_ms: unknown / 150.0; target_share: unknown / 0.9"
    assert notes["mode", "unchunked", "fp16"] == (None, none)
    assert notes["baseline", "unchunked", "fp8"][0] is not None
