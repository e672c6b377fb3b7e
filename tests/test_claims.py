"""Claims against comparisons: each verdict, and why there is none."""

import csv
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sample_results import Sample, write_sample

from pdkv import cli, verbs
from pdkv.analysing.claim_file import Claim, ClaimTest, find_strangers, read_claims
from pdkv.analysing.claims import Finding, judge_claims, verdict_of_all, verdicts_of_claims
from pdkv.analysing.compared_numbers import (
    CAPACITY_QUANTITIES,
    ENERGY_QUANTITIES,
    QUANTITIES,
    SERVICE_QUANTITIES,
)
from pdkv.analysing.compared_quantities import STATS_OF
from pdkv.analysing.hardware_units import KV_PER_DEVICE
from pdkv.analysing.study_results import Cell, Effect, StudyResults
from pdkv.errors import UserError
from pdkv.reporting.report_blocks import Paragraph, Report, Table
from pdkv.reporting.report_model import ReportSettings, read_report
from pdkv.reporting.stored_texts import retell
from pdkv.reporting.wording import Wording

CLAIMS = Path(__file__).parents[1] / "config" / "claims.yaml"
GOOD = frozenset[tuple[str, str]]()


def cell(mode: str, dtype: str) -> Cell:
    return Cell(Path(), {"workload": "w", "mode": mode, "dtype": dtype, "state": "valid"})


def effect(mode: str = "1p1d", dtype: str = "fp8", **changes: Any) -> Effect:
    row = {
        "workload": "w", "concurrency": "2", "metric": "ttft", "stat": "mean", "factor": "dtype", "mode": mode,
        "dtype": dtype, "base_mode": mode, "base_dtype": "bf16", "ratio": "1.1", "ci_low": "1.05", "ci_high": "1.15",
        "verdict": "higher", "note": "", **changes,
    }  # fmt: skip
    return Effect(row)


def judge(test: dict[str, Any], *effects: Effect, cells: Sequence[Cell] = ()) -> list[Finding]:
    known = cells or [cell(mode, dtype) for mode in ("default", "1p1d") for dtype in ("bf16", "fp8")]
    claim = Claim(says="x", tests=(ClaimTest.model_validate(test),))
    return judge_claims(StudyResults(known, effects), {"X": claim})


CLAIM = """a:
  says: x
  tests: [{{mode: every, dtype: fp8, against: {{dtype: 16bit}}, metric: {}, stat: {}, expect: lower}}]
"""
FP8 = {"mode": "1p1d", "dtype": "fp8", "against": {"dtype": "16bit"}, "metric": "ttft", "stat": "mean"}
ABOUT_SAME = {"ratio": "1.0", "ci_low": "0.99", "ci_high": "1.01", "verdict": "equivalent"}
LOWER = {"ratio": "0.9", "ci_low": "0.85", "ci_high": "0.95", "verdict": "lower"}
SURE_BUT_SMALL = {"ratio": "1.02", "ci_low": "1.005", "ci_high": "1.035", "verdict": "higher"}
OPEN = {"ratio": "1.1", "ci_low": "0.9", "ci_high": "1.3", "verdict": "cannot tell"}
ONE_LAUNCH = {"ci_low": "", "ci_high": "", "verdict": "not decided: one launch"}


@pytest.mark.parametrize(
    ("expect", "row", "verdict"),
    [
        ("higher", {}, "supported"),
        ("lower", {}, "contradicted"),
        ("lower", LOWER, "supported"),
        ("higher", ABOUT_SAME, "cannot tell"),
        ("equivalent", ABOUT_SAME, "supported"),
        ("equivalent", {}, "contradicted"),
        ("equivalent", SURE_BUT_SMALL, "cannot tell"),
        ("higher", SURE_BUT_SMALL, "supported"),
        ("different", {}, "supported"),
        ("different", ABOUT_SAME, "cannot tell"),
        ("not lower", ABOUT_SAME, "supported"),
        ("not lower", {}, "supported"),
        ("not lower", LOWER, "contradicted"),
        ("not higher", {}, "contradicted"),
        ("not higher", SURE_BUT_SMALL, "cannot tell"),
        *((expect, OPEN, "cannot tell") for expect in ("lower", "higher", "equivalent", "different", "not lower")),
        *((expect, ONE_LAUNCH, "cannot tell") for expect in ("lower", "higher", "equivalent", "not higher")),
    ],
)
def test_verdict_follows_that_of_the_comparison(expect: str, row: dict[str, str], verdict: str) -> None:
    (found,) = judge({**FP8, "expect": expect}, effect(**row))
    assert found.verdict == verdict


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [("5.1", "5.3", "supported"), ("1.9", "2.1", "contradicted"), ("4", "6", "cannot tell"), ("", "", "cannot tell")],
)
def test_a_size_is_held_against_the_interval(low: str, high: str, verdict: str) -> None:
    decided = "higher" if low else "not decided: two launches"
    (found,) = judge({**FP8, "at_least": 5}, effect(ratio="5", ci_low=low, ci_high=high, verdict=decided))
    assert found.verdict == verdict


