"""What the first page says of precision and disaggregation: decided effects alone, with what each is held against."""

from typing import Any

from test_report_findings import LOWER, ONE_LAUNCH, OPEN, SAME, cell, effect

from pdkv.analysing.study_results import Effect, StudyResults
from pdkv.reporting.report_headlines import tell_headlines
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
