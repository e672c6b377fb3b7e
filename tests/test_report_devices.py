"""What the report says of devices: activity by role, energy and cost, memory, cold and warm launches."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sample_results import Sample, write_sample

from pdkv.analysing.study_results import Cell, StudyResults
from pdkv.analysing.token_cost import Prices
from pdkv.artifacts import read_json
from pdkv.reporting.report_activity import describe_activity
from pdkv.reporting.report_blocks import Bullets, Paragraph, Section, Table
from pdkv.reporting.report_energy import describe_energy
from pdkv.reporting.report_launches import describe_cold_and_warm_launches
from pdkv.reporting.report_memory import describe_memory
from pdkv.reporting.report_model import ReportSettings
from pdkv.reporting.wording import Wording
from pdkv.units import DASH

SAY = Wording("en")
GPUS = Sample(modes=("default", "1p1d", "2x"), dtypes=("bf16",), gpu=True, launches=3, failed=frozenset())
CPU = Sample(failed=frozenset())
DOLLARS = Prices(per_gpu_hour=2.0, per_host_hour=None, currency="USD")


def results_of(tmp_path: Path, sample: Sample) -> StudyResults:
    return StudyResults([Cell(path.parent, read_json(path, "cell/1")) for path in write_sample(tmp_path, sample)], [])


@pytest.fixture
def on_gpus(tmp_path: Path) -> StudyResults:
    return results_of(tmp_path, GPUS)


def level_of(cell: Cell, launch: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = cell.trials[launch]["trace"]["levels"][0]
    return found


def role_of(cell: Cell, role: str) -> dict[str, Any]:
    return next(each for each in level_of(cell)["roles"] if each["role"] == role)


def table_of(sections: list[Section]) -> Table:
    (table,) = (block for section in sections for block in section.blocks if isinstance(block, Table))
    return table


def lines(table: Table) -> list[list[str]]:
    return [[value.text for value in row] for row in table.rows]


def words(sections: list[Section]) -> str:
    blocks = [block for section in sections for block in section.blocks]
    texts = [block.text for block in blocks if isinstance(block, Paragraph)]
    return "\n".join([*texts, *(item for block in blocks if isinstance(block, Bullets) for item in block.items)])


class TestActivity:
    def test_bursts_of_prefill_and_the_plateau_of_decode(self, on_gpus: StudyResults) -> None:
        by_role = {line[2]: line for line in lines(table_of(describe_activity(on_gpus, SAY)))}
        assert list(by_role) == ["single × 1", "prefill × 1", "decode × 1", "replica × 2"]
        titles = [column.title for column in table_of(describe_activity(on_gpus, SAY)).columns]
        prefill = dict(zip(titles, by_role["prefill × 1"], strict=True))
        assert prefill["Duty cycle"] == f"{role_of(on_gpus.cells[1], 'prefill')['duty_cycle']:.0%}"
        assert float(prefill["Bursts/min"]) == pytest.approx(60 / 2.93, rel=0.15)  # one every 2.93 s
        assert prefill["Plateau"].endswith("@ 0%")
        decode = dict(zip(titles, by_role["decode × 1"], strict=True))
        assert int(decode["Busy"].rstrip("%")) > 90

    def test_a_burst_that_cannot_be_seen_is_a_dash_and_none_at_all_a_zero(self, on_gpus: StudyResults) -> None:
        prefill, decode = (role_of(on_gpus.cells[1], role) for role in ("prefill", "decode"))
        unseen = dict.fromkeys(("bursts", "burst_median_s", "burst_p90_s", "gap_median_s", "gap_p90_s"))
        prefill.update(unseen)
        decode.update({"bursts": 9, "burst_median_s": 1.5, "burst_p90_s": 2.25, "gap_median_s": 0.5, "gap_p90_s": 0.5})
        level_of(on_gpus.cells[0])["roles"][0].update({**unseen, "bursts": 0})
        by_role = {line[2]: line[7:10] for line in lines(table_of(describe_activity(on_gpus, SAY)))}
        assert by_role["prefill × 1"] == [DASH] * 3
        assert by_role["decode × 1"] == ["22.5", "1.50 (2.25)", "0.500 (0.500)"]  # nine in 24 s
        assert by_role["single × 1"] == ["0", DASH, DASH]
        assert "can be told from 0.4 s on" in words(describe_activity(on_gpus, SAY))

    def test_imbalance_is_told_of_roles_with_several_gpus(self, on_gpus: StudyResults) -> None:
        role_of(on_gpus.cells[2], "replica")["imbalance"] = {"duty_cycle": 0.4, "busy_share": None, "energy_j": 0.25}
        (item,) = (line for line in words(describe_activity(on_gpus, SAY)).split("\n") if line.startswith("2x/bf16"))
        assert item == "2x/bf16, c = 2, replica, 2 GPUs: 40.0% in duty cycle, – in busy time and 25.0% in energy."

    def test_without_a_second_gpu_in_a_role_that_is_said(self, tmp_path: Path) -> None:
        alone = results_of(tmp_path, Sample(modes=("default", "1p1d"), gpu=True, failed=frozenset()))
        assert "No role of any cell had more than one GPU" in words(describe_activity(alone, SAY))

    def test_a_load_that_was_never_full_is_told(self, on_gpus: StudyResults) -> None:
        assert "never full" not in words(describe_activity(on_gpus, SAY))
        level_of(on_gpus.cells[0])["full_load"] = False
        assert "never full" in words(describe_activity(on_gpus, SAY))

    def test_that_cores_are_busy_with_the_work_of_others_too_is_told(
        self, tmp_path: Path, on_gpus: StudyResults
    ) -> None:
        said = "Of CPU cores all work counts, whoever did it"
        assert said in words(describe_activity(results_of(tmp_path / "cpu", CPU), SAY))
        assert said not in words(describe_activity(on_gpus, SAY))

    def test_cores_have_no_watts_and_no_imbalance(self, tmp_path: Path) -> None:
        sections = describe_activity(results_of(tmp_path, CPU), SAY)
        assert "Power, W" not in [column.title for column in table_of(sections).columns]
        assert "GPU" not in words(sections)

    def test_results_without_levels_have_no_section(self, on_gpus: StudyResults) -> None:
        for cell in on_gpus.cells:
            for trial in cell.trials:
                del trial["trace"]["levels"]
        assert describe_activity(on_gpus, SAY) == []


class TestEnergy:
    def test_energy_of_a_token_and_its_inverse(self, on_gpus: StudyResults) -> None:
        table = table_of(describe_energy(on_gpus, None, SAY))
        assert [column.title for column in table.columns][2:] == [
            "Power, W", "Idle GPU time", "J/output token", "Output tokens/J",
        ]  # fmt: skip
        default, disaggregated, _ = lines(table)
        assert (default[0], default[4], default[5]) == ("default/bf16", "1.93", "0.519")
        assert (disaggregated[4], disaggregated[5]) == ("3.86", "0.259")

    def test_idle_gpu_time_is_the_mean_of_the_launches(self, on_gpus: StudyResults) -> None:
        for launch, share in enumerate((0.1, 0.2, 0.6)):
            level_of(on_gpus.cells[1], launch)["idle_share"] = share
        assert lines(table_of(describe_energy(on_gpus, None, SAY)))[1][3] == "30%"

    def test_cost_at_the_measured_throughput(self, on_gpus: StudyResults) -> None:
        throughput = on_gpus.cells[1].value(0, "output_throughput", "value")
        assert throughput is not None
        sections = describe_energy(on_gpus, DOLLARS, SAY)
        expected = 2 * 2.0 / (throughput * 3600) * 1e6
        assert float(lines(table_of(sections))[1][-1]) == pytest.approx(expected, rel=0.01)
        assert table_of(sections).columns[-1].title == "USD/M output tokens"
        assert "2 USD for a GPU an hour" in words(sections)
        assert sections[0].title == "Energy and cost"

    def test_cost_without_energy_on_a_cpu(self, tmp_path: Path) -> None:
        results = results_of(tmp_path, CPU)
        assert describe_energy(results, None, SAY) == []
        sections = describe_energy(results, Prices(None, 0.4, "EUR"), SAY)
        assert [column.title for column in table_of(sections).columns] == ["Cell", "Load", "EUR/M output tokens"]
        assert "Energy is" not in words(sections)
        unpriced = describe_energy(results, DOLLARS, SAY)  # the price of a GPU says nothing of a CPU
        assert "No cost is stated of any cell: no host price given." in words(unpriced)
        assert not [block for section in unpriced for block in section.blocks if isinstance(block, Table)]

    def test_cost_of_good_requests_where_there_are_service_levels(self, tmp_path: Path) -> None:
        results = results_of(tmp_path, replace(GPUS, ttft_limit_ms=150.0))
        table = table_of(describe_energy(results, DOLLARS, SAY))
        assert table.columns[-1].title == "USD/M good requests"
        goodput = results.cells[0].value(0, "goodput", "value")
        assert goodput
        assert float(lines(table)[0][-1]) == pytest.approx(2.0 / (goodput * 3600) * 1e6, rel=0.01)

    def test_a_cell_of_the_other_hardware_is_named_without_a_cost(self, on_gpus: StudyResults) -> None:
        on_gpus.cells[1].content["gpus"] = 0
        said = words(describe_energy(on_gpus, DOLLARS, SAY))
        assert f"No cost is stated of {on_gpus.cells[1].name}: no host price given." in said

    def test_energy_that_no_gpu_told_is_said(self, on_gpus: StudyResults) -> None:
        for cell in on_gpus.cells:
            for metric in ("energy_per_output_token", "tokens_per_joule"):
                cell.content["points"][0]["metrics"][metric]["value"] = None
        sections = describe_energy(on_gpus, None, SAY)
        assert "no energy per token to state" in words(sections)
        assert not [block for block in sections[0].blocks if isinstance(block, Table)]


class TestMemory:
    def test_estimate_beside_measurement(self, on_gpus: StudyResults) -> None:
        table = table_of(describe_memory(on_gpus, SAY))
        titles = [f"{column.group} {column.title}" for column in table.columns]
        default = dict(zip(titles, table.rows[0], strict=True))
        assert default["Weights estimated"].text == "15.0 GiB"
        assert (default["Weights measured"].text, default["Weights measured"].under) == ("15.0 GiB", "+0.2%")
        assert default["Measured other"].text == "2.13 GiB"
        assert default["Measured GPUs in use"].text == "110 GiB"
        assert [row[1].text for row in table.rows] == ["single × 1", "prefill × 1", "decode × 1", "replica × 2"]

    def test_what_disaggregation_takes_on_top(self, on_gpus: StudyResults) -> None:
        said = words(describe_memory(on_gpus, SAY))
        assert "2 copies of the weights, 30.0 GiB against 15.0 GiB in default/bf16: 15.0 GiB more" in said
        assert "1p1d/bf16 (2 GPUs) can decode 23,296 tokens of KV cache, default/bf16 (1 GPU) 46,592: −50.0%" in said

    def test_a_server_that_does_not_state_its_memory(self, on_gpus: StudyResults) -> None:
        on_gpus.cells[1].trials[0]["launch"]["instances"][1]["memory"]["weights_bytes"] = None
        sections = describe_memory(on_gpus, SAY)
        assert "copies" not in "".join(item for item in words(sections).split("\n") if item.startswith("1p1d"))
        assert table_of(sections).rows[2][3].text == DASH

    def test_nothing_known_is_no_section(self, on_gpus: StudyResults) -> None:
        for cell in on_gpus.cells:
            cell.content["memory"] = None
            for trial in cell.trials:
                trial["launch"]["instances"], trial["trace"]["levels"] = [], []
        assert describe_memory(on_gpus, SAY) == []


class TestLaunches:
    def test_medians_of_cold_and_warm_launches(self, on_gpus: StudyResults) -> None:
        for cell in on_gpus.cells:
            for trial, seconds in zip(cell.trials, (147.0, 95.0, 105.0), strict=True):
                trial["stages"]["launch_s"] = seconds
        (table,) = describe_cold_and_warm_launches(on_gpus, SAY)
        assert isinstance(table, Table)
        cold, warm = lines(table)
        assert cold == ["cold: compiled", "3", "2 min 27 s", "5", "41 s", "28 s", "7.0 s"]
        assert warm == ["warm: from the cache", "6", "1 min 40 s", "10", "41 s", "6.2 s", "7.0 s"]

    def test_one_server_that_compiles_makes_a_launch_cold(self, on_gpus: StudyResults) -> None:
        on_gpus.cells[1].trials[1]["launch"]["instances"][0]["startup"]["compile_cache"] = "cold"
        (table,) = describe_cold_and_warm_launches(on_gpus, SAY)
        assert isinstance(table, Table)
        assert [(line[1], line[3]) for line in lines(table)] == [("4", "6"), ("5", "9")]

    def test_servers_that_compile_nothing_are_said(self, tmp_path: Path) -> None:
        (said,) = describe_cold_and_warm_launches(results_of(tmp_path, CPU), SAY)
        assert isinstance(said, Paragraph)
        assert said.text.startswith("No server said that it compiled")


def test_prices_reach_the_report_by_its_settings() -> None:
    settings = {"title": "t", "language": "en", "baseline": {"mode": "default", "dtype": "bf16"}}
    assert ReportSettings.from_json(json.dumps(settings)).prices is None
    priced = {**settings, "cost": {"per_gpu_hour": 2, "per_host_hour": None, "currency": "USD"}}
    assert ReportSettings.from_json(json.dumps(priced)).prices == DOLLARS
