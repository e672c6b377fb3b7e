"""Goodput and the share of requests that meet the service levels: hand-made requests of known answers."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from request_tables import answered, failed, simulate_closed_loop, table_of
from trial_folders import write_trial

from pdkv.analysing.aggregate import summary_rows
from pdkv.analysing.cell_summary import summarize_cell
from pdkv.analysing.comparison import compare, comparison_rows
from pdkv.analysing.point_requests import PointRequests, requests_of_point
from pdkv.analysing.service_levels import ServiceLevels, requests_that_meet, service_metrics
from pdkv.artifacts import read_json

TTFT = ServiceLevels(ttft_ms=200, tpot_ms=None, e2el_ms=None, target_share=0.9)
TPOT = ServiceLevels(ttft_ms=None, tpot_ms=50, e2el_ms=None, target_share=0.9)
ALL = ServiceLevels(ttft_ms=200, tpot_ms=50, e2el_ms=1000, target_share=0.9)


def point_of(rows: list[dict[str, Any]]) -> PointRequests:
    return requests_of_point(table_of(rows), 0)


def request(send_s: float, ttft_s: float, tpot_s: float = 0.01, tokens: int = 4, **changes: Any) -> dict[str, Any]:
    first_s = send_s + ttft_s
    return answered(send_s, [first_s + tpot_s * i for i in range(tokens)], **changes)


def one_user(ttfts_s: list[float], *, tokens: int = 4) -> list[dict[str, Any]]:
    """One request after the other, each of the same length in time whatever its TTFT; one of ramp before them."""
    rows = [request(0.0, 0.1, 0.3, tokens, part="ramp")]
    for number, ttft_s in enumerate(ttfts_s, 1):
        rows.append(request(float(number), ttft_s, (1.0 - ttft_s) / (tokens - 1), tokens))
    return rows


def cell_of(
    folder: Path, launches: list[list[dict[str, Any]]], levels: ServiceLevels | None = TTFT, **trial: Any
) -> Path:
    folders = [
        write_trial(folder / f"r{repeat}", rows, repeat=repeat, **{"concurrencies": (1,), **trial})
        for repeat, rows in enumerate(launches, 1)
    ]
    summarize_cell(folders, folder / "cell.json", levels)
    return folder / "cell.json"


class TestWhoMeets:
    def test_every_limit_must_be_kept(self) -> None:
        rows = [
            request(0.0, 0.1),
            request(1.0, 0.3),  # TTFT
            request(2.0, 0.1, tpot_s=0.06),  # TPOT
            request(3.0, 0.15, tpot_s=0.04, tokens=30),  # E2EL
        ]
        assert requests_that_meet(point_of(rows), ALL).tolist() == [True, False, False, False]
        assert requests_that_meet(point_of(rows), TTFT).tolist() == [True, False, True, True]

    @pytest.mark.parametrize("send_s", [0.0, 1234.567, 987_654.321])
    def test_a_latency_of_the_limit_itself_meets_it_however_the_clock_s_stamps_round(self, send_s: float) -> None:
        rows = [request(send_s, 0.2), request(send_s, 0.2001)]
        assert requests_that_meet(point_of(rows), TTFT).tolist() == [True, False]

    def test_one_token_has_no_tpot_and_breaks_no_limit_on_it(self) -> None:
        rows = [request(0.0, 0.1, tokens=1), request(1.0, 0.3, tokens=1)]
        assert requests_that_meet(point_of(rows), TPOT).tolist() == [True, True]
        assert requests_that_meet(point_of(rows), ALL).tolist() == [True, False]

    def test_what_is_not_known_does_not_meet(self) -> None:
        rows = [request(0.0, 0.1) | {"tpot_s": None, "output_tokens": None}]
        assert requests_that_meet(point_of(rows), TPOT).tolist() == [False]
        assert requests_that_meet(point_of(rows), TTFT).tolist() == [True]

    def test_failed_requests_and_those_of_ramp_and_drain_do_not_count(self) -> None:
        rows = [request(0.0, 0.1, part="ramp"), request(1.0, 0.1), failed(2.0), request(3.0, 0.1, part="drain")]
        assert requests_that_meet(point_of(rows), TTFT).tolist() == [False, True, False, False]


class TestGoodput:
    def test_share_of_the_request_throughput(self) -> None:
        rows = one_user([0.1, 0.1, 0.1, 0.5])
        found = service_metrics(point_of(rows), 8.0, TTFT)
        assert found["goodput"] == {"unit": "req/s", "n": 4, "value": 6.0}
        assert found["slo_share"] == {"unit": "share", "n": 4, "met": 3, "value": 0.75}

    def test_failed_requests_lower_the_share_and_are_not_in_the_throughput_anyway(self) -> None:
        rows = [request(float(i), 0.1) for i in range(3)] + [failed(4.0), failed(None)]
        found = service_metrics(point_of(rows), 3.0, TTFT)
        assert found["goodput"]["value"] == 3.0, "each successful one meets"
        assert found["slo_share"] == {"unit": "share", "n": 5, "met": 3, "value": 0.6}

    def test_none_meets_is_zero_and_not_missing(self) -> None:
        assert service_metrics(point_of([request(0.0, 0.5)]), 2.0, TTFT)["goodput"]["value"] == 0.0
        only_failed = service_metrics(point_of([failed(0.0), failed(1.0)]), None, TTFT)
        assert only_failed["goodput"]["value"] == only_failed["slo_share"]["value"] == 0.0

    def test_without_a_throughput_there_is_no_goodput_but_a_share(self) -> None:
        found = service_metrics(point_of([request(0.0, 0.1), request(0.1, 0.3)]), None, TTFT)
        assert found["goodput"]["value"] is None
        assert found["slo_share"]["value"] == 0.5

    def test_nothing_measured_is_missing_and_not_zero(self) -> None:
        found = service_metrics(point_of([request(0.0, 0.1, part="ramp")]), None, TTFT)
        assert found["goodput"]["value"] is found["slo_share"]["value"] is None


class TestCell:
    def test_launches_are_averaged_and_their_requests_pooled(self, tmp_path: Path) -> None:
        launches = [one_user([0.1] * 8), one_user([0.1] * 4 + [0.5] * 4)]
        content = read_json(cell_of(tmp_path, launches), "cell/1")
        assert content["slo"] == {"ttft_ms": 200, "tpot_ms": None, "e2el_ms": None, "target_share": 0.9}
        point = content["points"][0]
        each = [launch["goodput"]["value"] for launch in point["per_launch"]]
        throughputs = [launch["request_throughput"]["value"] for launch in point["per_launch"]]
        assert each == pytest.approx([throughputs[0], throughputs[1] / 2])
        assert point["metrics"]["goodput"]["value"] == pytest.approx(sum(each) / 2)
        assert point["metrics"]["slo_share"] == {"unit": "share", "n": 16, "met": 12, "value": 0.75}

    def test_rate_of_a_known_load(self, tmp_path: Path) -> None:
        """A user with a request a second, of which every second one meets: half a good request a second."""
        content = read_json(cell_of(tmp_path, [one_user([0.1, 0.5] * 20)]), "cell/1")
        assert content["points"][0]["metrics"]["goodput"]["value"] == pytest.approx(0.5, rel=0.03)

    def test_never_more_than_the_request_throughput_and_all_of_it_where_all_meet(self, tmp_path: Path) -> None:
        rows = simulate_closed_loop(4, 40)
        for limit_ms in (1.0, 190.0, 200.0, 210.0, 1e6):
            levels = replace(TTFT, ttft_ms=limit_ms)
            cell = read_json(cell_of(tmp_path / str(limit_ms), [rows], levels, concurrencies=(4,)), "cell/1")
            metrics = cell["points"][0]["metrics"]
            assert 0 <= metrics["goodput"]["value"] <= metrics["request_throughput"]["value"]
        assert metrics["goodput"]["value"] == metrics["request_throughput"]["value"]

    def test_without_service_levels_there_is_no_goodput(self, tmp_path: Path) -> None:
        path = cell_of(tmp_path, [one_user([0.1] * 8)], None)
        content = read_json(path, "cell/1")
        assert content["slo"] is None
        assert "goodput" not in path.read_text(encoding="utf-8")
        assert not {row["metric"] for row in summary_rows(content)} & {"goodput", "slo_share", "goodput_per_device"}

    def test_failed_and_invalid_cells_have_none(self, tmp_path: Path) -> None:
        oom = {"stage": "launch", "reason": "out of memory", "excerpt": ""}
        broken = read_json(cell_of(tmp_path / "a", [[]], failure=oom, environment={}), "cell/1")
        assert broken["slo"] and broken["points"] == []
        invalid = read_json(cell_of(tmp_path / "b", [[failed(float(i)) for i in range(8)]]), "cell/1")
        assert invalid["points"][0]["metrics"]["goodput"] == {"unit": "req/s", "n": 0, "value": None}
        assert invalid["points"][0]["metrics"]["slo_share"]["value"] is None
        json.dumps(invalid, allow_nan=False)
        assert not [row for cell in (broken, invalid) for row in summary_rows(cell) if row["metric"] == "goodput"]


def test_summary_has_goodput_share_and_goodput_of_a_device(tmp_path: Path) -> None:
    cell = read_json(cell_of(tmp_path, [one_user([0.1, 0.5] * 4)], gpus=1, mode="1p1d"), "cell/1")
    rows = {row["metric"]: row for row in summary_rows(cell)}
    assert (rows["goodput"]["unit"], rows["goodput"]["stat"], rows["goodput"]["n"]) == ("req/s", "value", 8)
    assert (rows["slo_share"]["value"], rows["slo_share"]["unit"]) == (0.5, "share")
    assert rows["goodput_per_device"]["value"] == pytest.approx(rows["goodput"]["value"] / 2)
    assert rows["goodput_per_device"]["unit"] == "req/s/GPU"


class TestComparisons:
    GOOD, HALF, NONE = [0.1] * 8, [0.1, 0.5] * 4, [0.5] * 8

    def rows(self, tmp_path: Path, mine: list[list[float]], **levels: Any) -> list[dict[str, Any]]:
        base = cell_of(tmp_path / "base", [one_user(self.GOOD)] * len(mine))
        other = cell_of(tmp_path / "other", [one_user(t) for t in mine], mode="chunked", **levels)
        found = comparison_rows([read_json(path, "cell/1") for path in (base, other)], "default", "fp16")
        return [row for row in found if row["factor"] == "mode" and row["metric"].startswith("goodput")]

    def test_goodput_has_a_ratio_an_interval_and_a_verdict(self, tmp_path: Path) -> None:
        found = self.rows(tmp_path, [self.HALF] * 3 + [self.GOOD] * 2)
        assert {row["metric"] for row in found} == {"goodput", "goodput_per_device"}
        assert all(row["ratio"] == pytest.approx(0.5 ** (3 / 5)) for row in found)
        assert all(row["ci_low"] < row["ratio"] < row["ci_high"] for row in found)

    def test_three_launches_carry_no_verdict_on_a_number_of_requests(self, tmp_path: Path) -> None:
        for row in self.rows(tmp_path, [self.HALF, self.HALF, self.GOOD]):
            assert (row["ci_low"], row["verdict"], row["more_repeats"]) == (None, "cannot tell", "2")

    def test_equal_counts_in_all_launches_hide_their_spread(self, tmp_path: Path) -> None:
        assert {row["verdict"] for row in self.rows(tmp_path, [self.HALF] * 5)} == {"cannot tell"}

    def test_none_that_meets_has_a_ratio_of_zero_and_no_verdict(self, tmp_path: Path) -> None:
        for row in self.rows(tmp_path, [self.NONE] * 3):
            assert (row["value"], row["ratio"], row["ci_low"], row["verdict"]) == (0, 0, None, "cannot tell")
            assert "a launch has 0" in row["note"]

    def test_a_base_of_zero_has_no_ratio_but_the_difference(self, tmp_path: Path) -> None:
        cells = [
            read_json(cell_of(tmp_path / mode, [one_user(ttfts)] * 3, mode=mode), "cell/1")
            for mode, ttfts in (("default", self.NONE), ("chunked", self.GOOD))
        ]
        row = next(row for row in comparison_rows(cells, "default", "fp16") if row["metric"] == "goodput")
        assert (row["ratio"], row["verdict"]) == (None, None)
        assert "the base is 0, the difference +1" in row["note"]

    def test_other_limits_make_another_number_which_is_not_compared(self, tmp_path: Path) -> None:
        rows = self.rows(tmp_path, [self.GOOD] * 3, levels=replace(TTFT, ttft_ms=300))
        assert {(row["ratio"], row["verdict"]) for row in rows} == {(None, None)}
        assert {row["note"] for row in rows} == {"not comparable: ttft_ms: 300 / 200"}

    def test_without_service_levels_there_are_no_such_rows(self, tmp_path: Path) -> None:
        cells = [cell_of(tmp_path / mode, [one_user(self.GOOD)], None, mode=mode) for mode in ("default", "chunked")]
        compare(cells, ("default", "fp16"), tmp_path / "comparisons.csv")
        written = list(csv.DictReader(io.StringIO((tmp_path / "comparisons.csv").read_text(encoding="utf-8"))))
        assert written and not [row for row in written if row["metric"].startswith("goodput")]


def test_levels_travel_as_json() -> None:
    assert ServiceLevels.from_json("") is None
    assert ServiceLevels.from_json(json.dumps(ALL.as_json())) == ALL
    assert list(ALL.limits_ms) == ["ttft", "tpot", "e2el"]
