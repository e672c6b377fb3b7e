"""Findings and recommendations in words: nothing is said that a verdict does not carry, and every verdict is said."""

import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sample_results import Sample, write_sample

from pdkv.analysing.comparison import compare
from pdkv.analysing.objective_places import PlacedCell, outcomes_of
from pdkv.analysing.objectives import rank_objectives
from pdkv.analysing.study_results import Cell, Effect, StudyResults
from pdkv.reporting.report_blocks import Bullets, Definitions, Paragraph, Report, Table
from pdkv.reporting.report_effects import TOLD
from pdkv.reporting.report_findings import tell_more
from pdkv.reporting.report_interactions import describe_interactions, tell_interactions
from pdkv.reporting.report_metrics import NUMBERS, tell_findings
from pdkv.reporting.report_model import ReportSettings, read_report, texts_of
from pdkv.reporting.report_pairs import tell_pairs
from pdkv.reporting.report_phrases import HEADLINES
from pdkv.reporting.report_recommendations import describe_conclusion, say_what_is_recommended
from pdkv.reporting.report_refusals import say_what_is_refused
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
        "trials": [{"repeat": 1, "state": state, "launch": {"identity": identity or f"{mode}-{dtype}"}, "checks": []}],
        "label": f"{mode}/{dtype}", "checks": [], "environment": {},
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
        assert "chunked/fp16 (+10.0% [+5.0, +15.0] at c = 2, +30.0% [+20.0, +40.0] at c = 64)" in said
        three = [{**point, "concurrency": c} for point, c in zip([*POINTS, POINTS[0]], (2, 64, 256), strict=True)]
        cells = [cell(mode) for mode in ("default", "chunked")]
        for each in cells:
            each.content["config"]["workload"]["points"] = three
            each.content["points"].append({**each.content["points"][0], "point": 2, "concurrency": 256})
        highest = effect("chunked", **{**stronger, "concurrency": "256"})
        (said,) = findings(effect("chunked"), effect("chunked", **stronger), highest, cells=cells)
        assert "chunked/fp16 (+10.0% to +30.0% [+5.0, +40.0] at c = 2, c = 64, c = 256)" in said

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
        assert "about 4 more repeats would likely decide some of it; for the rest more than 47 would be needed" in both
        assert "about 1 more repeat would" in findings(effect("chunked", **{**OPEN, "more_repeats": "1"}))[0]

    def test_a_number_without_an_estimate_is_not_told_with_that_of_another(self) -> None:
        """A launch that served nobody leaves goodput without an interval: no number of repeats can be said."""
        unsure = effect("chunked", **{**OPEN, "ci_low": "", "ci_high": "", "more_repeats": ""}, concurrency="64")
        (said,) = findings(effect("chunked", **OPEN), unsure)
        assert said.endswith(
            "mean TTFT of chunked/fp16 (c = 2): about 4 more repeats would likely decide; "
            "mean TTFT of chunked/fp16 (c = 64): how many more repeats would decide cannot be said."
        )
        mixed = tell_more(["4", ""], SAY)
        assert mixed == "about 4 more repeats would likely decide; for others how many cannot be said"

    def test_what_is_sure_and_no_larger_than_between_identical_cells_is_no_finding(self) -> None:
        row = {"verdict": "cannot tell", "more_repeats": "", "yardstick": "0.1"}
        assert findings(effect("chunked", **row)) == [
            "No difference is told, and no equivalence, that would be finer than what cells that ran the same "
            "configuration differ by: mean TTFT, see the table."
        ]
        assert findings(effect("chunked", **{**row, "yardstick": "0.09", **OPEN}))[0].startswith("It cannot be told")
        unsure = {**row, "metric": "goodput", "stat": "value", "ci_low": "", "ci_high": ""}  # a launch without any
        assert findings(effect("chunked", **unsure), metric="output_throughput")[0].startswith("It cannot be told")

    def test_a_difference_below_what_is_shown_gets_more_digits(self) -> None:
        tiny = {"ratio": "0.99967", "ci_low": "0.99964", "ci_high": "0.99970", "verdict": "lower"}
        assert "(−0.03% [−0.04, −0.03] at c = 2)" in findings(effect("chunked", **tiny))[0]
        huge = {"ratio": "1000", "ci_low": "900", "ci_high": "1100"}
        assert "(+99,900.0% [+89,900.0, +109,900.0] at c = 2)" in findings(effect("chunked", **huge))[0]

    def test_many_open_comparisons_are_counted_and_named_by_number_and_load(self) -> None:
        cells = [cell("default"), *(cell(f"m{i}") for i in range(8))]
        rows = [effect(f"m{i}", **OPEN, concurrency="64" if i % 2 else "2") for i in range(8)]
        (said,) = findings(*rows, cells=cells)
        assert said == (
            "It cannot be told whether there is a difference in 8 comparisons of mean TTFT (c = 2, c = 64): "
            "about 4 more repeats would likely decide."
        )

    def test_a_p99_for_which_launches_or_values_are_too_few_has_no_verdict(self) -> None:
        (few,) = findings(effect("chunked", **FEW_FOR_P99))
        wanted = "5 launches of each cell in the same repeats are needed, {} more than there are."
        assert few == f"No verdict on p99 TTFT: {wanted.format(2)}"
        common = {**FEW_FOR_P99, "launches": "5", "base_launches": "5", "more_repeats": "1"}
        (few,) = findings(effect("chunked", **common))
        assert few == f"No verdict on p99 TTFT: {wanted.format(1)}", "five launches each, four of the same repeat"
        (weak,) = findings(effect("chunked", **WEAK))
        assert weak == "No verdict on p99 TTFT: the values of one launch are too few to carry a percentile so far out."

    def test_a_cell_with_fewer_launches_counts_in_how_many_are_missing(self) -> None:
        of_one = {**FEW_FOR_P99, **ONE_LAUNCH, "more_repeats": "4"}
        said = findings(effect("chunked", **FEW_FOR_P99), effect("1p1d", **of_one))
        assert said[0].endswith("5 launches of each cell in the same repeats are needed, 2 to 4 more than there are.")

    def test_a_p99_that_lacks_launches_and_values_has_one_sentence_with_both_reasons(self) -> None:
        few, weak = effect("chunked", **FEW_FOR_P99), effect("chunked", **{**WEAK, "concurrency": "64"})
        assert findings(few, weak) == [
            "No verdict on p99 TTFT: 5 launches of each cell in the same repeats are needed, 2 more than there are; at "
            "c = 64 the values of one launch, too, are too few to carry a percentile so far out."
        ]
        (said,) = findings(effect("chunked", **{**WEAK, "launches": "3", "base_launches": "3"}))
        assert said.endswith("so far out, and 5 launches of each cell in the same repeats are needed as well.")

    def test_of_very_many_equivalent_cells_the_number_is_named_once(self) -> None:
        cells = [cell("default"), *(cell(f"m{i}") for i in range(8))]
        (said,) = findings(*(effect(f"m{i}", **SAME) for i in range(8)), cells=cells)
        assert said == "Against default/fp16, mean TTFT is equivalent within ±2% in 8 comparisons (c = 2)."

    def test_one_launch_is_told_as_an_observation_without_a_word_of_verdict(self) -> None:
        observed = findings(effect("chunked", **ONE_LAUNCH), effect("1p1d", **ONE_LAUNCH))
        assert observed and all(text.startswith("Observed at concurrency") for text in observed)
        assert not [word for word in VERDICT_WORDS if any(word in text for text in observed)]

    def test_beside_decided_cells_those_with_too_few_launches_are_only_named(self) -> None:
        said = findings(effect("chunked"), effect("1p1d", **ONE_LAUNCH))
        assert said[-1] == "Observed in too few launches for a verdict, see the table: 1p1d/fp16."
        assert "1p1d" not in said[0]

    def test_refused_comparisons_put_no_cell_beside_another_and_name_what_is_left_out(self) -> None:
        """What was left out may be the best of all: the range of the others alone would read as that of the study."""
        for text in findings(effect("chunked", **REFUSED)):
            assert "in the cells that may be compared with default/fp16, which leaves out " in text
            left_out, ranges = text.partition("which leaves out ")[2].split(": ", 1)
            assert "chunked/fp16" in left_out and "chunked" not in ranges

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


