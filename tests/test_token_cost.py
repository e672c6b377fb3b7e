"""What tokens cost at a price an hour."""

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sample_results import Sample, write_sample

from pdkv import cli
from pdkv.analysing.aggregate import aggregate, summary_rows
from pdkv.analysing.comparison import compare
from pdkv.analysing.objectives import objective_rows, rank_objectives
from pdkv.analysing.token_cost import Prices, cost_per_million
from pdkv.artifacts import read_json
from pdkv.reporting.report_model import ReportSettings, read_report, texts_of

DOLLARS = Prices(per_gpu_hour=2.5, per_host_hour=0.4, currency="USD")


def cell(gpus: int = 0, cores: int | None = 8, endpoint: str | None = None) -> dict[str, Any]:
    return {"gpus": gpus, "environment": {"cores": cores}, "config": {"mode": {"endpoint": endpoint}}}


def test_all_gpus_of_a_cell_are_paid_for() -> None:
    """400 tok/s are 1.44 million an hour: 2.5 for one GPU, 5 for prefill and decode."""
    assert cost_per_million(cell(gpus=1), 400.0, DOLLARS) == pytest.approx(2.5 / 1.44)
    assert cost_per_million(cell(gpus=2), 400.0, DOLLARS) == pytest.approx(5 / 1.44)


def test_a_cpu_cell_pays_for_the_host_once() -> None:
    assert cost_per_million(cell(), 20.0, DOLLARS) == pytest.approx(0.4 / 0.072)


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
    assert cost_per_million(content, throughput, prices) is None


def test_prices_of_the_report_s_settings() -> None:
    assert Prices.from_json(None) is None
    content = {"per_gpu_hour": 2, "per_host_hour": None, "currency": "EUR"}
    assert Prices.from_json(content) == Prices(2.0, None, "EUR")


NONE = frozenset[tuple[str, str]]()
STUDY = Sample(modes=("default", "2x"), launches=5, requests=110, gpu=True, failed=NONE, suspect=NONE)
PRICES = '{"per_gpu_hour": 2.5, "per_host_hour": null, "currency": "EUR"}'


def cells_of(folder: Path, sample: Sample) -> list[dict[str, Any]]:
    return [read_json(path, "cell/1") for path in write_sample(folder, sample)]


def scale(content: dict[str, Any], metric: str, factor: float) -> None:
    for point in content["points"]:
        for metrics in (point["metrics"], *point["per_launch"]):
            metrics[metric]["value"] *= factor


class TestTheSummary:
    def test_has_what_tokens_and_good_requests_cost_as_objectives_have_it(self, tmp_path: Path) -> None:
        cells = write_sample(tmp_path, replace(STUDY, ttft_limit_ms=150.0))
        aggregate(cells, tmp_path / "summary.parquet", tmp_path / "summary.csv", DOLLARS)
        with (tmp_path / "summary.csv").open(encoding="utf-8", newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["metric"].startswith("cost_per_million")]
        found = {(row["mode"], row["dtype"], row["metric"]): (float(row["value"]), row["unit"]) for row in rows}
        ranked = objective_rows([read_json(path, "cell/1") for path in cells], prices=DOLLARS)
        assert found == {
            (row["mode"], row["dtype"], row["metric"]): (pytest.approx(row["value"]), row["unit"])
            for row in ranked
            if row["objective"] in ("cost", "service cost")
        }
        assert len(found) == 2 * len(cells)

    def test_has_none_without_prices_nor_of_nothing_sold(self, tmp_path: Path) -> None:
        content = cells_of(tmp_path, replace(STUDY, ttft_limit_ms=150.0))[0]
        assert not [row for row in summary_rows(content) if row["metric"].startswith("cost")]
        scale(content, "goodput", 0.0)
        metrics = {row["metric"] for row in summary_rows(content, DOLLARS) if row["metric"].startswith("cost")}
        assert metrics == {"cost_per_million_tokens"}