@pytest.mark.parametrize(
    ("ratio", "low", "high", "verdict"),
    [
        ("1.99966", "1.99966", "1.99966", "supported"),  # +100.0%: what is shown decides
        ("1.9994", "1.9994", "1.9994", "contradicted"),  # +99.9%
        ("2.0", "1.9994", "2.0006", "cannot tell"),
    ],
)
def test_a_size_is_decided_on_what_is_shown(ratio: str, low: str, high: str, verdict: str) -> None:
    (found,) = judge({**FP8, "at_least": 2}, effect(ratio=ratio, ci_low=low, ci_high=high))
    assert found.verdict == verdict


def test_a_size_of_more_digits_than_are_usual_is_shown_and_decided_with_them() -> None:
    (found,) = judge({**FP8, "at_least": 1.00035}, effect(ratio="1.0004", ci_low="1.0003", ci_high="1.0005"))
    assert found.verdict == "cannot tell"
    (found,) = judge({**FP8, "at_least": 1.00035}, effect(ratio="1.0004", ci_low="1.000347", ci_high="1.0005"))
    assert found.verdict == "supported"


def test_a_size_is_held_against_the_interval_of_the_whole_family() -> None:
    """Else it is supported where the same pair, asked only whether it is higher, is open."""
    widened = effect(ratio="1.12", ci_low="1.06", ci_high="1.19", family_low="0.99", family_high="1.27")
    (found,) = judge({**FP8, "at_least": 1.02}, widened)
    assert (found.verdict, found.evidence[0].why) == ("cannot tell", "the claimed ratio lies within the interval")


@pytest.mark.parametrize(
    ("test", "row"),
    [
        ({"at_least": 1.05}, {"ratio": "1.2", "ci_low": "1.19", "ci_high": "1.21"}),  # 30% is what twins differ by
        ({"at_least": 1.3}, {"ratio": "1.2", "ci_low": "1.19", "ci_high": "1.21"}),
        ({"at_least": 1.5}, {"ratio": "1.6", "ci_low": "1.59", "ci_high": "1.61"}),
        ({"expect": "higher"}, {"ratio": "0.98", "ci_low": "0.978", "ci_high": "0.982", "verdict": "equivalent"}),
    ],
)
def test_nothing_rests_on_less_than_identical_cells_differ_by(test: dict[str, Any], row: dict[str, str]) -> None:
    claim = Claim(says="x", tests=(ClaimTest.model_validate({**FP8, **test}),))
    cells = [cell("1p1d", "bf16"), cell("1p1d", "fp8")]
    (found,) = judge_claims(StudyResults(cells, [effect(**row, yardstick="0.3")]), {"X": claim}, margin=0.05)
    why = "no larger than the 30% that cells of the same configuration differ by"
    assert (found.verdict, found.evidence[0].why) == ("cannot tell", why)


def test_the_margin_below_1_is_its_reciprocal() -> None:
    """0.9802 is below 1/1.02 = 0.98039, as everywhere else, though it is above 1 - 0.02."""
    row = {"ratio": "0.975", "ci_low": "0.97", "ci_high": "0.9802", "verdict": "lower"}
    assert judge({**FP8, "expect": "equivalent"}, effect(**row))[0].verdict == "contradicted"
    assert judge({**FP8, "expect": "equivalent"}, effect(**{**row, "ci_high": "0.9805"}))[0].verdict == "cannot tell"


def test_claims_may_name_what_is_compared_and_nothing_else() -> None:
    compared = (*QUANTITIES, *SERVICE_QUANTITIES, *ENERGY_QUANTITIES, *CAPACITY_QUANTITIES, (KV_PER_DEVICE, "value"))
    assert {(metric, stat) for metric, stats in STATS_OF.items() for stat in stats} == set(compared)


DIRECTION_WITHIN = "the effect has the claimed direction and is within ±5%, which the study calls equivalent"
NONE_BEYOND = "no effect beyond ±5%, and a smaller one cannot be told"


