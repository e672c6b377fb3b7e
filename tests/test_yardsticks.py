"""A lead that is no larger than what cells of one configuration differ by is told nowhere as one."""

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sample_results import Sample, write_sample

from pdkv.analysing.comparison import compare
from pdkv.analysing.objectives import rank_objectives
from pdkv.analysing.verdicts import is_no_larger
from pdkv.artifacts import read_json, write_json
from pdkv.reporting.report_blocks import Table
from pdkv.reporting.report_model import Report, ReportSettings, read_report, texts_of

NONE = frozenset[tuple[str, str]]()
CELLS = Sample(
    modes=("default", "chunked", "unchunked"), dtypes=("fp16",), launches=3, requests=110, gpu=True, failed=NONE,
    suspect=NONE,
)  # fmt: skip
SECONDS = (0.1, 0.1002, 0.1003)

CellsByName = Mapping[tuple[str, str], dict[str, Any]]
_PAIR = "mode: unchunked, dtype: fp16, against: {mode: default}, metric: ttft, stat: mean"
CLAIMS = f"""
faster: {{says: a, tests: [{{{_PAIR}, expect: lower}}]}}
much: {{says: b, tests: [{{{_PAIR}, at_least: 0.95}}]}}
"""


class Study:
    """Stored results whose launches are set by hand, with all that is made of them."""

    def __init__(self, folder: Path, sample: Sample, change: Callable[[CellsByName], None]) -> None:
        files = write_sample(folder / "results", sample)
        contents = [read_json(file, "cell/1") for file in files]
        change({(content["mode"], content["dtype"]): content for content in contents})
        for file, content in zip(files, contents, strict=True):
            write_json(file, "cell/1", {key: value for key, value in content.items() if key != "schema"})
        comparisons, objectives, claims = (
            folder / name for name in ("comparisons.csv", "objectives.csv", "claims.yaml")
        )
        compare(files, ("default", "fp16"), comparisons)
        rank_objectives(files, objectives)
        claims.write_text(CLAIMS, encoding="utf-8")
        settings = ReportSettings("T", "en", ("default", "fp16"), objectives=objectives, claims=claims)
        self.report: Report = read_report(files, comparisons, settings)
        self.comparisons, self.objectives = (list(csv.DictReader(file.open())) for file in (comparisons, objectives))

    def effect(self, mode: str, dtype: str = "fp16", factor: str = "mode", metric: str = "ttft") -> dict[str, str]:
        key = {"mode": mode, "dtype": dtype, "factor": factor, "metric": metric}
        return next(row for row in self.comparisons if row["stat"] == "mean" and key.items() <= row.items())

    def places(self) -> dict[str, str]:
        rows = [row for row in self.objectives if row["objective"] == "first token"]
        return {f"{row['mode']}/{row['dtype']}": row["place"] for row in rows}

    def sentences(self, number: str) -> list[str]:
        return [text for text in texts_of(self.report) if number in text]

    def claim(self, name: str) -> str:
        tables = [block for section in self.report.sections for block in section.blocks if isinstance(block, Table)]
        rows = next(table for table in tables if table.caption.startswith("Each claim")).rows
        return next(row[-1].text for row in rows if row[0].text == name)


def set_launches(cell: dict[str, Any], metric: str, values: Sequence[float]) -> None:
    point = cell["points"][0]
    for launch, value in zip(point["per_launch"], values, strict=True):
        launch[metric]["mean"] = value
    point["metrics"][metric]["mean"] = sum(values) / len(values)


def times(factor: float) -> list[float]:
    return [factor * second for second in SECONDS]


def first_tokens(unchunked: float, twin: float) -> Callable[[CellsByName], None]:
    """``unchunked`` and ``chunked`` over the default cell, which chunks as well: the last two are identical."""

    def change(cells: CellsByName) -> None:
        set_launches(cells["default", "fp16"], "ttft", SECONDS)
        set_launches(cells["chunked", "fp16"], "ttft", times(twin))
        set_launches(cells["unchunked", "fp16"], "ttft", [*times(unchunked)[:2], times(unchunked)[2] * 1.001])

    return change


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return Study(tmp_path_factory.mktemp("within"), CELLS, first_tokens(unchunked=0.9, twin=1.3))


