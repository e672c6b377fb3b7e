"""Which cells may be the best: each place, ties, cycles, unequal hardware, refusals, and that luck makes no winner."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sample_results import Sample, write_sample

from pdkv.analysing.comparison import comparison_rows
from pdkv.analysing.contests import SAME, STATED, TOO_FEW_STATED, Entrant, decide_contests, hold_contest
from pdkv.analysing.hardware_units import KV_PER_DEVICE
from pdkv.analysing.objective_places import Outcome, read_outcomes
from pdkv.analysing.objective_races import (
    CYCLE,
    OTHER_WAY,
    OUTSIDE,
    Race,
    Standing,
    standings,
    winner_of,
)
from pdkv.analysing.objectives import COLUMNS, objective_rows, rank_objectives
from pdkv.analysing.token_cost import Prices
from pdkv.artifacts import read_json, write_json

NONE = frozenset[tuple[str, str]]()
GPUS = Sample(
    modes=("default", "unchunked", "2x", "1p1d"), launches=5, requests=120, gpu=True, failed=NONE, suspect=NONE
)


def entrant(name: str, values: Sequence[float], first: int = 1, weakness: str | None = None) -> Entrant:
    by_repeat = dict(enumerate(values, first))
    return Entrant({"mode": name, "dtype": "x"}, float(np.mean(values)), by_repeat, weakness)


def race(
    *entrants: Entrant,
    higher: bool = False,
    stat: str = "mean",
    same: Sequence[tuple[int, int]] = (),
    metric: str = "",
) -> dict[str, Standing]:
    pairs = [
        hold_contest(entrants[i], entrants[j], stat, same=(i, j) in same, metric=metric)
        for i, j in combinations(range(len(entrants)), 2)
    ]
    decide_contests(pairs, 0.02)
    found = standings(Race(entrants, higher, pairs))
    return {str(each.entrant.cell["mode"]): each for each in found}


def places(found: Mapping[str, Standing]) -> dict[str, str]:
    return {name: standing.place for name, standing in found.items()}


CLEAR = (1.00, 1.01, 0.99, 1.00)
FAR = (1.50, 1.52, 1.49, 1.51)
WILD = (0.90, 1.10, 1.00, 1.20)


class TestPlaces:
    def test_one_that_beats_all_others_is_best_and_shown_by_its_nearest_rival(self) -> None:
        found = race(entrant("a", CLEAR), entrant("b", FAR), entrant("c", [3 * value for value in CLEAR]))
        assert places(found) == {"a": "best", "b": "worse", "c": "worse"}
        best = found["a"]
        assert best.against and best.against.cell["mode"] == "b"
        assert best.ratio == pytest.approx(1 / 1.505, rel=0.01)
        assert best.interval and best.interval[0] < best.ratio < best.interval[1] < 1

    def test_what_is_put_aside_is_shown_against_the_leader(self) -> None:
        worse = race(entrant("a", CLEAR), entrant("b", FAR))["b"]
        assert worse.against and worse.against.cell["mode"] == "a"
        assert worse.ratio == pytest.approx(1.505, rel=0.01)
        assert worse.interval and 1 < worse.interval[0] < worse.ratio < worse.interval[1]

    def test_where_more_is_better_the_higher_one_wins(self) -> None:
        assert places(race(entrant("a", CLEAR), entrant("b", FAR), higher=True)) == {"a": "worse", "b": "best"}

    def test_those_that_are_all_equivalent_are_equally_good(self) -> None:
        found = race(entrant("a", CLEAR), entrant("b", [1.001 * v for v in CLEAR]), entrant("c", FAR))
        assert places(found) == {"a": "equally good", "b": "equally good", "c": "worse"}

    def test_an_open_pair_leaves_it_open_and_says_how_many_repeats_more(self) -> None:
        found = race(entrant("a", CLEAR), entrant("b", WILD), entrant("c", [4 * v for v in CLEAR]))
        assert places(found) == {"a": "cannot tell", "b": "cannot tell", "c": "worse"}
        assert found["b"].more.lstrip(">").isdecimal()

    def test_the_better_looking_of_an_open_pair_is_not_called_best(self) -> None:
        looks = race(entrant("a", (0.90, 0.99, 0.91)), entrant("b", (1.0, 1.0, 1.0)))
        assert set(places(looks).values()) == {"cannot tell"}

    def test_exact_ties_without_any_spread_are_equally_good(self) -> None:
        assert set(places(race(entrant("a", (5.0,) * 3), entrant("b", (5.0,) * 3))).values()) == {"equally good"}

    def test_a_difference_without_any_spread_decides(self) -> None:
        assert places(race(entrant("a", (5.0,) * 3), entrant("b", (10.0,) * 3))) == {"a": "best", "b": "worse"}

    @pytest.mark.parametrize("launches", [1, 2])
    def test_few_launches_decide_nothing_however_large_the_difference(self, launches: int) -> None:
        found = race(entrant("a", (1.0,) * launches), entrant("b", (9.0,) * launches))
        assert set(places(found).values()) == {"not decided"}
        assert {each.more for each in found.values()} == {str(3 - launches)}
        assert all(each.interval is None for each in found.values())

    def test_what_is_observed_is_taken_repeat_by_repeat_too(self) -> None:
        """Over all launches b looks better; in the only repeat that both have it was the worse one."""
        found = race(entrant("a", (4.0, 1.0, 1.0)), entrant("b", (1.5,), first=2))
        assert set(places(found).values()) == {"not decided"}
        assert (found["a"].ratio, found["b"].ratio) == (pytest.approx(1 / 1.5), pytest.approx(1.5))
        assert found["a"].against and found["a"].against.cell["mode"] == "b"
        assert all(OTHER_WAY in each.note for each in found.values())

    def test_one_launch_of_one_configuration_under_two_names_is_no_verdict(self) -> None:
        found = race(entrant("a", (1.0,)), entrant("b", (1.0,)), entrant("c", (2.0,)), same=[(0, 1)])
        assert set(places(found).values()) == {"not decided"}
        assert set(places(race(entrant("a", (1.0,)), entrant("b", (1.0,)), same=[(0, 1)])).values()) == {"not decided"}

    def test_a_p99_needs_five_launches_and_enough_values(self) -> None:
        four = race(entrant("a", CLEAR), entrant("b", FAR), stat="p99")
        assert set(places(four).values()) == {"not decided"}
        assert {each.more for each in four.values()} == {"1"}
        five = race(entrant("a", (*CLEAR, 1.0)), entrant("b", (*FAR, 1.5)), stat="p99")
        assert places(five) == {"a": "best", "b": "worse"}
        weak = race(entrant("a", (*CLEAR, 1.0), weakness="40 values"), entrant("b", (*FAR, 1.5)), stat="p99")
        assert {(each.place, each.note, each.more) for each in weak.values()} == {("not decided", "40 values", "")}

    @pytest.mark.parametrize("value", [0.5, 1.2, 3.0])
    @pytest.mark.parametrize("launches", [1, 2])
    def test_a_cell_with_too_few_launches_stands_apart_however_it_looks(self, value: float, launches: int) -> None:
        found = race(entrant("a", CLEAR), entrant("b", FAR), entrant("c", (value,) * launches))
        assert places(found) == {"a": "best", "b": "worse", "c": "not tested"}
        wanted = 3 - launches
        assert found["c"].more == str(wanted) and found["c"].against is None and found["c"].ratio is None
        assert found["c"].note == f"{launches} repeat{'s' if launches > 1 else ''} in common, 3 are needed"
        assert found["a"].against and found["a"].against.cell["mode"] == "b"

    def test_what_it_lacks_is_counted_with_the_cell_that_it_has_most_repeats_in_common_with(self) -> None:
        """Another cell with one launch does not make two launches one."""
        found = race(entrant("a", CLEAR), entrant("b", FAR), entrant("c", (2.0, 2.0)), entrant("d", (2.0,)))
        assert places(found) == {"a": "best", "b": "worse", "c": "not tested", "d": "not tested"}
        assert (found["c"].repeats, found["c"].more, found["c"].note) == (2, "1", "2 repeats in common, 3 are needed")
        assert (found["d"].repeats, found["d"].more, found["d"].note) == (1, "2", "1 repeat in common, 3 are needed")

    def test_what_an_undecided_pair_lacks_is_that_pairs(self) -> None:
        """A cell that ran less often stands in the race, and its missing launches are its own."""
        found = race(entrant("a", CLEAR), entrant("b", FAR), entrant("c", (3.0,)), stat="p99")
        assert set(places(found).values()) == {"not decided"}
        told = {name: (each.repeats, each.more, each.note) for name, each in found.items()}
        four, one = (4, "1", "4 repeats in common, 5 are needed"), (1, "4", "1 repeat in common, 5 are needed")
        assert told == {"a": four, "b": four, "c": one}

    def test_it_stands_apart_beside_one_that_could_not_be_tested_for_another_reason(self) -> None:
        rows = [entrant("a", CLEAR), entrant("b", FAR), entrant("c", (2.0,))]
        zero = race(*rows, entrant("d", (1.0, 1.0, 0.0, 1.0)), higher=True)
        assert places(zero) == {"a": "worse", "b": "cannot tell", "c": "not tested", "d": "cannot tell"}
        weak = race(*rows, entrant("d", CLEAR, weakness="40 values"))
        assert places(weak) == {"a": "cannot tell", "b": "worse", "c": "not tested", "d": "cannot tell"}

    def test_it_is_none_of_those_that_cannot_be_told_apart(self) -> None:
        found = race(entrant("a", CLEAR), entrant("b", WILD), entrant("c", (0.5,)))
        assert places(found) == {"a": "cannot tell", "b": "cannot tell", "c": "not tested"}
        assert found["b"].against and found["b"].against.cell["mode"] == "a"

    def test_a_twin_with_too_few_launches_does_not_keep_the_other_from_being_put_aside(self) -> None:
        found = race(entrant("a", FAR), entrant("b", (1.5,)), entrant("c", CLEAR), same=[(0, 1)])
        assert places(found) == {"a": "worse", "b": "not tested", "c": "best"}

    @pytest.mark.parametrize(
        ("one", "other", "wanted"),
        [
            ((50.0, 50.1), (100.0, 100.1), {"worse", "best"}),
            ((50.0,), (100.0, 100.1), {"not decided"}),  # one launch shows no spread
            ((99.0, 50.0), (100.0, 100.1), {"not decided"}),  # within the margin of each other in one launch
            ((50.0, 101.0), (100.0, 100.1), {"not decided"}),  # on both sides
            ((100.0, 100.0), (100.0, 100.0), {"not decided"}),  # that they are equal takes an interval
        ],
    )
    def test_what_the_engine_states_takes_two_launches_to_be_put_aside(
        self, one: Sequence[float], other: Sequence[float], wanted: set[str]
    ) -> None:
        found = race(entrant("a", one), entrant("b", other), higher=True, metric="kv_cache_tokens_per_device")
        assert set(places(found).values()) == wanted
        measured = race(entrant("a", one), entrant("b", other), higher=True)
        assert set(places(measured).values()) == {"not decided"}
        if wanted != {"not decided"}:
            assert places(found)["b"] == "best"
            assert found["b"].ratio == pytest.approx(2, rel=0.01) and found["b"].interval is None
            assert found["b"].note == STATED and found["b"].more == ""

    def test_in_what_the_engine_states_two_launches_are_tested_and_one_is_not(self) -> None:
        """With two launches a cell is put aside, or may be the best; with one it stands apart."""
        kv = {"higher": True, "metric": KV_PER_DEVICE}
        full, half = entrant("full", (100.0, 100.0, 100.0)), entrant("half", (50.0, 50.0))
        found = race(full, half, entrant("twice", (100.0, 100.0)), entrant("once", (50.0,)), **kv)
        assert places(found) == {
            "full": "cannot tell", "half": "worse", "twice": "cannot tell", "once": "not tested",
        }  # fmt: skip
        assert found["half"].note == STATED and found["half"].more == ""
        assert (found["twice"].more, found["twice"].note) == ("1", "2 repeats in common, 3 are needed")
        assert (found["once"].repeats, found["once"].more, found["once"].note) == (1, "1", TOO_FEW_STATED)
        alike = race(full, half, entrant("once", (100.0,)), **kv)
        assert places(alike) == {"full": "best", "half": "worse", "once": "not tested"}
        assert alike["once"].more == "1", "one more puts half aside, two more show that it is as good as full"

    def test_launches_that_state_it_need_not_be_of_the_same_repeats(self) -> None:
        found = race(
            entrant("a", (100.0, 100.0, 100.0)), entrant("b", (50.0, 50.0), first=7), higher=True, metric=KV_PER_DEVICE
        )
        assert places(found) == {"a": "best", "b": "worse"}

    def test_nor_is_what_it_states_beyond_doubt_within_the_yardstick(self) -> None:
        pair = hold_contest(
            entrant("a", (50.0, 50.1)), entrant("b", (60.0, 60.1)), "value", same=False, metric=KV_PER_DEVICE
        )
        pair.yardstick = 0.3
        decide_contests([pair], 0.02)
        assert (pair.verdict, pair.more) == ("", "1")

    def test_a_value_of_zero_has_no_ratio(self) -> None:
        found = race(entrant("a", (0.0, 0.0, 0.0)), entrant("b", (1.0, 1.0, 1.0)))
        assert {(each.place, each.note) for each in found.values()} == {("not decided", "a value is 0")}

    def test_nor_is_a_launch_with_zero_left_out_of_one(self) -> None:
        found = race(
            entrant("a", (2.0, 2.1, 0.0, 2.05)), entrant("b", (1.9, 1.9, 1.9)), entrant("c", CLEAR), higher=True
        )
        assert places(found) == {"a": "cannot tell", "b": "cannot tell", "c": "worse"}
        assert found["a"].ratio == pytest.approx(1.5375 / 1.9) and found["a"].interval is None


class TestSameConfiguration:
    def test_what_ran_the_same_thing_is_equally_good_without_a_test(self) -> None:
        found = race(entrant("a", CLEAR), entrant("b", WILD), entrant("c", [4 * v for v in CLEAR]), same=[(0, 1)])
        assert places(found) == {"a": "equally good", "b": "equally good", "c": "worse"}
        assert found["b"].note == SAME

    def test_it_stands_or_falls_together(self) -> None:
        twins = race(entrant("a", FAR), entrant("b", (1.5, 0.9, 2.0, 1.1)), entrant("c", CLEAR), same=[(0, 1)])
        assert places(twins) == {"a": "cannot tell", "b": "cannot tell", "c": "cannot tell"}


def test_a_cycle_of_three_names_no_best() -> None:
    """Pairs have different repeats in common: each is shown better than the next."""
    a = Entrant({"mode": "a", "dtype": "x"}, 1.0, {1: 1.0, 2: 1.0, 3: 1.0, 7: 2.0, 8: 2.0, 9: 2.0})
    b = Entrant({"mode": "b", "dtype": "x"}, 1.0, {1: 2.0, 2: 2.0, 3: 2.0, 4: 1.0, 5: 1.0, 6: 1.0})
    c = Entrant({"mode": "c", "dtype": "x"}, 1.0, {4: 2.0, 5: 2.0, 6: 2.0, 7: 1.0, 8: 1.0, 9: 1.0})
    found = race(a, b, c)
    assert {(each.place, each.note, each.against) for each in found.values()} == {("cannot tell", CYCLE, None)}
    alone = Entrant({"mode": "d", "dtype": "x"}, 5.0, {10: 5.0, 11: 5.1, 12: 5.2})
    found = race(a, b, c, alone)
    assert {name: (each.place, each.note) for name, each in found.items()} == {
        **dict.fromkeys("abc", ("cannot tell", CYCLE)),
        "d": ("not tested", "0 repeats in common, 3 are needed"),
    }


def test_who_met_nobody_is_not_best_because_the_others_beat_each_other_in_a_cycle() -> None:
    a = Entrant({"mode": "a", "dtype": "x"}, 1.5, {1: 1.0, 2: 1.0, 3: 1.0, 7: 2.0, 8: 2.0, 9: 2.0})
    b = Entrant({"mode": "b", "dtype": "x"}, 1.5, {1: 2.0, 2: 2.0, 3: 2.0, 4: 1.0, 5: 1.0, 6: 1.0})
    c = Entrant({"mode": "c", "dtype": "x"}, 1.5, {4: 2.0, 5: 2.0, 6: 2.0, 7: 1.0, 8: 1.0, 9: 1.0})
    outsider = entrant("d", (5.0, 5.1, 5.2), first=10)
    assert places(race(a, b, c, outsider))["d"] == "not tested"
    beaten = entrant("e", (9.0, 9.1, 9.2), first=10)
    found = race(a, b, c, outsider, beaten)
    assert places(found) == {**dict.fromkeys("abcd", "cannot tell"), "e": "worse"}
    assert found["d"].note == OUTSIDE  # nobody is shown better than it


def test_among_equal_cells_luck_makes_a_winner_in_at_most_one_family_of_twenty() -> None:
    """Six equal cells at two loads: thirty pairs. A wrong verdict anywhere counts, whatever became of it."""
    rng = np.random.default_rng(5)
    wrong = 0
    studies = 600
    for _ in range(studies):
        races = []
        for _ in range(2):
            cells = [entrant(str(i), np.exp(rng.normal(0, 0.03, 3)).tolist()) for i in range(6)]
            pairs = [hold_contest(*pair, "mean", same=False) for pair in combinations(cells, 2)]
            races.append(Race(cells, False, pairs))
        decide_contests([pair for each in races for pair in each.contests], 0.02)
        said = {standing.place for each in races for standing in standings(each)}
        wrong += bool(said & {"best", "worse"})
        decided = any(winner_of(each, pair) for each in races for pair in each.contests)
        assert decided or not said & {"best", "worse"}
    assert wrong / studies < 0.05 + 3 * (0.05 * 0.95 / studies) ** 0.5


# ---- from stored cells ---------------------------------------------------------------------------------------------


def cells_of(tmp_path: Path, sample: Sample) -> list[dict[str, Any]]:
    return [read_json(path, "cell/1") for path in write_sample(tmp_path, sample)]


def set_launches(cell: dict[str, Any], metric: str, stat: str, values: Sequence[float]) -> None:
    """The cell had as many launches at its first load level, with these values there."""
    point, trial = cell["points"][0], cell["trials"][0]
    point["per_launch"] = [deepcopy(point["per_launch"][0]) for _ in values]
    point["repeats"], point["launches"] = list(range(1, len(values) + 1)), len(values)
    cell["trials"] = [{**deepcopy(trial), "repeat": repeat} for repeat in point["repeats"]]
    for launch, value in zip(point["per_launch"], values, strict=True):
        launch[metric][stat] = value
    point["metrics"][metric][stat] = sum(values) / len(values)


def third_of(cell: dict[str, Any]) -> dict[str, Any]:
    """A cell of a mode of its own, that ran another configuration."""
    third = {**deepcopy(cell), "mode": "third"}
    for trial in third["trials"]:
        trial["launch"]["identity"] = "third"
    return third


def outcomes_from(cells: Sequence[dict[str, Any]], folder: Path, prices: Prices | None = None) -> list[Outcome]:
    paths = [folder / f"{number}.json" for number in range(len(cells))]
    for path, cell in zip(paths, cells, strict=True):
        write_json(path, "cell/1", {key: value for key, value in cell.items() if key != "schema"})
    rank_objectives(paths, folder / "objectives.csv", prices=prices)
    return read_outcomes(folder / "objectives.csv")


def of(rows: Sequence[dict[str, Any]], **wanted: str) -> list[dict[str, Any]]:
    found = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
    assert found, wanted
    return found


@pytest.fixture(scope="module")
def on_gpus(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return cells_of(tmp_path_factory.mktemp("gpus"), GPUS)


class TestCells:
    def test_latency_is_a_race_on_equal_hardware_only(self, on_gpus: list[dict[str, Any]]) -> None:
        rows = objective_rows(on_gpus)
        for objective in ("first token", "tail"):
            for row in of(rows, objective=objective):
                assert row["against_mode"] in (
                    ("default", "unchunked") if row["hardware"] == "1 GPU" else ("2x", "1p1d")
                )
        pd = of(rows, objective="first token", mode="1p1d", dtype="fp16")
        assert [(row["hardware"], row["place"], row["against_mode"]) for row in pd] == [("2 GPU", "worse", "2x")]

    def test_per_gpu_and_per_token_cells_on_different_hardware_meet(self, on_gpus: list[dict[str, Any]]) -> None:
        rows = objective_rows(on_gpus)
        for objective in ("throughput", "capacity", "energy"):
            assert {row["race"] for row in of(rows, objective=objective)} == {1}
        capacity = {(row["mode"], row["dtype"]): row for row in of(rows, objective="capacity")}
        assert capacity["default", "fp8"]["value"] == 93184
        assert capacity["1p1d", "fp8"]["value"] == 46592  # the prefill GPU's memory is paid for too
        assert capacity["1p1d", "fp8"]["place"] == "worse"
        assert capacity["default", "fp8"]["unit"] == "tokens/GPU"
        assert {row["concurrency"] for row in capacity.values()} == {""}

    def test_without_gpus_the_kv_cache_is_a_setting_and_no_race(self, tmp_path: Path) -> None:
        rows = of(objective_rows(cells_of(tmp_path, Sample(launches=3, failed=NONE))), objective="capacity")
        assert {(row["place"], row["race"], row["note"]) for row in rows} == {
            ("not compared", None, "without GPUs the KV cache is as large as was set")
        }

    def test_where_launches_are_missing_values_are_over_all_and_the_ratio_decides(self, tmp_path: Path) -> None:
        """Repeats that only one cell ran make it look better than the one that beat it: the row says so."""
        cells = cells_of(tmp_path, Sample(modes=("default",), launches=6, failed=NONE, suspect=NONE))
        for cell, values in zip(cells, [(0.2, 0.202, 0.201, 0.02, 0.02, 0.02), (0.15, 0.1515, 0.1508)], strict=True):
            set_launches(cell, "ttft", "mean", values)
        slow, fast = of(objective_rows(cells), objective="first token")
        assert (slow["place"], fast["place"]) == ("worse", "best")
        assert fast["ratio"] == pytest.approx(0.75, abs=0.001)
        assert (slow["value"], fast["value"]) == (pytest.approx(110.5), pytest.approx(150.77, abs=0.01))
        assert fast["note"] == slow["note"] == OTHER_WAY

    @pytest.mark.parametrize("launches", [(5, 5, 2, 1), (2, 2, 1, 1)])
    def test_of_the_same_pair_both_files_say_how_many_launches_there_are_and_are_missing(
        self, tmp_path: Path, launches: tuple[int, ...]
    ) -> None:
        """In some races of the first study cells are not tested; in the second nothing is decided."""
        cells = cells_of(tmp_path, replace(GPUS, modes=("default", "unchunked"), dtypes=("fp16",)))
        third, fourth = third_of(cells[1]), third_of(cells[1])
        fourth["mode"] = fourth["trials"][0]["launch"]["identity"] = "fourth"
        cells += [third, fourth]
        for cell, count in zip(cells, launches, strict=True):
            for point in cell["points"]:
                point["repeats"], point["launches"] = point["repeats"][:count], count
                point["per_launch"] = point["per_launch"][:count]
            cell["trials"] = cell["trials"][:count]
        missing = {
            (row["mode"], row["concurrency"], row["metric"], row["stat"]): (row["launches"], row["more_repeats"])
            for row in comparison_rows(cells, "default", "fp16")
            if row["factor"] == "mode"
        }
        few = [row for row in objective_rows(cells) if row["mode"] in ("third", "fourth")]
        held = [row for row in few if row["objective"] != "capacity" and row["against_mode"] in ("default", None)]
        assert {row["mode"] for row in held} == {"third", "fourth"}
        assert {row["place"] for row in held} == {"not tested" if launches[0] == 5 else "not decided"}
        for row in held:
            number = (row["mode"], row["concurrency"], row["metric"], row["stat"])
            assert (row["launches"], row["more_repeats"]) == missing[number], number

    def test_one_launch_of_a_third_cell_changes_no_value_and_no_leader(self, tmp_path: Path) -> None:
        cells = cells_of(tmp_path, replace(GPUS, modes=("default", "unchunked"), dtypes=("fp16",), launches=3))
        third = third_of(cells[1])
        launches = {"default": [100.0, 130.0, 131.0], "unchunked": [101.0, 110.0, 111.0], "third": [50.0]}
        cells = [*cells, third]
        for cell in cells:
            set_launches(cell, "output_throughput", "value", launches[cell["mode"]])
        first, second, _ = of(objective_rows(cells), objective="throughput")
        assert (first["value"], second["value"]) == (pytest.approx(361 / 3), pytest.approx(322 / 3))
        assert first["ratio"] > 1 and second["against_mode"] == "default"
        outcome = next(each for each in outcomes_from(cells, tmp_path) if each.objective == "throughput")
        assert [cell.name for cell in outcome.leaders] == ["default/fp16"]
        assert [cell.name for cell in outcome.best_first][:2] == ["default/fp16", "unchunked/fp16"]
        assert outcome.lead and outcome.lead.ratio and outcome.lead.ratio > 1

    def test_the_leader_is_who_is_ahead_in_each_repeat_whatever_the_values_say(self, tmp_path: Path) -> None:
        cells = cells_of(tmp_path, replace(GPUS, modes=("default",), launches=4))
        set_launches(cells[0], "ttft", "mean", [0.10, 0.12, 0.11, 0.5])  # the fourth in a bad hour, alone
        set_launches(cells[1], "ttft", "mean", [0.11, 0.125, 0.125])
        ahead, behind = of(objective_rows(cells), objective="first token")
        assert (ahead["place"], behind["place"]) == ("cannot tell", "cannot tell")
        assert ahead["value"] > behind["value"] and ahead["ratio"] < 1 < behind["ratio"]
        assert OTHER_WAY in ahead["note"] and OTHER_WAY in behind["note"]
        outcome = next(each for each in outcomes_from(cells, tmp_path) if each.objective == "first token")
        assert outcome.leaders[0].name == outcome.best_first[0].name == "default/fp16"
        assert outcome.lead and outcome.lead.ratio and outcome.lead.ratio < 1
        assert outcome.leaders[0].values_point_the_other_way

    def test_energy_is_that_of_all_gpus_over_all_output_tokens(self, on_gpus: list[dict[str, Any]]) -> None:
        rows = {row["mode"]: row for row in of(objective_rows(on_gpus), objective="energy", dtype="fp16")}
        assert rows["default"]["value"] == pytest.approx(1234 / (120 * 16))
        assert rows["1p1d"]["value"] == pytest.approx(2 * 1234 / (120 * 16))
        assert rows["1p1d"]["unit"] == "J/tok"

    def test_energy_that_one_gpu_does_not_tell_is_not_known(self, tmp_path: Path) -> None:
        cells = cells_of(tmp_path, GPUS)
        for cell in cells:
            if cell["mode"] == "1p1d":
                for metrics in (metrics for point in cell["points"] for metrics in point["per_launch"]):
                    metrics["energy_per_output_token"]["value"] = None
        rows = of(objective_rows(cells), objective="energy", mode="1p1d")
        assert {(row["place"], row["value"], row["note"]) for row in rows} == {("out", None, "no value")}

    def test_without_power_readings_there_is_no_energy_at_all(self, tmp_path: Path) -> None:
        assert not [row for row in objective_rows(cells_of(tmp_path, Sample())) if row["objective"] == "energy"]

    def test_goodput_is_per_gpu_and_no_objective_without_service_levels(self, tmp_path: Path) -> None:
        served = cells_of(tmp_path, replace(GPUS, ttft_limit_ms=250.0))
        rows = {(row["mode"], row["dtype"]): row for row in of(objective_rows(served), objective="goodput")}
        one = served[0]["points"][0]["metrics"]["goodput"]["value"]
        assert rows["default", "fp16"]["value"] == pytest.approx(one)
        assert (rows["1p1d", "fp16"]["unit"], rows["1p1d", "fp16"]["place"]) == ("req/s/GPU", "worse")
        two = served[-2]["points"][0]["metrics"]["goodput"]["value"]
        assert rows["1p1d", "fp16"]["value"] == pytest.approx(two / 2)
        assert {row["race"] for row in rows.values()} == {1}, "cells on different amounts of hardware meet"
        assert not [row for row in objective_rows(cells_of(tmp_path / "b", GPUS)) if row["objective"] == "goodput"]

    def test_a_cell_whose_requests_all_miss_keeps_no_other_from_being_recommended(self, tmp_path: Path) -> None:
        cells = cells_of(tmp_path, replace(GPUS, modes=("default", "1p1d"), ttft_limit_ms=250.0))
        for metrics in (m for point in cells[2]["points"] for m in [point["metrics"], *point["per_launch"]]):
            metrics["goodput"]["value"] = 0.0
        rows = of(objective_rows(cells), objective="goodput")
        missed = rows[2]
        assert (missed["place"], missed["value"], missed["note"]) == ("out", 0.0, "no request met the service levels")
        assert [row["place"] for row in rows if row is not missed].count("worse") == 1
        (only, _) = of(objective_rows(cells[1:3]), objective="goodput")
        assert (only["place"], only["note"]) == ("not compared", "in no other cell a request met the service levels")
        for cell in cells:
            for metrics in (m for point in cell["points"] for m in [point["metrics"], *point["per_launch"]]):
                metrics["goodput"]["value"] = 0.0
        assert {row["place"] for row in of(objective_rows(cells), objective="goodput")} == {"out"}

    @pytest.mark.parametrize("objective", ["goodput", "service cost"])
    def test_a_launch_that_served_nobody_counts_in_value_and_order_and_allows_no_test(
        self, tmp_path: Path, objective: str
    ) -> None:
        """Without that launch the second cell would lead by 14%; with it, it is behind by 8%."""
        sample = replace(GPUS, modes=("default", "unchunked"), dtypes=("fp16",), ttft_limit_ms=250.0)
        cells = cells_of(tmp_path, sample)
        launches = {"default": [4.0, 4.1, 4.05, 4.02, 4.03], "unchunked": [4.6, 4.7, 0.0, 4.62, 4.63]}
        third = third_of(cells[1])
        launches["third"] = [3.0, 3.1, 3.05, 3.02, 3.03]
        cells = [*cells, third]
        for cell in cells:
            set_launches(cell, "goodput", "value", launches[cell["mode"]])
        prices = Prices(2.5, None, "USD")
        full, broken, worse = of(objective_rows(cells, prices=prices), objective=objective)
        means = [sum(launches[mode]) / 5 for mode in ("default", "unchunked")]
        wanted = means if objective == "goodput" else [2.5e6 / 3600 / mean for mean in means]
        assert [full["value"], broken["value"]] == pytest.approx(wanted)
        assert (full["place"], broken["place"], worse["place"]) == ("cannot tell", "cannot tell", "worse")
        assert full["note"] == broken["note"] == "a value is 0"
        assert (full["against_mode"], broken["against_mode"]) == ("unchunked", "default")
        assert full["ratio"] == pytest.approx(wanted[0] / wanted[1])
        assert full["ci_low"] is broken["ci_low"] is None
        (goodput,) = [
            each for each in outcomes_from(cells, tmp_path, prices) if each.objective == objective and each.left
        ]
        assert goodput.leaders[0].name == "default/fp16"

    def test_goodput_that_other_limits_counted_does_not_race(self, tmp_path: Path) -> None:
        cells = cells_of(tmp_path, replace(GPUS, modes=("default",), ttft_limit_ms=250.0))
        cells[1]["slo"] = {**cells[1]["slo"], "ttft_ms": 100.0}
        rows = of(objective_rows(cells), objective="goodput")
        assert {row["place"] for row in rows} == {"not compared"}
        assert rows[0]["note"] == "not comparable: ttft_ms: 100.0 / 250.0"

    def test_one_launch_recommends_nothing(self, tmp_path: Path) -> None:
        rows = objective_rows(cells_of(tmp_path, Sample()))
        assert {row["place"] for row in rows if row["objective"] != "capacity"} == {"not decided", "out"}
        assert all(row["value"] is not None for row in of(rows, place="not decided"))
        (failed,) = of(rows, place="out", objective="capacity")
        assert (failed["mode"], failed["dtype"], failed["state"]) == ("1p1d", "fp8", "failed")
        assert failed["note"] == "failed at launch: decode-0 ended before it was ready"

    def test_suspect_cells_take_part_and_are_marked(self, tmp_path: Path) -> None:
        rows = objective_rows(cells_of(tmp_path, Sample(launches=3, failed=NONE)))
        marked = {(row["mode"], row["dtype"]) for row in rows if row["state"] == "suspect"}
        assert marked == {("chunked", "fp8")}
        assert {row["place"] for row in of(rows, state="suspect", objective="first token")} <= {"worse", "cannot tell"}

    def test_cells_of_another_environment_are_not_set_against_the_rest(self, tmp_path: Path) -> None:
        cells = cells_of(tmp_path, Sample(launches=3, failed=NONE, suspect=NONE))
        cells[-1]["environment"]["engine"]["vllm"] = "0.33.0"
        rows = of(objective_rows(cells), objective="first token")
        assert (rows[-1]["place"], rows[-1]["race"]) == ("not compared", None)
        assert "engine.vllm: 0.32.0 / 0.33.0" in rows[-1]["note"]
        assert {row["race"] for row in rows[:-1]} == {1}
        assert ("1p1d", "fp8") not in {(row["against_mode"], row["against_dtype"]) for row in rows}

    def test_two_of_the_other_environment_race_by_themselves(self, tmp_path: Path) -> None:
        cells = cells_of(tmp_path, Sample(launches=3, failed=NONE, suspect=NONE))
        for cell in cells[-2:]:
            cell["environment"]["engine"]["vllm"] = "0.33.0"
        rows = of(objective_rows(cells), objective="throughput")
        assert [row["race"] for row in rows] == [1, 1, 1, 1, 2, 2]
        assert {row["against_mode"] for row in rows[-2:]} == {"1p1d"}

    def test_a_lone_cell_and_a_missing_load_level_say_why(self, tmp_path: Path) -> None:
        cells = cells_of(tmp_path, Sample(launches=3, failed=NONE, suspect=NONE, concurrencies=(2, 4)))
        cells[0]["points"] = cells[0]["points"][:1]
        row = of(objective_rows(cells), objective="first token", concurrency="4", mode="default", dtype="fp16")[0]
        assert (row["place"], row["note"]) == ("out", "not measured at this load")
        alone = objective_rows(cells[1:2])
        assert {(row["place"], row["note"]) for row in of(alone, objective="throughput")} == {
            ("not compared", "no other cell has a value")
        }

    def test_a_lone_cell_on_its_amount_of_hardware_is_not_compared(self, tmp_path: Path) -> None:
        cells = cells_of(
            tmp_path, Sample(modes=("default", "1p1d"), dtypes=("fp16",), launches=3, gpu=True, failed=NONE)
        )
        rows = of(objective_rows(cells), objective="first token")
        assert {(row["place"], row["note"]) for row in rows} == {
            ("not compared", "no other cell on as much hardware has a value")
        }

    def test_servers_of_unknown_hardware_race_for_no_latency(self, tmp_path: Path) -> None:
        cells = cells_of(tmp_path, Sample(launches=3, failed=NONE, suspect=NONE))
        for cell in cells:
            cell["config"]["mode"]["endpoint"] = "http://127.0.0.1:1"
        rows = objective_rows(cells)
        assert {(row["place"], row["note"]) for row in of(rows, objective="first token")} == {
            ("not compared", "its hardware is not known")
        }
        assert not [row for row in rows if row["objective"] in ("throughput", "capacity")]


class TestFile:
    def outcomes(self, tmp_path: Path, sample: Sample) -> list[Outcome]:
        cells = write_sample(tmp_path, sample)
        rank_objectives(cells, tmp_path / "objectives.csv")
        return read_outcomes(tmp_path / "objectives.csv")

    def test_it_is_read_as_it_was_written(self, tmp_path: Path) -> None:
        found = self.outcomes(tmp_path, GPUS)
        assert (tmp_path / "objectives.csv").read_text(encoding="utf-8").split("\n")[0] == ",".join(COLUMNS)
        two = next(each for each in found if each.objective == "first token" and each.hardware == "2 GPU")
        assert {cell.name for cell in two.left} == {"2x/fp16", "2x/fp8"}
        assert {cell.name for cell in two.worse} == {"1p1d/fp16", "1p1d/fp8"}
        assert all(cell.interval and cell.interval[0] > 1 and cell.against.startswith("2x") for cell in two.worse)
        assert next(each for each in found if each.objective == "capacity").hardware == ""

    def test_each_failed_cell_stands_by_itself(self, tmp_path: Path) -> None:
        found = [each for each in self.outcomes(tmp_path, Sample()) if each.objective == "first token"]
        assert [(each.place, len(each.cells)) for each in found] == [("not decided", 5), ("out", 1)]
        assert found[0].left == [] and found[0].more_repeats == "2"
