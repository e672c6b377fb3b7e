"""Claims in the report: what hardware each side had, which cell contradicts, and which comparison was refused."""

from collections.abc import Sequence
from typing import Any

import pytest
from test_report_findings import LOWER, REFUSED, cell, effect

from pdkv.analysing.claim_file import Claim, ClaimTest
from pdkv.analysing.claims import judge_claims
from pdkv.analysing.study_results import Cell, Effect, StudyResults
from pdkv.reporting.report_blocks import Paragraph, Table
from pdkv.reporting.report_claims import describe_claims, say_how_claims_came_out
from pdkv.reporting.wording import Wording

CELLS = [cell(mode, dtype, gpus=1 + (mode == "1p1d")) for mode in ("default", "1p1d") for dtype in ("fp16", "fp8")]
TTFT = {"metric": "ttft", "stat": "mean"}
CAREFUL = {"mode": "1p1d", "dtype": "fp8", "against": {"mode": "default", "dtype": "16bit"}, **TTFT, "expect": "higher"}
PRECISION = {"mode": "every", "dtype": "fp8", "against": {"dtype": "16bit"}, **TTFT, "expect": "lower"}
BASE_OF_DEFAULT = ("default", "fp16")
UNEQUAL = effect("1p1d", "fp8", **LOWER)


def told(
    *effects: Effect, tests: Sequence[dict[str, Any]], cells: Sequence[Cell] = CELLS, language: str = "en"
) -> tuple[str, str, list[Table]]:
    """The sentence of the first page, the paragraph of the section on claims, and its tables."""
    claims = {"X": Claim(says="x", tests=tuple(ClaimTest.model_validate(each) for each in tests))}
    results, say = StudyResults(cells, effects), Wording(language)
    findings = judge_claims(results, claims)
    (section,) = describe_claims(results, claims, findings, say)
    (text,) = [block.text for block in section.blocks if isinstance(block, Paragraph)]
    tables = [block for block in section.blocks if isinstance(block, Table)]
    return say_how_claims_came_out(results, findings, say), text, tables


@pytest.mark.parametrize(
    ("language", "pair", "unequal"),
    [
        ("en", "2 GPUs against 1 GPU", "Cells on unequal hardware are compared in X."),
        ("zh", "2 张 GPU，基准为 1 张 GPU", "所比较的单元硬件不等的论断：X。"),
    ],
)
def test_unequal_hardware_stands_beside_the_verdict_the_change_and_in_the_sentence(
    language: str, pair: str, unequal: str
) -> None:
    said, text, (verdicts, tests) = told(UNEQUAL, tests=[CAREFUL], language=language)
    assert said.endswith(unequal) and unequal in text
    say = Wording(language)
    assert [column.title for column in verdicts.columns][2] == say("mode.hardware")
    assert [value.text for value in verdicts.rows[0][2:]] == [pair, say("claim_verdict.contradicted")]
    assert say("claims.hardware_note") in verdicts.notes
    assert pair in tests.rows[0][3].text and "−10.0%" in tests.rows[0][3].text


def test_where_a_part_of_a_claim_had_equal_hardware_it_says_so() -> None:
    precision = [effect(mode, "fp8", (mode, "fp16"), factor="dtype", **LOWER) for mode in ("default", "1p1d")]
    _, _, (verdicts, tests) = told(UNEQUAL, *precision, tests=[PRECISION, CAREFUL])
    assert verdicts.rows[0][2].text == "equal; 2 GPUs against 1 GPU"
    assert tests.rows[0][3].text == "default −10.0% [−15.0%, −5.0%]; 1p1d −10.0% [−15.0%, −5.0%]"
    assert tests.rows[1][3].text == "1p1d (2 GPUs against 1 GPU) −10.0% [−15.0%, −5.0%]"


def test_where_all_is_equal_there_is_no_column_and_no_sentence() -> None:
    said, _, (verdicts, _) = told(effect("1p1d", "fp8", ("1p1d", "fp16"), factor="dtype"), tests=[PRECISION])
    assert "unequal" not in said
    assert len(verdicts.columns) == 3


def test_of_several_cells_those_that_contradict_are_named() -> None:
    one, other = (effect(mode, "fp8", (mode, "fp16"), factor="dtype") for mode in ("default", "1p1d"))
    lower = effect("default", "fp8", BASE_OF_DEFAULT, factor="dtype", **LOWER)
    _, _, (_, tests) = told(lower, other, tests=[PRECISION])
    assert (tests.rows[0][4].text, tests.rows[0][4].under) == ("contradicted", "by 1p1d/fp8")
    _, _, (_, tests) = told(one, other, tests=[PRECISION])
    assert tests.rows[0][4].under == "by default/fp8 and 1p1d/fp8"
    _, _, (_, tests) = told(UNEQUAL, tests=[CAREFUL])
    assert tests.rows[0][4].under == ""  # the row names the only one


def test_a_refused_comparison_names_its_cells() -> None:
    refused = effect("default", "fp8", BASE_OF_DEFAULT, factor="dtype", **REFUSED)
    seen = effect("1p1d", "fp8", ("1p1d", "fp16"), factor="dtype", **LOWER)
    _, _, (_, tests) = told(refused, seen, tests=[PRECISION])
    assert tests.rows[0][3].text == (
        "default/fp8 against default/fp16 was refused, for they differ in host load: busy / idle; "
        "1p1d −10.0% [−15.0%, −5.0%]"
    )


def test_a_refused_interaction_names_the_step_in_both_modes() -> None:
    step = {"mode": "1p1d", "dtype": "fp8", "effect": "interaction", **TTFT, "expect": "different"}
    refused = effect("1p1d", "fp8", ("default", "fp16"), factor="interaction", **REFUSED)
    _, _, tables = told(refused, tests=[step])
    assert "fp8 (1p1d) against fp8 (default) was refused" in tables[-1].rows[0][3].text