class TestALeadWithinTheYardstick:
    @pytest.mark.parametrize("factor", ["mode", "baseline"])
    def test_has_no_verdict_and_says_why(self, study: Study, factor: str) -> None:
        row = study.effect("unchunked", factor=factor)
        assert (row["verdict"], row["more_repeats"]) == ("cannot tell", "")
        assert row["note"] == "no larger than the 30% that cells of the same configuration differ by"
        assert float(row["yardstick"]) == pytest.approx(0.3)
        assert float(row["ci_high"]) < 1

    def test_is_shown_from_either_side_for_ratios_are_compared(self, study: Study) -> None:
        assert [text for text in study.report.said if "mean TTFT +30.0% / −23.1%" in text]
        (table,) = (
            block for section in study.report.sections for block in section.blocks
            if isinstance(block, Table) and block.caption.startswith("Largest difference between identical cells")
        )  # fmt: skip
        assert table.rows[0][2].text == "+30.0% / −23.1%"
        assert "it is their ratios that are compared" in table.caption

    def test_identical_cells_have_no_verdict_either(self, study: Study) -> None:
        row = study.effect("chunked")
        assert row["verdict"] == "cannot tell"
        assert row["note"] == "same resolved configuration; no spread seen in 3 launches"

    def test_makes_no_cell_the_best_or_worse(self, study: Study) -> None:
        assert set(study.places().values()) == {"cannot tell"}
        notes = {row["note"] for row in study.objectives if row["objective"] == "first token"}
        assert "no larger than the 30% that cells of the same configuration differ by" in notes

    def test_is_told_as_none_in_words(self, study: Study) -> None:
        told = study.sentences("mean TTFT")
        leads = ("TTFT is lower", "TTFT is higher", "lower in", "higher in", "is best", "shown worse")
        assert not [text for text in told for lead in leads if lead in text and "mean TTFT" in text]
        within = "No difference is told, and no equivalence, that would be finer than what cells that ran the same"
        assert any(text.startswith(within) and "mean TTFT" in text for text in told)

    def test_supports_and_contradicts_no_claim(self, study: Study) -> None:
        assert [study.claim(name) for name in ("faster", "much")] == ["cannot tell", "cannot tell"]


def test_a_lead_beyond_the_yardstick_stands(tmp_path: Path) -> None:
    study = Study(tmp_path, CELLS, first_tokens(unchunked=0.5, twin=1.3))
    assert study.effect("unchunked")["verdict"] == "lower"
    assert study.places() == {"default/fp16": "worse", "chunked/fp16": "worse", "unchunked/fp16": "best"}
    assert any("lower in unchunked/fp16" in text for text in study.sentences("mean TTFT"))
    assert [study.claim(name) for name in ("faster", "much")] == ["supported", "contradicted"]


@pytest.mark.parametrize(
    ("ratio", "yardstick", "small"),
    [
        (1.3, 0.3, True),
        (1 / 1.3, 0.3, True),
        (1.31, 0.3, False),
        (0.76, 0.3, False),
        (0.0, 0.3, False),
        (1.0, None, False),
    ],
)
def test_a_ratio_is_as_far_from_1_below_as_above(ratio: float, yardstick: float | None, small: bool) -> None:
    assert is_no_larger(ratio, yardstick) is small


class TestAnEquivalence:
    """That cells came out alike shows little where the same cell, measured twice, does not."""

    def test_is_none_where_identical_cells_differ_by_more_than_the_margin(self, tmp_path: Path) -> None:
        study = Study(tmp_path, CELLS, first_tokens(unchunked=1.0, twin=1.3))
        row = study.effect("unchunked")
        assert (row["verdict"], row["more_repeats"]) == ("cannot tell", "")
        why = "cells of the same configuration differ by 30%, more than the margin of equivalence"
        assert row["note"] == why
        assert set(study.places().values()) == {"cannot tell"}
        assert why in {row["note"] for row in study.objectives if row["objective"] == "first token"}
        told = study.sentences("mean TTFT")
        assert not [text for text in told if "quivalent within" in text or "equally good" in text]
        assert any(text.startswith("No difference is told, and no equivalence") for text in told)

    def test_stands_where_identical_cells_differ_by_less(self, tmp_path: Path) -> None:
        study = Study(tmp_path, CELLS, first_tokens(unchunked=1.0, twin=1.015))
        assert study.effect("unchunked")["verdict"] == "equivalent"
        assert any("equivalent within ±2% in unchunked/fp16" in text for text in study.sentences("mean TTFT"))


def test_an_interaction_within_the_yardstick_has_no_verdict(tmp_path: Path) -> None:
    def change(cells: CellsByName) -> None:
        set_launches(cells["default", "fp16"], "ttft", SECONDS)
        set_launches(cells["default", "fp8"], "ttft", SECONDS)
        set_launches(cells["chunked", "fp16"], "ttft", times(1.3))
        set_launches(cells["chunked", "fp8"], "ttft", times(1.3))
        set_launches(cells["unchunked", "fp16"], "ttft", SECONDS)
        set_launches(cells["unchunked", "fp8"], "ttft", [0.12, 0.1202, 0.1205])

    sample = Sample(**{**vars(CELLS), "dtypes": ("fp16", "fp8")})
    row = Study(tmp_path, sample, change).effect("unchunked", "fp8", "interaction")
    assert row["verdict"] == "cannot tell"
    assert row["note"] == "no larger than the 30% that cells of the same configuration differ by"