class TestGoodput:
    def served(self, mode: str, goodput: float, gpus: int = 1, **slo: float) -> Cell:
        made = cell(mode, gpus=gpus)
        made.content["slo"] = {"ttft_ms": 500.0, "tpot_ms": None, "e2el_ms": None, "target_share": 0.9, **slo}
        for point in made.content["points"]:
            point["metrics"]["goodput"] = {"unit": "req/s", "value": goodput}
        return made

    def test_it_is_told_among_the_findings_of_throughput_where_it_was_counted(self) -> None:
        cells = [self.served("default", 2.0), self.served("1p1d", 3.0, gpus=2)]
        total = effect("1p1d", metric="goodput", stat="value")
        each = effect("1p1d", metric="goodput_per_device", stat="value", **LOWER)
        assert findings(total, each, cells=cells, metric="output_throughput") == [
            "Against default/fp16, goodput is higher in 1p1d/fp16 (+10.0% [+5.0, +15.0] at c = 2).",
            "Against default/fp16, goodput per GPU or core is lower in 1p1d/fp16 (−10.0% [−15.0, −5.0] at c = 2).",
        ]

    def test_one_launch_is_an_observation_in_requests_a_second(self) -> None:
        rows = [effect("1p1d", metric=m, stat=s, **ONE_LAUNCH) for m, s in (("goodput", "value"), ("ttft", "mean"))]
        cells = [self.served("default", 2.0), self.served("1p1d", 3.0, gpus=2)]
        said = findings(*rows, cells=cells, metric="output_throughput")
        assert "goodput from 2.00 req/s (default/fp16 on 1 GPU) to 3.00 req/s (1p1d/fp16 on 2 GPUs)" in said[0]
        other_limits = [cells[0], self.served("1p1d", 3.0, gpus=2, ttft_ms=100.0)]
        said = findings(*rows, cells=other_limits, metric="output_throughput")
        assert not any("concurrency 2 " in text for text in said)

    def test_three_launches_are_too_few_for_a_verdict(self) -> None:
        cells = [self.served("default", 2.0), self.served("1p1d", 3.0, gpus=2)]
        row = effect("1p1d", **{**FEW_FOR_P99, "metric": "goodput", "stat": "value"})
        assert findings(row, cells=cells, metric="output_throughput") == [
            "No verdict on goodput: 5 launches of each cell in the same repeats are needed, 2 more than there are."
        ]

    def test_where_a_launch_served_nothing_no_percentile_is_blamed(self) -> None:
        cells = [self.served("default", 2.0), self.served("1p1d", 3.0, gpus=2)]
        row = effect(
            "1p1d", metric="goodput", stat="value", **{**OPEN, "ci_low": "", "ci_high": "", "more_repeats": ""}
        )
        (said,) = findings(row, cells=cells, metric="output_throughput")
        assert "percentile" not in said
        assert said.endswith("goodput of 1p1d/fp16 (c = 2): how many more repeats would decide cannot be said.")

    def concluded(self, share: float, *places: str) -> list[str]:
        """Every text of a conclusion of two cells in which ``share`` of the requests were served at c = 64."""
        cells = [self.served("a", 100 * share), self.served("b", 50 * share)]
        for each in cells:
            each.content["points"][1]["metrics"]["slo_share"] = {"value": share, "n": 550}
        goal = {"objective": "goodput", "metric": "goodput_per_device", "stat": "value", "unit": "req/s/GPU"}
        rows = [
            placed(name, place, **goal, concurrency="64", value=f"{100 * share:g}", race="1" * (place != "out"))
            for name, place in zip("ab", places, strict=True)
        ]
        (section,) = describe_conclusion(StudyResults(cells, []), outcomes_of(rows), 0.02, SAY)
        items = [text for block in section.blocks if isinstance(block, Bullets) for text in block.items]
        tables = [b for b in section.blocks if isinstance(b, Table)]
        return [*items, *(value.text for table in tables for line in table.rows for value in line)]

    def test_goodput_of_nothing_was_measured(self) -> None:
        said = self.concluded(0.0, "out", "out")
        assert "Goodput (c = 64): no request met the service levels." in said
        assert not [text for text in said if text.startswith("Not measured") and "Goodput" in text]

    def test_where_hardly_any_request_is_served_no_goodput_is_called_the_best(self) -> None:
        said = self.concluded(0.0054, "not decided", "not decided")
        assert (
            "Goodput (c = 64): almost no request met the service levels, in no cell more than 0.5% of them; "
            "so none is called the best."
        ) in said
        assert not [text for text in said if "observed best" in text]
        enough = self.concluded(0.05, "not decided", "not decided")
        assert "observed best: a/fp16, b/fp16" in enough
        assert not [text for text in enough if "almost no request" in text]

    @pytest.mark.parametrize("limit", [250.0, None])
    def test_conclusion_and_definitions(self, tmp_path: Path, limit: float | None) -> None:
        report = report_of(tmp_path, Sample(launches=3, failed=GOOD, suspect=GOOD, gpu=True, ttft_limit_ms=limit))
        conclusion = next(section for section in report.sections if section.title.startswith("Conclusion"))
        table = next(block for block in conclusion.blocks if isinstance(block, Table))
        named = [row[0].text for row in table.rows]
        assert ("Goodput (goodput per GPU or core)" in named) is (limit is not None)
        defined = [term for s in report.sections for b in s.blocks if isinstance(b, Definitions) for term, _ in b.items]
        assert {"Goodput", "Share that meets (slo_share)"} <= set(defined)
        assert not any("Not measured" in text and "Goodput" in text for text in texts_of(report))


