import json
from typing import Any

import numpy as np
import pytest
from request_tables import answered, closed_point, failed, simulate_closed_loop, table_of

from pdkv.analysing.metrics import LATENCIES, latency_metrics, point_facts
from pdkv.analysing.point_requests import from_table, points_of, requests_of_point


def facts_of(rows: list[dict[str, Any]], concurrency: int = 1) -> dict[str, Any]:
    return point_facts(from_table(table_of(rows)), closed_point(concurrency), None)


def test_definitions_on_one_request() -> None:
    metrics = facts_of([answered(10.0, [10.5, 10.7, 11.0, 11.1])])["metrics"]
    assert metrics["ttft"]["mean"] == pytest.approx(0.5)
    assert metrics["e2el"]["mean"] == pytest.approx(1.1)
    assert metrics["tpot"]["mean"] == pytest.approx(0.2)
    assert metrics["itl"]["n"] == 3
    assert (metrics["itl"]["min"], metrics["itl"]["median"], metrics["itl"]["max"]) == pytest.approx((0.1, 0.2, 0.3))


def test_gaps_never_join_two_requests() -> None:
    rows = [
        answered(0, [1, 2]),
        failed(5),
        answered(10, [20]),
        answered(30, [31]),
        failed(40),
        answered(50, [51, 54, 55]),
    ]
    assert sorted(from_table(table_of(rows)).gaps_s(np.ones(6, bool))) == [1, 1, 3]


def test_only_measured_and_successful_requests_count() -> None:
    rows = [
        answered(0, [9.0, 9.5], part="ramp"),
        answered(10, [10.1, 10.2]),
        failed(11),
        answered(12, [12.1, 12.2]),
        answered(13, [22.0, 29.0], part="drain"),
    ]
    facts = facts_of(rows)
    assert facts["metrics"]["ttft"]["n"] == 2
    assert facts["metrics"]["ttft"]["max"] == pytest.approx(0.1)
    assert facts["metrics"]["itl"]["max"] == pytest.approx(0.1)
    counts = {"sent": 5, "ok": 4, "failed": 1, "ramp": 1, "measured": 3, "drain": 1, "measured_ok": 2}
    assert facts["requests"] == counts
    assert facts["errors"] == {"HTTP 500": 1}


def test_events_with_several_tokens_are_counted_and_weighed() -> None:
    rows = [
        answered(float(t), [t + 0.5, t + 1.0], token_n=[1, 3], output_tokens=4, part=p)
        for t, p in enumerate(["ramp", "measured", "measured"])
    ]
    facts = facts_of(rows)
    assert facts["multi_token_events"] == 2
    assert facts["metrics"]["itl"]["n"] == 2
    assert facts["metrics"]["output_throughput"]["value"] == pytest.approx(4)


def test_tokens_of_events_that_were_not_counted_stay_unknown() -> None:
    """A server without token ids whose usage says eight tokens, of which it sent two events."""
    rows = [
        answered(float(t), [t + 0.5, t + 1.0], token_n=[None, None], output_tokens=8, part=p)
        for t, p in enumerate(["ramp", "measured", "measured"])
    ]
    requests = from_table(table_of(rows))
    assert np.isnan(requests.token_n).all()
    facts = point_facts(requests, closed_point(1), None)
    assert facts["multi_token_events"] is None
    assert facts["metrics"]["output_throughput"]["value"] == pytest.approx(8)
    assert facts["metrics"]["tpot"]["n"] == 2


def test_known_counts_stay_whole_numbers() -> None:
    assert from_table(table_of([answered(0, [1, 2], token_n=[1, 3])])).token_n.dtype == np.int32
    mixed = from_table(table_of([answered(0, [1, 2], token_n=[1, 3]), answered(3, [4], token_n=[None])]))
    assert mixed.token_n.tolist()[:2] == [1, 3]


def test_one_token_outputs_have_no_tpot_and_no_itl() -> None:
    metrics = facts_of([answered(float(t), [t + 0.5]) for t in range(8)])["metrics"]
    for name in ("tpot", "itl"):
        assert metrics[name]["n"] == 0
        assert {metrics[name][stat] for stat in ("mean", "median", "p99", "std", "min")} == {None}
    assert metrics["ttft"]["n"] == 8


