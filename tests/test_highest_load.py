"""Up to which load the service levels are met: every outcome, from shares made by hand."""

from collections.abc import Sequence

import pytest
from load_cells import cell_of, launch, open_points

from pdkv.analysing.highest_load import HighestLoad, highest_load
from pdkv.analysing.load_level import load_ladders

LADDER = (0, 1, 2, 3)


def found(*shares: Sequence[float | None], left_out: dict[int, int] | None = None, target: float = 0.9) -> HighestLoad:
    levels = {index: [launch(share=share) for share in each] for index, each in enumerate(shares)}
    return highest_load(cell_of(levels, left_out=left_out), LADDER[: len(shares)], target)


def reached(load: HighestLoad) -> int | None:
    return load.reached.index if load.reached else None


def stopped(load: HighestLoad) -> tuple[int, str] | None:
    return (load.stopped_by.index, load.stopped_by.outcome) if load.stopped_by else None


def test_highest_level_that_every_launch_meets() -> None:
    load = found([1.0, 0.95], [0.9, 0.92], [0.3, 0.4], [0.0, 0.0])
    assert (reached(load), stopped(load)) == (1, (2, "missed"))
    assert load.launches == 2


def test_the_target_itself_is_met() -> None:
    assert reached(found([27 / 30], [9 / 10], target=0.9)) == 1
    assert reached(found([1.0], target=1.0)) == 0
    assert reached(found([0.999], target=1.0)) is None


def test_all_met_has_no_end() -> None:
    load = found([1.0], [1.0], [1.0], [0.9])
    assert (reached(load), stopped(load)) == (3, None)
    assert load.launches == 1


def test_none_met() -> None:
    load = found([0.5], [0.2], [0.0], [0.0])
    assert (reached(load), stopped(load)) == (None, (0, "missed"))


def test_launches_that_differ_end_it_without_a_miss() -> None:
    load = found([1.0, 1.0, 1.0], [1.0, 0.89, 1.0], [0.0, 0.0, 0.0])
    assert (reached(load), stopped(load)) == (0, (1, "launches differ"))
    assert load.stopped_by and load.stopped_by.shares == (1.0, 0.89, 1.0)


def test_a_launch_that_is_left_out_has_not_met_it() -> None:
    load = found([1.0, 1.0], [1.0, 1.0], left_out={1: 1})
    assert (reached(load), stopped(load)) == (0, (1, "launches left out"))
    assert stopped(found([1.0, 1.0], [0.5, 0.5], left_out={1: 1})) == (1, "missed"), "none of the launches reached it"


def test_a_launch_whose_share_is_not_known_has_not_met_it() -> None:
    load = found([0.95, None, None], [0.2, 0.2, 0.2])
    assert (reached(load), stopped(load)) == (None, (0, "launches left out"))
    assert stopped(found([1.0, 1.0], [0.5, None])) == (1, "missed"), "none of the launches reached it"


def test_a_level_met_above_one_that_is_missed_does_not_count_and_is_told() -> None:
    load = found([1.0], [0.5], [0.95], [0.0])
    assert reached(load) == 0
    assert [step.index for step in load.met_beyond] == [2]


def test_levels_without_numbers_end_it() -> None:
    assert stopped(found([1.0], [], [1.0])) == (1, "not measured")
    assert stopped(found([1.0], [None], [1.0])) == (1, "not measured")
    one_level_only = cell_of({0: [launch(share=1.0)]})
    assert stopped(highest_load(one_level_only, LADDER, 0.9)) == (1, "not measured")
    failed = cell_of({})
    load = highest_load(failed, LADDER, 0.9)
    assert (reached(load), stopped(load), load.launches) == (None, (0, "not measured"), 0)


def test_fewest_launches_that_decide() -> None:
    assert found([1.0, 1.0, 1.0], [1.0, 1.0], [0.0]).launches == 1
    assert found([1.0], [1.0, 1.0], [0.0, 0.0]).launches == 2


@pytest.mark.parametrize("order", [(1, 4, 16, 64), (64, 1, 16, 4)])
def test_levels_ascend_whatever_their_order_in_the_config(order: tuple[int, ...]) -> None:
    points = [{"arrival": "closed", "concurrency": c, "rate": None} for c in order]
    (ladder,) = load_ladders(points)
    assert [order[index] for index in ladder] == [1, 4, 16, 64]


def test_users_and_rates_are_ladders_apart() -> None:
    points = [{"arrival": "closed", "concurrency": 2, "rate": None}, *open_points(4.0, 0.5)]
    assert load_ladders(points) == [(0,), (2, 1)]
    cell = cell_of(
        {0: [launch(share=0.0)], 1: [launch(share=0.5)], 2: [launch(share=1.0)]},
        configured=[{**points[0], "requests": 8}, *points[1:]],
    )
    users, rates = (highest_load(cell, ladder, 0.9) for ladder in load_ladders(points))
    assert (reached(users), reached(rates), stopped(rates)) == (None, 2, (1, "missed"))