@pytest.mark.parametrize(
    ("expect", "low", "high", "verdict", "why"),
    [
        ("higher", "1.018", "1.022", "cannot tell", DIRECTION_WITHIN),
        ("lower", "0.978", "0.982", "cannot tell", DIRECTION_WITHIN),
        ("different", "1.018", "1.022", "cannot tell", DIRECTION_WITHIN),
        ("higher", "0.99", "1.01", "cannot tell", NONE_BEYOND),
        ("lower", "0.99", "1.01", "cannot tell", NONE_BEYOND),
        ("different", "0.99", "1.01", "cannot tell", NONE_BEYOND),
        ("higher", "1", "1", "cannot tell", NONE_BEYOND),
        ("higher", "0.978", "0.982", "contradicted", ""),
        ("lower", "1.018", "1.022", "contradicted", ""),
        ("equivalent", "1.018", "1.022", "supported", ""),
    ],
)
def test_an_effect_inside_the_margin_neither_denies_nor_supports_its_own_direction(
    expect: str, low: str, high: str, verdict: str, why: str
) -> None:
    row = effect(ratio="1", ci_low=low, ci_high=high, verdict="equivalent")
    claim = Claim(says="x", tests=(ClaimTest.model_validate({**FP8, "expect": expect}),))
    cells = [cell("1p1d", "bf16"), cell("1p1d", "fp8")]
    (found,) = judge_claims(StudyResults(cells, [row]), {"X": claim}, margin=0.05)
    assert (found.verdict, found.evidence[0].why) == (verdict, why)


def test_what_cannot_be_told_says_why() -> None:
    note = "3 launches cannot carry the interval of a p99: 5 can"
    row = effect(stat="p99", ci_low="", ci_high="", verdict="cannot tell", note=note)
    (rare,) = judge({**FP8, "stat": "p99", "expect": "higher"}, row)
    assert (rare.verdict, rare.evidence[0].why) == ("cannot tell", note)
    (wide,) = judge({**FP8, "expect": "higher"}, effect(**OPEN, note="about 2 more repeats would likely decide"))
    assert wide.evidence[0].why == "about 2 more repeats would likely decide"
    (size,) = judge({**FP8, "at_least": 1.1}, effect())
    assert (size.verdict, size.evidence[0].why) == ("cannot tell", "the claimed ratio lies within the interval")
    (small,) = judge({**FP8, "expect": "equivalent"}, effect(**SURE_BUT_SMALL))
    assert small.evidence[0].why == "there is an effect, and it may be within ±2%"


def test_an_observation_keeps_its_effect_and_says_why_it_decides_nothing() -> None:
    (found,) = judge({**FP8, "expect": "higher"}, effect(**ONE_LAUNCH))
    assert found.evidence[0].effect and found.evidence[0].effect.ratio == 1.1
    assert found.evidence[0].why == "not decided: one launch"


def test_unknown_cells_and_refused_comparisons_are_not_measured_with_their_reason() -> None:
    (absent,) = judge({**FP8, "mode": "3p1d", "expect": "lower"}, effect())
    assert (absent.verdict, absent.evidence[0].why) == ("not measured", "3p1d/fp8 is not in the study")
    (refused,) = judge({**FP8, "expect": "lower"}, effect(ratio="", ci_low="", ci_high="", verdict="", note="failed"))
    assert (refused.verdict, refused.evidence[0].why) == ("not measured", "failed")
    (never,) = judge({**FP8, "expect": "lower"})
    assert (never.verdict, never.concurrency) == ("not measured", None)
    assert never.evidence[0].why == "the study makes no such comparison"
    sixteen = [cell("1p1d", "bf16")]
    (none,) = judge({**FP8, "mode": "every", "expect": "lower"}, cells=sixteen)
    assert none.evidence[0].why == "1p1d/fp8 is not in the study"


def test_each_load_level_is_judged_by_itself() -> None:
    found = judge({**FP8, "expect": "lower"}, effect(), effect(concurrency="64", **LOWER))
    assert [(each.concurrency, each.verdict) for each in found] == [("2", "contradicted"), ("64", "supported")]


def test_every_is_the_modes_of_the_study_and_one_counter_example_contradicts() -> None:
    (found,) = judge({**FP8, "mode": "every", "expect": "lower"}, effect(**LOWER), effect("default"))
    assert [each.cells for each in found.evidence] == [
        ("default", "fp8", "default", "bf16"), ("1p1d", "fp8", "1p1d", "bf16"),
    ]  # fmt: skip
    assert found.verdict == "contradicted"


