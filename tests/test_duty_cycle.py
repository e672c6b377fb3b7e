"""Square waves of known duty, seen through counters as real ones are: what may be said of bursts, and what not."""

import numpy as np
import numpy.typing as npt
import pytest

from pdkv.analysing.duty_cycle import DutyCycle, imbalance, join_duty_cycles, measure_duty_cycle
from pdkv.analysing.sampling import update_period

Array = npt.NDArray[np.float64]
FINE_S = 0.001


def square_wave(burst_s: float, gap_s: float, length_s: float = 60.0, offset_s: float = 0.0137) -> Array:
    """1 while busy, each millisecond; it starts within a gap."""
    t_s = np.arange(0, length_s, FINE_S) + offset_s + burst_s + gap_s / 2
    return ((t_s % (burst_s + gap_s)) < burst_s).astype(float)


def counted(truth: Array, period_s: float, hz: float = 20.0) -> tuple[Array, Array]:
    """Such a signal as a counter shows it, sampled: the mean of its last whole period, in whole percent."""
    per_period = round(period_s / FINE_S)
    means = truth[: len(truth) // per_period * per_period].reshape(-1, per_period).mean(axis=1).round(2)
    t_s = np.arange(period_s, len(means) * period_s, 1 / hz)
    return t_s, means[np.floor(t_s / period_s + 1e-9).astype(int) - 1]


def measured(burst_s: float, gap_s: float, period_s: float = 0.2) -> DutyCycle:
    t_s, util = counted(square_wave(burst_s, gap_s), period_s)
    return measure_duty_cycle(t_s, util, period_s)


@pytest.mark.parametrize(("burst_s", "gap_s"), [(0.81, 1.23), (2.03, 1.01), (0.53, 4.0)])
@pytest.mark.parametrize("period_s", [0.05, 0.2])
def test_bursts_of_a_square_wave(burst_s: float, gap_s: float, period_s: float) -> None:
    duty = measured(burst_s, gap_s, period_s)
    told = duty.as_json()
    assert duty.duty_cycle == pytest.approx(burst_s / (burst_s + gap_s), abs=0.03)
    assert duty.busy_share == pytest.approx(burst_s / (burst_s + gap_s), abs=0.03)
    assert duty.bursts == pytest.approx(60 / (burst_s + gap_s), abs=1.5)
    assert told["burst_median_s"] == pytest.approx(burst_s, abs=max(period_s, 0.05))
    assert told["gap_median_s"] == pytest.approx(gap_s, abs=max(period_s, 0.05))
    assert told["burst_p90_s"] >= told["burst_median_s"]


@pytest.mark.parametrize(("burst_s", "gap_s"), [(0.06, 1.2), (0.25, 1.2), (1.2, 0.25)])
def test_no_length_is_claimed_below_what_the_counter_shows(burst_s: float, gap_s: float) -> None:
    """A prefill of 60 ms every 1.3 s under a counter of 200 ms: there is work, and no burst can be seen."""
    duty = measured(burst_s, gap_s)
    told = duty.as_json()
    assert duty.duty_cycle == pytest.approx(burst_s / (burst_s + gap_s), abs=0.02)
    assert told["seen_from_s"] == pytest.approx(0.4)
    assert [told[key] for key in ("bursts", "burst_median_s", "burst_p90_s", "gap_median_s", "gap_p90_s")] == [None] * 5


def test_a_burst_that_a_second_s_counter_smears_is_not_counted() -> None:
    """True bursts of 0.3 s, utilisation refreshed once a second."""
    assert measured(0.3, 1.7, period_s=1.0).bursts is None


def test_a_plateau_has_no_bursts_and_idleness_neither() -> None:
    t_s = np.arange(0, 30, 0.05)
    dips = np.where(t_s % 3 < 0.1, 0.7, 0.97)
    plateau = measure_duty_cycle(t_s, dips, 0.05)
    assert (plateau.bursts, plateau.busy_share, plateau.idle_share, plateau.plateau_level) == (0, 1.0, 0.0, 0.97)
    assert plateau.plateau_share == pytest.approx(29 / 30, abs=0.01)
    idle = measure_duty_cycle(t_s, np.zeros(len(t_s)), 0.05)
    assert (idle.bursts, idle.duty_cycle, idle.idle_share, idle.plateau_share) == (0, 0.0, 1.0, 1.0)
    assert idle.as_json()["burst_median_s"] is None


def test_a_square_wave_is_no_plateau() -> None:
    duty = measured(1.8, 1.2, period_s=0.05)
    assert (duty.plateau_level, duty.plateau_share) == (1.0, pytest.approx(0.6, abs=0.03))
    assert measured(0.3, 2.7, period_s=0.05).plateau_level == 0.0  # long at rest, which is no plateau of work


@pytest.mark.parametrize("samples", [0, 1, 2, 9])
def test_few_samples_say_nothing(samples: int) -> None:
    duty = measure_duty_cycle(np.arange(samples) * 0.05, np.ones(samples), 0.05)
    assert duty == DutyCycle()
    assert set(duty.as_json().values()) == {None}
    assert measure_duty_cycle(np.arange(900) * 0.05, np.ones(900), None) == DutyCycle()


def test_runs_at_the_ends_and_beside_a_hole_have_no_length() -> None:
    t_s = np.arange(0, 40, 0.1)
    busy = ((t_s >= 5) & (t_s < 8)) | (t_s < 1) | (t_s >= 30)
    hole = (t_s > 14.95) & (t_s < 20)
    busy |= (t_s >= 13) & (t_s < 22)  # begins before the hole and ends behind it
    duty = measure_duty_cycle(t_s[~hole], busy[~hole].astype(float), 0.1)
    assert duty.bursts == 3
    assert duty.burst_lengths_s == (pytest.approx(3.0),)
    assert duty.gap_lengths_s == (pytest.approx(4.0), pytest.approx(5.0), pytest.approx(8.0))


def test_one_or_two_bursts_have_no_typical_length() -> None:
    t_s = np.arange(0, 30, 0.1)
    for bursts, known in ((2, False), (3, True)):
        busy = (t_s % 8 >= 4) & (t_s % 8 < 6) & (t_s < 8 * bursts)
        duty = measure_duty_cycle(t_s, busy.astype(float), 0.1)
        assert duty.bursts == bursts
        assert (duty.as_json()["burst_median_s"] is not None) is known


def test_devices_of_a_role_together() -> None:
    both = join_duty_cycles([measured(0.81, 1.23), measured(2.03, 1.01)])
    assert both.duty_cycle == pytest.approx((0.397 + 0.668) / 2, abs=0.03)
    assert both.bursts == pytest.approx(60 / 2.04 + 60 / 3.04, abs=3)
    assert both.as_json()["burst_p90_s"] == pytest.approx(2.03, abs=0.2)
    hidden = join_duty_cycles([measured(0.81, 1.23), measured(0.06, 1.2)])
    assert (hidden.bursts, hidden.as_json()["burst_median_s"]) == (None, None)
    assert hidden.duty_cycle is not None
    assert join_duty_cycles([measured(0.81, 1.23), DutyCycle()]).duty_cycle is None
    assert join_duty_cycles([]) == DutyCycle(bursts=0)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.9, 0.6], 0.4),
        ([2.0, 2.0, 2.0], 0.0),
        ([0.5], None),
        ([0.5, None], None),
        ([0.0, 0.0], None),
        ([], None),
    ],
)
def test_imbalance(values: list[float | None], expected: float | None) -> None:
    assert imbalance(values) == (None if expected is None else pytest.approx(expected))


@pytest.mark.parametrize("period_s", [0.2, 1.0])
def test_the_period_of_a_counter_is_read_off_its_values(period_s: float) -> None:
    rng = np.random.default_rng(3)
    t_s, util = counted(rng.uniform(size=60_000), period_s)
    assert update_period(t_s, util) == pytest.approx(period_s, abs=0.06)
    assert update_period(t_s, np.ones(len(t_s))) is None
