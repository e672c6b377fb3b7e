"""The knee of a curve: from throughputs and latencies whose power is known."""

from collections.abc import Sequence

from load_cells import cell_of, launch, open_points

from pdkv.analysing.knees import Knee, find_knee, power_of

Curve = Sequence[tuple[float | None, float | None]]
LADDER = (0, 1, 2, 3)
# (throughput, latency): power 10, 20, 25, 12.5
INSIDE: Curve = [(10, 1.0), (30, 1.5), (50, 2.0), (50, 4.0)]
EARLIER: Curve = [(10, 1.0), (40, 1.5), (50, 2.0), (50, 4.0)]
RISING: Curve = [(10, 1.0), (20, 1.0), (40, 1.0), (80, 1.0)]
FALLING: Curve = [(10, 1.0), (10, 2.0), (10, 4.0), (10, 8.0)]
FLAT: Curve = [(10, 1.0), (20, 2.0), (40, 4.0), (80, 8.0)]


def knee_of(*launches: Curve, ladder: Sequence[int] = LADDER) -> Knee | None:
    levels = {
        index: [launch(throughput=curve[index][0], e2el_s=curve[index][1]) for curve in launches]
        for index in range(len(launches[0]))
    }
    return find_knee(cell_of(levels), ladder)


def test_power_is_throughput_by_response_time() -> None:
    assert power_of(launch(throughput=50, e2el_s=2.0)) == 25
    assert power_of(launch(throughput=None, e2el_s=2.0)) is None
    assert power_of(launch(throughput=50, e2el_s=None)) is None
    assert power_of({}) is None


def test_knee_inside_the_measured_range() -> None:
    knee = knee_of(INSIDE, INSIDE, INSIDE)
    assert knee == Knee(levels=LADDER, low=2, high=2, launches=3)
    assert knee.decided and knee.inside


def test_launches_that_disagree_say_between_which_levels_it_lies() -> None:
    knee = knee_of(INSIDE, EARLIER, INSIDE)
    assert knee and (knee.low, knee.high, knee.decided, knee.inside) == (1, 2, False, True)


def test_knee_at_the_highest_level_may_lie_above() -> None:
    knee = knee_of(RISING)
    assert (
        knee
        and knee.decided
        and (knee.low, knee.may_lie_above, knee.may_lie_below, knee.inside)
        == (
            3,
            True,
            False,
            False,
        )
    )


def test_knee_at_the_lowest_level_may_lie_below() -> None:
    knee = knee_of(FALLING)
    assert knee and knee.decided and (knee.low, knee.may_lie_above, knee.may_lie_below) == (0, False, True)


def test_flat_power_has_its_knee_anywhere() -> None:
    knee = knee_of(FLAT)
    assert knee and (knee.low, knee.high, knee.decided, knee.inside) == (0, 3, False, False)
    assert knee.may_lie_below and knee.may_lie_above


def test_two_levels_are_too_few() -> None:
    assert knee_of(INSIDE[:2], ladder=(0, 1)) is None
    assert knee_of([*INSIDE[:2], (None, None), (None, None)]) is None


def test_levels_without_numbers_are_passed_over() -> None:
    knee = knee_of([INSIDE[0], (None, None), *INSIDE[2:]])
    assert knee == Knee(levels=(0, 2, 3), low=2, high=2, launches=1)
    assert find_knee(cell_of({}), LADDER) is None


def test_the_ladder_s_order_counts_and_not_the_config_s() -> None:
    rates = open_points(8.0, 1.0, 4.0)
    levels = {i: [launch(throughput=t, e2el_s=e)] for i, (t, e) in enumerate([(50, 4.0), (10, 1.0), (40, 1.5)])}
    knee = find_knee(cell_of(levels, configured=rates), (1, 2, 0))
    assert knee and (knee.low, knee.inside) == (2, True)


def test_a_launch_that_lacks_a_level_leaves_open_whether_its_knee_is_there() -> None:
    """One launch with all levels does not decide for two without one of them."""
    levels = {
        0: [launch(throughput=10, e2el_s=1.0)] * 3,
        1: [launch(throughput=90, e2el_s=1.0), *[launch(throughput=20, e2el_s=1.0)] * 2],
        2: [launch(throughput=50, e2el_s=1.0)],
        3: [launch(throughput=10, e2el_s=1.0), *[launch(throughput=99, e2el_s=1.0)] * 2],
    }
    knee = find_knee(cell_of(levels), LADDER)
    assert knee == Knee(levels=LADDER, low=1, high=3, launches=3, incomplete=2)
    levels[3] = [launch(throughput=10, e2el_s=1.0)] * 3
    levels[1] = [launch(throughput=90, e2el_s=1.0)] * 3
    knee = find_knee(cell_of(levels), LADDER)
    assert knee and not knee.decided and (knee.low, knee.high, knee.incomplete) == (1, 2, 2)