class TestPairs:
    CELLS = (cell("default"), cell("2x", gpus=2), cell("1p1d", gpus=2), cell("chunked"))

    def told(self, *effects: Effect, factor: str = "mode") -> tuple[str, ...]:
        return tell_pairs(StudyResults(self.CELLS, effects), factor, self.CELLS, TOLD, 0.02, SAY).items

    def test_disaggregation_stands_beside_its_hardware(self) -> None:
        against_one = effect("1p1d", factor="mode")
        against_replicas = effect("1p1d", base=("2x", "fp16"), factor="hardware", **LOWER)
        (unequal,) = self.told(against_one)
        assert unequal == (
            "1p1d/fp16 against default/fp16 (2 GPUs against 1 GPU) at c = 2: higher in mean TTFT (+10.0%)."
        )
        (fair,) = self.told(against_replicas, factor="hardware")
        assert fair.startswith("1p1d/fp16 against 2x/fp16 (2 GPUs each) at c = 2: lower in mean TTFT (−10.0%)")

    def test_each_load_has_its_sentence_unless_the_same_was_decided(self) -> None:
        there = {"factor": "mode", "concurrency": "64"}
        stronger = effect("1p1d", **there, ratio="1.3", ci_low="1.2", ci_high="1.4")
        (alike,) = self.told(effect("1p1d", factor="mode"), stronger)
        assert "at every load: higher in mean TTFT (+10.0% to +30.0%)." in alike
        turned = self.told(effect("1p1d", factor="mode"), effect("1p1d", **there, **LOWER))
        assert ["at c = 2: higher" in turned[0], "at c = 64: lower" in turned[1]] == [True, True]

    def test_no_sentence_is_longer_than_a_breath_where_everything_was_decided(self) -> None:
        kinds: list[dict[str, Any]] = [LOWER, {}, LOWER, LOWER, SAME, {}, {}]
        rows = [
            effect("1p1d", factor="mode", metric=metric, concurrency=load, **{**kind, "stat": stat})
            for load in ("2", "64")
            for (metric, stat), kind in zip(TOLD, kinds, strict=True)
        ]
        (said,) = self.told(*rows)
        assert max(len(sentence.split()) for sentence in said.split(". ")) <= 45
        assert all(number in said for number in ("mean TPOT", "p99 TTFT", "output throughput per GPU or core"))

    def test_what_stays_open_is_left_to_the_table_with_what_would_decide_it(self) -> None:
        rows = effect("1p1d", factor="mode"), effect("1p1d", factor="mode", metric="tpot", **OPEN)
        decided, still_open = self.told(*rows)
        assert "TPOT" not in decided
        assert still_open == "Where the table says cannot tell, about 4 more repeats would likely decide."

    def test_what_would_decide_the_open_ones_is_told_of_every_number_of_the_table(self) -> None:
        """Medians too, which the sentences on what was decided leave out."""
        mean, median = ({**OPEN, "metric": "ttft", "stat": stat} for stat in ("mean", "median"))
        (said,) = self.told(
            effect("1p1d", factor="mode", **{**mean, "more_repeats": "1"}),
            effect("1p1d", factor="mode", **{**median, "more_repeats": "3"}),
            effect("1p1d", factor="mode", **{**median, "stat": "p90", "more_repeats": "9"}),  # in no column
        )
        assert said == "Where the table says cannot tell, from 1 to 3 more repeats would likely decide."
        (alone,) = self.told(effect("1p1d", factor="mode", **median))
        assert alone == "Where the table says cannot tell, about 4 more repeats would likely decide."
        (decided,) = self.told(effect("1p1d", factor="mode"), effect("1p1d", factor="mode", stat="median"))
        assert "median" not in decided

    def test_an_open_number_that_is_not_in_the_table_has_its_name(self) -> None:
        per_gpu = {**OPEN, "metric": "output_throughput_per_device", "stat": "value"}
        assert self.told(effect("1p1d", factor="mode", **per_gpu)) == (
            "It cannot be told whether there is a difference in output throughput per GPU or core of 1p1d/fp16 "
            "(c = 2): about 4 more repeats would likely decide.",
        )
        assert self.told(effect("chunked", factor="mode", **per_gpu)) == (), "on as much hardware the total says it"

    @pytest.mark.parametrize(
        ("factor", "advice"),
        [
            ("mode", "from 1 to 3 more repeats would likely decide."),
            ("dtype", "from 23 to 30 more repeats would likely decide some of it; for the rest more than 47 "),
            ("interaction", "from 2 to 46 more repeats would likely decide some of it; for the rest more than 47 "),
        ],
    )
    def test_of_a_real_study_it_is_what_its_comparisons_say(self, factor: str, advice: str) -> None:
        with (Path(__file__).parent.parent / "docs/studies/h200-8b/comparisons.csv").open(newline="") as file:
            rows = [
                row for row in csv.DictReader(file) if row["factor"] == factor and row["mode"] in ("default", "1p1d")
            ]
        cells = [cell(mode, dtype) for mode in ("default", "1p1d") for dtype in ("bf16", "fp8")]
        results = StudyResults(cells, [Effect({**row, "workload": "w"}) for row in rows])
        if factor == "interaction":
            said = tell_interactions(results, TOLD[:-1], 0.02, SAY).items
        else:
            said = tell_pairs(results, factor, cells, TOLD, 0.02, SAY).items
        (still_open,) = (each for each in said if each.startswith("Where the table says cannot tell"))
        assert still_open.startswith(f"Where the table says cannot tell, {advice}")
        shown = [row["more_repeats"] for row in rows if (row["metric"], row["stat"]) in HEADLINES and row["ci_low"]]
        near = sorted(int(more) for more in shown if more and not more.startswith(">"))
        assert advice.startswith(f"from {near[0]} to {near[-1]} "), "the file that lies beside the report"

    def test_one_launch_has_no_sentence_for_any_pair(self) -> None:
        said = self.told(effect("1p1d", factor="mode", **ONE_LAUNCH), effect("chunked", factor="mode", **ONE_LAUNCH))
        assert said == ("Too few launches for a verdict: the table shows what was observed.",)

    def test_beside_decided_pairs_those_with_too_few_launches_are_only_named(self) -> None:
        decided, few = self.told(effect("chunked", factor="mode"), effect("1p1d", factor="mode", **ONE_LAUNCH))
        assert "1p1d" not in decided
        assert few == "Observed in too few launches for a verdict, see the table: 1p1d/fp16."

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
        (said,) = tell_interactions(StudyResults(cells, [row]), TOLD, 0.02, SAY).items
        assert said == (
            "From fp16 to fp8 in 1p1d (suspect), over the same step in default, at c = 2: higher in mean TTFT (+10.0%)."
        )

    def test_interactions_have_a_table_with_interval_verdict_and_doubt(self) -> None:
        cells = [cell("default"), cell("default", "fp8", state="suspect"), cell("1p1d"), cell("1p1d", "fp8")]
        for launches in ({}, ONE_LAUNCH):
            row = effect("1p1d", "fp8", factor="interaction", **launches)
            blocks = describe_interactions(StudyResults(cells, [row]), TOLD, 0.02, SAY)
            table = next(block for block in blocks if isinstance(block, Table))
            (shown,) = table.rows
            assert [value.text for value in shown[:5]] == ["c = 2", "1p1d", "default", "fp16 to fp8", "+10.0%"]
            assert shown[4].under == ("" if launches else "[+5.0, +15.0]\nhigher")
            assert shown[4].mark == "†" and any(note.startswith("†") for note in table.notes)


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


