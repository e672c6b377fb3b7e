import numpy as np
import pytest
from simulated_launches import SHAPES, Setting, draw, interactions, ratios_to_first, true_ratio

from pdkv.analysing.verdicts import RatioEstimate, decide, estimate_ratio, geometric_mean, holm, more_repeats

REPEATS = (3, 5, 10)


def verdicts(family: list[RatioEstimate], margin: float = 0.02) -> list[str]:
    rejected = holm([estimate.p for estimate in family])
    return [decide(each, rejected=reject, margin=margin) for each, reject in zip(family, rejected, strict=True)]


@pytest.mark.parametrize("repeats", REPEATS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("statistic", ["mean", "median", "p99", "throughput"])
def test_interval_holds_the_truth_in_95_of_100(statistic: str, shape: str, repeats: int) -> None:
    """The quick version of the table in docs/statistics.md. Stalls near the p99 make intervals too wide there."""
    rng = np.random.default_rng([repeats, *f"{statistic}/{shape}".encode()])
    latencies = draw(rng, 1500, repeats, Setting(statistic, 100, 0.02, shape), (1.0, 1.05))
    truth = true_ratio(1.05, statistic)
    covered = np.mean([each.low <= truth <= each.high for [each] in ratios_to_first(latencies, statistic)])
    assert 0.93 <= covered <= (0.99 if (statistic, shape) == ("p99", "stalls") else 0.97)


@pytest.mark.parametrize("repeats", REPEATS)
def test_interval_of_an_interaction_holds_the_truth(repeats: int) -> None:
    """The effect is +10% in one mode and +3% in the other, whatever the modes themselves do."""
    latencies = draw(
        np.random.default_rng(repeats), 2000, repeats, Setting("mean", 20, 0.02), (1.5 * 1.1, 1.5, 1.03, 1)
    )
    covered = np.mean([each.low <= 1.1 / 1.03 <= each.high for each in interactions(latencies, "mean")])
    assert 0.93 <= covered <= 0.97


@pytest.mark.parametrize("repeats", REPEATS)
@pytest.mark.parametrize(
    ("statistic", "shape", "spread"),
    [("mean", "narrow", 0.05), ("median", "wide", 0.0), ("p99", "narrow", 0.05), ("throughput", "heavy tail", 0.02)],
)
def test_equal_cells_are_rarely_called_different(statistic: str, shape: str, spread: float, repeats: int) -> None:
    """At most 5% of families, give or take the chance of 1000 of them."""
    requests = 100 if statistic == "p99" else 20
    rng = np.random.default_rng([repeats, *f"{statistic}/{shape}".encode()])
    latencies = draw(rng, 1000, repeats, Setting(statistic, requests, spread, shape), (1.0,) * 6)
    families = ratios_to_first(latencies, statistic)
    wrong = np.mean([not {"lower", "higher"}.isdisjoint(verdicts(family)) for family in families])
    assert wrong <= 0.05 + 2 * (0.05 * 0.95 / 1000) ** 0.5


@pytest.mark.parametrize("effect", [1.0201, 1 / 1.0201])
def test_a_difference_outside_the_margin_is_rarely_called_equivalent(effect: float) -> None:
    latencies = draw(np.random.default_rng(9), 1000, 10, Setting("mean", 400, 0.002), (1.0, effect))
    said = [verdicts(family)[0] for family in ratios_to_first(latencies, "mean")]
    assert 0 < said.count("equivalent") / len(said) <= 0.035
    assert said.count("higher" if effect > 1 else "lower") / len(said) > 0.9


def test_a_difference_of_ten_percent_is_found() -> None:
    latencies = draw(np.random.default_rng(6), 300, 5, Setting("mean", 50, 0.01), (1.0, 1.1))
    assert np.mean([verdicts(family) == ["higher"] for family in ratios_to_first(latencies, "mean")]) > 0.95


def test_equals_students_interval_for_a_mean_of_logs() -> None:
    logs = np.array([0.01, 0.03, 0.08])
    estimate = estimate_ratio(np.exp(logs).tolist())
    half = 4.302652729911275 * logs.std(ddof=1) / np.sqrt(3)
    assert np.log([estimate.low, estimate.high]) == pytest.approx([logs.mean() - half, logs.mean() + half])
    assert np.log(estimate.ratio) == pytest.approx(logs.mean())


def test_p_value_is_that_of_a_paired_t_test() -> None:
    """t = 0.04 / (0.0360555 / √3) = 1.92154 with 2 degrees of freedom: p = 1 − t / √(t² + 2)."""
    estimate = estimate_ratio(np.exp([0.01, 0.03, 0.08]).tolist())
    assert estimate.p == pytest.approx(1 - 1.9215378 / (1.9215378**2 + 2) ** 0.5)


def test_what_a_block_shares_does_not_count() -> None:
    base = np.array([1.0, 1.5, 0.7])
    estimate = estimate_ratio((base * 1.1 / base).tolist())
    assert (estimate.low, estimate.high) == pytest.approx((1.1, 1.1))


def test_ties_have_no_spread() -> None:
    estimate = estimate_ratio([1.0, 1.0, 1.0])
    assert (estimate.low, estimate.ratio, estimate.high, estimate.p) == (1, 1, 1, 1)
    assert verdicts([estimate]) == ["equivalent"]
    assert estimate_ratio([1.3, 1.3, 1.3]).p == 0


def test_one_ratio_is_its_own_mean() -> None:
    assert geometric_mean([1.1]) == 1.1
    assert geometric_mean([1.1, 1 / 1.1]) == pytest.approx(1)


def test_holm_stops_at_the_first_that_stands() -> None:
    assert holm([0.04, 0.001, 0.03]) == [False, True, False]
    assert holm([0.01, 0.02, 0.04]) == [True, True, True]
    assert holm([0.02, 0.03]) == [True, True]
    assert holm([0.03, 0.03]) == [False, False]
    assert holm([]) == []


@pytest.mark.parametrize(
    ("low", "high", "rejected", "margin", "verdict"),
    [
        (0.99, 1.01, False, 0.02, "equivalent"),
        (1 / 1.02, 1.02, True, 0.02, "equivalent"),
        (1.001, 1.019, True, 0.02, "equivalent"),
        (1.01, 1.03, True, 0.02, "higher"),
        (1.01, 1.03, True, 0.05, "equivalent"),
        (0.9, 0.95, True, 0.02, "lower"),
        (1.01, 1.03, False, 0.02, "cannot tell"),
        (0.97, 1.03, False, 0.02, "cannot tell"),
        (0.999, 1.001, False, 0.0, "cannot tell"),
    ],
)
def test_each_verdict(low: float, high: float, rejected: bool, margin: float, verdict: str) -> None:
    estimate = RatioEstimate((low * high) ** 0.5, low, high, 0.01, 0.01, 3)
    assert decide(estimate, rejected=rejected, margin=margin) == verdict


def test_verdicts_of_a_pair_and_of_its_mirror_agree() -> None:
    rng = np.random.default_rng(7)
    mirror = {"lower": "higher", "higher": "lower", "equivalent": "equivalent", "cannot tell": "cannot tell"}
    seen = set()
    for ratio in (1.0, 1.02, 1.05):
        for _ in range(100):
            there = rng.lognormal(np.log(ratio), 0.006, 3)
            [verdict], [back] = verdicts([estimate_ratio(there)]), verdicts([estimate_ratio(1 / there)])
            assert back == mirror[verdict]
            seen.add(verdict)
    assert seen == {"equivalent", "higher", "cannot tell"}


def estimate_with(ratio: float, spread: float, blocks: int = 3) -> RatioEstimate:
    """``spread`` is that of one launch."""
    return RatioEstimate(ratio, ratio * 0.9, ratio * 1.1, 0.1, spread / blocks**0.5, blocks)


@pytest.mark.parametrize(("ratio", "spread"), [(1.05, 0.03), (1 / 1.05, 0.03), (1.1, 0.05), (1.2, 0.1)])
def test_as_many_repeats_as_advised_decide_in_most_cases(ratio: float, spread: float) -> None:
    """Of studies that three launches left open, four of five or more."""
    studies = np.exp(np.random.default_rng(11).normal(np.log(ratio), spread, (600, 50))).tolist()
    later = []
    for study in studies:
        first = estimate_ratio(study[:3])
        more = more_repeats(first)
        if verdicts([first]) == ["cannot tell"] and more is not None:
            later += verdicts([estimate_ratio(study[: 3 + more])])
    assert len(later) > 200
    assert later.count("cannot tell") / len(later) < 0.2


def test_repeats_needed_grow_with_what_is_open_and_with_the_margin_shrinking() -> None:
    estimate = estimate_with(1.05, 0.03)
    alone, among_ten = more_repeats(estimate), more_repeats(estimate, undecided=10)
    assert alone is not None and among_ten is not None and among_ten > alone
    wide, narrow = (more_repeats(estimate_with(1.0, 0.02), margin) for margin in (0.05, 0.02))
    assert wide is not None and narrow is not None and narrow > wide


def test_hopeless_cases_are_said_to_be() -> None:
    """A difference of exactly the margin is neither found nor called equivalent while launches differ by half."""
    assert more_repeats(estimate_with(1.02, 0.5)) is None