def test_every_is_no_cell_that_the_study_leaves_out() -> None:
    """Of unchunked the study holds one precision: the claim about both is not asked of it."""
    cells = [cell(mode, dtype) for mode in ("default", "1p1d") for dtype in ("bf16", "fp8")] + [
        cell("unchunked", "bf16")
    ]
    test = {**FP8, "mode": "every", "expect": "lower"}
    (finding,) = judge(test, *(effect(mode, **LOWER) for mode in ("default", "1p1d")), cells=cells)
    assert finding.verdict == "supported"
    assert [each.cells[0] for each in finding.evidence] == ["default", "1p1d"]
    none = judge({**test, "dtype": "fp8_e5m2"}, effect("default", **LOWER), cells=cells)[0]
    assert none.verdict == "not measured"
    assert none.evidence[0].why == "default/fp8_e5m2 is not in the study"


def test_a_cell_of_another_workload_is_not_in_this_one() -> None:
    other = Cell(Path(), {"workload": "long", "mode": "1p1d", "dtype": "bf16", "state": "valid"})
    both = judge({**FP8, "expect": "lower"}, effect(**LOWER), cells=[cell("1p1d", "bf16"), cell("1p1d", "fp8"), other])
    assert [(each.workload, each.verdict) for each in both] == [("w", "supported"), ("long", "not measured")]
    assert both[1].evidence[0].why == "1p1d/fp8 is not in the study"


def test_only_all_cells_together_support() -> None:
    assert verdict_of_all(["supported", "supported"]) == "supported"
    assert verdict_of_all(["supported", "not measured"]) == "cannot tell"
    assert verdict_of_all(["supported", "cannot tell"]) == "cannot tell"
    assert verdict_of_all(["cannot tell", "contradicted"]) == "contradicted"
    assert verdict_of_all(["not measured", "not measured"]) == "not measured"
    assert verdict_of_all([]) == "not measured"


def test_names_of_the_claim_become_those_of_the_study() -> None:
    cells = [cell("1p1d", "fp16"), cell("1p1d", "fp8_e4m3")]
    (found,) = judge({**FP8, "expect": "higher"}, effect(dtype="fp8_e4m3", base_dtype="fp16"), cells=cells)
    assert found.verdict == "supported"


def test_interaction_is_read_from_its_own_rows() -> None:
    test = {"mode": "1p1d", "dtype": "fp8", "effect": "interaction", "metric": "ttft", "stat": "mean"}
    row = effect(factor="interaction", base_mode="default")
    (found,) = judge({**test, "expect": "different"}, row, effect(**ABOUT_SAME))
    assert found.verdict == "supported"
    (plain,) = judge({**FP8, "expect": "equivalent"}, row, effect(**ABOUT_SAME))
    assert plain.verdict == "supported"


