from typing import Any

import pytest
from request_tables import answered, closed_point, failed, simulate_closed_loop, table_of

from pdkv.analysing.checks import Check
from pdkv.analysing.load_facts import client_cpu_share, describe_load
from pdkv.analysing.metrics import point_facts
from pdkv.analysing.point_requests import from_table
from pdkv.analysing.request_checks import check_point, merge_points

LENGTHS, ERRORS, LAG = "input and output lengths as asked", "requests answered without error", "requests sent on time"
READ, CPU, LEVEL, STEADY = "answers read on time", "client not saturated", "load as high as asked", "steady state"


def checks_of(
    rows: list[dict[str, Any]], concurrency: int = 2, cpu: float | None = 0.1, **point: Any
) -> dict[str, Check]:
    requests = from_table(table_of(rows))
    late = {"p99_s": 0.0005, "max_s": 0.001}
    facts = point_facts(requests, closed_point(concurrency) | {"client_late": late} | point, None)
    return {check.name: check for check in check_point(requests, facts, cpu)}


def good(measured: int = 24, **settings: Any) -> list[dict[str, Any]]:
    return simulate_closed_loop(2, measured, **settings)


def replaced(rows: list[dict[str, Any]], number: int, **changes: Any) -> list[dict[str, Any]]:
    measured = [i for i, row in enumerate(rows) if row["part"] == "measured"]
    return [row | changes if i == measured[number] else row for i, row in enumerate(rows)]


def test_a_good_load_passes_every_check() -> None:
    checks = checks_of(good())
    assert {name: check.state for name, check in checks.items()} == dict.fromkeys(
        (LENGTHS, ERRORS, LAG, READ, CPU, LEVEL, STEADY), "passed"
    )


@pytest.mark.parametrize("changes", [{"input_tokens": 127}, {"output_tokens": 63}])
def test_one_other_length_fails(changes: dict[str, int]) -> None:
    check = checks_of(replaced(good(), 3, **changes))[LENGTHS]
    assert check.state == "failed"
    assert "1 of 24" in check.evidence
    assert check.remedy


def test_lengths_of_ramp_and_drain_do_not_matter() -> None:
    rows = [row | ({"input_tokens": 1} if row["part"] != "measured" else {}) for row in good()]
    assert checks_of(rows)[LENGTHS].state == "passed"


def test_a_silent_server_leaves_lengths_unknown() -> None:
    assert checks_of(replaced(good(), 3, input_tokens=None))[LENGTHS].state == "unknown"


@pytest.mark.parametrize(("bad", "state"), [(0, "passed"), (1, "suspect"), (5, "suspect"), (6, "failed")])
def test_error_rate(bad: int, state: str) -> None:
    rows = [failed(float(i)) if i < bad else answered(float(i), [i + 0.5, i + 0.9]) for i in range(100)]
    assert checks_of(rows, 1)[ERRORS].state == state


def test_nothing_answered_fails_and_the_rest_is_unknown() -> None:
    checks = checks_of([failed(float(i), "timeout") for i in range(8)])
    assert checks[ERRORS].state == "failed"
    assert "timeout" in checks[ERRORS].evidence
    assert {checks[name].state for name in (LENGTHS, LAG, STEADY)} == {"unknown"}


def test_no_request_at_all_fails() -> None:
    assert checks_of([])[ERRORS].state == "failed"


@pytest.mark.parametrize(("lag_s", "state"), [(0.0, "passed"), (0.009, "passed"), (0.1, "suspect"), (1.0, "failed")])
@pytest.mark.fault("load", "the client sends late", "suspect, or invalid where it is more than the TTFT")
def test_send_lag_is_judged_against_ttft(lag_s: float, state: str) -> None:
    rows = [row | {"scheduled_s": row["t_send_s"] - lag_s} for row in good()]
    assert checks_of(rows)[LAG].state == state


@pytest.mark.parametrize(("share", "state"), [(None, "unknown"), (0.3, "passed"), (0.9, "suspect")])
@pytest.mark.fault("load", "the client has used up its core", "suspect, with its share of the core")
def test_client_cpu(share: float | None, state: str) -> None:
    assert checks_of(good(), cpu=share)[CPU].state == state


