"""The report model: what is said, marked and left unsaid, given the stored results."""

import csv
import json
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sample_results import Sample, write_sample
from snakemake.cli import parse_config

from pdkv import wings
from pdkv.analysing.comparison import compare
from pdkv.analysing.identical_cells import best_cells, identical_groups, noise, refused_twins, yardstick_groups
from pdkv.analysing.objectives import rank_objectives
from pdkv.analysing.study_results import Cell, StudyResults, read_study_results
from pdkv.artifacts import write_json
from pdkv.errors import UserError
from pdkv.reporting.report_blocks import Bullets, Excerpt, Figure, Paragraph, Report, Table, Value
from pdkv.reporting.report_model import ReportSettings, read_report, texts_of
from pdkv.reporting.wording import Wording

SETTINGS = ReportSettings("A study", "en", ("default", "fp16"))
ALL_GOOD = Sample(failed=frozenset(), suspect=frozenset())
EVERY_CELL = frozenset((mode, dtype) for mode in Sample().modes for dtype in Sample().dtypes)


def report_of(tmp_path: Path, sample: Sample | None = None, settings: ReportSettings = SETTINGS) -> Report:
    cells = write_sample(tmp_path / "results", sample)
    rank_objectives(cells, tmp_path / "results/objectives.csv", settings.margin)
    ranked = replace(settings, objectives=tmp_path / "results/objectives.csv")
    return read_report(cells, tmp_path / "results/comparisons.csv", ranked)


def results_of(tmp_path: Path, sample: Sample | None = None) -> StudyResults:
    cells = write_sample(tmp_path / "results", sample)
    return read_study_results(cells, tmp_path / "results/comparisons.csv")


def tables(report: Report, start: str) -> list[Table]:
    blocks = [block for section in report.sections for block in section.blocks]
    return [block for block in blocks if isinstance(block, Table) and block.caption.startswith(start)]


def table(report: Report, start: str) -> Table:
    found = tables(report, start)
    assert len(found) == 1, f"{len(found)} tables begin with {start!r}"
    return found[0]


def rows_by_label(found: Table) -> dict[str, tuple[Value, ...]]:
    """Rows by the cell that stands in their first columns, but for the load level."""
    start = 1 if found.columns[0].title == "Load" else 0
    return {"/".join(value.text for value in row[start : start + 2]): row[start:] for row in found.rows}


def section_text(report: Report, title: str) -> str:
    section = next(section for section in report.sections if section.title == title)
    return " ".join(block.text for block in section.blocks if isinstance(block, Paragraph))


def change_cell(path: Path, change: Any) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    del content["digest"]
    change(content)
    path.write_text(json.dumps(content), encoding="utf-8")


