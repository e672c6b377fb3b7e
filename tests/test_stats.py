import numpy as np
import pytest

from pdkv.analysing.stats import STATS, summarize, supports_quantile


def test_percentiles_interpolate_linearly_between_ranks() -> None:
    summary = summarize(np.arange(1.0, 25.0))
    assert summary["median"] == 12.5
    assert summary["p99"] == pytest.approx(23.77)
    assert summary["n"] == 24
    assert not summary["p99_supported"], "24 requests cannot carry a p99"


def test_one_value_is_every_statistic_but_a_spread() -> None:
    summary = summarize(np.array([0.074]))
    assert {summary[stat] for stat in STATS if stat != "std"} == {0.074}
    assert summary["std"] is None
    assert summary["n"] == 1


def test_nothing_is_null_not_zero() -> None:
    assert summarize(np.empty(0)) == {"n": 0, **dict.fromkeys(STATS), "p99_supported": False}


@pytest.mark.parametrize("value", [0.1, 1 / 3, 3.2e-7, 8.4e6])
@pytest.mark.parametrize("n", [3, 7, 100])
def test_equal_values_have_no_spread_and_no_other_mean(value: float, n: int) -> None:
    summary = summarize(np.full(n, value))
    assert summary["std"] == 0
    assert {summary[stat] for stat in STATS if stat != "std"} == {value}


def test_nothing_exceeds_the_extremes() -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        values = rng.lognormal(0, 1e-12, 5) * rng.choice([1e-9, 1.0, 1e12])
        summary = summarize(values)
        for stat in ("mean", "median", "p90", "p99"):
            assert summary["min"] <= summary[stat] <= summary["max"]


def test_a_quantile_needs_a_value_beyond_it() -> None:
    assert supports_quantile(0.99, 100)
    assert not supports_quantile(0.99, 99)
    assert supports_quantile(0.9, 10)
    assert not supports_quantile(0.9, 9)