def conclude(*cells: PlacedCell) -> tuple[list[str], Table]:
    """Sentences of the conclusion, what it says of cells in no race too, and its table; the reading left out."""
    (section,) = describe_conclusion(RESULTS, outcomes_of(cells), 0.02, SAY)
    said = []
    for block in section.blocks:
        if isinstance(block, Bullets):
            said += block.items
        elif isinstance(block, Paragraph) and not block.text.startswith(("All pairs", "Set against")):
            said.append(block.text)
    table = next((block for block in section.blocks if isinstance(block, Table)), Table("", (), ()))
    return [text for text in said if not text.startswith("Not measured")], table


def shown(table: Table) -> list[list[str]]:
    """The rows without objective, load and hardware; what stands below a value after a slash."""
    texts = []
    for row in table.rows:
        texts.append([value.text + value.mark + (f" / {value.under}" if value.under else "") for value in row[3:]])
    return texts


class TestRecommendation:
    def test_the_best_is_named_with_its_lead_over_the_nearest_rival(self) -> None:
        said, table = conclude(placed("a", "best", **SHOWN), placed("b", "worse", value="125"))
        assert said == [
            "First token (mean TTFT): with 1 GPU at c = 2, a/fp16 is best "
            "(−20.0% [−30.0, −10.0] against b/fp16, its nearest rival)."
        ]
        assert shown(table) == [["a/fp16", "100 ms", "b/fp16 / 125 ms", "−20.0% / [−30.0, −10.0]", "–"]]
        assert table.rows[0][3].best

    def test_equals_are_named_together_and_how_many_are_worse(self) -> None:
        cells = [placed("a", "equally good"), placed("b", "equally good", value="99"), placed("c", "worse")]
        said, table = conclude(*cells)
        assert said[0].endswith("a/fp16 and b/fp16 are equally good, within ±2% (1 other is shown worse).")
        assert shown(table)[0][:2] == ["b/fp16, a/fp16 / shown worse: c/fp16", "99.0 ms"]  # the value's cell goes first

    def test_only_the_table_tells_of_a_race_in_which_nothing_was_decided(self) -> None:
        races = [placed("a", "best", **SHOWN), placed("b", "worse")]
        later = {"concurrency": "64", "more_repeats": "9"}
        lead = {"against_mode": "a", "against_dtype": "fp16", "ratio": "0.98", "ci_low": "0.9", "ci_high": "1.1"}
        said, table = conclude(
            *races, placed("a", "cannot tell", **later), placed("b", "cannot tell", value="98", **later, **lead)
        )
        assert [text for text in said if "c = 64" in text] == []
        assert said[1] == "Open, in part or as a whole: First token (mean TTFT)."
        between = "cannot tell between b/fp16, a/fp16"
        assert shown(table)[1] == [between, "98.0 ms", "a/fp16 / 100 ms", "−2.0% / [−10.0, +10.0]", "9"]
        assert not table.rows[1][3].best

    def test_an_open_race_that_put_some_aside_is_told(self) -> None:
        cells = [placed("a", "cannot tell", more_repeats="4"), placed("b", "cannot tell"), placed("c", "worse")]
        said, _ = conclude(*cells)
        assert said[0].endswith(
            "a/fp16 and b/fp16 may be the best, which of them cannot be told (1 other is shown worse)."
        )
        assert not any("is best" in text for text in said)

    def test_too_few_launches_are_one_sentence_with_what_is_needed_and_the_table(self) -> None:
        said, table = conclude(
            placed("a", "not decided", more_repeats="2", launches="1"),
            placed("b", "not decided", more_repeats="2", value="150"),
            placed("a", "not decided", more_repeats="4", objective="tail", stat="p99"),
            placed("b", "not decided", more_repeats="4", objective="tail", stat="p99", value="150"),
        )
        assert said == [
            "Nothing can be recommended yet, for there are too few launches for a verdict: 2 more launches of each "
            "cell (repeats, in the config file) would allow verdicts, 4 more those on a p99."
        ]
        assert shown(table)[0] == ["observed best: a/fp16", "100 ms", "b/fp16 / 150 ms", "−33.3%", "2"]
        assert not any(value.best for line in table.rows for value in line)
        assert not [word for word in VERDICT_WORDS for text in (*said, *shown(table)[0]) if word in text]

    def test_more_launches_are_promised_only_to_numbers_that_lack_nothing_else(self) -> None:
        """One launch of ten requests: with four more there is a p99 ITL, and none of TTFT and E2EL."""
        few = {"objective": "tail", "stat": "p99", "launches": "1"}
        weak = {**few, "note": "10 values in a launch cannot carry a p99"}
        mean = [placed(name, "not decided", more_repeats="2", launches="1") for name in "ab"]
        itl = [placed(name, "not decided", more_repeats="4", metric="itl", **few) for name in "ab"]
        others = [placed(name, "not decided", metric=metric, **weak) for metric in ("ttft", "e2el") for name in "ab"]
        said, table = conclude(*mean, *itl, *others)
        assert said == [
            "Nothing can be recommended yet, for there are too few launches for a verdict: 2 more launches of each "
            "cell (repeats, in the config file) would allow verdicts, 4 more those on p99 ITL. More launches alone "
            "would not decide p99 TTFT and p99 E2EL: 10 values in a launch cannot carry a p99."
        ]
        assert [(line[0].text, line[7].text + line[7].mark) for line in table.rows] == [
            ("First token (mean TTFT)", "2"), ("Tail (p99 ITL)", "4"), ("Tail (p99 TTFT)", "–*"),
            ("Tail (p99 E2EL)", "–*"),
        ]  # fmt: skip
        assert say_what_is_recommended(RESULTS, outcomes_of([*mean, *itl, *others]), 0.02, SAY)[0] == said[0]

    def test_a_number_that_lacks_more_than_launches_at_some_loads_is_told_with_them(self) -> None:
        few = {"objective": "tail", "stat": "p99", "launches": "1"}
        mean = [placed(name, "not decided", more_repeats="2", launches="1") for name in "ab"]
        there = [placed(name, "not decided", more_repeats="4", concurrency="64", **few) for name in "ab"]
        here = [
            placed(name, "not decided", note=note, **few) for name, note in (("a", "10 values"), ("b", "12 values"))
        ]
        said, _ = conclude(*mean, *here, *there)
        assert said[0].endswith(
            ", 4 more those on p99 TTFT (c = 64). More launches alone would not decide p99 TTFT (c = 2): why stands "
            "below the table of the conclusion."
        )

    def test_cells_that_are_split_say_why_and_promise_nothing_across(self) -> None:
        cells = [cell(mode) for mode in "abcd"]
        for each in cells:
            each.content["environment"] = {"foreign_cpu_share": 0.5 if each.mode in "cd" else 0.0}
        few = {"more_repeats": "2", "launches": "1"}
        outcomes = outcomes_of([placed(m, "not decided", race="1" if m in "ab" else "2", **few) for m in "abcd"])
        (section,) = describe_conclusion(StudyResults(cells, []), outcomes, 0.02, SAY)
        table = next(block for block in section.blocks if isinstance(block, Table))
        assert [(line[2].text, line[2].under, line[2].mark) for line in table.rows] == [
            ("1 GPU", "host load: idle / busy", "§"),
            ("1 GPU", "host load: busy / idle", "§"),
        ]
        assert any(note.startswith("§") and "not between the two" in note for note in table.notes)
        said = [block.text for block in section.blocks if isinstance(block, Paragraph)]
        assert said[0].endswith("would allow verdicts, but only among cells that may be compared with each other.")
        alike = outcomes_of([placed(m, "not decided", **few) for m in "ab"])
        (section,) = describe_conclusion(StudyResults(cells, []), alike, 0.02, SAY)
        assert not any("only among cells" in b.text for b in section.blocks if isinstance(b, Paragraph))

    def test_that_comparisons_were_refused_is_said_once_with_the_fact(self) -> None:
        cells = [cell("default"), cell("a"), cell("b"), cell("c")]
        refused = [effect("a", **REFUSED), effect("b", **REFUSED)]
        assert say_what_is_refused(StudyResults(cells, [*refused, effect("c")]), SAY) == [
            "2 of 3 comparisons were refused, for their cells were not measured alike (host load). "
            "More launches do not change that; measuring again under like conditions does."
        ]
        (one,) = say_what_is_refused(StudyResults(cells, [refused[0], effect("b"), effect("c")]), SAY)
        assert one.startswith("1 of 3 comparisons were refused"), (
            "a single one too: its cell is nowhere else on the page"
        )
        assert say_what_is_refused(StudyResults(cells, [effect("b"), effect("c")]), SAY) == []

    def test_goodput_wants_more_launches_and_does_not_put_off_the_rest(self) -> None:
        served = {"objective": "goodput", "metric": "goodput_per_device", "stat": "value", "unit": "req/s/GPU"}
        said, _ = conclude(
            *[placed(name, "not decided", more_repeats="2") for name in "ab"],
            *[placed(name, "not decided", more_repeats="4", **served) for name in "ab"],
        )
        assert ": 2 more launches of each cell" in said[0]
        assert said[0].endswith(" would allow verdicts, 4 more those on goodput.")
        only, _ = conclude(*[placed(name, "not decided", more_repeats="4", **served) for name in "ab"])
        assert only[0].endswith("4 more launches of each cell (repeats, in the config file) would allow verdicts.")

    def test_one_launch_more_is_said_as_one(self) -> None:
        few = [placed(name, "not decided", more_repeats="1", launches="2") for name in "ab"]
        assert ": 1 more launch of each cell" in conclude(*few)[0][0]

    def test_launches_that_decided_nothing_anywhere_are_one_sentence_too(self) -> None:
        said, _ = conclude(placed("a", "cannot tell", more_repeats="4"), placed("b", "cannot tell", more_repeats="4"))
        assert said == [
            "Nothing can be recommended: no cell is shown to be worse than another one "
            "(about 4 more repeats would likely decide)."
        ]

    def test_values_too_few_for_a_p99_say_so_below_the_table(self) -> None:
        note = "40 values in a launch cannot carry a p99"
        said, table = conclude(*[placed(name, "not decided", note=note) for name in "ab"])
        assert said[0].startswith("Nothing can be recommended: no two cells could be tested")
        assert shown(table) == [["observed best: a/fp16, b/fp16", "100 ms", "–", "–", "–*"]]  # a tie has no best
        assert f"* more launches alone would not decide: {note}." in table.notes

    def test_an_observed_lead_over_the_same_configuration_is_called_noise(self) -> None:
        twins = StudyResults([cell("a", identity="x"), cell("b", identity="x")], [])
        outcomes = outcomes_of([placed("a", "not decided", more_repeats="2"), placed("b", "not decided", value="110")])
        (section,) = describe_conclusion(twins, outcomes, 0.02, SAY)
        table = next(block for block in section.blocks if isinstance(block, Table))
        assert shown(table)[0][3] == "−9.1%≈"
        assert shown(table)[0][0] == "no observed best: a/fp16 ahead by no more than identical cells differ by"
        assert any(note.startswith("≈") for note in table.notes)

    def test_more_is_better_where_it_is(self) -> None:
        per_gpu = {"objective": "throughput", "metric": "output_throughput_per_device", "stat": "value"}
        few = {"unit": "tok/s/GPU", "more_repeats": "2", **per_gpu}
        _, table = conclude(placed("a", "not decided", **few), placed("b", "not decided", value="150", **few))
        assert shown(table)[0][:3] == ["observed best: b/fp16", "150 tok/s/GPU", "a/fp16 / 100 tok/s/GPU"]

    def test_amounts_of_hardware_are_told_apart(self) -> None:
        pd = {"hardware": "2 GPU", "race": "2"}
        lead = {**SHOWN, "against_mode": "d"}
        said, _ = conclude(
            placed("a", "best", **SHOWN), placed("b", "worse"),
            placed("c", "best", **pd, **lead), placed("d", "worse", **pd),
        )  # fmt: skip
        assert "with 1 GPU at c = 2, a/fp16 is best" in said[0]
        assert "with 2 GPUs at c = 2, c/fp16 is best" in said[1]

    def test_load_levels_with_the_same_outcome_are_told_together_and_no_interval_is_narrowed(self) -> None:
        stronger = {**SHOWN, "ratio": "0.6", "ci_low": "0.5", "ci_high": "0.65"}
        said, table = conclude(
            placed("a", "best", **SHOWN), placed("b", "worse"),
            placed("a", "best", concurrency="64", **stronger), placed("b", "worse", concurrency="64"),
        )  # fmt: skip
        assert said == [
            "First token (mean TTFT): with 1 GPU at every load, a/fp16 is best "
            "(−40.0% to −20.0% [−50.0, −10.0] against b/fp16, its nearest rival)."
        ]
        assert len(table.rows) == 2

    def test_suspect_cells_carry_the_word_and_the_mark(self) -> None:
        said, table = conclude(placed("a", "best", state="suspect", **SHOWN), placed("b", "worse", state="suspect"))
        assert "a/fp16 (suspect) is best" in said[0] and "against b/fp16 (suspect), its" in said[0]
        assert shown(table)[0][0] == "a/fp16†" and shown(table)[0][2].startswith("b/fp16†")
        assert any(note.startswith("†") for note in table.notes)

    def test_cells_in_no_race_stand_apart_with_their_reason_and_the_load_if_it_is_not_every_one(self) -> None:
        note = "failed at launch: no memory"
        said, _ = conclude(
            placed("a", "best", **SHOWN), placed("b", "worse"),
            placed("c", "out", note=note, race="", value=""),
            placed("a", "best", concurrency="64", **SHOWN), placed("b", "worse", concurrency="64"),
            placed("c", "out", concurrency="64", note=note, race="", value=""),
        )  # fmt: skip
        assert said[-1] == f"c/fp16, in First token: {note}"
        said, _ = conclude(
            placed("a", "best", **SHOWN), placed("b", "worse"),
            placed("a", "not compared", concurrency="64", note="no other cell has a value", race=""),
            placed("b", "out", concurrency="64", note="no value", race="", value=""),
            placed("c", "out", concurrency="64", note="no value", race="", value=""),
        )  # fmt: skip
        assert said[-2:] == [
            "a/fp16, in First token (c = 64): no other cell has a value",
            "b/fp16 and c/fp16, in First token (c = 64): no value",
        ]

    def test_what_was_not_measured_and_what_had_no_rival_is_said(self) -> None:
        note = "no other cell on as much hardware has a value"
        outcomes = outcomes_of([placed("a", "not compared", race="", note=note)])
        (section,) = describe_conclusion(RESULTS, outcomes, 0.02, SAY)
        said = [text for block in section.blocks if isinstance(block, Bullets) for text in block.items]
        assert "Not measured: Tail, Throughput, Capacity and Energy." in said  # without service levels no goodput
        assert any(text.startswith("No two cells could be compared") and "First token" in text for text in said)

    def test_the_summary_tells_what_was_put_aside_and_names_what_is_open(self) -> None:
        cells = [placed("a", "cannot tell"), placed("b", "cannot tell"), placed("c", "worse")]
        said = say_what_is_recommended(RESULTS, outcomes_of(cells), 0.02, SAY)
        assert "1 other is shown worse" in said[0]
        assert any(text.startswith("Open") for text in said)
        few = [placed(name, "not decided", more_repeats="2") for name in "ab"]
        (nothing,) = say_what_is_recommended(RESULTS, outcomes_of(few), 0.02, SAY)
        assert nothing.startswith("Nothing can be recommended yet")
        assert say_what_is_recommended(RESULTS, [], 0.02, SAY) == []


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
    assert any(text.startswith("Nothing can be recommended yet") for text in report.said)
    assert not [text for text in (*sentences, *report.said) for word in VERDICT_WORDS if word in text]


