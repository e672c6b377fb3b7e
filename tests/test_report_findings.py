"""Findings and recommendations in words: nothing is said that a verdict does not carry, and every verdict is said."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sample_results import Sample, write_sample

from pdkv.analysing.objective_places import Outcome, PlacedCell, outcomes_of
from pdkv.analysing.objectives import rank_objectives
from pdkv.analysing.study_results import Cell, Effect, StudyResults
from pdkv.reporting.report_blocks import Bullets, Report, Table
from pdkv.reporting.report_effects import TOLD
from pdkv.reporting.report_metrics import NUMBERS, tell_findings
from pdkv.reporting.report_model import ReportSettings, read_report, texts_of
from pdkv.reporting.report_pairs import tell_interactions, tell_pairs
from pdkv.reporting.report_recommendations import describe_conclusion, say_what_is_recommended
from pdkv.reporting.wording import Wording

SAY = Wording("en")
BASE = ("default", "fp16")
POINTS = [{"arrival": "closed", "concurrency": c, "rate": None} for c in (2, 64)]
GOOD = frozenset[tuple[str, str]]()
VERDICT_WORDS = (
    "lower in",
    "higher in",
    "equivalent",
    "is best",
    "equally good",
    "cannot be told in",
    "cannot be told w",
    "shown worse",
)


def cell(mode: str, dtype: str = "fp16", *, state: str = "valid", gpus: int = 1, identity: str = "") -> Cell:
    metrics = {"ttft": {"mean": 0.1, "p99": 0.2, "n": 400}}
    content = {
        "workload": "w", "mode": mode, "dtype": dtype, "state": state, "gpus": gpus,
        "config": {"workload": {"points": POINTS}, "mode": {"prefill": int(mode == "1p1d")}},
        "trials": [{"repeat": 1, "state": state, "launch": {"identity": identity or f"{mode}-{dtype}"}}],
        "points": [{**point, "point": i, "state": state, "metrics": metrics} for i, point in enumerate(POINTS)],
    }  # fmt: skip
    return Cell(Path(), content)


def effect(mode: str, dtype: str = "fp16", base: tuple[str, str] = BASE, **changes: Any) -> Effect:
    row = {
        "workload": "w", "concurrency": "2", "metric": "ttft", "stat": "mean", "factor": "baseline", "mode": mode,
        "dtype": dtype, "base_mode": base[0], "base_dtype": base[1], "ratio": "1.1", "ci_low": "1.05",
        "ci_high": "1.15", "verdict": "higher", "launches": "3", "base_launches": "3", "more_repeats": "", "note": "",
        **changes,
    }  # fmt: skip
    return Effect(row)


LOWER = {"ratio": "0.9", "ci_low": "0.85", "ci_high": "0.95", "verdict": "lower"}
SAME = {"ratio": "1.001", "ci_low": "0.99", "ci_high": "1.01", "verdict": "equivalent"}
OPEN = {"ratio": "1.1", "ci_low": "0.9", "ci_high": "1.3", "verdict": "cannot tell", "more_repeats": "4"}
HOPELESS = {**OPEN, "more_repeats": ">47"}
ONE_LAUNCH = {"ci_low": "", "ci_high": "", "verdict": "not decided: one launch", "launches": "1", "base_launches": "1"}
FEW_FOR_P99 = {"stat": "p99", "ci_low": "", "ci_high": "", "verdict": "cannot tell", "more_repeats": "2"}
WEAK = {"stat": "p99", "ci_low": "", "ci_high": "", "verdict": "cannot tell", "launches": "5", "base_launches": "5"}
REFUSED = {"ratio": "", "ci_low": "", "ci_high": "", "verdict": "", "note": "not comparable: host load: busy / idle"}


def findings(*effects: Effect, cells: Sequence[Cell] = (), metric: str = "ttft", margin: float = 0.02) -> list[str]:
    known = cells or [cell("default"), cell("chunked"), cell("1p1d", gpus=2)]
    return tell_findings(StudyResults(known, effects), NUMBERS[metric], BASE, margin, SAY)


class TestMetricSentences:
    def test_lower_higher_and_equivalent_are_one_sentence_with_intervals_and_loads(self) -> None:
        cells = [cell(mode) for mode in ("default", "a", "b", "c")]
        (said,) = findings(effect("a", **LOWER), effect("b"), effect("c", **SAME), cells=cells)
        assert said == (
            "Against default/fp16, mean TTFT is lower in a/fp16 (−10.0% [−15.0, −5.0] at c = 2); "
            "higher in b/fp16 (+10.0% [+5.0, +15.0] at c = 2); equivalent within ±2% in c/fp16 (c = 2)."
        )

    def test_the_margin_is_that_of_the_study(self) -> None:
        assert "within ±7.5%" in findings(effect("chunked", **SAME), margin=0.075)[0]

    def test_load_levels_of_one_verdict_are_told_together_and_no_interval_is_narrowed(self) -> None:
        stronger = {"concurrency": "64", "ratio": "1.3", "ci_low": "1.2", "ci_high": "1.4"}
        (said,) = findings(effect("chunked"), effect("chunked", **stronger))
        assert "chunked/fp16 (+10.0% to +30.0% [+5.0, +40.0] at c = 2, c = 64)" in said

    def test_a_verdict_that_turns_around_with_the_load_is_told_for_each_load(self) -> None:
        (said,) = findings(effect("chunked"), effect("chunked", concurrency="64", **LOWER))
        assert "lower in chunked/fp16 (−10.0% [−15.0, −5.0] at c = 64)" in said
        assert "higher in chunked/fp16 (+10.0% [+5.0, +15.0] at c = 2)" in said

    def test_what_stays_open_says_how_many_repeats_more(self) -> None:
        assert findings(effect("chunked", **OPEN)) == [
            "It cannot be told whether there is a difference in mean TTFT of chunked/fp16 (c = 2): "
            "about 4 more repeats would likely decide."
        ]
        assert "more than 47 more repeats would be needed" in findings(effect("chunked", **HOPELESS))[0]
        both = findings(effect("chunked", **OPEN), effect("chunked", concurrency="64", **HOPELESS))[0]
        assert "from 4 to more than 47 more repeats would likely decide" in both
        assert "about 1 more repeat would" in findings(effect("chunked", **{**OPEN, "more_repeats": "1"}))[0]

    def test_a_p99_for_which_launches_or_values_are_too_few_has_no_verdict(self) -> None:
        (few,) = findings(effect("chunked", **FEW_FOR_P99))
        assert few == "No verdict on p99 TTFT: a p99 wants 5 launches of each cell, 2 more than there are."
        (weak,) = findings(effect("chunked", **WEAK))
        assert weak.startswith("No verdict on p99 TTFT: the values of one launch are too few")

    def test_one_launch_is_told_as_an_observation_without_a_word_of_verdict(self) -> None:
        observed = findings(effect("chunked", **ONE_LAUNCH), effect("1p1d", **ONE_LAUNCH))
        assert observed and all(text.startswith("Observed at concurrency") for text in observed)
        assert not [word for word in VERDICT_WORDS if any(word in text for text in observed)]

    def test_beside_decided_cells_those_with_too_few_launches_are_only_named(self) -> None:
        said = findings(effect("chunked"), effect("1p1d", **ONE_LAUNCH))
        assert said[-1] == "Observed in too few launches for a verdict, see the table: 1p1d/fp16."
        assert "1p1d" not in said[0]

    def test_refused_comparisons_say_nothing_here_and_put_no_cell_beside_another(self) -> None:
        assert not any("chunked" in text for text in findings(effect("chunked", **REFUSED)))

    def test_suspect_cells_and_a_suspect_base_carry_the_word(self) -> None:
        cells = [cell("default", state="suspect"), cell("chunked", state="suspect"), cell("1p1d")]
        (said,) = findings(effect("chunked"), effect("1p1d"), cells=cells)
        assert said.startswith("Against default/fp16 (suspect), mean TTFT is higher in chunked/fp16 (suspect) (+10.0%")
        assert "1p1d/fp16 (+10.0%" in said

    def test_no_effect_is_told_between_cells_of_the_same_configuration(self) -> None:
        said = findings(effect("chunked", note="same resolved configuration"), effect("1p1d", **LOWER))
        assert len(said) == 1 and "chunked" not in said[0]

    def test_many_cells_are_told_by_their_number_and_range(self) -> None:
        modes = [f"m{i}" for i in range(8)]
        effects = [effect(mode, ratio=str(1.1 + i / 100)) for i, mode in enumerate(modes)]
        (said,) = findings(*effects, cells=[cell("default"), *map(cell, modes)])
        assert "higher in 8 comparisons, from m0/fp16 (+10.0% [+5.0, +15.0] at c = 2) to m7/fp16 (+17.0% [" in said

    def test_a_tie_without_spread_is_equivalent(self) -> None:
        tie = {"ratio": "1.0", "ci_low": "1.0", "ci_high": "1.0", "verdict": "equivalent"}
        assert findings(effect("chunked", **tie)) == [
            "Against default/fp16, mean TTFT is equivalent within ±2% in chunked/fp16 (c = 2)."
        ]


class TestPairs:
    CELLS = (cell("default"), cell("2x", gpus=2), cell("1p1d", gpus=2), cell("chunked"))

    def told(self, *effects: Effect, factor: str = "mode") -> tuple[str, ...]:
        return tell_pairs(StudyResults(self.CELLS, effects), factor, self.CELLS, TOLD, 0.02, SAY)

    def test_disaggregation_stands_beside_its_hardware(self) -> None:
        against_one = effect("1p1d", factor="mode")
        against_replicas = effect("1p1d", base=("2x", "fp16"), factor="hardware", **LOWER)
        (unequal,) = self.told(against_one)
        assert unequal == (
            "1p1d/fp16 against default/fp16 (2 GPUs against 1 GPU): "
            "higher in mean TTFT (+10.0% [+5.0, +15.0] at c = 2)."
        )
        (fair,) = self.told(against_replicas, factor="hardware")
        assert fair.startswith("1p1d/fp16 against 2x/fp16 (2 GPUs each): lower in mean TTFT (−10.0%")

    def test_open_numbers_stand_after_the_decided_ones(self) -> None:
        rows = effect("1p1d", factor="mode"), effect("1p1d", factor="mode", metric="tpot", **OPEN)
        (said,) = self.told(*rows)
        assert said.endswith("; cannot be told in mean TPOT (c = 2): about 4 more repeats would likely decide.")

    def test_one_launch_is_an_observation(self) -> None:
        (said,) = self.told(effect("1p1d", factor="mode", **ONE_LAUNCH))
        assert "observed in too few launches for a verdict: mean TTFT (+10.0% at c = 2)" in said
        assert not [word for word in VERDICT_WORDS if word in said]

    def test_the_same_configuration_has_no_effect(self) -> None:
        (said,) = self.told(effect("chunked", factor="mode", note="same resolved configuration"))
        assert said == "chunked/fp16 and default/fp16 ran the same configuration: what differs between them is noise."

    def test_throughput_per_gpu_is_told_only_where_the_hardware_differs(self) -> None:
        per_gpu = {"metric": "output_throughput_per_device", "stat": "value", "factor": "mode"}
        same = {"metric": "output_throughput", "stat": "value", "factor": "mode"}
        (unequal,) = self.told(effect("1p1d", **per_gpu), effect("1p1d", **same))
        assert "output throughput per GPU or core (+10.0%" in unequal
        (equal,) = self.told(effect("chunked", **per_gpu), effect("chunked", **same))
        assert "per GPU" not in equal

    def test_refused_pairs_are_left_to_the_list_of_refusals(self) -> None:
        assert self.told(effect("1p1d", factor="mode", **REFUSED)) == ()

    def test_interaction_names_both_steps_and_marks_doubt_about_any_of_the_four(self) -> None:
        cells = [cell("default"), cell("default", "fp8", state="suspect"), cell("1p1d"), cell("1p1d", "fp8")]
        row = effect("1p1d", "fp8", factor="interaction")
        (said,) = tell_interactions(StudyResults(cells, [row]), TOLD, 0.02, SAY)
        assert said == (
            "From fp16 to fp8 in 1p1d (suspect), over the same step in default: "
            "higher in mean TTFT (+10.0% [+5.0, +15.0] at c = 2)."
        )


# ---- recommendations -----------------------------------------------------------------------------------------------


def placed(name: str, place: str, **changes: str) -> PlacedCell:
    row = {
        "workload": "w", "concurrency": "2", "objective": "first token", "metric": "ttft", "stat": "mean",
        "hardware": "1 GPU", "race": "1", "mode": name, "dtype": "fp16", "state": "valid", "value": "100", "unit": "ms",
        "place": place, "against_mode": "", "against_dtype": "", "ratio": "", "ci_low": "", "ci_high": "",
        "launches": "3", "more_repeats": "", "note": "", **changes,
    }  # fmt: skip
    return PlacedCell(row)


SHOWN = {"against_mode": "b", "against_dtype": "fp16", "ratio": "0.8", "ci_low": "0.7", "ci_high": "0.9"}
RESULTS = StudyResults([cell(mode) for mode in ("a", "b", "c")], [])


def bullets(outcomes: Iterable[Outcome]) -> list[str]:
    (section,) = describe_conclusion(RESULTS, list(outcomes), 0.02, SAY)
    return [text for block in section.blocks if isinstance(block, Bullets) for text in block.items]


def conclude(*cells: PlacedCell) -> list[str]:
    return bullets(outcomes_of(cells))


class TestRecommendation:
    def test_the_best_is_named_with_its_lead_over_the_nearest_rival(self) -> None:
        said = conclude(placed("a", "best", **SHOWN), placed("b", "worse"))
        assert said[0] == (
            "First token (mean TTFT): with 1 GPU at c = 2, a/fp16 is best "
            "(−20.0% [−30.0, −10.0] against b/fp16, its nearest rival)."
        )
        assert not any("Open" in text for text in said)

    def test_equals_are_named_together_and_how_many_are_worse(self) -> None:
        cells = [placed("a", "equally good"), placed("b", "equally good"), placed("c", "worse")]
        assert conclude(*cells)[0].endswith("a/fp16 and b/fp16 are equally good, within ±2%; 1 other is shown worse.")

    def test_an_open_race_names_no_best_and_says_what_would_decide(self) -> None:
        cells = [placed("a", "cannot tell", more_repeats="4"), placed("b", "cannot tell", more_repeats="9")]
        said = conclude(*cells)
        assert (
            "it cannot be told which of a/fp16 and b/fp16 is best (about 9 more repeats would likely decide)" in said[0]
        )
        assert "Open, in part or as a whole: First token (mean TTFT)." in said
        assert not any("is best (−" in text for text in said)

    def test_too_few_launches_recommend_nothing(self) -> None:
        said = conclude(
            placed("a", "not decided", more_repeats="2", launches="1"),
            placed("b", "not decided", more_repeats="2", value="150"),
        )
        assert (
            "no recommendation, only what was observed: from 100 ms (a/fp16) to 150 ms (b/fp16) "
            "(2 more launches would allow a verdict)"
        ) in said[0]
        assert not [word for word in VERDICT_WORDS if word in said[0]]

    def test_values_too_few_for_a_p99_say_so(self) -> None:
        note = "40 values in a launch cannot carry a p99"
        said = conclude(placed("a", "not decided", note=note), placed("b", "not decided", note=note))
        assert f"100 ms in each cell ({note})" in said[0]

    def test_amounts_of_hardware_are_told_apart(self) -> None:
        pd = {"hardware": "2 GPU", "race": "2"}
        said = conclude(
            placed("a", "best", **SHOWN), placed("b", "worse"),
            placed("c", "best", **pd, **SHOWN), placed("d", "worse", **pd),
        )  # fmt: skip
        assert "with 1 GPU at c = 2, a/fp16 is best" in said[0]
        assert "; with 2 GPUs at c = 2, c/fp16 is best" in said[0]

    def test_load_levels_with_the_same_outcome_are_told_together(self) -> None:
        later = {"concurrency": "64", "more_repeats": "9"}
        said = conclude(
            placed("a", "cannot tell", more_repeats="4"), placed("b", "cannot tell", more_repeats="4"),
            placed("a", "cannot tell", **later), placed("b", "cannot tell", **later),
        )  # fmt: skip
        assert "with 1 GPU at c = 2 and c = 64, it cannot be told" in said[0]
        assert "from 4 to 9 more repeats" in said[0]

    def test_suspect_cells_carry_the_word_and_the_mark(self) -> None:
        outcomes = outcomes_of([placed("a", "best", state="suspect", **SHOWN), placed("b", "worse")])
        (section,) = describe_conclusion(RESULTS, outcomes, 0.02, SAY)
        assert "a/fp16 (suspect) is best" in bullets(outcomes)[0]
        table = next(block for block in section.blocks if isinstance(block, Table))
        assert table.rows[0][3].text == "a/fp16†"
        assert any(note.startswith("†") for note in table.notes)

    def test_cells_in_no_race_stand_apart_with_their_reason(self) -> None:
        out = {"race": "", "value": "", "unit": "ms"}
        said = conclude(
            placed("a", "best", **SHOWN), placed("b", "worse"),
            placed("c", "out", note="failed at launch: no memory", **out),
        )  # fmt: skip
        assert "c/fp16, in First token: failed at launch: no memory" in said

    def test_what_was_not_measured_and_what_had_no_rival_is_said(self) -> None:
        said = conclude(placed("a", "not compared", race="", note="no other cell on as much hardware has a value"))
        assert "Not measured: Tail, Throughput, Capacity and Energy." in said
        assert any(text.startswith("No two cells could be compared") and "First token" in text for text in said)

    def test_the_summary_tells_what_was_put_aside_and_names_what_is_open(self) -> None:
        cells = [placed("a", "cannot tell"), placed("b", "cannot tell"), placed("c", "worse")]
        said = say_what_is_recommended(RESULTS, outcomes_of(cells), 0.02, SAY)
        assert "1 other is shown worse" in said[0]
        assert any(text.startswith("Open") for text in said)
        nothing = [placed("a", "not decided"), placed("b", "not decided")]
        assert say_what_is_recommended(RESULTS, outcomes_of(nothing), 0.02, SAY) == []


# ---- the whole report ----------------------------------------------------------------------------------------------


def report_of(tmp_path: Path, sample: Sample) -> Report:
    cells = write_sample(tmp_path, sample)
    rank_objectives(cells, tmp_path / "objectives.csv")
    settings = ReportSettings("A study", "en", BASE, objectives=tmp_path / "objectives.csv")
    return read_report(cells, tmp_path / "comparisons.csv", settings)


def test_sections_stand_in_the_articles_order(tmp_path: Path) -> None:
    titles = [section.title for section in report_of(tmp_path, Sample()).sections]
    wanted = ("TTFT", "TPOT", "ITL", "E2EL", "Throughput", "Disaggregation", "KV-cache precision", "Conclusion")
    places = [next(i for i, title in enumerate(titles) if title.startswith(name)) for name in wanted]
    assert places == sorted(places)


def test_a_report_of_one_launch_uses_no_verdict_word(tmp_path: Path) -> None:
    report = report_of(tmp_path, Sample())
    sentences = [
        text
        for section in report.sections
        for block in section.blocks
        if isinstance(block, Bullets)
        for text in block.items
    ]
    assert any("no recommendation, only what was observed" in text for text in sentences)
    assert not [text for text in (*sentences, *report.said) for word in VERDICT_WORDS if word in text]


@pytest.mark.parametrize("suspect", [("chunked", "fp8"), ("default", "fp16")])
def test_yardstick_and_capacity_carry_the_mark_of_doubt(tmp_path: Path, suspect: tuple[str, str]) -> None:
    report = report_of(tmp_path, replace(Sample(), failed=GOOD, suspect=frozenset({suspect})))
    blocks = [block for section in report.sections for block in section.blocks if isinstance(block, Table)]
    for start in ("Largest relative difference", "KV-cache capacity"):
        (table,) = [block for block in blocks if block.caption.startswith(start)]
        marked = [row for row in table.rows if any("†" in value.mark for value in row)]
        assert marked and any(note.startswith("†") for note in table.notes), start
    clean = report_of(tmp_path / "clean", replace(Sample(), failed=GOOD, suspect=GOOD))
    assert not any("†" in text for text in texts_of(clean))
