"""Energy for a token from the trace of a launch to the tables of the study."""

from pathlib import Path
from typing import Any

import pytest
from sample_results import Sample, write_sample

from pdkv.analysing.aggregate import summary_rows
from pdkv.analysing.claim_file import read_claims
from pdkv.analysing.claims import judge_claims
from pdkv.analysing.comparison import compare, comparison_rows
from pdkv.analysing.study_results import read_study_results
from pdkv.analysing.token_energy import energy_metrics, pool_energy_metrics
from pdkv.artifacts import read_json

GPUS = Sample(modes=("default", "1p1d"), dtypes=("bf16", "fp8"), gpu=True, launches=3, failed=frozenset())


def trace(value: float | None, kind: str = "gpu") -> dict[str, Any]:
    per_joule = None if value is None else 1 / value
    level = {"point": 1, "kind": kind, "requests": 24, "energy_per_output_token": value, "tokens_per_joule": per_joule}
    return {"levels": [level]}


def test_energy_of_a_launch() -> None:
    found = energy_metrics(trace(0.8), 1)
    assert found["energy_per_output_token"] == {"unit": "J/tok", "n": 24, "value": 0.8}
    assert found["tokens_per_joule"] == {"unit": "tok/J", "n": 24, "value": 1.25}
    assert energy_metrics(trace(None), 1)["energy_per_output_token"]["value"] is None


@pytest.mark.parametrize(("content", "index"), [({}, 1), (trace(0.8), 0), (trace(0.8, "core"), 1)])
def test_where_no_gpu_was_traced_there_is_no_entry(content: dict[str, Any], index: int) -> None:
    assert energy_metrics(content, index) == {}


def test_launches_together_are_their_mean_and_its_inverse() -> None:
    pooled = pool_energy_metrics([energy_metrics(trace(value), 1) for value in (0.4, 1.2, None)] + [{}])
    assert pooled["energy_per_output_token"] == {"unit": "J/tok", "n": 48, "value": pytest.approx(0.8)}
    assert pooled["tokens_per_joule"]["value"] == pytest.approx(1.25)  # not the mean of 2.5 and 0.83
    unknown = pool_energy_metrics([energy_metrics(trace(None), 1)])
    assert (unknown["energy_per_output_token"]["value"], unknown["tokens_per_joule"]["value"]) == (None, None)
    assert pool_energy_metrics([{}]) == {}


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return [read_json(path, "cell/1") for path in write_sample(tmp_path_factory.mktemp("gpus"), GPUS)]


def test_summary_has_energy_and_capacity_per_gpu(cells: list[dict[str, Any]]) -> None:
    rows = {(row["metric"], row["concurrency"]): row for row in summary_rows(cells[2])}
    energy = rows["energy_per_output_token", "2"]
    assert (energy["value"], energy["unit"], energy["n"]) == (pytest.approx(2 * 1234 / (40 * 16)), "J/tok", 120)
    assert rows["tokens_per_joule", "2"]["value"] == pytest.approx(40 * 16 / (2 * 1234))
    capacity = rows["kv_cache_tokens_per_device", ""]
    assert (capacity["value"], capacity["unit"]) == (46592 / 2, "tokens/GPU")


def test_energy_is_compared_by_launches(cells: list[dict[str, Any]]) -> None:
    rows = comparison_rows(cells, "default", "bf16")
    wanted = ("1p1d", "bf16", "baseline")
    here = {r["metric"]: r for r in rows if (r["mode"], r["dtype"], r["factor"]) == wanted and r["stat"] == "value"}
    energy = here["energy_per_output_token"]
    assert (energy["ratio"], energy["verdict"], energy["launches"]) == (pytest.approx(2.0), "higher", 3)
    assert energy["ci_low"] == pytest.approx(2.0)
    capacity = here["kv_cache_tokens_per_device"]
    assert (capacity["ratio"], capacity["verdict"], capacity["concurrency"]) == (0.5, "lower", "")


def test_a_study_without_gpus_has_no_row_of_energy(tmp_path: Path) -> None:
    cells = [read_json(path, "cell/1") for path in write_sample(tmp_path, Sample(failed=frozenset()))]
    names = {row["metric"] for row in comparison_rows(cells, "default", "fp16")}
    names |= {row["metric"] for cell in cells for row in summary_rows(cell)}
    assert "output_throughput" in names
    assert not names & {"energy_per_output_token", "tokens_per_joule", "kv_cache_tokens_per_device"}


@pytest.mark.parametrize(("gpu", "dtype", "verdict"), [(True, "bf16", "supported"), (False, "fp16", "not measured")])
def test_the_memory_that_disaggregation_takes_is_a_claim_about_gpus(
    tmp_path: Path, gpu: bool, dtype: str, verdict: str
) -> None:
    """C9: what is left for the cache of each GPU. On a CPU the cache is as large as the study sets it."""
    sample = Sample(modes=("default", "1p1d"), dtypes=(dtype,), gpu=gpu, launches=3, failed=frozenset())
    cells = write_sample(tmp_path, sample)
    compare(cells, ("default", dtype), tmp_path / "comparisons.csv")
    claims = read_claims(Path(__file__).parents[1] / "config/claims.yaml")
    findings = judge_claims(read_study_results(cells, tmp_path / "comparisons.csv"), {"C9": claims["C9"]})
    assert [finding.verdict for finding in findings] == [verdict]
