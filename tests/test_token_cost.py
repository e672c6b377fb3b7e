"""What tokens cost at a price an hour."""

from typing import Any

import pytest

from pdkv.analysing.token_cost import Prices, cost_per_million_tokens

DOLLARS = Prices(per_gpu_hour=2.5, per_host_hour=0.4, currency="USD")


def cell(gpus: int = 0, cores: int | None = 8, endpoint: str | None = None) -> dict[str, Any]:
    return {"gpus": gpus, "environment": {"cores": cores}, "config": {"mode": {"endpoint": endpoint}}}


def test_all_gpus_of_a_cell_are_paid_for() -> None:
    """400 tok/s are 1.44 million an hour: 2.5 for one GPU, 5 for prefill and decode."""
    assert cost_per_million_tokens(cell(gpus=1), 400.0, DOLLARS) == pytest.approx(2.5 / 1.44)
    assert cost_per_million_tokens(cell(gpus=2), 400.0, DOLLARS) == pytest.approx(5 / 1.44)


def test_a_cpu_cell_pays_for_the_host_once() -> None:
    assert cost_per_million_tokens(cell(), 20.0, DOLLARS) == pytest.approx(0.4 / 0.072)


@pytest.mark.parametrize(
    ("content", "throughput", "prices"),
    [
        (cell(gpus=2), 400.0, Prices(None, 0.4, "USD")),  # the price of a host is not that of its GPUs
        (cell(), 400.0, Prices(2.5, None, "USD")),
        (cell(endpoint="http://127.0.0.1:8000"), 400.0, DOLLARS),
        (cell(cores=None), 400.0, DOLLARS),
        (cell(gpus=2), None, DOLLARS),
        (cell(gpus=2), 0.0, DOLLARS),
    ],
)
def test_what_has_no_price_has_no_cost(content: dict[str, Any], throughput: float | None, prices: Prices) -> None:
    assert cost_per_million_tokens(content, throughput, prices) is None


def test_prices_of_the_report_s_settings() -> None:
    assert Prices.from_json(None) is None
    content = {"per_gpu_hour": 2, "per_host_hour": None, "currency": "EUR"}
    assert Prices.from_json(content) == Prices(2.0, None, "EUR")