@pytest.mark.parametrize(
    ("p99_s", "max_s", "state"),
    [
        (0.002, 0.002, "passed"),  # what a timer's resolution does
        (0.009, 0.009, "passed"),  # 5% of a TTFT of 0.2 s
        (0.011, 0.011, "suspect"),
        (0.0, 0.1, "passed"),  # once, in 20 s: in no p99
        (0.0, 1.0, "suspect"),
    ],
)
def test_a_client_that_reads_late(p99_s: float, max_s: float, state: str) -> None:
    check = checks_of(good(), client_late={"p99_s": p99_s, "max_s": max_s})[READ]
    assert check.state == state
    assert bool(check.remedy) is (state == "suspect")


def test_a_client_that_did_not_watch_itself_is_unknown() -> None:
    assert checks_of(good(), client_late=None)[READ].state == "unknown"


@pytest.mark.fault("load", "fewer requests in flight than asked", "suspect, with both numbers")
def test_a_load_below_the_asked_level_is_suspect() -> None:
    check = checks_of(good(), concurrency=3)[LEVEL]
    assert check.state == "suspect"
    assert "of 3" in check.evidence


@pytest.mark.parametrize(("slowdown", "state"), [(1.0, "passed"), (1.2, "suspect")])
def test_open_loop_is_judged_against_its_schedule(slowdown: float, state: str) -> None:
    rows = [answered(i * slowdown, [i * slowdown + 0.5], scheduled_s=float(i), user=None) for i in range(20)]
    assert checks_of(rows, arrival="poisson", concurrency=None, rate=1.0)[LEVEL].state == state


@pytest.mark.fault("load", "the second half of a load is slower than the first", "suspect, with the change")
def test_a_drift_is_suspect() -> None:
    rows = [answered(float(i), [i + 0.1, i + (0.5 if i < 10 else 0.6)]) for i in range(20)]
    check = checks_of(rows, 1)[STEADY]
    assert check.state == "suspect"
    assert "+20.0%" in check.evidence


def test_few_requests_cannot_tell_a_drift() -> None:
    assert checks_of([answered(float(i), [i + 0.5]) for i in range(7)], 1)[STEADY].state == "unknown"


def test_the_worst_point_speaks_for_the_trial() -> None:
    merged = merge_points(
        {
            "concurrency 2": [Check("a", "passed", "fine"), Check("b", "passed", "fine")],
            "concurrency 64": [Check("a", "failed", "bad", "mend it"), Check("b", "unknown", "no counter")],
        }
    )
    assert merged == [
        Check("a", "failed", "at concurrency 64: bad", "mend it"),
        Check("b", "unknown", "at concurrency 64: no counter"),
    ]


def stages_of(points: list[dict[str, Any]], status: str = "ok") -> dict[str, Any]:
    timed = [{**point, "start_s": 0.0, "end_s": 10.0} for point in points]
    return {"outcome": {"status": status}, "instances": [], "points": timed, "client": {"cpu_s": 2.0}}


def test_one_bad_point_does_not_condemn_the_others() -> None:
    rows = good() + [failed(100.0 + i, point=1) for i in range(8)]
    content = describe_load(table_of(rows), stages_of([closed_point(2), closed_point(4, point=1)]), [])
    assert content["points"][1]["state"] == "invalid"
    assert content["points"][0]["state"] == "valid"
    assert content["state"] == "suspect"
    errors = next(check for check in content["checks"] if check["name"] == ERRORS)
    assert errors["state"] == "failed"
    assert errors["evidence"].startswith("at concurrency 4")


def test_all_points_bad_is_invalid_and_a_broken_trial_is_failed() -> None:
    rows = [failed(float(i)) for i in range(8)]
    assert describe_load(table_of(rows), stages_of([closed_point(2)]), [])["state"] == "invalid"
    assert describe_load(table_of(good()), stages_of([closed_point(2)], "failed"), [])["state"] == "failed"
    assert describe_load(table_of([]), stages_of([]), []) == {"points": [], "checks": [], "state": "failed"}


def test_without_scrapes_cache_hits_are_unknown() -> None:
    content = describe_load(table_of(good()), stages_of([closed_point(2)]), [])
    assert next(check for check in content["checks"] if "prefix" in check["name"])["state"] == "unknown"


def test_client_cpu_share_needs_its_evidence() -> None:
    assert client_cpu_share(stages_of([closed_point(2)])) == pytest.approx(0.2)
    assert client_cpu_share({"points": [], "client": {"cpu_s": 2.0}}) is None
    assert client_cpu_share({"points": [{"start_s": 0, "end_s": 1}], "client": None}) is None
