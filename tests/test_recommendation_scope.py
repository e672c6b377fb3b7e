"""What a recommendation is about: the cells that could be compared, and twins that no margin tells apart."""

from typing import Any

import pytest
from test_report_findings import RESULTS, SAY, SHOWN, cell, conclude, placed, shown

from pdkv.analysing.contests import STATED, TOO_FEW_STATED
from pdkv.analysing.objective_places import outcomes_of
from pdkv.analysing.study_results import Cell, StudyResults
from pdkv.reporting.report_blocks import Table
from pdkv.reporting.report_recommendations import describe_conclusion, say_what_is_recommended

RACED = (placed("a", "best", **SHOWN), placed("b", "worse", value="125"))


def test_the_best_of_those_that_could_be_compared_is_called_no_more() -> None:
    said, _ = conclude(*RACED, placed("c", "not compared", race="", note="no"), placed("d", "out", race="", value=""))
    assert said[0].startswith(
        "First token (mean TTFT): with 1 GPU at c = 2, "
        "of the 2 cells that could be compared (2 left out), a/fp16 is best ("
    )


def test_other_hardware_and_cells_that_served_nothing_are_not_left_out() -> None:
    said, _ = conclude(
        *RACED, placed("c", "not compared", race="", hardware="2 GPU"), placed("d", "out", race="", value="0")
    )
    assert "with 1 GPU at c = 2, a/fp16 is best (" in said[0]


def test_two_races_on_the_same_hardware_name_their_cells() -> None:
    other = {"race": "2"}
    said, _ = conclude(
        *RACED, placed("c", "best", **{**SHOWN, "against_mode": "d"}, **other), placed("d", "worse", **other)
    )
    assert "among a/fp16 and b/fp16 (2 left out), a/fp16 is best" in said[0]
    assert "among c/fp16 and d/fp16 (2 left out), c/fp16 is best" in said[1]


def test_twins_are_not_called_equal_within_a_margin() -> None:
    twins = StudyResults([cell("a", identity="x"), cell("b", identity="x"), cell("c", identity="y")], [])
    outcomes = outcomes_of(
        [placed("a", "equally good"), placed("b", "equally good", value="130"), placed("c", "worse", value="300")]
    )
    said = say_what_is_recommended(twins, outcomes, 0.02, SAY)
    assert "a/fp16 and b/fp16 ran the same configuration" in said[0]
    assert "within" not in said[0]


def test_values_that_point_the_other_way_than_the_difference_are_said_to_do_so() -> None:
    way = {"note": "over all launches of each the values point the other way"}
    _, table = conclude(placed("a", "best", **{**SHOWN, **way}, value="130"), placed("b", "worse", value="125", **way))
    assert table.rows[0][6].mark == "‡"
    assert any(note.startswith("‡ each value is over all launches of its cell") for note in table.notes)
    assert not any(note.startswith("‡") for note in conclude(*RACED)[1].notes)


def test_who_leads_is_told_by_the_ratio_and_not_by_the_value() -> None:
    ahead = {"against_mode": "b", "against_dtype": "fp16", "ratio": "0.9", "more_repeats": "4"}
    behind = {"against_mode": "a", "against_dtype": "fp16", "ratio": "1.11", "more_repeats": "4"}
    _, table = conclude(
        placed("b", "cannot tell", value="90", **behind), placed("a", "cannot tell", value="95", **ahead)
    )
    assert table.rows[0][3].text == "cannot tell between a/fp16, b/fp16"
    assert [value.text for value in table.rows[0][4:7]] == ["95.0 ms", "b/fp16", "−10.0%"]


def test_a_lead_below_what_is_usually_shown_gets_digits_in_words_and_table() -> None:
    tiny = {"ratio": "0.99966", "ci_low": "0.99965", "ci_high": "0.99967"}
    said, table = conclude(placed("a", "best", **{**SHOWN, **tiny}), placed("b", "worse", value="100.03"))
    assert "a/fp16 is best (−0.03% [−0.03, −0.03] against b/fp16, its nearest rival)" in said[0]
    assert (table.rows[0][6].text, table.rows[0][6].under) == ("−0.03%", "[−0.03, −0.03]")


def test_of_many_cells_a_few_are_named_and_the_rest_counted() -> None:
    names = [f"mode{i}" for i in range(20)]
    said, table = conclude(*(placed(name, "cannot tell") for name in names), placed("slow", "worse", value="300"))
    assert "mode0/fp16, mode1/fp16, mode2/fp16 and 17 others may be the best, which of them cannot be told" in said[0]
    assert "mode19/fp16" in table.rows[0][3].text
    _, table = conclude(*(placed(f"m{number}", "cannot tell") for number in range(30)))
    assert table.rows[0][3].text.endswith("m19/fp16 and 10 others (results/objectives.csv names all)")