def test_two_cells_get_one_verdict_whatever_they_are_compared_under(tmp_path: Path) -> None:
    """The precision within the default mode is also a comparison with the baseline, among more of them: p = 0.012."""

    def change(cells: CellsByName) -> None:
        for name, cell in cells.items():
            noisy = (0.1, 0.12, 0.09) if name[0] in ("m1", "m2", "m3") else (0.1, 0.1, 0.1)
            set_launches(cell, "ttft", noisy)
        set_launches(cells["default", "fp8"], "ttft", [0.11, 0.1124, 0.115])

    sample = Sample(**{**vars(CELLS), "modes": ("default", "m1", "m2", "m3"), "dtypes": ("fp16", "fp8")})
    study = Study(tmp_path, sample, change)
    of_dtype, of_baseline = (study.effect("default", "fp8", factor) for factor in ("dtype", "baseline"))
    assert of_dtype["ratio"] == of_baseline["ratio"]
    assert of_dtype["verdict"] == of_baseline["verdict"] == "cannot tell"
    assert of_dtype["more_repeats"] == of_baseline["more_repeats"] != ""
    assert float(of_dtype["family_low"]) < float(of_dtype["ci_low"])
    verdicts: dict[tuple[str, ...], set[str]] = {}
    for row in study.comparisons:
        if row["factor"] in ("baseline", "dtype", "mode", "hardware") and row["ci_low"]:
            names = ("concurrency", "metric", "stat", "mode", "dtype", "base_mode", "base_dtype")
            verdicts.setdefault(tuple(row[name] for name in names), set()).add(row["verdict"])
    assert all(len(found) == 1 for found in verdicts.values())


class TestWhatTwinsDifferBy:
    """Told by the repeats that both have, and by how much these scatter."""

    def test_launches_that_differ_to_both_sides_do_not_cancel_out(self, tmp_path: Path) -> None:
        def change(cells: CellsByName) -> None:
            set_launches(cells["default", "fp16"], "ttft", [0.100, 0.130, 0.100, 0.130])
            set_launches(cells["chunked", "fp16"], "ttft", [0.130, 0.100, 0.130, 0.100])
            set_launches(cells["unchunked", "fp16"], "ttft", [0.095, 0.1236, 0.0951, 0.1234])

        study = Study(tmp_path, replace(CELLS, launches=4), change)
        twins, other = study.effect("chunked"), study.effect("unchunked")
        assert float(twins["ratio"]) == pytest.approx(1)
        half = math.sqrt(float(twins["ci_high"]) / float(twins["ci_low"])) - 1
        assert float(other["yardstick"]) == pytest.approx(half) and half > 0.3
        assert other["verdict"] == "cannot tell" and "no larger than the 61.9%" in other["note"]
        assert set(study.places().values()) == {"cannot tell"}

    def test_a_launch_that_only_one_twin_has_is_no_difference(self, tmp_path: Path) -> None:
        def change(cells: CellsByName) -> None:
            set_launches(cells["default", "fp16"], "ttft", [0.100, 0.140, 0.180])
            keep_repeats(cells["chunked", "fp16"], [1])
            set_launches(cells["chunked", "fp16"], "ttft", [0.101])
            set_launches(cells["unchunked", "fp16"], "ttft", [0.080, 0.1121, 0.1439])

        row = Study(tmp_path, CELLS, change).effect("unchunked")
        assert float(row["yardstick"]) == pytest.approx(0.01)
        assert row["verdict"] == "lower"

    def test_nor_does_it_hide_one(self, tmp_path: Path) -> None:
        """Pooled, both twins are at 150 ms; in the repeat that both have, one takes half as long again."""

        def change(cells: CellsByName) -> None:
            set_launches(cells["default", "fp16"], "ttft", [0.10, 0.15, 0.20])
            keep_repeats(cells["chunked", "fp16"], [1])
            set_launches(cells["chunked", "fp16"], "ttft", [0.15])
            set_launches(cells["unchunked", "fp16"], "ttft", [0.09, 0.1351, 0.1802])

        row = Study(tmp_path, CELLS, change).effect("unchunked")
        assert float(row["yardstick"]) == pytest.approx(0.5)
        assert row["verdict"] == "cannot tell"

    def test_without_a_repeat_in_common_they_are_no_yardstick_and_the_report_says_so(self, tmp_path: Path) -> None:
        def change(cells: CellsByName) -> None:
            set_launches(cells["default", "fp16"], "ttft", SECONDS)
            keep_repeats(cells["chunked", "fp16"], [3])
            cells["chunked", "fp16"]["points"][0]["repeats"] = [4]
            set_launches(cells["chunked", "fp16"], "ttft", [0.2])
            set_launches(cells["unchunked", "fp16"], "ttft", times(0.9))

        study = Study(tmp_path, CELLS, change)
        assert (study.effect("unchunked")["verdict"], study.effect("unchunked")["yardstick"]) == ("lower", "")
        (table,) = (
            block for section in study.report.sections for block in section.blocks
            if isinstance(block, Table) and block.caption.startswith("Largest difference")
        )  # fmt: skip
        assert {value.text for row in table.rows for value in row[2:]} == {"–"}
        assert "‡ these cells have no repeat in common, so there is no yardstick." in table.notes


def keep_repeats(cell: dict[str, Any], repeats: Sequence[int]) -> None:
    cell["trials"] = [trial for trial in cell["trials"] if trial["repeat"] in repeats]
    point = cell["points"][0]
    kept = [index for index, repeat in enumerate(point["repeats"]) if repeat in repeats]
    point["per_launch"] = [point["per_launch"][index] for index in kept]
    point["repeats"], point["launches"] = list(repeats), len(kept)
