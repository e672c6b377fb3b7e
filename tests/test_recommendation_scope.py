"""What a recommendation is about: the cells that could be compared, and twins that no margin tells apart."""

from test_report_findings import SAY, SHOWN, cell, conclude, placed

from pdkv.analysing.objective_places import outcomes_of
from pdkv.analysing.study_results import StudyResults
from pdkv.reporting.report_recommendations import say_what_is_recommended

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


def test_values_over_the_repeats_in_common_are_said_to_be() -> None:
    few = {"note": "value from 3 repeats in common"}
    _, table = conclude(placed("a", "best", **SHOWN, **few), placed("b", "worse", value="125", **few))
    assert any("that all cells of the race have (3)" in note for note in table.notes)
    assert not any("that all cells" in note for note in conclude(*RACED)[1].notes)