def test_cells_that_met_nobody_for_one_reason_are_told_with_it() -> None:
    """The cache of a CPU is as large as was set: true of every cell, so that the reason is the sentence."""
    why = "without GPUs the KV cache is as large as was set"
    goal = {"objective": "capacity", "metric": "kv_cache_tokens_per_device", "stat": "value", "concurrency": ""}
    alone = [placed(name, "not compared", race="", note=why, **goal) for name in "ab"]
    said = say_what_is_recommended(RESULTS, outcomes_of([*RACED, *alone]), 0.02, SAY)
    assert f"No two cells could be compared in Capacity: {why}." in said
    mixed = [alone[0], placed("b", "not compared", race="", note="no other cell has a value", **goal)]
    said = say_what_is_recommended(RESULTS, outcomes_of([*RACED, *mixed]), 0.02, SAY)
    assert any(text.endswith("needed: Capacity. Why stands cell by cell in the conclusion.") for text in said)


def test_load_levels_of_several_workloads_are_listed_without_commas_inside() -> None:
    cells = [cell("a"), cell("b")]
    others = [Cell(each.folder, {**each.content, "workload": "long"}) for each in cells]
    results = StudyResults([*cells, *others], [])
    equal = [
        placed(name, "equally good", workload=workload, concurrency=load)
        for workload, load in (("w", "2"), ("w", "64"), ("long", "2"))
        for name in "ab"
    ]
    said = say_what_is_recommended(results, outcomes_of(equal), 0.02, SAY)
    assert "at c = 2 in w, c = 64 in w and c = 2 in long, a/fp16 and b/fp16 are equally good" in said[0]
    every = [*equal, *(placed(name, "equally good", workload="long", concurrency="64") for name in "ab")]
    assert "at every load, a/fp16 and b/fp16" in say_what_is_recommended(results, outcomes_of(every), 0.02, SAY)[0]


def test_a_cell_with_too_few_launches_is_named_apart_from_the_candidates() -> None:
    few = placed("c", "not tested", value="50", more_repeats="2", note="1 repeat in common, 3 are needed")
    said, table = conclude(*RACED, few)
    apart = "not tested (fewer than 3 launches in common with the others): c/fp16"
    overtaken = "c/fp16 (50.0 ms against 100 ms) was observed ahead in too few launches for a test; of the 2 cells"
    assert (
        f"nothing can be recommended, for {overtaken} that could be compared (1 left out), a/fp16 is best (" in said[0]
    )
    assert said[0].endswith(f"; {apart}.")
    assert (table.rows[0][3].text, table.rows[0][3].under, table.rows[0][3].best) == (
        "best of those tested: a/fp16",
        "not tested: c/fp16\nobserved best: c/fp16 (50.0 ms, not tested)",
        False,
    )
    behind = placed("c", "not tested", value="150", more_repeats="2", note="1 repeat in common, 3 are needed")
    said, table = conclude(*RACED, behind)
    assert "nothing can be recommended" not in said[0]
    assert (table.rows[0][3].text, table.rows[0][3].best) == ("a/fp16", True)
    assert any(note.startswith("Not tested: these have fewer launches in common") for note in table.notes)
    assert table.rows[0][4].text == "100 ms"
    untold = [placed(name, "cannot tell", more_repeats="4") for name in "ab"]
    said, table = conclude(*untold, few, placed("d", "worse", value="300"))
    assert (
        "a/fp16 and b/fp16 may be the best, which of them cannot be told (1 other is shown worse); not tested"
        in (said[0])
    )
    assert table.rows[0][3].text == "cannot tell between a/fp16, b/fp16"
    assert table.rows[0][3].under == (
        "shown worse: d/fp16\nnot tested: c/fp16\nobserved best: c/fp16 (50.0 ms, not tested)"
    )
    assert table.rows[0][7].text == "4"


def test_levels_with_an_untested_cell_ahead_are_told_apart_from_those_without() -> None:
    def told(**values: str) -> str:
        few = {"more_repeats": "2", "note": "1 repeat in common, 3 are needed"}
        rows = [
            row
            for load, value in (("2", values["at_2"]), ("64", values["at_64"]))
            for row in (
                placed("a", "best", **SHOWN, concurrency=load),
                placed("b", "worse", value="125", concurrency=load),
                placed("c", "not tested", value=value, concurrency=load, **few),
            )
        ]
        results = StudyResults([cell(name) for name in "abc"], [])
        return say_what_is_recommended(results, outcomes_of(rows), 0.02, SAY)[0]

    of_the_tested = "of the 2 cells that could be compared (1 left out), a/fp16 is best"
    one = told(at_2="50", at_64="150")
    assert "at c = 2, nothing can be recommended, for c/fp16 (50.0 ms against 100 ms) was observed ahead" in one
    assert f"at c = 64, {of_the_tested}" in one
    both = "c/fp16 at c = 2 (50.0 ms against 100 ms) and c/fp16 at c = 64 (60.0 ms against 100 ms) was observed ahead"
    assert f"at every load, nothing can be recommended, for {both}" in told(at_2="50", at_64="60")
    assert "nothing can be recommended" not in told(at_2="150", at_64="150")


