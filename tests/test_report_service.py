"""Service levels and load in the report: what is said of cells whose levels are known."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from load_cells import CLOSED, cell_of, effect, launch, open_points, results_of
from sample_results import Sample, write_sample

from pdkv.analysing.comparison import compare
from pdkv.analysing.study_results import Cell, Effect, read_study_results
from pdkv.reporting.report_blocks import Block, Bullets, Figure, Paragraph, Table
from pdkv.reporting.report_service import describe_service_levels, percent
from pdkv.reporting.wording import Wording

SLO = {"ttft_ms": 500.0, "tpot_ms": None, "e2el_ms": 2000.0, "target_share": 0.9}
CURVE = ((10.0, 1.0), (30.0, 1.5), (50.0, 2.0), (50.0, 4.0))  # power 10, 20, 25, 12.5
RISING = ((10.0, 1.0), (20.0, 1.0), (40.0, 1.0), (80.0, 1.0))


def levels_of(
    curves: Sequence[Sequence[tuple[float, float]]], shares: Sequence[Sequence[float | None]] = ()
) -> Mapping[int, Sequence[dict[str, Any]]]:
    """``curves`` and ``shares`` of each launch."""
    told = shares or [[None] * len(curve) for curve in curves]
    return {
        index: [
            launch(throughput=curve[index][0], e2el_s=curve[index][1], share=share[index])
            for curve, share in zip(curves, told, strict=True)
        ]
        for index in range(len(curves[0]))
    }


def blocks_of(cells: Sequence[Cell], effects: Sequence[Effect] = (), language: str = "en") -> tuple[Block, ...]:
    sections = describe_service_levels(results_of(cells, effects), Wording(language))
    assert len(sections) <= 1
    return sections[0].blocks if sections else ()


def table(blocks: Sequence[Block], start: str) -> Table:
    (found,) = [block for block in blocks if isinstance(block, Table) and block.caption.startswith(start)]
    return found


def texts(found: Table) -> list[list[str]]:
    return [[value.text + value.mark for value in row] for row in found.rows]


def paragraphs(blocks: Sequence[Block]) -> str:
    return " ".join(block.text for block in blocks if isinstance(block, Paragraph))


@pytest.mark.parametrize("language", ["en", "zh"])
def test_one_load_level_without_service_levels_has_no_section(language: str) -> None:
    assert blocks_of([cell_of(levels_of([CURVE[:1]]), configured=CLOSED[:1])], language=language) == ()


def test_a_cell_that_was_counted_by_other_levels_is_named_with_the_difference() -> None:
    of = levels_of([CURVE], [[1.0] * 4])
    other = cell_of(of, mode="a", slo={**SLO, "target_share": 0.95})
    none = cell_of(of, mode="b")
    blocks = blocks_of([cell_of(of, slo=SLO), other, none])
    (said,) = [block.items for block in blocks if isinstance(block, Bullets)]
    assert len(said) == 2
    assert said[0].startswith("a/fp16 is not in these tables: its requests were held against other service levels")
    assert "target_share: 0.95 / 0.9" in said[0]
    assert said[1].startswith("b/fp16 is not in these tables: its requests were held against no service levels.")
    assert {row[0] for row in texts(table(blocks, "Goodput"))} == {"default"}


def test_changes_over_several_launches_are_explained_where_they_stand() -> None:
    said = "geometric mean, over the repeats that both cells have"
    several = table(blocks_of([cell_of({0: [launch(share=0.9)] * 2}, slo=SLO)]), "Goodput")
    assert any(said in note for note in several.notes)
    once = table(blocks_of([cell_of({0: [launch(share=0.9)]}, slo=SLO)]), "Goodput")
    assert not any(said in note for note in once.notes)


def test_a_launch_without_a_goodput_is_not_counted_as_one_behind_it() -> None:
    of = {0: [launch(share=0.95), launch(share=None)], 1: [launch(share=0.9)] * 2}
    rows = texts(table(blocks_of([cell_of(of, slo=SLO)]), "Goodput"))
    assert [row[-1] for row in rows] == ["1 of 2", "2"]


def test_a_failed_cell_stays_in_the_tables() -> None:
    cells = [cell_of(levels_of([CURVE], [[1.0] * 4]), slo=SLO), cell_of({}, mode="a", state="failed")]
    assert {row[0] for row in texts(table(blocks_of(cells), "Goodput"))} == {"default", "a"}


def test_a_knee_of_launches_that_lack_a_level_says_so() -> None:
    of = dict(levels_of([CURVE, CURVE, CURVE]))
    of[1] = of[1][:1]
    (found,) = table(blocks_of([cell_of(of)]), "The knee").rows
    assert found[3].text == "between c = 4 and c = 16"
    assert found[3].under == "2 of 3 launches have no numbers at some of these levels, where their knee may be"


def test_limits_and_target_are_said() -> None:
    blocks = blocks_of([cell_of(levels_of([CURVE], [[1.0] * 4]), slo=SLO)])
    assert "TTFT at most 500 ms and E2EL at most 2,000 ms" in paragraphs(blocks)
    assert "at least 90%" in paragraphs(blocks)


class TestGoodput:
    def test_a_row_for_each_level_with_the_share_cut_off(self) -> None:
        cells = [cell_of(levels_of([CURVE], [[1.0, 0.8999, 0.5, 0.0]]), slo=SLO)]
        found = table(blocks_of(cells), "Goodput")
        assert [row[3] for row in texts(found)] == ["c = 1", "c = 4", "c = 16", "c = 64"]
        assert [row[6] for row in texts(found)] == ["100%", "89.9%", "50%", "0%"]
        assert texts(found)[3][4:6] == ["0", "0"], "no good request is a number, and no dash"

    def test_a_cell_without_numbers_is_shown_with_dashes(self) -> None:
        cells = [cell_of(levels_of([CURVE], [[1.0] * 4]), slo=SLO), cell_of({}, mode="1p1d", slo=SLO, state="failed")]
        row = texts(table(blocks_of(cells), "Goodput"))[-1]
        assert row[:2] == ["1p1d", "fp16‡"]
        assert set(row[3:]) == {"–"}

    def test_per_device_the_difference_is_that_per_device(self, tmp_path: Path) -> None:
        """On twice the GPUs a goodput that is alike is half of it for each GPU: both differences stand there."""
        modes = {"modes": ("default", "2x"), "dtypes": ("fp16",), "failed": frozenset(), "suspect": frozenset()}
        cells = write_sample(tmp_path / "results", Sample(**modes, gpu=True, ttft_limit_ms=1000.0))
        compare(cells, ("default", "fp16"), tmp_path / "comparisons.csv")
        results = read_study_results(cells, tmp_path / "comparisons.csv")
        (section,) = describe_service_levels(results, Wording("en"))
        found = table(section.blocks, "Goodput")
        base, twice = found.rows
        assert [value.under for value in base[4:6]] == ["base", "base"]
        total, per_gpu = (float(value.under.rstrip("%").replace("−", "-")) for value in twice[4:6])
        assert per_gpu == pytest.approx((100 + total) / 2 - 100, abs=0.11)
        assert "that per GPU or core is at less load on each GPU or core of the larger" in found.notes[0]

    def test_the_difference_to_the_base_stands_below(self) -> None:
        base = cell_of(levels_of([CURVE], [[1.0] * 4]), slo=SLO)
        mine = cell_of(levels_of([CURVE], [[0.5] * 4]), mode="1p1d", slo=SLO)
        rows = [effect("baseline", mine, base, 0, "lower", 0.5, "goodput", "value")]
        found = table(blocks_of([base, mine], rows), "Goodput")
        assert [row[4].under for row in found.rows if row[3].text == "c = 1"] == ["base", "−50.0%"]

    def test_what_other_limits_counted_is_left_out(self) -> None:
        other = cell_of(levels_of([CURVE], [[1.0] * 4]), mode="1p1d", slo={**SLO, "ttft_ms": 100.0})
        found = table(blocks_of([cell_of(levels_of([CURVE], [[1.0] * 4]), slo=SLO), other]), "Goodput")
        assert {row[0] for row in texts(found)} == {"default"}


class TestHighestLoad:
    @pytest.mark.parametrize(
        ("shares", "highest", "end"),
        [
            ([[1.0, 1.0, 0.4, 0.0]] * 2, "c = 4", "missed at c = 16 (40%)"),
            ([[1.0, 1.0, 0.4, 0.0], [1.0, 0.9, 0.42, 0.0]], "c = 4", "missed at c = 16 (40% to 42%)"),
            ([[1.0, 1.0, 1.0, 1.0]] * 2, "at least c = 64", "met at every level measured"),
            ([[0.89, 0.5, 0.4, 0.0]] * 2, "none", "missed at c = 1 (89%)"),
            (
                [[1.0, 0.95, 0.4, 0.0], [1.0, 0.85, 0.4, 0.0]],
                "c = 1",
                "cannot tell at c = 4: launches differ (85% to 95%)",
            ),
            (
                [[0.95, 1.0, 0.4, 0.0], [0.85, 1.0, 0.4, 0.0]],
                "cannot tell",
                "cannot tell at c = 1: launches differ (85% to 95%); met again at c = 4",
            ),
            ([[1.0, None, 1.0, 0.0]] * 2, "c = 1", "no numbers at c = 4; met again at c = 16"),
        ],
    )
    def test_each_outcome(self, shares: Sequence[Sequence[float | None]], highest: str, end: str) -> None:
        cells = [cell_of(levels_of([CURVE] * 2, shares), slo=SLO)]
        (row,) = texts(table(blocks_of(cells), "Highest load level"))
        assert row[3:] == [highest, end, "2"]

    def test_one_launch_is_called_so(self) -> None:
        found = table(blocks_of([cell_of(levels_of([CURVE], [[1.0, 0.5, 0.4, 0.0]]), slo=SLO)]), "Highest load level")
        assert texts(found)[0][-1] == "1¹"
        assert any(note.startswith("¹ one launch") for note in found.notes)

    def test_request_rates(self) -> None:
        rates = open_points(0.5, 2.0)
        cell = cell_of(levels_of([CURVE[:2]], [[1.0, 0.2]]), configured=rates, slo=SLO)
        assert texts(table(blocks_of([cell]), "Highest load level"))[0][3:5] == ["0.5/s", "missed at 2/s (20%)"]

    def test_a_failed_cell_cannot_be_told(self) -> None:
        found = table(blocks_of([cell_of({}, slo=SLO, state="failed")]), "Highest load level")
        assert texts(found)[0][1:] == ["fp16‡", "1 GPU", "cannot tell", "no numbers at c = 1", "–"]

    def test_a_single_level_says_that_more_was_not_measured(self) -> None:
        blocks = blocks_of([cell_of(levels_of([CURVE[:1]], [[1.0]]), configured=CLOSED[:1], slo=SLO)])
        (row,) = table(blocks, "Highest load level").rows
        assert (row[3].text, row[3].under) == ("at least c = 1", "the highest measured")
        assert not [block for block in blocks if isinstance(block, Figure)]


def test_cut_off_and_never_rounded_up() -> None:
    assert [percent(share) for share in (0.0, 0.57, 0.8999, 0.9, 0.9999, 1.0)] == [
        "0%", "57%", "89.9%", "90%", "99.9%", "100%",
    ]  # fmt: skip


class TestKnees:
    def knee(self, *curves: Sequence[tuple[float, float]]) -> tuple[str, str, list[str]]:
        (row,) = table(blocks_of([cell_of(levels_of(curves))]), "The knee").rows
        return row[3].text, row[3].under, [value.text for value in row[4:]]

    def test_inside_at_the_ends_and_between(self) -> None:
        assert self.knee(CURVE, CURVE) == ("c = 16", "", ["50.0", "2,000", "4 of 4", "2"])
        outside = "not inside the measured range"
        assert self.knee(RISING)[:2] == ("c = 64 or above", outside)
        assert self.knee([(10, e) for e in (1.0, 2.0, 4.0, 8.0)])[:2] == ("c = 1 or below", outside)
        assert self.knee(CURVE, ((10, 1.0), (40, 1.5), (50, 2.0), (50, 4.0)))[0] == "between c = 4 and c = 16"
        assert self.knee(CURVE, RISING)[:2] == ("between c = 16 and c = 64, or above", outside)
        assert self.knee([(t, t / 10) for t in (10.0, 20.0, 40.0, 80.0)])[:2] == (
            "not to be seen from c = 1 to c = 64",
            outside,
        )

    def test_two_levels_are_said_to_be_too_few(self) -> None:
        blocks = blocks_of([cell_of(levels_of([CURVE[:2]]), configured=CLOSED[:2])])
        assert "A knee can be looked for from three load levels on; w has 2." in paragraphs(blocks)

    def test_a_cell_without_numbers(self) -> None:
        blocks = blocks_of([cell_of(levels_of([CURVE])), cell_of({}, mode="1p1d", state="failed")])
        assert texts(table(blocks, "The knee"))[1][3:] == ["fewer than three levels with numbers", *["–"] * 4]


class TestCrossovers:
    BASE = cell_of(levels_of([CURVE] * 3))
    MINE = cell_of(levels_of([CURVE] * 3), mode="1p1d")

    def said(self, *effects: Effect) -> tuple[str, ...]:
        blocks = blocks_of([self.BASE, self.MINE], effects)
        return next((block.items for block in blocks if isinstance(block, Bullets)), (paragraphs(blocks),))

    def flip(self, metric: str, stat: str, first: str, second: str) -> list[Effect]:
        ratios = {"lower": 0.8, "higher": 1.2, "cannot tell": 1.01}
        pairs = ((1, first), (3, second))
        return [effect("mode", self.MINE, self.BASE, i, v, ratios[v], metric, stat) for i, v in pairs]

    def test_latency_and_throughput_are_told_together_where_the_same_cell_is_ahead(self) -> None:
        effects = [
            *self.flip("ttft", "mean", "higher", "lower"),
            *self.flip("output_throughput", "value", "lower", "higher"),
            *self.flip("output_throughput_per_device", "value", "lower", "higher"),
        ]
        assert self.said(*effects) == (
            "Between c = 4 and c = 64: at c = 4 default/fp16 is ahead of 1p1d/fp16 in mean TTFT (lower) and "
            "output throughput (higher); at c = 64 it is behind.",
        )

    def test_nothing_is_named_that_is_not_decided(self) -> None:
        (text,) = self.said(*self.flip("ttft", "mean", "lower", "cannot tell"))
        assert "Between no two load levels of w do decided verdicts change sides." in text
        assert "In 1 comparison of two cells in one number the values change places" in text

    def test_few_launches_are_given_as_the_reason(self) -> None:
        assert "Verdicts take three launches" in paragraphs(blocks_of([cell_of(levels_of([CURVE]))]))


@pytest.mark.parametrize("language", ["en", "zh"])
def test_all_of_it_can_be_said_in_each_language(language: str) -> None:
    base = cell_of(levels_of([CURVE, RISING], [[1.0, 0.95, 1.0, 0.0], [1.0, 0.5, 1.0, 0.0]]), slo=SLO)
    mine = cell_of(levels_of([CURVE], [[1.0] * 4]), mode="1p1d", slo=SLO, state="suspect")
    rows = [effect("mode", mine, base, i, v, r) for i, (v, r) in enumerate([("lower", 0.8), ("higher", 1.2)])]
    rows += [effect("mode", mine, base, i, "cannot tell", r, "e2el") for i, r in enumerate((0.9, 1.1))]
    blocks = blocks_of([base, mine], rows, language)
    kinds = [type(block) for block in blocks]
    assert kinds == [Paragraph, Table, Table, Figure, Table, Paragraph, Bullets, Paragraph]
