"""Where two cells change places: only decided verdicts name a crossover."""

from collections.abc import Sequence

import pytest
from load_cells import CLOSED, cell_of, effect, launch, open_points, results_of

from pdkv.analysing.crossovers import Crossings, compared_pairs, find_crossings
from pdkv.analysing.study_results import Cell, Effect

LEVELS = {index: [launch()] for index in range(4)}
BASE = cell_of(LEVELS)
MINE = cell_of(LEVELS, mode="1p1d")
QUANTITIES = (("ttft", "mean"), ("output_throughput", "value"))


def effects(verdicts: Sequence[tuple[str, float]], factor: str = "mode", cell: Cell = MINE) -> list[Effect]:
    return [effect(factor, cell, BASE, index, *each) for index, each in enumerate(verdicts)]


def crossings(verdicts: Sequence[tuple[str, float]]) -> Crossings:
    return find_crossings(results_of([BASE, MINE], effects(verdicts)), "w", QUANTITIES)


def test_a_flip_of_verdicts_is_named_with_both_sides() -> None:
    found = crossings([("lower", 0.8), ("lower", 0.9), ("higher", 1.2), ("higher", 1.5)])
    assert found.seen == 0
    (one,) = found.decided
    assert (one.metric, one.stat, one.below, one.above) == ("ttft", "mean", 1, 2)
    assert (one.lower_below, one.lower_above) == (MINE, BASE)


def test_levels_that_decide_nothing_widen_the_gap() -> None:
    found = crossings([("higher", 1.2), ("cannot tell", 1.01), ("equivalent", 1.0), ("lower", 0.7)])
    (one,) = found.decided
    assert (one.below, one.above, one.lower_below, one.lower_above) == (0, 3, BASE, MINE)


@pytest.mark.parametrize(
    ("verdicts", "seen"),
    [
        ([("lower", 0.8), ("lower", 0.9), ("lower", 0.7), ("lower", 0.8)], 0),
        ([("lower", 0.8), ("cannot tell", 0.97), ("cannot tell", 1.1), ("cannot tell", 1.2)], 1),
        ([("not decided: one launch", 0.8), ("not decided: one launch", 1.2)], 1),
        ([("lower", 0.8), ("equivalent", 1.01), ("equivalent", 1.005), ("equivalent", 1.0)], 0),
        ([("equivalent", 0.995), ("equivalent", 1.005)], 0),
        ([("cannot tell", 1.0), ("cannot tell", 1.0)], 0),
    ],
    ids=["no flip", "half decided", "one launch", "fades to equivalent", "equivalent", "ties"],
)
def test_without_two_decided_sides_nothing_is_named(verdicts: list[tuple[str, float]], seen: int) -> None:
    found = crossings(verdicts)
    assert found.decided == ()
    assert found.seen == seen


def test_two_flips_are_two_crossovers() -> None:
    found = crossings([("lower", 0.8), ("higher", 1.2), ("cannot tell", 1.0), ("lower", 0.9)])
    assert [(each.below, each.above) for each in found.decided] == [(0, 1), (1, 3)]


def test_a_pair_is_told_once_however_it_is_compared() -> None:
    flips = [("lower", 0.8), ("higher", 1.2)]
    results = results_of([BASE, MINE], [*effects(flips, "baseline"), *effects(flips, "mode")])
    assert [pair[0] for pair in compared_pairs(results, "w")] == ["mode"]
    assert len(find_crossings(results, "w", QUANTITIES).decided) == 1


def test_a_pair_of_baseline_only_is_told_and_interactions_are_none() -> None:
    both = cell_of(LEVELS, mode="1p1d", dtype="fp8")
    results = results_of([BASE, both], [*effects([("lower", 0.8)], "baseline", both)])
    assert [(pair[0], pair[1].name, pair[2].name) for pair in compared_pairs(results, "w")] == [
        ("baseline", "1p1d/fp8", "default/fp16")
    ]
    interaction = results_of([BASE, both], effects([("lower", 0.8), ("higher", 1.2)], "interaction", both))
    assert find_crossings(interaction, "w", QUANTITIES) == Crossings((), 0)


def test_cells_that_ran_the_same_have_no_crossover() -> None:
    base, same = (cell_of(LEVELS, mode=mode, identity="one") for mode in ("default", "chunked"))
    flips = [effect("mode", same, base, i, *v) for i, v in enumerate([("lower", 0.8), ("higher", 1.2)])]
    assert find_crossings(results_of([base, same], flips), "w", QUANTITIES) == Crossings((), 0)


def test_levels_ascend_and_a_missing_one_is_passed_over() -> None:
    rates = open_points(8.0, 1.0, 4.0)
    base = cell_of({0: [launch()], 1: [launch()]}, configured=rates)
    mine = cell_of({0: [launch()], 1: [launch()]}, mode="1p1d", configured=rates)
    rows = [effect("mode", mine, base, 0, "lower", 0.8, configured=rates)]
    rows += [effect("mode", mine, base, 1, "higher", 1.2, configured=rates)]
    (one,) = find_crossings(results_of([base, mine], rows), "w", QUANTITIES).decided
    assert (one.below, one.above, one.lower_below) == (1, 0, base), "1/s is below 8/s"


def test_users_and_rates_do_not_cross_each_other() -> None:
    configured = [CLOSED[0], *open_points(1.0)]
    base = cell_of({0: [launch()], 1: [launch()]}, configured=configured)
    mine = cell_of({0: [launch()], 1: [launch()]}, mode="1p1d", configured=configured)
    rows = [
        effect("mode", mine, base, index, *verdict, configured=configured)
        for index, verdict in enumerate([("lower", 0.8), ("higher", 1.2)])
    ]
    assert find_crossings(results_of([base, mine], rows), "w", QUANTITIES) == Crossings((), 0)