def test_no_pair_is_told_in_a_longer_breath_than_forty_five_words(tmp_path: Path) -> None:
    sample = Sample(modes=("default", "2x", "1p1d"), launches=5, requests=120, concurrencies=(2, 16, 64), gpu=True)
    cells = write_sample(tmp_path, replace(sample, failed=GOOD))
    compare(cells, BASE, tmp_path / "comparisons.csv")
    report = read_report(cells, tmp_path / "comparisons.csv", ReportSettings("A study", "en", BASE))
    sections = [section for section in report.sections if section.title.startswith(("Disaggregation", "KV-cache p"))]
    told = [text for s in sections for block in s.blocks if isinstance(block, Bullets) for text in block.items]
    assert sum("against" in text for text in told) >= 7, "every pair has something that was decided"
    longest = max((sentence for text in told for sentence in text.split(". ")), key=lambda text: len(text.split()))
    assert len(longest.split()) <= 45, longest


@pytest.mark.parametrize("suspect", [("chunked", "fp8"), ("default", "fp16")])
def test_yardstick_and_capacity_carry_the_mark_of_doubt(tmp_path: Path, suspect: tuple[str, str]) -> None:
    report = report_of(tmp_path, replace(Sample(), failed=GOOD, suspect=frozenset({suspect})))
    blocks = [block for section in report.sections for block in section.blocks if isinstance(block, Table)]
    for start in ("Largest difference", "KV-cache capacity"):
        (table,) = [block for block in blocks if block.caption.startswith(start)]
        marked = [row for row in table.rows if any("†" in value.mark for value in row)]
        assert marked and any(note.startswith("†") for note in table.notes), start
    clean = report_of(tmp_path / "clean", replace(Sample(), failed=GOOD, suspect=GOOD))
    assert not any("†" in text for text in texts_of(clean))