class TestTheCheapestCell:
    def test_is_an_objective_with_a_verdict(self, tmp_path: Path) -> None:
        cells = cells_of(tmp_path, STUDY)
        scale(cells[1], "output_throughput", 1.5)
        rows = [row for row in objective_rows(cells, prices=DOLLARS) if row["objective"] == "cost"]
        places = {(row["mode"], row["dtype"]): row["place"] for row in rows}
        assert places["default", "fp8"] == "best"
        assert {places[name] for name in places if name != ("default", "fp8")} == {"worse"}
        best = rows[1]
        throughput = cells[1]["points"][0]["metrics"]["output_throughput"]["value"]
        assert best["value"] == pytest.approx(2.5 / (throughput * 3600) * 1e6)
        assert (best["unit"], best["metric"]) == ("USD/M tokens", "cost_per_million_tokens")
        assert best["ratio"] == pytest.approx(1 / 1.5, rel=0.05)

    def test_twice_the_gpus_cost_twice_as_much_an_hour(self, tmp_path: Path) -> None:
        rows = [row for row in objective_rows(cells_of(tmp_path, STUDY), prices=DOLLARS) if row["objective"] == "cost"]
        cost = {(row["mode"], row["dtype"]): row["value"] for row in rows}
        assert cost["2x", "fp16"] / cost["default", "fp16"] == pytest.approx(2, rel=0.15)

    def test_of_good_requests_is_another_objective(self, tmp_path: Path) -> None:
        cells = cells_of(tmp_path, replace(STUDY, ttft_limit_ms=150.0))
        for metrics in (cells[0]["points"][0]["metrics"], *cells[0]["points"][0]["per_launch"]):
            metrics["goodput"]["value"] = 0.0
        rows = [row for row in objective_rows(cells, prices=DOLLARS) if row["objective"] == "service cost"]
        assert (rows[0]["place"], rows[0]["note"], rows[0]["value"]) == (
            "out",
            "no request met the service levels",
            None,
        )
        goodput = cells[1]["points"][0]["metrics"]["goodput"]["value"]
        assert rows[1]["value"] == pytest.approx(2.5 / (goodput * 3600) * 1e6)
        assert rows[1]["unit"] == "USD/M requests"

    def test_of_good_requests_wants_five_launches_as_goodput_does(self, tmp_path: Path) -> None:
        cells = cells_of(tmp_path, replace(STUDY, ttft_limit_ms=150.0, launches=3))
        rows = [row for row in objective_rows(cells, prices=DOLLARS) if row["objective"] == "service cost"]
        assert {(row["place"], row["more_repeats"]) for row in rows} == {("not decided", "2")}

    def test_a_cell_without_a_price_is_out_with_the_reason(self, tmp_path: Path) -> None:
        cells = cells_of(tmp_path, STUDY)
        cells[0]["gpus"] = 0
        rows = objective_rows(cells, prices=replace(DOLLARS, per_host_hour=None))
        (out,) = [row for row in rows if row["objective"] == "cost" and row["place"] == "out"]
        assert (out["mode"], out["dtype"], out["note"]) == ("default", "fp16", "no host price given")

    def test_without_prices_there_is_none(self, tmp_path: Path) -> None:
        assert not [row for row in objective_rows(cells_of(tmp_path, STUDY)) if "cost" in row["objective"]]

    def test_stands_in_the_conclusion(self, tmp_path: Path) -> None:
        files = write_sample(tmp_path, replace(STUDY, modes=("default",), ttft_limit_ms=150.0))
        objectives, comparisons = tmp_path / "objectives.csv", tmp_path / "comparisons.csv"
        rank_objectives(files, objectives, prices=Prices(2.5, None, "EUR"))
        compare(files, ("default", "fp16"), comparisons)
        settings = ReportSettings("T", "en", ("default", "fp16"), objectives=objectives)
        report = read_report(files, comparisons, settings)
        said = [text for text in report.said if text.startswith("Cost (price of a million output tokens): with 1 GPU")]
        assert len(said) == 1
        assert any("EUR/M tokens" in text for text in texts_of(report))
        assert any("EUR/M good requests" in text for text in texts_of(report))

    def test_the_verb_takes_prices(self, tmp_path: Path) -> None:
        files = write_sample(tmp_path, STUDY)
        output = tmp_path / "objectives.csv"
        with pytest.raises(SystemExit, match="0"):
            cli.main(["rank-objectives", *map(str, files), f"--cost={PRICES}", "--output", str(output)])
        with output.open() as text:
            assert {row["unit"] for row in csv.DictReader(text) if row["objective"] == "cost"} == {"EUR/M tokens"}