@pytest.fixture(scope="module")
def six(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return report_of(tmp_path_factory.mktemp("six"))


class TestSummary:
    def test_one_launch_is_called_an_observation(self, six: Report) -> None:
        assert any(text.startswith("One launch of each cell: no intervals") for text in six.untold)
        assert not any("interval" in text for text in six.said)

    def test_three_launches_give_verdicts_with_their_intervals(self, tmp_path: Path) -> None:
        report = report_of(tmp_path, replace(ALL_GOOD, launches=3))
        said = " ".join(report.said)
        assert "First token (mean TTFT): with 2 cores at c = 2, default/fp16, default/fp8, chunked/fp16" in said
        assert "which of them cannot be told (2 others are shown worse)" in said
        assert "Observed" not in said
        assert not any("One launch" in text for text in report.untold)

    def test_states_are_counted_and_doubt_is_named(self, six: Report) -> None:
        assert "Of 6 cells: 4 valid, 1 suspect and 1 failed." in six.said
        assert "Numbers in doubt: chunked/fp8 (checks not passed: “foreign load”)." in six.untold
        assert "Nothing can be said about 1p1d/fp8: no usable launch." in six.untold

    def test_random_weights_are_stated(self, tmp_path: Path, six: Report) -> None:
        report = report_of(tmp_path, Sample(load_format="dummy"))
        assert "with random weights" in report.subtitle
        assert any("random weights" in text for text in report.untold)
        assert not any("random weights" in text for text in texts_of(six))

    def test_unequal_hardware_is_stated_and_without_replicas_it_cannot_be_told_apart(self, tmp_path: Path) -> None:
        report = report_of(tmp_path / "a", replace(ALL_GOOD, gpu=True))
        assert any("default and chunked: 1 GPU; 1p1d: 2 GPUs" in text for text in report.said)
        assert any("Replicas on equal hardware would tell" in text for text in report.untold)
        fair = report_of(tmp_path / "b", replace(ALL_GOOD, gpu=True, modes=("default", "2x", "1p1d")))
        assert not any("Replicas on equal hardware would tell" in text for text in fair.untold)

    def test_unequal_hardware_means_unequal_load_on_each_gpu(self, tmp_path: Path) -> None:
        start = "A load level is that of a whole cell"
        report = report_of(tmp_path / "a", replace(ALL_GOOD, gpu=True))
        assert any(text.startswith(start) for text in report.untold)
        alike = report_of(tmp_path / "b", replace(ALL_GOOD, gpu=True, modes=("default", "chunked")))
        assert not any(text.startswith(start) for text in alike.untold)

    def test_users_who_go_in_step_are_told_of_in_a_closed_loop_of_several(self, tmp_path: Path) -> None:
        start = "In a closed loop with answers of one length"

        def change(points: dict[str, Any]) -> list[str]:
            folder = tmp_path / f"{points['arrival']}-{points['concurrency']}"
            cells = write_sample(folder / "results", ALL_GOOD)
            for path in cells:
                change_cell(path, lambda content: [point.update(points) for point in content["points"]])
            report = read_report(cells, folder / "results/comparisons.csv", SETTINGS)
            return [text for text in report.untold if text.startswith(start)]

        assert len(change({"arrival": "closed", "concurrency": 2, "rate": None})) == 1
        assert change({"arrival": "closed", "concurrency": 1, "rate": None}) == []
        assert change({"arrival": "poisson", "concurrency": None, "rate": 2.0}) == []

    def test_checks_without_evidence_are_named_though_the_launch_is_valid(self, tmp_path: Path) -> None:
        cells = write_sample(tmp_path / "results", ALL_GOOD)
        unknown = {"name": "answers read on time", "state": "unknown", "evidence": "", "remedy": "", "source": "load"}
        change_cell(cells[0], lambda content: content["trials"][0]["checks"].append(unknown))
        report = read_report(cells, tmp_path / "results/comparisons.csv", SETTINGS)
        [said] = [text for text in report.untold if text.startswith("For lack of evidence")]
        assert "answers read on time" in said

    def test_identical_cells_are_named_with_their_difference(self, tmp_path: Path) -> None:
        results = results_of(tmp_path)
        size = noise(identical_groups(results.cells), 0, "ttft", "mean")
        assert size and size > 0
        report = read_report(
            [c.folder / "cell.json" for c in results.cells], tmp_path / "results/comparisons.csv", SETTINGS
        )
        sentence = next(text for text in report.said if "ran the same configuration, and yet" in text)
        assert "default/fp16 and chunked/fp16; default/fp8 and chunked/fp8" in sentence
        assert f"mean TTFT +{size * 100:.1f}% / −{(1 - 1 / (1 + size)) * 100:.1f}%" in sentence

    def test_identical_cells_under_unlike_host_load_are_no_yardstick(self, tmp_path: Path) -> None:
        cells = write_sample(tmp_path / "results", ALL_GOOD)
        for path in cells[:2]:  # both precisions of the default mode
            change_cell(path, lambda content: content["environment"].update(foreign_cpu_share=0.9))
        report = read_report(cells, tmp_path / "results/comparisons.csv", SETTINGS)
        assert not any("and yet differed" in text for text in report.said)
        marks = {v.mark for s in report.sections for b in s.blocks if isinstance(b, Table) for r in b.rows for v in r}
        assert "≈" not in marks
        texts = list(texts_of(report))
        assert any(
            text.startswith("default/fp16 and chunked/fp16 resolved to the same configuration, but") for text in texts
        )
        assert any(text.startswith("No two cells of the same configuration may be compared") for text in texts)

    def test_modes_that_are_one_and_the_same_are_said_first(self, tmp_path: Path, six: Report) -> None:
        said = "default and chunked ran the same configuration: vLLM chunks prefill by default."
        assert six.said[1] == said
        other = report_of(tmp_path, replace(ALL_GOOD, modes=("unchunked", "default", "1p1d")))
        assert not any("by default" in text for text in other.said)

    def test_modes_that_are_the_same_in_one_precision_only_are_not_called_the_same(self, tmp_path: Path) -> None:
        cells = write_sample(tmp_path / "results", ALL_GOOD)
        change_cell(cells[3], lambda content: content["trials"][0]["launch"].update(identity="another"))
        report = read_report(cells, tmp_path / "results/comparisons.csv", SETTINGS)
        assert not any("ran the same configuration:" in text for text in report.said)

    def test_gpus_of_cells_that_had_different_numbers_are_named_once(self, tmp_path: Path) -> None:
        report = report_of(tmp_path, replace(ALL_GOOD, gpu=True))
        assert report.subtitle.endswith(" · up to 2 × NVIDIA H200 (141 GiB)")
        one = report_of(tmp_path, replace(ALL_GOOD, gpu=True, modes=("default",)))
        assert one.subtitle.endswith(" · 1 × NVIDIA H200 (141 GiB)")
        values = {row[0].text: row[1].text for row in table(report, "Hardware, software").rows}
        assert values["GPUs of a launch"].startswith("1 × NVIDIA H200")
        assert "GPUs of the host" not in values

    def test_all_failed_says_that_there_are_no_numbers(self, tmp_path: Path) -> None:
        report = report_of(tmp_path, Sample(failed=EVERY_CELL))
        assert "Of 6 cells: 6 failed." in report.said
        assert any(text.startswith("No cell gave numbers") for text in report.said)
        assert not any("Observed" in text for text in report.said)


class TestMetricTables:
    def test_every_cell_has_a_row_and_failed_ones_only_dashes(self, six: Report) -> None:
        rows = rows_by_label(table(six, "TTFT in"))
        assert list(rows) == ["default/fp16", "default/fp8", "chunked/fp16", "chunked/fp8", "1p1d/fp16", "1p1d/fp8"]
        assert rows["1p1d/fp8"][2].text == "2 cores"
        assert {value.text for value in rows["1p1d/fp8"][3:]} == {"–"}
        assert rows["1p1d/fp8"][1].mark == "‡"
        assert rows["chunked/fp8"][1].mark == "†"

    def test_values_are_in_ms_with_n_and_the_difference_to_the_base(self, tmp_path: Path) -> None:
        results = results_of(tmp_path)
        cell = next(c for c in results.cells if c.name == "1p1d/fp16")
        effect = results.effect("baseline", cell, 0, "ttft", "mean")
        assert effect and effect.ratio
        found = table(
            read_report(
                [c.folder / "cell.json" for c in results.cells], tmp_path / "results/comparisons.csv", SETTINGS
            ),
            "TTFT in",
        )
        row = rows_by_label(found)["1p1d/fp16"]
        assert float(row[3].text) == pytest.approx(1e3 * (cell.value(0, "ttft", "mean") or 0), rel=5e-3)
        assert row[3].under == f"+{(effect.ratio - 1) * 100:.1f}%"
        assert row[7].text == "40"
        assert rows_by_label(found)["default/fp16"][3].under == "base"

    def test_percentiles_that_the_sample_cannot_carry_are_marked_and_never_best(
        self, tmp_path: Path, six: Report
    ) -> None:
        few = table(six, "TTFT in")
        p99 = [i for i, column in enumerate(few.columns) if column.title == "p99"]
        shown = [row[i] for row in few.rows for i in p99 if row[i].text != "–"]
        assert {value.mark for value in shown} == {"*"}
        assert not any(value.best for value in shown)
        assert any(note.startswith("*") for note in few.notes)
        many = table(report_of(tmp_path, replace(ALL_GOOD, requests=100)), "TTFT in")
        assert {row[i].mark for row in many.rows for i in p99} == {""}
        assert not any(note.startswith("*") for note in many.notes)

    def test_best_is_marked_where_the_lead_is_larger_than_noise(self, tmp_path: Path) -> None:
        rows = rows_by_label(table(report_of(tmp_path, replace(ALL_GOOD, launches=2)), "TPOT in"))
        mean = 3
        best = [name for name, row in rows.items() if row[mean].best]
        lowest = min(rows, key=lambda name: float(rows[name][mean].text))
        assert best == [lowest]

    def test_each_amount_of_hardware_has_its_own_best(self, tmp_path: Path) -> None:
        sample = replace(ALL_GOOD, gpu=True, modes=("default", "1p1d"), launches=2)
        report = report_of(tmp_path, sample)
        rows = rows_by_label(table(report, "TPOT in"))
        for amount in ("1 GPU", "2 GPUs"):
            values = {name: float(row[3].text) for name, row in rows.items() if row[2].text == amount}
            assert [name for name in values if rows[name][3].best] == [min(values, key=lambda name: values[name])]
        assert any("among cells on equal hardware" in text for text in texts_of(report))

    def test_nothing_is_best_beside_a_cell_in_doubt(self, six: Report) -> None:
        assert not any(value.best for row in rows_by_label(table(six, "TTFT in")).values() for value in row)

    def test_throughput_is_shown_per_gpu_too(self, tmp_path: Path) -> None:
        row = rows_by_label(table(report_of(tmp_path, replace(ALL_GOOD, gpu=True)), "Throughput"))["1p1d/fp16"]
        assert row[2].text == "2 GPUs"
        assert float(row[4].text) == pytest.approx(float(row[3].text) / 2, rel=0.01)

    def test_a_comparison_that_was_refused_leaves_no_difference_and_no_best(self, tmp_path: Path) -> None:
        cells = write_sample(tmp_path / "results", ALL_GOOD)
        path = tmp_path / "results/comparisons.csv"
        change_comparisons(path, refuse("engine.vllm: 0.32 / 0.33"), mode="1p1d", dtype="fp16", base_mode="default")
        report = read_report(cells, path, SETTINGS)
        row = rows_by_label(table(report, "TTFT in"))["1p1d/fp16"]
        assert row[3].text != "–"
        assert {value.under for value in row} == {""}
        assert not any(value.best for value in row)
        refused = [text for s in report.sections for b in s.blocks if isinstance(b, Bullets) for text in b.items]
        assert any(
            text == "Not compared: 1p1d/fp16 with default/fp16, which differ in engine.vllm: 0.32 / 0.33"
            for text in refused
        )


def cell(name: str, identity: str | None, ttft: float | None, busy: float = 0.0, launches: int = 2) -> Cell:
    mode, dtype = name.split("/")
    metrics = {"ttft": {"mean": ttft, "n": 9}}
    content = {
        "workload": "w", "mode": mode, "dtype": dtype, "state": "valid",
        "label": name, "checks": [], "environment": {"foreign_cpu_share": busy}, "config": {},
        "trials": [{"repeat": 1, "state": "valid", "launch": {"identity": identity}, "checks": []}],
        "points": [{"point": 0, "metrics": metrics, "launches": launches, "repeats": [1], "per_launch": [metrics]}],
    }  # fmt: skip
    return Cell(Path(), content)


class TestBest:
    def names(self, *cells: Cell) -> list[str]:
        return sorted(c.name for c in best_cells(cells, 0, "ttft", "mean", higher=False))

    def test_one_value_is_never_best(self) -> None:
        assert self.names(cell("a/x", "1", 1.0), cell("b/x", "2", None)) == []

    def test_what_one_launch_has_shown_is_not_best_and_leaves_the_place_to_nobody(self) -> None:
        assert self.names(cell("a/x", "1", 1.0, launches=1), cell("b/x", "2", 1.5), cell("c/x", "3", 2.0)) == []
        assert self.names(cell("a/x", "1", 1.0), cell("b/x", "2", 1.5, launches=1)) == ["a/x"]

    def test_a_tie_has_no_best(self) -> None:
        assert self.names(cell("a/x", "1", 1.0), cell("b/x", "2", 1.0)) == []
        assert self.names(cell("a/x", "1", 0.1179), cell("b/x", "2", 0.1181)) == []  # both are shown as 118 ms

    def test_identical_cells_alone_have_no_best(self) -> None:
        assert self.names(cell("a/x", "1", 1.0), cell("b/x", "1", 2.0)) == []

    def test_a_lead_within_noise_is_none(self) -> None:
        assert self.names(cell("a/x", "1", 1.0), cell("b/x", "2", 1.04), cell("c/x", "2", 1.10)) == []

    def test_noise_of_cells_that_could_not_be_compared_counts_too(self) -> None:
        compared = [cell("a/x", "1", 1.0), cell("b/x", "2", 1.5)]
        measured = [*compared, cell("c/x", "1", 4.0)]
        assert best_cells(compared, 0, "ttft", "mean", higher=False) == {compared[0]}
        assert best_cells(compared, 0, "ttft", "mean", higher=False, measured=measured) == set()

    def test_identical_cells_that_may_not_be_compared_are_no_yardstick(self) -> None:
        idle, busy = cell("a/x", "1", 1.0), cell("b/x", "1", 4.93, busy=0.5)
        assert yardstick_groups([idle, busy]) == []
        assert [reason for *_, reason in refused_twins([idle, busy])] == ["not comparable: host load: idle / busy"]
        again = cell("c/x", "1", 5.0, busy=0.5)
        assert yardstick_groups([idle, busy, again]) == [[busy, again]]
        size = noise(yardstick_groups([idle, busy, again]), 0, "ttft", "mean")
        assert size == pytest.approx(5.0 / 4.93 - 1)
        rival = cell("d/x", "2", 1.5)
        assert best_cells([idle, rival], 0, "ttft", "mean", higher=False, measured=[idle, busy, rival]) == {idle}

    def test_all_identical_winners_are_best_together(self) -> None:
        assert self.names(cell("a/x", "1", 1.0), cell("b/x", "1", 1.01), cell("c/x", "2", 1.5)) == ["a/x", "b/x"]

    def test_unknown_identity_is_identical_to_nothing(self) -> None:
        assert self.names(cell("a/x", None, 1.0), cell("b/x", None, 1.5)) == ["a/x"]


def test_no_check_of_a_failed_launch_is_said_to_have_passed(tmp_path: Path) -> None:
    cells = write_sample(tmp_path / "results", Sample(suspect=frozenset()))

    def passed(content: dict[str, Any]) -> None:
        for trial in content["trials"]:
            if not trial["failure"]:
                trial["checks"] = [check for check in trial["checks"] if check["state"] == "passed"]

    for path in cells:
        change_cell(path, passed)
    said = section_text(read_report(cells, tmp_path / "results/comparisons.csv", SETTINGS), "Checks that did not pass")
    assert "Every check passed in the launches that came to their end, 5 of 6; those that failed" in said
    good = write_sample(tmp_path / "good", ALL_GOOD)
    for path in good:
        change_cell(path, passed)
    said = section_text(read_report(good, tmp_path / "good/comparisons.csv", SETTINGS), "Checks that did not pass")
    assert "Every check of every launch passed." in said


class TestEffects:
    def test_pd_stands_beside_its_hardware(self, tmp_path: Path) -> None:
        report = report_of(tmp_path, replace(ALL_GOOD, gpu=True, modes=("default", "2x", "1p1d")))
        row = table(report, "Disaggregated modes against the default").rows[0]
        assert [value.text for value in row[:4]] == ["c = 2", "1p1d/fp16", "default/fp16", "2 GPUs against 1 GPU"]
        fair = table(report, "Disaggregated modes against replicas").rows[0]
        assert [value.text for value in fair[1:4]] == ["1p1d/fp16", "2x/fp16", "2 GPUs each"]

    def test_where_every_comparison_was_refused_only_their_own_reasons_are_given(self, tmp_path: Path) -> None:
        cells = write_sample(tmp_path / "results", ALL_GOOD)
        path = tmp_path / "results/comparisons.csv"
        change_comparisons(path, refuse("host load: busy / idle"), factor="dtype")
        report = read_report(cells, path, SETTINGS)
        section = next(each for each in report.sections if each.title == "KV-cache precision within each mode")
        paragraph, bullets = section.blocks
        assert paragraph == Paragraph("None of these comparisons could be made:")
        assert isinstance(bullets, Bullets) and len(bullets.items) == 3
        assert all("busy / idle" in text for text in bullets.items)

    def test_differences_within_noise_are_marked(self, six: Report) -> None:
        rows = table(six, "Other modes").rows
        assert "≈" in rows[0][4].mark + rows[1][4].mark

    def test_interval_and_verdict_stand_under_the_change(self, tmp_path: Path) -> None:
        report = report_of(tmp_path, replace(ALL_GOOD, launches=3, requests=120))
        value = table(report, "Disaggregated modes against the default").rows[0][4]
        assert re.fullmatch(r"\[\+\d+\.\d, \+\d+\.\d\]\nhigher", value.under)

    def test_one_launch_shows_no_verdict(self, six: Report) -> None:
        found = table(six, "KV-cache precision against")
        assert {value.under for row in found.rows for value in row} == {""}

    def test_what_is_missing_is_said(self, tmp_path: Path, six: Report) -> None:
        assert "no replicas on as much hardware" in section_text(six, "Disaggregation against the default")
        alone = report_of(
            tmp_path, Sample(modes=("default",), dtypes=("fp16",), failed=frozenset(), suspect=frozenset())
        )
        assert "Only one mode was measured: default." in section_text(alone, "Disaggregation against the default")
        assert "Only one precision was measured: fp16." in section_text(alone, "KV-cache precision within each mode")
        both = report_of(tmp_path, replace(ALL_GOOD, modes=("default", "chunked"), dtypes=("fp16",)))
        assert "No disaggregated mode is part of this study." in section_text(
            both, "Disaggregation against the default"
        )
        assert not any("usable launch" in text for report in (alone, both) for text in texts_of(report))
        assert not tables(alone, "Disaggregated")


def change_comparisons(path: Path, change: Any, **where: str) -> None:
    """Let ``change`` alter the rows of comparisons.csv that have these values."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    found = [row for row in rows if all(row[key] == value for key, value in where.items())]
    assert found
    for row in found:
        change(row)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def refuse(what: str) -> Callable[[dict[str, str]], None]:
    nothing = dict.fromkeys(("ratio", "ci_low", "ci_high", "verdict"), "")
    return lambda row: row.update(nothing, note=f"not comparable: {what}")


def as_endpoint(content: dict[str, Any]) -> None:
    content["config"]["mode"]["endpoint"] = "http://127.0.0.1:1"
    content["config"].setdefault("engine", {}).update(kind="vllm", token_budget=2048)


class TestTruthOfWords:
    def test_the_margin_is_that_of_the_study_and_holm_is_claimed_for_its_family_only(self, tmp_path: Path) -> None:
        report = report_of(tmp_path, replace(ALL_GOOD, launches=3), replace(SETTINGS, margin=0.075))
        notes = " ".join(table(report, "Disaggregated modes against the default").notes)
        assert "whole interval of the ratio lies between 1/1.075 and 1.075" in notes
        assert "±2%" not in " ".join(texts_of(report))
        assert "of one workload in one kind of comparison, metric and statistic" in notes

    def test_one_launch_has_no_word_on_verdicts_or_means_of_ratios(self, six: Report) -> None:
        notes = " ".join(note for each in tables(six, "") for note in each.notes)
        assert "Holm" not in notes
        assert "geometric mean" not in notes

    def test_several_launches_say_what_a_difference_is(self, tmp_path: Path) -> None:
        report = report_of(tmp_path, replace(ALL_GOOD, launches=2))
        for start in ("TTFT in", "Throughput", "Disaggregated modes"):
            assert any("geometric mean" in note for note in table(report, start).notes)

    def test_two_launches_give_no_intervals_and_no_verdicts(self, tmp_path: Path) -> None:
        report = report_of(tmp_path / "a", replace(ALL_GOOD, launches=2))
        assert any(text.startswith("Fewer than three launches of each cell: no intervals") for text in report.untold)
        cells = write_sample(tmp_path / "b", replace(ALL_GOOD, launches=3))

        def leave_one_out(content: dict[str, Any]) -> None:
            point = content["points"][0]
            point.update(launches=2, repeats=[1, 2], per_launch=point["per_launch"][:2])

        change_cell(cells[1], leave_one_out)
        mixed = read_report(cells, tmp_path / "b/comparisons.csv", SETTINGS)
        assert any(text.startswith("Fewer than three launches of default/fp8: no") for text in mixed.untold)

    def test_checks_that_were_not_passed_are_named_cell_by_cell_and_are_no_praise(self, tmp_path: Path) -> None:
        cells = write_sample(tmp_path, ALL_GOOD)

        def not_passed(*names: str) -> Callable[[dict[str, Any]], None]:
            def change(content: dict[str, Any]) -> None:
                content["state"] = content["trials"][0]["state"] = "suspect"
                content["trials"][0]["checks"] += [{"name": name, "state": "suspect"} for name in names]

            return change

        change_cell(cells[0], not_passed("warmup settled", "steady state"))
        change_cell(cells[1], not_passed("steady state"))
        change_cell(cells[3], not_passed("steady state"))
        said = read_report(cells, tmp_path / "comparisons.csv", SETTINGS).untold
        assert (
            "Numbers in doubt: default/fp16 (checks not passed: “warmup settled”, “steady state”); "
            "default/fp8 and chunked/fp8 (checks not passed: “steady state”)."
        ) in said
        said = read_report(cells, tmp_path / "comparisons.csv", replace(SETTINGS, language="zh")).untold
        assert (
            "数据存疑：default/fp16（未通过的检查：“预热已稳定”、“处于稳态”）；"
            "default/fp8 与 chunked/fp8（未通过的检查：“处于稳态”）。"
        ) in said

    def test_a_cell_in_doubt_for_a_launch_that_failed_says_so(self, tmp_path: Path) -> None:
        cells = write_sample(tmp_path, replace(ALL_GOOD, launches=3))

        def fail_one(content: dict[str, Any]) -> None:
            content["trials"][2].update(state="failed", checks=[], failure={"stage": "launch", "reason": "x"})
            content["state"] = "suspect"

        change_cell(cells[1], fail_one)
        said = read_report(cells, tmp_path / "comparisons.csv", SETTINGS).untold
        assert "Numbers in doubt: default/fp8 (a launch failed)." in said

    def test_a_base_without_numbers_is_said_with_the_way_out(self, tmp_path: Path) -> None:
        gone = report_of(tmp_path / "a", replace(ALL_GOOD, failed=frozenset({("default", "fp16")})))
        (said,) = [text for text in gone.said if "report.baseline" in text]
        assert said.startswith("default/fp16, the cell that the others are held against, has no usable launch in short")
        assert not any("report.baseline" in text for text in report_of(tmp_path / "b", ALL_GOOD).said)

    def test_launches_side_by_side_are_told_apart_from_those_alone(self, tmp_path: Path) -> None:
        cells = write_sample(tmp_path, replace(ALL_GOOD, launches=2))
        told = "side by side"
        assert not any(told in text for text in read_report(cells, tmp_path / "comparisons.csv", SETTINGS).untold)
        for cell in cells[:2]:
            change_cell(cell, lambda content: content["trials"][1].update(beside=["short/other/fp16/r1"]))
        some = read_report(cells, tmp_path / "comparisons.csv", SETTINGS).untold
        (line,) = [text for text in some if told in text]
        assert line.startswith(
            "Launches of default/fp16 and default/fp8, all or some of them, ran side by side with others"
        )
        assert "those of chunked/fp16, chunked/fp8, 1p1d/fp16 and 1p1d/fp8 did not" in line
        for cell in cells[2:]:
            change_cell(cell, lambda content: content["trials"][0].update(beside=["short/other/fp16/r1"]))
        more = write_sample(tmp_path / "more", replace(ALL_GOOD, workload="long", modes=("default",)))
        both = read_report([*cells[:4], *more], tmp_path / "comparisons.csv", SETTINGS).untold
        assert any("those of long/default/fp16 and long/default/fp8 did not" in text for text in both)
        every = read_report(cells, tmp_path / "comparisons.csv", SETTINGS).untold
        assert any(text.startswith("Launches ran side by side on the same host") for text in every)

    def test_gpus_at_their_power_limit_are_told(self, tmp_path: Path) -> None:
        cells = write_sample(tmp_path, replace(ALL_GOOD, gpu=True))
        limit = "stood at their power limit for half of the load or more"

        def told() -> list[str]:
            return [text for text in read_report(cells, tmp_path / "comparisons.csv", SETTINGS).untold if limit in text]

        assert not told()
        for cell in cells[4:]:
            change_cell(
                cell,
                lambda content: [
                    phase.update(power_limited_share=0.5)
                    for phase in content["trials"][0]["trace"]["phases"]
                    if (phase["role"], phase["stage"], phase["point"]) == ("prefill", "load", None)
                ],
            )
        (line,) = told()
        assert line.startswith("GPUs of 1p1d/fp16 and 1p1d/fp8 stood")
        shown = table(read_report(cells, tmp_path / "comparisons.csv", SETTINGS), "Activity by role")
        titles = [column.title for column in shown.columns]
        column = titles.index("At power limit")
        assert [row[column].text for row in shown.rows if row[1].text == "prefill"] == ["50%", "50%"]
        assert {row[titles.index("SM clock, mean")].text for row in shown.rows} == {"1,755 MHz"}

    def test_no_best_where_the_ratios_put_another_cell_ahead(self, tmp_path: Path) -> None:
        cells = write_sample(tmp_path, replace(ALL_GOOD, launches=2))
        mean = 3

        def best() -> list[str]:
            rows = rows_by_label(table(read_report(cells, tmp_path / "comparisons.csv", SETTINGS), "TPOT in"))
            return [name for name, row in rows.items() if row[mean].best]

        assert best() == ["1p1d/fp16"]
        where = {"factor": "baseline", "metric": "tpot", "stat": "mean", "mode": "1p1d", "dtype": "fp16"}
        change_comparisons(tmp_path / "comparisons.csv", lambda row: row.update(ratio="1.01"), **where)
        assert best() == []

    def test_effects_that_rest_on_a_suspect_cell_are_marked(self, six: Report) -> None:
        found = table(six, "KV-cache precision against fp16")
        marks = {row[1].text: {"†" in value.mark for value in row[4:]} for row in found.rows}
        assert marks == {"default/fp8": {False}, "chunked/fp8": {True}}
        assert any(note.startswith("† one of the two cells is suspect") for note in found.notes)

    def test_observations_of_the_summary_name_the_suspect(self, tmp_path: Path) -> None:
        report = report_of(tmp_path, replace(ALL_GOOD, suspect=frozenset({("1p1d", "fp16"), ("1p1d", "fp8")})))
        assert any(re.search(r"Observed at .*mean TTFT .*\(1p1d/fp\d+ \(suspect\)\)", text) for text in report.said)

    def test_the_baseline_is_called_by_its_name(self, tmp_path: Path) -> None:
        sample = replace(ALL_GOOD, modes=("default", "mine"))
        report = report_of(tmp_path, sample, replace(SETTINGS, baseline=("mine", "fp16")))
        assert "Disaggregation against mine" in [section.title for section in report.sections]
        assert not any("the default mode" in text or "against the default" in text for text in texts_of(report))

    def test_no_launch_is_blamed_where_the_study_has_no_such_pair(self, tmp_path: Path) -> None:
        cells = write_sample(tmp_path, ALL_GOOD)
        path = tmp_path / "comparisons.csv"
        change_comparisons(path, lambda row: row.update(factor="elsewhere"), factor="mode")
        text = section_text(read_report(cells, path, SETTINGS), "Disaggregation against the default")
        assert "compared with the default mode: the study has no cell to set them against." in text
        assert "usable launch" not in text

    def test_servers_that_the_user_runs_are_not_described_as_launched(self, tmp_path: Path) -> None:
        cells = write_sample(tmp_path, replace(ALL_GOOD, load_format="dummy"))
        for path in cells:
            change_cell(path, as_endpoint)
        report = read_report(cells, tmp_path / "comparisons.csv", SETTINGS)
        facts = {row[0].text for row in table(report, "Hardware, software").rows}
        assert not facts & {"Token budget per step", "Load format", "Engine"}
        texts = " ".join(texts_of(report))
        for words in ("CPU cores: how modes", "Prefix caching is off", "random weights", "model dtype shown"):
            assert words not in texts

    def test_beside_launched_servers_those_of_the_user_are_named(self, tmp_path: Path) -> None:
        cells = write_sample(tmp_path, ALL_GOOD)
        for path in cells[:2]:
            change_cell(path, as_endpoint)
        report = read_report(cells, tmp_path / "comparisons.csv", SETTINGS)
        facts = {row[0].text: row[1].text for row in table(report, "Hardware, software").rows}
        assert "as the user runs it (default)" in facts["Load format"]
        assert any("in every mode that was launched" in note for note in table(report, "Deployment modes").notes)
        assert any("that were launched ran on CPU cores" in text for text in report.untold)


class TestDoubt:
    def test_where_all_cells_are_suspect_one_sentence_says_so_and_no_name_is_marked(self, tmp_path: Path) -> None:
        report = report_of(tmp_path, replace(ALL_GOOD, suspect=EVERY_CELL))
        (said,) = [text for text in report.untold if text.startswith("All numbers are in doubt")]
        assert said.startswith(
            "All numbers are in doubt, so that no sentence marks a cell: default/fp16, default/fp8, "
        )
        assert said.endswith(" (checks not passed: “foreign load”).")
        assert not [text for text in texts_of(report) if "(suspect)" in text]
        some = report_of(tmp_path / "some", replace(ALL_GOOD, suspect=EVERY_CELL - {("default", "fp16")}))
        assert any("(suspect)" in text for text in some.said)
        assert not any(text.startswith("All numbers are in doubt") for text in some.untold)


class TestFailures:
    def test_reason_attempt_and_remedy_of_a_failed_launch(self, six: Report) -> None:
        text = section_text(six, "1p1d/fp8 (short), launch 1")
        assert "Failed at launch, attempt 2: decode-0 ended before it was ready" in text
        assert "What to do: read the server's log" in text

    def test_launches_of_a_cell_that_failed_alike_are_told_once(self, tmp_path: Path) -> None:
        report = report_of(tmp_path, replace(ALL_GOOD, launches=3, failed=frozenset({("1p1d", "fp8")})))
        text = section_text(report, "1p1d/fp8 (short), launches 1, 2 and 3")
        assert text.count("Failed at launch") == text.count("What to do") == 1
        assert "The log ends in the same way in launches 1, 2 and 3; it is shown once." in text
        logs = [block for section in report.sections for block in section.blocks if isinstance(block, Excerpt)]
        assert sum("NIXL agent could not be created" in log.text for log in logs) == 1

    @pytest.mark.parametrize(
        ("excerpts", "titles"),
        [
            (("pid 12: no", "pid 345: no", "pid 6: no"), ["launches 1, 2 and 3"]),
            (("no", "other", "no"), ["launches 1 and 3", "launch 2"]),
        ],
    )
    def test_logs_are_alike_where_only_numbers_differ(
        self, tmp_path: Path, excerpts: tuple[str, ...], titles: list[str]
    ) -> None:
        def change(content: Any) -> None:
            for trial, excerpt in zip(content["trials"], excerpts, strict=True):
                trial["failure"]["excerpt"] = excerpt

        cells = write_sample(tmp_path, replace(ALL_GOOD, launches=3, failed=frozenset({("1p1d", "fp8")})))
        change_cell(cells[-1], change)
        report = read_report(cells, tmp_path / "comparisons.csv", SETTINGS)
        told = [section.title for section in report.sections if section.title.startswith("1p1d/fp8 (short)")]
        assert told == [f"1p1d/fp8 (short), {title}" for title in titles]
        if len(titles) == 1:
            text = section_text(report, told[0])
            assert "But for numbers, such as times and process ids, the log ends in the same way" in text
            assert "that of launch 1 is shown" in text

    def test_excerpt_is_literal_but_for_what_cannot_be_printed(self, six: Report) -> None:
        excerpt = next(b.text for s in six.sections for b in s.blocks if isinstance(b, Excerpt) and "fig1" in b.text)
        for line in ("see @fig1 #base cost $1", "C:\\new <frozen importlib>", "// gone", "| pipe | cell |", "1. first"):
            assert line in excerpt.split("\n")
        assert "x" * 300 + "… (4,700 more characters)" in excerpt
        assert "\x00" not in excerpt and "\x1b" not in excerpt and "[31m" not in excerpt

    def test_characters_without_a_glyph_are_escaped_in_excerpts(self, tmp_path: Path) -> None:
        report = report_of(tmp_path, Sample(excerpt="no 填 glyph"))
        assert any(isinstance(b, Excerpt) and b.text == "no \\u586b glyph" for s in report.sections for b in s.blocks)

    def test_checks_that_did_not_pass_are_listed_once(self, six: Report) -> None:
        rows = table(six, "Checks that").rows
        assert [row[1].text for row in rows] == ["suspect", "unknown"]
        assert rows[0][4].text == "chunked/fp8"
        assert rows[1][4].text == "all 5 launches that ran"


class TestOtherSections:
    def test_overhead_is_stated_against_its_limit(self, tmp_path: Path, six: Report) -> None:
        assert "3.6% of the wall time (15 s of 7 min 00 s), within the limit of 10%" in section_text(six, "Stage times")
        cells = write_sample(tmp_path / "results", ALL_GOOD)
        for path in cells:
            change_cell(path, lambda content: content["trials"][0]["stages"].update(overhead_s=20.0))
        slow = read_report(cells, tmp_path / "results/comparisons.csv", SETTINGS)
        assert "23.8% of the wall time" in section_text(slow, "Stage times")
        assert "beyond the limit" in section_text(slow, "Stage times")

    def test_capacity_and_resolved_settings_per_instance(self, six: Report) -> None:
        rows = rows_by_label(table(six, "KV-cache capacity"))
        assert rows["default/fp8/single"][2].text == "93,184"
        assert "1p1d/fp16/decode-0" in rows
        assert rows_by_label(table(six, "Settings as"))["default/fp8/single"][2].text == "fp8"

    def test_a_capacity_is_the_mean_of_the_launches_as_it_is_compared(self, tmp_path: Path) -> None:
        """Not that of the first launch: the change under it would be of another number."""
        cells = write_sample(tmp_path / "results", replace(ALL_GOOD, launches=3, gpu=True))

        def grown(content: dict[str, Any]) -> None:
            for trial, tokens in zip(content["trials"], (46_592, 50_000, 50_001), strict=True):
                for instance in trial["launch"]["instances"]:
                    instance["kv_cache_tokens"] = tokens

        change_cell(next(cell for cell in cells if "1p1d/fp16" in str(cell)), grown)
        comparisons = tmp_path / "comparisons.csv"
        compare(cells, ("default", "fp16"), comparisons)
        rows_found = csv.DictReader(comparisons.open(encoding="utf-8", newline=""))
        is_own = {"factor": "mode", "mode": "1p1d", "dtype": "fp16", "metric": "kv_cache_tokens"}
        stored = next(row for row in rows_found if is_own.items() <= row.items())
        report = read_report(cells, comparisons, SETTINGS)
        shown = rows_by_label(table(report, "KV-cache capacity"))["1p1d/fp16/decode-0"][2]
        assert shown.text == f"{float(stored['value']):,.0f}" == "48,864"
        assert shown.under == f"{100 * (float(stored['ratio']) - 1):+.1f}%"
        said = "can decode 24,432 tokens of KV cache, default/fp16 (1 GPU) 46,592: −47.6%."
        assert any(said in text for text in texts_of(report))

    def test_the_change_of_capacity_is_that_of_the_cell_and_stands_under_no_single_replica(
        self, tmp_path: Path
    ) -> None:
        cells = write_sample(tmp_path / "results", ALL_GOOD)
        path = tmp_path / "results/comparisons.csv"
        with path.open(encoding="utf-8", newline="") as file:
            rows_found = list(csv.DictReader(file))
        is_chunked = {"factor": "baseline", "mode": "chunked", "dtype": "fp16", "metric": "ttft", "stat": "mean"}
        one = next(row for row in rows_found if is_chunked.items() <= row.items())
        capacity = {**one, "concurrency": "", "metric": "kv_cache_tokens", "stat": "value", "ratio": "2.0"}
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(one))
            writer.writeheader()
            writer.writerows([*rows_found, capacity])

        def twice(content: dict[str, Any]) -> None:
            for trial in content["trials"]:
                (one,) = trial["launch"]["instances"]
                trial["launch"]["instances"] = [{**one, "name": f"replica-{n}"} for n in (0, 1)]

        change_cell(next(cell for cell in cells if "chunked/fp16" in str(cell)), twice)
        rows = rows_by_label(table(read_report(cells, path, SETTINGS), "KV-cache capacity"))
        replicas = [rows[f"chunked/fp16/replica-{n}"][2] for n in (0, 1)]
        both = rows["chunked/fp16/2 that decode, together"][2]
        assert [(value.text, value.under) for value in replicas] == [("46,592", "")] * 2
        assert (both.text, both.under) == ("93,184", "+100.0%")

    def test_events_with_several_tokens_are_told_beside_itl(self, tmp_path: Path) -> None:
        cells = write_sample(tmp_path / "results", ALL_GOOD)

        def merge(content: dict[str, Any], share: float) -> None:
            point = content["points"][0]
            events = point["metrics"]["itl"]["n"] + point["metrics"]["ttft"]["n"]
            point["multi_token_events"] = round(share * events)

        change_cell(cells[0], lambda content: merge(content, 0.25))
        change_cell(cells[1], lambda content: merge(content, 0.005))
        report = read_report(cells, tmp_path / "results/comparisons.csv", SETTINGS)
        (note,) = [note for note in table(report, "ITL in").notes if "several tokens" in note]
        assert "25.0% (default/fp16)" in note and "fp8" not in note
        assert not any("several tokens" in note for note in table(report, "TPOT in").notes)

    def test_trace_names_its_source_and_what_it_lacks(self, tmp_path: Path, six: Report) -> None:
        text = section_text(six, "Device traces")
        assert "the host's CPU accounting (psutil)" in text
        assert text.count("Not available") == 1
        assert text.endswith("(psutil): memory utilisation, power, energy, clock, throttling.")
        on_gpu = report_of(tmp_path, Sample(gpu=True))
        assert "psutil" not in section_text(on_gpu, "Device traces")
        assert "Not available" not in section_text(on_gpu, "Device traces")
        assert "NVML" in section_text(on_gpu, "Device traces")
        assert "only every 1 s" in section_text(on_gpu, "Device traces")
        assert "Each GPU was sampled every 0.05 s." in section_text(on_gpu, "Device traces")
        assert "0.1 s" not in section_text(on_gpu, "Device traces")
        assert "Each process was sampled every 0.1 s." in text and "Each GPU" not in text
        assert "Power, mean" in [column.title for column in table(on_gpu, "Activity").columns]
        assert "Power, mean" not in [column.title for column in table(six, "Activity").columns]

    def test_only_what_the_study_planned_can_lack_a_trace(self, tmp_path: Path) -> None:
        wide = write_sample(tmp_path / "wide", replace(ALL_GOOD, failed=frozenset({("1p1d", "fp16"), ("1p1d", "fp8")})))
        narrow = write_sample(tmp_path / "narrow", replace(ALL_GOOD, workload="long", modes=("default",)))
        report = read_report([*wide, *narrow], tmp_path / "wide/comparisons.csv", SETTINGS)
        text = section_text(report, "Device traces")
        assert "Mode 1p1d (short): no trace of a usable launch." in text
        assert "(long): no trace" not in text

    def test_what_a_gpu_lacks_is_said_with_its_reason(self, tmp_path: Path) -> None:
        cells = write_sample(tmp_path / "results", replace(ALL_GOOD, gpu=True))
        of_cores = {"devices": ["cpu0"], "fields": ["mem_util", "temp_c"], "reason": "cores have none"}
        of_gpu = {"devices": ["GPU-0"], "fields": ["power_w", "temp_c"], "reason": "Not Supported"}
        for path in cells:
            change_cell(path, lambda content: content["trials"][0]["trace"].update(missing=[of_cores, of_gpu]))
        report = read_report(cells, tmp_path / "results/comparisons.csv", SETTINGS)
        text = section_text(report, "Device traces")
        assert text.endswith("Not available from NVML (GPU counters): power (Not Supported).")

    def test_the_model_has_its_name_and_its_weights_are_told(self, six: Report) -> None:
        values = {row[0].text: row[1].text for row in table(six, "Hardware, software").rows}
        assert values["Model"] == "SmolLM2-135M-Instruct (bundled)"
        assert values["Load format"] == "auto (the model's own weights)"

    def test_the_command_names_what_was_replaced_so_that_snakemake_reads_it_again(self, tmp_path: Path) -> None:
        typed = [
            "repeats=3", "model=/models/my model", "report={language: both, margin: 0.05}", "modes=[default, 1p1d]",
            "cost=", "engine=it's", "title='5'", "flag=True", "text=true",
        ]  # fmt: skip
        overrides = parse_config(typed)
        report = report_of(tmp_path, settings=replace(SETTINGS, config="c.yaml", overrides=overrides))
        section = next(each for each in report.sections if each.title == "How to reproduce")
        (command,) = [block.text for block in section.blocks if isinstance(block, Excerpt)]
        words = shlex.split(command)
        assert words[4:7] == ["--configfile", "c.yaml", "--config"]
        assert parse_config(words[7:]) == overrides
        assert command.startswith("snakemake --cores 1 reports/summary.pdf --configfile c.yaml --config repeats=3 ")

    @pytest.mark.parametrize(
        ("config", "command"),
        [
            (None, "snakemake --cores 1 reports/summary.pdf"),
            ("config/config.yaml", "snakemake --cores 1 reports/summary.pdf"),
            ("config/smoke.yaml", "snakemake --cores 1 reports/summary.pdf --configfile config/smoke.yaml"),
            ("my study.yaml", "snakemake --cores 1 reports/summary.pdf --configfile 'my study.yaml'"),
        ],
    )
    def test_the_command_names_the_config(self, tmp_path: Path, config: str | None, command: str) -> None:
        report = report_of(tmp_path, settings=replace(SETTINGS, config=config))
        section = next(each for each in report.sections if each.title == "How to reproduce")
        assert [block.text for block in section.blocks if isinstance(block, Excerpt)] == [command]

    def test_gaps_between_launches_are_added_to_the_overhead(self, tmp_path: Path) -> None:
        cells = write_sample(tmp_path / "results", ALL_GOOD)
        paths = [path.parent / "r1" / "stages.json" for path in cells]
        # 6 launches of 84 s, 6 s apart, the last on another day.
        starts = [90.0 * number for number in range(5)] + [90_000.0]
        for path, start_s in zip(paths, starts, strict=True):
            clocks = {"monotonic_s": 1000.0, "unix_s": 5000.0 + start_s}
            write_json(path, "stages/1", {"clock": clocks, "wall": {"start_s": 1000.0, "end_s": 1084.0}})
        text = section_text(read_report(cells, tmp_path / "results/comparisons.csv", SETTINGS), "Stage times")
        assert "24 s in 4 of them" in text
        assert "With them, 8.0% of 8 min 48 s went neither" in text  # (6 x 3 + 24) / (6 x 84 + 24)
        clocks = {"monotonic_s": 1000.0, "unix_s": 5040.0}  # beside the first
        write_json(paths[5], "stages/1", {"clock": clocks, "wall": {"start_s": 1000.0, "end_s": 1084.0}})
        text = section_text(read_report(cells, tmp_path / "results/comparisons.csv", SETTINGS), "Stage times")
        assert "side by side" in text
        assert "With them" not in text

    def test_figures_of_cells_without_data_are_replaced_by_a_sentence(self, tmp_path: Path) -> None:
        report = report_of(tmp_path, Sample(failed=EVERY_CELL))
        assert not [b for s in report.sections for b in s.blocks if isinstance(b, Figure)]
        assert "No device trace" in section_text(report, "Device traces")
        assert section_text(report, "Checks that did not pass").startswith("No launch ran to its end")
        assert "No server came far enough" in section_text(report, "What the servers resolved, and KV capacity")

    def test_facts_that_differ_between_cells_carry_their_cells(self, tmp_path: Path) -> None:
        cells = write_sample(tmp_path / "results", ALL_GOOD)
        change_cell(cells[0], lambda content: content["environment"]["engine"].update(vllm="0.33.0"))
        report = read_report(cells, tmp_path / "results/comparisons.csv", SETTINGS)
        values = {row[0].text: row[1].text for row in table(report, "Hardware, software").rows}
        assert values["vLLM"] == "0.33.0 (default/fp16); 0.32.0 (default/fp8, chunked, 1p1d)"
        assert values["PyTorch"] == "2.13.0"

    def test_a_cell_that_did_not_record_a_fact_is_not_said_to_share_it(self, tmp_path: Path) -> None:
        cells = write_sample(tmp_path / "results", ALL_GOOD)
        for path in cells[:2]:  # measured before launches recorded their measuring code
            change_cell(path, lambda content: content["environment"].pop("source", None))
        for path in cells[2:-1]:
            change_cell(path, lambda content: content["environment"].update(source="51b8446b"))
        change_cell(cells[-1], lambda content: content.update(environment={}))  # came to no record of anything
        report = read_report(cells, tmp_path / "results/comparisons.csv", SETTINGS)
        values = {row[0].text: row[1].text for row in table(report, "Hardware, software").rows}
        assert values["Digest of pdkv's measuring code"] == "not recorded (default); 51b8446b (chunked, 1p1d/fp16)"
        assert "not recorded" not in values["Host cores"]

    def test_variables_of_the_shell_that_differ_are_told_and_no_others(self, tmp_path: Path) -> None:
        cells = write_sample(tmp_path / "results", ALL_GOOD)
        recorded: dict[int, dict[str, str | None]] = {1: {"TORCH_X": "1"}}  # none of the first: nobody did then
        for number in (2, 3, 4, 5):  # the plan of the last two sets UCX_TLS
            recorded[number] = {"TORCH_X": "1", "NCCL_ALGO": "Ring", "UCX_TLS": "tcp" if number < 4 else None}
        for number, mine in recorded.items():
            change_cell(cells[number], lambda content, mine=mine: content["environment"].update(inherited=mine))
        report = read_report(cells, tmp_path / "results/comparisons.csv", SETTINGS)
        values = {row[0].text: row[1].text for row in table(report, "Hardware, software").rows}
        assert values["NCCL_ALGO (from the shell)"] == "not set (default/fp8); Ring (chunked, 1p1d)"
        assert values["UCX_TLS (from the shell)"] == "not set (default/fp8); tcp (chunked)"
        assert not [name for name in values if "TORCH" in name]

    def test_wide_studies_keep_all_cells(self, tmp_path: Path) -> None:
        sample = Sample(
            modes=("default", "chunked", "unchunked", "2x", "1p1d"), dtypes=("bf16", "fp8", "fp8_e4m3", "fp8_e5m2"),
            concurrencies=(2, 16, 64), requests=3, gpu=True, failed=frozenset(), suspect=frozenset(),
        )  # fmt: skip
        report = report_of(tmp_path, sample, replace(SETTINGS, baseline=("default", "bf16")))
        found = tables(report, "TTFT in")
        assert [len(each.rows) for each in found] == [60]


class TestExtremes:
    def test_tiny_huge_zero_and_missing_values(self, tmp_path: Path) -> None:
        cells = write_sample(tmp_path / "results", ALL_GOOD)

        def extremes(content: dict[str, Any]) -> None:
            metrics = content["points"][0]["metrics"]
            metrics["ttft"]["mean"] = 3.2e-7
            metrics["itl"]["mean"] = 0
            metrics["e2el"].update(mean=None, std=None)
            metrics["output_throughput"]["value"] = 8.4e6

        change_cell(cells[0], extremes)
        report = read_report(cells, tmp_path / "results/comparisons.csv", SETTINGS)
        latency = rows_by_label(table(report, "TTFT in"))["default/fp16"]
        assert latency[3].text == "< 0.001"
        assert rows_by_label(table(report, "ITL in"))["default/fp16"][3].text == "0"
        assert rows_by_label(table(report, "E2EL in"))["default/fp16"][3].text == "–"
        assert rows_by_label(table(report, "Throughput"))["default/fp16"][3].text == "8.40 M"
        assert not any(re.search(r"\b(nan|inf|None)\b", text) for text in texts_of(report))

    def test_one_token_of_one_request_leaves_dashes_and_marks_nothing(self, tmp_path: Path) -> None:
        sample = Sample(
            modes=("default",), dtypes=("fp16",), requests=1, outputs=1, failed=frozenset(), suspect=frozenset()
        )
        report = report_of(tmp_path, sample)
        row = rows_by_label(table(report, "TTFT in"))["default/fp16"]
        assert row[7].text == "1"
        tpot = rows_by_label(table(report, "TPOT in"))["default/fp16"]
        assert [value.text for value in tpot[3:]] == ["–"] * 5
        assert not any(
            value.best
            for section in report.sections
            for block in section.blocks
            if isinstance(block, Table)
            for r in block.rows
            for value in r
        )


class TestSettings:
    def test_the_config_comes_with_them(self) -> None:
        text = '{"title": "T", "language": "en", "baseline": {"mode": "a", "dtype": "b"}, "config": "c.yaml"}'
        assert ReportSettings.from_json(text).config == "c.yaml"
        assert ReportSettings.from_json(text).overrides == {}
        replaced = json.dumps({**json.loads(text), "overrides": {"repeats": 3}})
        assert ReportSettings.from_json(replaced).overrides == {"repeats": 3}

    def test_round_trip(self) -> None:
        text = '{"title": "T", "language": "en", "baseline": {"mode": "default", "dtype": "fp16"}}'
        assert ReportSettings.from_json(text) == ReportSettings("T", "en", ("default", "fp16"))

    @pytest.mark.parametrize("text", ["", "{}", "[]", '{"title": "T", "language": "en"}'])
    def test_bad_settings_are_a_message(self, text: str) -> None:
        with pytest.raises(UserError, match="settings"):
            ReportSettings.from_json(text)

    def test_unknown_language_names_the_known_ones(self) -> None:
        with pytest.raises(UserError) as raised:
            Wording("xx")
        assert "en" in raised.value.remedy

    def test_missing_files_are_a_message(self, tmp_path: Path) -> None:
        cells = write_sample(tmp_path / "results")
        with pytest.raises(UserError, match=r"nowhere\.csv"):
            read_report(cells, tmp_path / "nowhere.csv", SETTINGS)
        with pytest.raises(UserError, match="no cell"):
            read_report([], tmp_path / "results/comparisons.csv", SETTINGS)


def test_every_text_that_the_source_asks_for_is_there() -> None:
    known = Wording("en")
    asked = {
        key
        for path in wings.SOURCE.rglob("*.py")
        for key in re.findall(r"""\bsay\(\s*"([a-z_0-9.]+)\"""", path.read_text(encoding="utf-8"))
    }
    assert len(asked) > 80
    assert not sorted(key for key in asked if not known.has(key))