def test_in_capacity_not_tested_is_who_has_one_launch() -> None:
    goal = {"objective": "capacity", "metric": "kv_cache_tokens_per_device", "stat": "value", "concurrency": ""}
    one = placed("c", "not tested", more_repeats="1", launches="1", note=TOO_FEW_STATED, **goal)
    two = placed("b", "worse", value="50", launches="2", note=STATED, **{**goal, "unit": "tokens/GPU"})
    best = placed("a", "best", **{**SHOWN, "ratio": "2", "ci_low": "", "ci_high": ""}, **goal, unit="tokens/GPU")
    said, table = conclude(best, two, one)
    assert said[0].endswith("; not tested (fewer than 2 launches): c/fp16.")
    assert "in common" not in said[0]
    assert any("in capacity only one launch" in note for note in table.notes)
    assert any("capacity, which the engines state, two to put a cell aside" in note for note in table.notes)


def test_loads_at_which_other_cells_were_tested_are_told_apart() -> None:
    few = {"note": "1 repeat in common, 3 are needed"}
    said, _ = conclude(
        *RACED,
        placed("c", "not tested", **few),
        *(placed(name, place, **{**changes, "concurrency": "64"}) for name, place, changes in (
            ("a", "best", SHOWN), ("b", "worse", {}), ("c", "worse", {}),
        )),
    )  # fmt: skip
    assert "at c = 2, of the 2 cells" in said[0] and "not tested" in said[0]
    assert "at c = 64, a/fp16 is best" in said[1] and "not tested" not in said[1]


@pytest.mark.parametrize(("value", "told"), [("69", True), ("99", False), ("100", False), ("101", False), ("", False)])
def test_what_was_not_tested_and_is_ahead_by_what_matters_is_observed_best(value: str, told: bool) -> None:
    """The first token on two GPUs: 1p1d has 203 ms and the replicas, of which too few were launched, 140 ms."""
    few = placed("c", "not tested", value=value, more_repeats="2")
    untold = [placed(name, "cannot tell", more_repeats="4") for name in "ab"]
    _, table = conclude(*untold, few)
    assert table.rows[0][3].text == "cannot tell between a/fp16, b/fp16"
    assert ("observed best: c/fp16 (69.0 ms, not tested)" in table.rows[0][3].under) is told
    assert ("observed best" in table.rows[0][3].under) is told


def test_of_those_not_tested_all_that_a_table_shows_alike_are_named() -> None:
    few = [placed(name, "not tested", value=value) for name, value in (("c", "50.01"), ("d", "50.02"), ("e", "60"))]
    _, table = conclude(placed("a", "cannot tell"), placed("b", "cannot tell"), *few)
    assert table.rows[0][3].under.endswith("observed best: c/fp16, d/fp16 (50.0 ms, not tested)")


def twins_that_differ_by(ratio: float) -> StudyResults:
    """``a`` and ``b`` ran the same configuration in one launch each, ``c`` another one."""
    cells = [cell("a", identity="x"), cell("b", identity="x"), cell("c", identity="y")]
    for each, mean in zip(cells, (0.1, 0.1 * ratio, 0.09), strict=True):
        for point in each.content["points"]:
            point.update(repeats=[1], launches=1, per_launch=[{"ttft": {"mean": mean, "p99": mean, "n": 10}}])
    return StudyResults(cells, [])


@pytest.mark.parametrize(
    ("ratio", "name", "mark"),
    [
        ("0.7", "no observed best: c/fp16 ahead by no more than identical cells differ by", "≈"),  # 1 / 0.7 is +43%
        ("0.59", "observed best: c/fp16", ""),  # −41% is further off than +58%
    ],
)
def test_a_lead_within_what_identical_cells_differ_by_makes_no_observed_best(ratio: str, name: str, mark: str) -> None:
    seen: dict[str, Any] = {"more_repeats": "2", "against_dtype": "fp16"}
    outcomes = outcomes_of(
        [
            placed("a", "not decided", against_mode="c", ratio=str(1 / float(ratio)), **seen),
            placed("b", "not decided", value="158", against_mode="c", ratio="2", **seen),
            placed("c", "not decided", value="90", against_mode="a", ratio=ratio, **seen),
        ]
    )
    (section,) = describe_conclusion(twins_that_differ_by(1.58), outcomes, 0.02, SAY)
    table = next(block for block in section.blocks if isinstance(block, Table))
    assert shown(table)[0][0] == name
    assert table.rows[0][6].mark == mark
    assert any(note.startswith("≈ noise: ") for note in table.notes) is bool(mark)


def test_an_untested_cell_ahead_by_no_more_than_identical_cells_differ_by_is_not_named() -> None:
    outcomes = outcomes_of(
        [placed("a", "cannot tell"), placed("b", "cannot tell"), placed("c", "not tested", value="70")]
    )
    (section,) = describe_conclusion(twins_that_differ_by(1.58), outcomes, 0.02, SAY)
    table = next(block for block in section.blocks if isinstance(block, Table))
    assert table.rows[0][3].under == "not tested: c/fp16"