@pytest.mark.parametrize("error", ["HTTP 500", "timeout"])
def test_all_failed_is_null_with_n_0(error: str) -> None:
    facts = facts_of([failed(float(t), error) for t in range(8)])
    for name in LATENCIES:
        assert facts["metrics"][name]["n"] == 0
        assert facts["metrics"][name]["mean"] is None
    assert facts["metrics"]["output_throughput"] == {"unit": "tok/s", "n": 0, "value": None}
    assert facts["errors"] == {error: 8}
    json.dumps(facts, allow_nan=False)


def test_one_success_of_eight() -> None:
    facts = facts_of([failed(float(t)) if t != 3 else answered(t, [t + 0.5, t + 0.9]) for t in range(8)])
    assert facts["metrics"]["ttft"]["n"] == 1
    assert facts["metrics"]["ttft"]["mean"] == facts["metrics"]["ttft"]["p99"] == pytest.approx(0.5)
    assert facts["metrics"]["ttft"]["std"] is None
    json.dumps(facts, allow_nan=False)


def test_a_request_that_was_never_sent_is_failed_not_sent() -> None:
    facts = facts_of([answered(0, [0.5, 1.0]), failed(None, "refused")])
    assert (facts["requests"]["sent"], facts["requests"]["failed"]) == (1, 1)
    json.dumps(facts, allow_nan=False)


def test_send_lag_is_against_the_schedule() -> None:
    facts = facts_of(
        [answered(1.0, [2.0], scheduled_s=0.75), answered(3.0, [4.0]), answered(5.0, [6.0], scheduled_s=4.5)]
    )
    assert facts["send_lag"] == {"median_s": 0.25, "p99_s": pytest.approx(0.495), "max_s": 0.5}


def test_pooled_p99_is_of_all_requests_not_of_launches() -> None:
    """Launches of 100: all 10 s, all 10 s, and ninety-five of 10 s with five of 100 s."""
    launches = [
        from_table(table_of([answered(0.0, [ttft, ttft + 1]) for ttft in ttfts]))
        for ttfts in ([10.0] * 100, [10.0] * 100, [10.0] * 95 + [100.0] * 5)
    ]
    assert latency_metrics(launches)["ttft"]["p99"] == 100
    assert [latency_metrics([launch])["ttft"]["p99"] for launch in launches] == [10, 10, 100]


def test_points_are_told_apart_and_warmup_is_left_out() -> None:
    rows = [
        answered(0, [1.0], phase="warmup", point=-1),
        answered(1, [3.0], point=1),
        answered(2, [3.0], point=0),
        answered(4, [7.0], point=1),
    ]
    table = table_of(rows)
    assert points_of(table) == [0, 1]
    assert requests_of_point(table, 1)["ttft_s"].tolist() == [2, 3]
    assert requests_of_point(table, 0)["ttft_s"].tolist() == [1]


def test_rows_out_of_order_are_sorted_by_send() -> None:
    table = table_of([answered(0, [1.0]), answered(1, [3.0, 4.0]), answered(2, [5.0])])
    requests = requests_of_point(table.take([2, 0, 1]), 0)
    assert requests["t_send_s"].tolist() == [0, 1, 2]
    assert requests.token_t_s.tolist() == [1, 3, 4, 5]


def test_first_wave_is_not_in_the_p99() -> None:
    """A server that prefills one prompt at a time, 64 users: the first wave queues behind itself."""
    p99 = {}
    for measured in (128, 1280):
        facts = facts_of(
            simulate_closed_loop(64, measured, prefill_s=0.05, tpot_s=0.1, tokens=64, ramp_interval_s=0.0), 64
        )
        p99[measured] = facts["metrics"]["ttft"]["p99"]
        assert facts["requests"]["ramp"] == 64
        assert facts["requests"]["measured"] == measured
    assert p99[128] == pytest.approx(p99[1280], rel=0.15)
    assert max(p99.values()) < 0.4, "the first wave waits up to 3.2 s"
