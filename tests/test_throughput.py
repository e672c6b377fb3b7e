import numpy as np
import pytest
from request_tables import answered, failed, simulate_closed_loop, table_of

from pdkv.analysing import throughput
from pdkv.analysing.metrics import throughput_metrics
from pdkv.analysing.point_requests import PointRequests, from_table


def output_throughput(requests: PointRequests) -> float:
    value = throughput_metrics(requests, throughput.steady_window(requests, "closed"))["output_throughput"]["value"]
    assert isinstance(value, float)
    return value


def measured_only(requests: PointRequests) -> float:
    """Tokens of measured requests over the time from their first send to their last token."""
    counted = requests.measured
    return float(
        requests["output_tokens"][counted].sum()
        / (requests["t_last_s"][counted].max() - requests["t_send_s"][counted].min())
    )


CASES = {
    "in step": {"jitter": 0.01, "ramp_interval_s": 0.0},
    "in step, ramp of a third of a request": {"jitter": 0.01, "ramp_interval_s": None},
    "with spread": {"jitter": 0.05},
    "with much spread": {"jitter": 0.2},
    "serial prefill": {"prefill_s": 0.012, "jitter": 0.02},
    "ramp longer than a request": {"ramp_interval_s": 0.05},
}


@pytest.mark.parametrize(("concurrency", "measured"), [(2, 24), (64, 128), (64, 100)])
@pytest.mark.parametrize("case", CASES)
def test_window_shows_the_steady_throughput(concurrency: int, measured: int, case: str) -> None:
    settings = dict(CASES[case])
    if settings.get("ramp_interval_s", 0.0) is None:
        settings["ramp_interval_s"] = 0.5 / concurrency
    # Long enough that where the window begins and ends does not matter.
    truth = output_throughput(
        from_table(table_of(simulate_closed_loop(concurrency, 60 * concurrency, seed=99, **settings)))
    )
    runs = [
        from_table(table_of(simulate_closed_loop(concurrency, measured, seed=seed, **settings)))
        for seed in range(24 if concurrency == 2 else 4)
    ]
    bias = np.mean([output_throughput(run) for run in runs]) / truth - 1
    assert abs(bias) < 0.02
    if concurrency == 64:
        assert abs(bias) < abs(np.mean([measured_only(run) for run in runs]) / truth - 1)


def test_other_definitions_are_biased_by_ramp_and_drain() -> None:
    truth = output_throughput(from_table(table_of(simulate_closed_loop(64, 3840, prefill_s=0.012, seed=99))))
    run = from_table(table_of(simulate_closed_loop(64, 128, prefill_s=0.012)))
    whole = throughput_metrics(run, throughput.steady_window(run, "closed"))["output_throughput_whole_run"]["value"]
    assert measured_only(run) / truth < 0.8
    assert whole / truth < 0.9


def test_known_values_of_one_user() -> None:
    """Ten tokens in each second: the window holds the measured requests and nothing else."""
    parts = ["ramp", "measured", "measured", "measured"]
    rows = [answered(t, t + 0.1 * np.arange(1, 11), part=part, user=0) for t, part in enumerate(parts)]
    requests = from_table(table_of(rows))
    window = throughput.steady_window(requests, "closed")
    assert window == throughput.Window(1.0, 4.0)
    metrics = throughput_metrics(requests, window)
    assert metrics["output_throughput"]["value"] == pytest.approx(10)
    assert metrics["request_throughput"]["value"] == pytest.approx(1)
    assert metrics["total_throughput"]["value"] == pytest.approx(138)
    assert metrics["output_throughput_whole_run"]["value"] == pytest.approx(10)
    assert throughput.mean_in_flight(requests, window) == pytest.approx(1)
    assert throughput.sends_in(requests, window) == 2


def test_load_is_not_full_before_every_user_has_started() -> None:
    """Without a ramp, the second user comes 5 s late."""
    sends = [(0, float(t)) for t in range(12)] + [(1, float(t)) for t in range(5, 12)]
    rows = [
        answered(t, [t + 0.5, t + 1.0], user=user) for user, t in sorted(sends, key=lambda send: (send[1], send[0]))
    ]
    window = throughput.steady_window(from_table(table_of(rows)), "closed")
    assert window is not None
    assert window.start_s == 5


def test_open_loop_window_is_between_measured_sends() -> None:
    parts = ["ramp", *["measured"] * 5, "drain"]
    rows = [answered(t * 0.5, [t * 0.5 + 0.1, t * 0.5 + 0.4], part=part, user=None) for t, part in enumerate(parts)]
    requests = from_table(table_of(rows))
    window = throughput.steady_window(requests, "constant")
    assert window == throughput.Window(0.5, 2.5)
    assert throughput_metrics(requests, window)["output_throughput"]["value"] == pytest.approx(4)
    assert throughput.sends_in(requests, window) / window.length_s == pytest.approx(2)


def test_open_loop_over_before_a_request_is_has_no_steady_window() -> None:
    """Five sends within 2 s of requests that last 3 s: most of their tokens come when nothing is sent any more."""
    parts = ["ramp", *["measured"] * 5, "drain"]
    rows = [answered(t * 0.5, [t * 0.5 + 1.0, t * 0.5 + 3.0], part=part, user=None) for t, part in enumerate(parts)]
    assert throughput.steady_window(from_table(table_of(rows)), "poisson") is None


def test_failed_requests_occupy_a_user_but_give_no_tokens() -> None:
    parts = ["ramp", *["measured"] * 4]
    rows = [
        failed(float(t), part=part) if t == 2 else answered(t, [t + 0.5, t + 1.0], part=part)
        for t, part in enumerate(parts)
    ]
    requests = from_table(table_of(rows))
    window = throughput.steady_window(requests, "closed")
    assert window == throughput.Window(1.0, 5.0)
    assert throughput_metrics(requests, window)["output_throughput"]["value"] == pytest.approx(6 / 4)
    assert throughput.mean_in_flight(requests, window) == pytest.approx(1)


@pytest.mark.parametrize("rows", [[], [failed(None)], [failed(0.0), failed(1.0)]])
def test_nothing_answered_has_no_throughput(rows: list[dict[str, object]]) -> None:
    requests = from_table(table_of(rows))
    metrics = throughput_metrics(requests, throughput.steady_window(requests, "closed"))
    assert {metric["value"] for metric in metrics.values()} == {None}
    assert {metric["n"] for metric in metrics.values()} == {0}
