"""What the first page says of precision and disaggregation: decided effects alone, with what each is held against."""

from typing import Any

from test_report_findings import LOWER, ONE_LAUNCH, OPEN, REFUSED, SAME, cell, effect

from pdkv.analysing.study_results import Effect, StudyResults
from pdkv.reporting.report_headlines import tell_headlines, tell_rivals_without_verdict
from pdkv.reporting.wording import Wording

CELLS = [
    *(cell(mode, dtype) for mode in ("default", "other") for dtype in ("fp16", "fp8")),
    *(cell(mode, dtype, gpus=2) for mode in ("1p1d", "2x") for dtype in ("fp16", "fp8")),
]
THROUGHPUT: dict[str, Any] = {"metric": "output_throughput", "stat": "value"}
PER_DEVICE: dict[str, Any] = {"metric": "output_throughput_per_device", "stat": "value"}


def headlines(*effects: Effect) -> list[str]:
    return tell_headlines(StudyResults(CELLS, effects), 0.02, Wording("en"))


def test_a_precision_is_told_once_for_all_modes() -> None:
    (said,) = headlines(
        effect("default", "fp8", factor="dtype", **THROUGHPUT, **LOWER),
        effect("1p1d", "fp8", ("1p1d", "fp16"), factor="dtype", **THROUGHPUT),
    )
    assert said == (
        "With fp8 instead of fp16 in the same mode, output throughput is lower in default/fp8 (−10.0% [−15.0, −5.0] at "
        "c = 2); higher in 1p1d/fp8 (+10.0% [+5.0, +15.0] at c = 2)."
    )


def test_disaggregation_is_told_against_the_base_mode_and_on_equal_hardware_apart() -> None:
    said = headlines(
        effect("1p1d", factor="hardware", base=("2x", "fp16")),
        effect("1p1d", factor="mode", **PER_DEVICE, **LOWER),
        effect("1p1d", factor="mode", **LOWER),
    )
    assert [text.partition(" is ")[0] for text in said] == [
        "With 1p1d instead of default and the same precision, on the hardware that each has, mean TTFT",
        "With 1p1d instead of default and the same precision, on the hardware that each has, "
        "output throughput per GPU or core",
        "With 1p1d instead of 2x and the same precision, on equal hardware, mean TTFT",
    ]
    assert "higher in 1p1d/fp16" in said[2]


def test_what_was_not_decided_is_not_passed_over() -> None:
    (said,) = headlines(
        effect("1p1d", factor="mode", concurrency="64", **LOWER),
        effect("1p1d", factor="mode", **OPEN),
        effect("1p1d", "fp8", ("default", "fp8"), factor="mode", **ONE_LAUNCH),
    )
    assert said.endswith(
        "is lower in 1p1d/fp16 (−10.0% [−15.0, −5.0] at c = 64). "
        "Nothing was decided for 1p1d/fp16 and 1p1d/fp8 (each at c = 2)."
    )


def test_a_base_in_doubt_is_named() -> None:
    cells = [cell("default"), cell("1p1d", state="suspect", gpus=2), cell("2x", state="suspect", gpus=2)]
    told = effect("1p1d", factor="hardware", base=("2x", "fp16"))
    (said,) = tell_headlines(StudyResults(cells, [told]), 0.02, Wording("en"))
    assert "higher in 1p1d/fp16 (suspect) (+10.0%" in said
    assert said.endswith(" What it is held against is in doubt: 2x/fp16.")


def test_what_is_open_the_same_or_of_another_mode_is_no_headline() -> None:
    same = {"note": "same resolved configuration"}
    assert not headlines(
        effect("1p1d", factor="mode", **OPEN),
        effect("other", factor="mode"),
        effect("default", "fp8", factor="dtype", **THROUGHPUT, **SAME, **same),
    )


E2EL: dict[str, Any] = {"metric": "e2el", "stat": "mean"}


def rival(change: str, dtype: str = "fp16", concurrency: str = "64", **changes: Any) -> Effect:
    row = {**ONE_LAUNCH, "ratio": change, "concurrency": concurrency, **changes}
    return effect("1p1d", dtype, ("2x", dtype), factor="hardware", **row)


def rivals(*effects: Effect, language: str = "en") -> list[str]:
    return tell_rivals_without_verdict(StudyResults(CELLS, effects), Wording(language))


FEW = (rival("1.587"), rival("1.096", **E2EL), rival("0.907", **THROUGHPUT))


def test_the_rival_on_equal_hardware_is_told_without_a_verdict_as_observed() -> None:
    """Two launches of the replicas: what two GPUs are bought for stands on the first page all the same."""
    assert rivals(*FEW, rival("2.008", concurrency="2")) == [
        "On equal hardware (2 GPUs each) and with the same precision, 1p1d against 2x has no verdict at c = 64 "
        "(too few launches). What was observed there, and is no verdict: "
        "mean TTFT +58.7%, mean E2EL +9.6%, output throughput −9.3% in 1p1d/fp16. "
        "Other loads stand in the table of this comparison."
    ]
    (said,) = rivals(*FEW, language="zh")
    assert said.replace("\xa0", " ") == (
        "等量硬件（各 2 张 GPU）、同一精度下，c = 64 时 1p1d 与 2x 相比尚无判定（启动次数太少）。"
        "以下仅为观测值，不是判定：1p1d/fp16 的 TTFT 均值 +58.7%、E2EL 均值 +9.6%、输出吞吐量 −9.3%。"
    )


def test_each_precision_is_told_and_what_cannot_be_told_or_is_noise_says_so() -> None:
    (said,) = rivals(*FEW[:1], rival("", "fp8", **OPEN), rival("1.2", "fp8", yardstick="0.3", **E2EL))
    assert "(too few launches; it cannot be told)" in said
    assert said.endswith(
        "no verdict: mean TTFT +58.7% in 1p1d/fp16; "
        "mean TTFT +10.0%, mean E2EL +20.0% (no more than identical cells differ by) in 1p1d/fp8."
    )


def test_of_a_rival_with_verdicts_only_the_rest_is_observed() -> None:
    decided = effect("1p1d", factor="hardware", base=("2x", "fp16"), concurrency="64")
    (said,) = rivals(decided, FEW[1])
    assert "has a verdict at c = 64 in part only (too few launches)" in said
    assert "mean TTFT" not in said and "mean E2EL +9.6% in 1p1d/fp16." in said
    assert not rivals(decided)
    assert not rivals(rival("", **REFUSED))


def test_a_rival_in_doubt_is_named() -> None:
    cells = [cell("default"), cell("1p1d", gpus=2), cell("2x", state="suspect", gpus=2)]
    (said,) = tell_rivals_without_verdict(StudyResults(cells, FEW), Wording("en"))
    assert said.endswith(" What it is held against is in doubt: 2x/fp16.")
