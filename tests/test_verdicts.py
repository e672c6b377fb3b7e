import numpy as np
import pytest

from pdkv.verdicts import RatioEstimate, decide, estimate_ratio, holm, repeats_to_decide


def estimate_from(blocks: np.ndarray, base: np.ndarray) -> RatioEstimate:
    """Means of launches, paired by block."""
    left_out = [np.delete(blocks, i).mean() / np.delete(base, i).mean() for i in range(blocks.size)]
    return estimate_ratio(float(blocks.mean() / base.mean()), left_out)


def launches(rng: np.random.Generator, repeats: int, ratio: float, spread: float = 0.02) -> RatioEstimate:
    drift = rng.normal(0, 0.05, repeats)  # shared by the cells of a block
    cells = [np.exp(drift + rng.normal(0, spread, repeats)) for _ in range(2)]
    return estimate_from(cells[0] * ratio, cells[1])


@pytest.mark.parametrize("repeats", [3, 5, 10])
@pytest.mark.parametrize("ratio", [1.0, 1.05])
def test_interval_holds_the_truth_in_95_of_100(repeats: int, ratio: float) -> None:
    rng = np.random.default_rng(repeats)
    estimates = [launches(rng, repeats, ratio) for _ in range(1500)]
    covered = np.mean([estimate.low <= ratio <= estimate.high for estimate in estimates])
    assert 0.93 < covered < 0.97


def test_cells_that_do_not_differ_are_rarely_called_different() -> None:
    rng = np.random.default_rng(5)
    wrong = 0
    for _ in range(400):
        family = [launches(rng, 3, 1.0, spread=0.05) for _ in range(5)]
        verdicts = [decide(e, rejected=r) for e, r in zip(family, holm([e.p for e in family]), strict=True)]
        wrong += any(verdict in ("lower", "higher") for verdict in verdicts)
    assert wrong / 400 <= 0.05


def test_large_differences_are_found() -> None:
    rng = np.random.default_rng(6)
    found = [launches(rng, 5, 1.1, spread=0.01) for _ in range(200)]
    assert np.mean([decide(e, rejected=holm([e.p])[0]) == "higher" for e in found]) > 0.95


def test_equals_students_interval_for_a_mean_of_logs() -> None:
    logs = np.array([0.01, 0.03, 0.08])
    left_out = [float(np.exp(np.delete(logs, i).mean())) for i in range(3)]
    estimate = estimate_ratio(float(np.exp(logs.mean())), left_out)
    half = 4.302652729911275 * logs.std(ddof=1) / np.sqrt(3)
    assert np.log([estimate.low, estimate.high]) == pytest.approx([logs.mean() - half, logs.mean() + half])


def test_holm_stops_at_the_first_that_stands() -> None:
    assert holm([0.04, 0.001, 0.03]) == [False, True, False]
    assert holm([0.01, 0.02, 0.04]) == [True, True, True]
    assert holm([0.02, 0.03]) == [True, True]
    assert holm([0.03, 0.03]) == [False, False]
    assert holm([]) == []


@pytest.mark.parametrize(
    ("low", "high", "rejected", "verdict"),
    [
        (0.99, 1.01, False, "equivalent"),
        (1 / 1.02, 1.02, True, "equivalent"),
        (1.001, 1.019, True, "equivalent"),
        (1.01, 1.03, True, "higher"),
        (0.9, 0.95, True, "lower"),
        (1.01, 1.03, False, "cannot tell"),
        (0.97, 1.03, False, "cannot tell"),
    ],
)
def test_each_verdict(low: float, high: float, rejected: bool, verdict: str) -> None:
    estimate = RatioEstimate((low * high) ** 0.5, low, high, 0.01, 0.01, 3)
    assert decide(estimate, rejected=rejected) == verdict


def test_verdicts_of_a_pair_and_of_its_mirror_agree() -> None:
    rng = np.random.default_rng(7)
    mirror = {"lower": "higher", "higher": "lower", "equivalent": "equivalent", "cannot tell": "cannot tell"}
    for ratio in (1.0, 1.02, 1.05):
        for _ in range(50):
            one, other = rng.lognormal(0, 0.004, 3) * ratio, rng.lognormal(0, 0.004, 3)
            there, back = estimate_from(one, other), estimate_from(other, one)
            assert decide(back, rejected=holm([back.p])[0]) == mirror[decide(there, rejected=holm([there.p])[0])]


def test_repeats_to_decide() -> None:
    """An effect of 5% whose launches spread by 3% is seen when t(k − 1) · 3% / √k falls below it: 3.18 · 3% / √4."""
    spread = 0.03
    estimate = RatioEstimate(1.05, 0.97, 1.13, 0.1, spread / 3**0.5, 3)
    assert repeats_to_decide(estimate) == 4
    hopeless = RatioEstimate(1.011, 0.5, 2.0, 0.9, 0.5, 3)
    assert repeats_to_decide(hopeless) is None