def test_the_claims_of_the_article_are_all_there() -> None:
    claims = read_claims(CLAIMS)
    assert list(claims) == [f"C{number}" for number in range(1, 15)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("X: {says: a}", "X: needs either tests or untested"),
        ("X:\n  says: a\n  tests: [{mode: m, dtype: fp8, metric: ttft, stat: mode, expect: lower}]", ":3: X.*stat"),
        ("X: {says: a, untested: b, colour: red}", "X.colour"),
        ("[1]", "holds no claims"),
        (
            "X:\n  says: a\n  tests: [{mode: m, dtype: d, metric: ttft, stat: mean, expect: lower}]",
            "either against or effect",
        ),
    ],
)
def test_a_fault_in_the_file_is_named_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "claims.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        read_claims(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a:\n  says: x\n  untested: 3", ":3: a.untested: found 3\n  allowed: a text, or one in each language"),
        ("a:\n  says: {fr: y}\n  untested: z", ":2: a.says.fr: found y\n  allowed: a text, or one in each language"),
        ("a:\n  untested: z", ":1: a.says: is missing\n  allowed: a text"),
        (
            CLAIM.format("tpott", "mean"),
            ":3: a.tests[0].metric: found tpott\n  allowed: ttft, tpot, itl, e2el, ou",
        ),
        (CLAIM.format("tpot", "value"), ":3: a.tests[0].stat: found value\n  allowed for tpot: mean, median, p90, p99"),
        (CLAIM.format("goodput", "mean"), ":3: a.tests[0].stat: found mean\n  allowed for goodput: value"),
        ("a: 3", ":1: a: found 3\n  allowed: a claim"),
        ("a:\n  says: x\n  untested: z\n  test: 1", ":4: a.test: unknown key\n  allowed: says, saw, tests, untested\n"),
        (
            "a:\n  says: x\n  tests:\n    - {mode: m, dtype: d, metric: ttft, stat: p95, expect: lower}",
            ":4: a.tests[0].stat: found p95\n  allowed: mean, median, p90, p99, value",
        ),
    ],
)
def test_a_fault_says_what_was_found_and_what_is_allowed(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "claims.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as error:
        read_claims(path)
    assert f"{path}{message}" in error.value.problem
    assert error.value.problem.count(str(path)) == 1
    assert not re.search(r"constrained|literal\[|\[key\]|Input should", error.value.problem)


def test_a_file_that_is_not_there_is_a_claims_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no such file") as error:
        read_claims(tmp_path / "none.yaml")
    assert "claims file" in error.value.remedy and "config file" not in error.value.remedy


def test_modes_and_precisions_that_the_study_lacks_are_found() -> None:
    tests = (
        ClaimTest.model_validate({**FP8, "mode": ["1p1d", "tp4"], "expect": "lower"}),
        ClaimTest.model_validate(
            {**FP8, "mode": "every", "against": {"mode": "2x"}, "dtype": "int4", "expect": "lower"}
        ),
    )
    assert find_strangers({"X": Claim(says="x", tests=tests)}, ["default", "1p1d"], ["bf16", "fp8_e4m3"]) == [
        "X.tests[0]: the study has no mode tp4: not measured",
        "X.tests[1]: the study has no mode 2x: not measured",
        "X.tests[1]: the study has no dtype int4: not measured",
    ]


def test_check_warns_of_them_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    claims, config = tmp_path / "claims.yaml", tmp_path / "study.yaml"
    claims.write_text(
        "X: {says: a, tests: [{mode: tp4, dtype: fp8, against: {mode: default}, metric: ttft, stat: mean, "
        "expect: lower}]}",
        encoding="utf-8",
    )
    workload = "{input_tokens: 8, output_tokens: 8, concurrency: 1, requests: 2, max_model_len: 64}"
    config.write_text(
        f"workloads: {{w: {workload}}}\nmodes: [default]\ndtypes: [fp16, fp8]\nreport: {{claims: {claims}}}\n",
        encoding="utf-8",
    )
    monkeypatch.setattr(verbs, "tell_survey", lambda study, stream: print("surveyed", file=stream))
    with pytest.raises(SystemExit) as end:
        cli.main(["check", "--config", str(config)])
    assert end.value.code == 0
    assert capsys.readouterr().out == (
        f"warning: {claims}: X.tests[0]: the study has no mode tp4: not measured\n"
        f"note: {config}: repeats: 1: the report will show effects and no verdicts; "
        "these need 3 launches of each cell\n"
        "surveyed\n"
    )


def report_of(folder: Path, launches: int) -> tuple[Report, list[Table], str]:
    """The report, the tables of its section on claims, and that section's paragraph."""
    cells = write_sample(folder / "results", Sample(launches=launches, failed=GOOD, suspect=GOOD))
    settings = ReportSettings("T", "en", ("default", "fp16"), claims=CLAIMS)
    report = read_report(cells, folder / "results/comparisons.csv", settings)
    (section,) = [each for each in report.sections if each.title == "Claims put to the test"]
    tables = [block for block in section.blocks if isinstance(block, Table)]
    (text,) = [block.text for block in section.blocks if isinstance(block, Paragraph)]
    return report, tables, text


def test_the_report_shows_every_claim_with_its_verdict_and_every_test(tmp_path: Path) -> None:
    report, (verdicts, tests), _ = report_of(tmp_path, launches=3)
    names = list(read_claims(CLAIMS))
    assert [line[0].text for line in verdicts.rows] == names
    assert [line[0].text for line in tests.rows if line[0].text] == names
    whole = {line[0].text: line[2].text for line in verdicts.rows}
    assert set(whole.values()) <= {"supported", "contradicted", "cannot tell", "not measured"}
    parts: dict[str, list[str]] = {}
    for line in tests.rows:
        parts.setdefault(line[0].text or list(parts)[-1], []).append(line[4].text)
    assert list(parts) == names
    for claim, found in parts.items():
        assert (whole[claim] == "supported") == (set(found) == {"supported"})
        assert (whole[claim] == "contradicted") == ("contradicted" in found)
    assert {"supported", "contradicted", "not measured"} <= {verdict for found in parts.values() for verdict in found}
    counts = {verdict: list(whole.values()).count(verdict) for verdict in set(whole.values())}
    (sentence,) = [text for text in report.said if "claims put to the test" in text]
    assert sentence.startswith("14 claims put to the test: ")
    assert {found[1]: int(found[0]) for found in re.findall(r"(\d+) ([a-z ]+?)(?:,| and|\.)", sentence)} == counts


def test_a_p99_of_three_launches_says_in_the_table_what_is_missing(tmp_path: Path) -> None:
    cells = write_sample(tmp_path / "results", Sample(launches=3, failed=GOOD, suspect=GOOD))
    comparisons, note = tmp_path / "results/comparisons.csv", "3 launches cannot carry the interval of a p99: 5 can"
    with comparisons.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    rare = {"ci_low": "", "ci_high": "", "verdict": "cannot tell", "note": note}
    with comparisons.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(line | rare if line["stat"] == "p99" else line for line in rows)
    for language, told in (("en", note), ("zh", retell(note, Wording("zh")))):
        settings = ReportSettings("T", language, ("default", "fp16"), claims=CLAIMS)
        tables = [
            block
            for section in read_report(cells, comparisons, settings).sections
            for block in section.blocks
            if isinstance(block, Table) and block.caption == Wording(language)("claims.caption")
        ]
        verdicts = [line[4] for line in tables[0].rows if re.search("p99|P99", line[1].text)]
        assert verdicts and {value.under for value in verdicts} == {told}


def test_without_any_interval_each_claim_has_one_row_with_what_was_seen(tmp_path: Path) -> None:
    report, (table,), text = report_of(tmp_path, launches=1)
    assert [line[0].text for line in table.rows] == list(read_claims(CLAIMS))
    assert "No claim has a verdict" in text and "(not decided: one launch)" in text
    c2 = next(line for line in table.rows if line[0].text == "C2")
    change = r"[+−]?\d+\.\d%"
    assert re.fullmatch(rf"fp8 against fp16: TTFT mean higher: 1p1d {change}( … {change})?", c2[2].text)
    assert not any("cannot tell" in value.text + value.under for line in table.rows for value in line)
    assert any(re.match(r"14 claims put to the test: \d+ cannot tell", said) for said in report.said)


def test_a_claim_is_as_good_as_all_its_tests_at_all_loads() -> None:
    found = judge({**FP8, "expect": "lower"}, effect(**LOWER), effect(concurrency="64", **OPEN))
    assert verdicts_of_claims(found) == {"X": "cannot tell"}
    found = judge({**FP8, "expect": "lower"}, effect(**LOWER), effect(concurrency="64"))
    assert verdicts_of_claims(found) == {"X": "contradicted"}
    found = judge({**FP8, "expect": "lower"}, effect(**LOWER), effect(concurrency="64", **LOWER))
    assert verdicts_of_claims(found) == {"X": "supported"}
    assert verdicts_of_claims(judge({**FP8, "expect": "lower"})) == {"X": "not measured"}


def test_without_a_claims_file_there_is_no_section(tmp_path: Path) -> None:
    cells = write_sample(tmp_path / "results")
    report = read_report(cells, tmp_path / "results/comparisons.csv", ReportSettings("T", "en", ("default", "fp16")))
    assert not any(section.title == "Claims put to the test" for section in report.sections)


@pytest.mark.parametrize("row", [{"verdict": "higher"}, LOWER])
@pytest.mark.parametrize("expect", ["higher", "lower", "different", "equivalent"])
def test_a_difference_between_cells_that_ran_the_same_is_noise(row: dict[str, str], expect: str) -> None:
    same = effect(**row, note="same resolved configuration")
    assert [finding.verdict for finding in judge({**FP8, "expect": expect}, same)] == ["cannot tell"]


def test_equivalence_of_cells_that_ran_the_same_is_seen() -> None:
    same = effect(**ABOUT_SAME, note="same resolved configuration")
    assert judge({**FP8, "expect": "equivalent"}, same)[0].verdict == "supported"


def test_an_interaction_in_every_mode_leaves_out_the_mode_that_the_others_are_held_against() -> None:
    interaction = effect(factor="interaction", base_mode="default", base_dtype="bf16")
    test = {"mode": "every", "dtype": "fp8", "effect": "interaction", "metric": "ttft", "stat": "mean"}
    found = judge({**test, "expect": "higher"}, interaction)[0]
    assert (found.verdict, len(found.evidence)) == ("supported", 1)
