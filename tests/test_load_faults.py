"""What becomes of a trial whose engine misbehaves under load: whole trials on the fake engine, read as the rules do."""

import re
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from trial_plans import fake_plan
from whole_trials import MeasuredTrial

from pdkv.measuring.trial_stages import Measurement

Measure = Callable[[dict[str, Any]], MeasuredTrial]
ERRORS = "requests answered without error"
LENGTHS = "input and output lengths as asked"
MEASURED = 40


def load_plan(answers: str, *, every: int = 1, requests: int = MEASURED, **limits: float) -> dict[str, Any]:
    """A plan whose engine gives ``answers`` (a golden scenario) to every so many requests of the load."""
    plan = fake_plan(requests=requests, FAKE_ANSWERS=answers, FAKE_EVERY=str(every))
    plan["trial"]["limits"] |= limits
    return plan


def some_fail(scenario: str, error: str, fault: str) -> Any:
    happens = "these requests fail by name, all others are measured; the trial is invalid where they are more than 5%"
    return pytest.param(scenario, error, marks=pytest.mark.fault("load", fault, happens), id=scenario)


@pytest.mark.parametrize(
    ("scenario", "error"),
    [
        some_fail("status-500", "HTTP 500: no memory left", "every 10th request is answered with HTTP 500"),
        some_fail("truncated", "closed: connection closed in mid-response", "connections are reset in mid-answer"),
        some_fail("error-body", "stream without [DONE]: the engine is not ready", "HTTP 200 with an error for a body"),
        some_fail("error-midway", "error in mid-stream: EngineCore died", "an error event in mid-stream"),
        some_fail("empty", "stream without a token", "empty answers"),
        some_fail("garbage", "closed: not an HTTP response", "the server answers with garbage"),
        some_fail("no-done", "stream without [DONE]", "streams that stop without saying that they are over"),
        some_fail(
            "wrong-usage", "usage says 9 output tokens, 8 were received", "token counts that contradict the tokens"
        ),
        some_fail("stall", "timeout: not answered within 1 s", "single requests hang in mid-stream"),
        some_fail("pings-forever", "timeout: not answered within 1 s", "keep-alive comments for ever and no token"),
    ],
)
def test_every_tenth_request_fails(measure: Measure, scenario: str, error: str) -> None:
    trial = measure(load_plan(scenario, every=10, request_timeout_s=1))
    assert trial.failure is None
    rows = trial.requests()
    bad = [row for row in rows if row["status"] == "error"]
    assert len(bad) == 5
    assert all(row["error"].startswith(error) for row in bad), Counter(row["error"] for row in bad)
    assert {(row["ttft_s"], row["tpot_s"], row["e2el_s"]) for row in bad} == {(None, None, None)}
    assert all(row["ttft_s"] > 0 and row["output_tokens"] == 8 for row in rows if row not in bad)
    check = trial.check(ERRORS)
    assert (check["state"], trial.state) == ("failed", "invalid")
    assert f"{len(bad)} of {len(rows)} failed" in check["evidence"]
    assert error.partition(":")[0] in check["evidence"]
    assert check["remedy"]
    (point,) = trial.metrics["points"]
    assert point["requests"]["measured_ok"] == sum(row["part"] == "measured" and row not in bad for row in rows)


@pytest.mark.fault("load", "one request in a hundred fails", "it is counted and named, the trial is suspect")
def test_one_request_of_many_fails(measure: Measure) -> None:
    trial = measure(load_plan("status-500", every=100))
    assert trial.check(ERRORS)["state"] == "suspect"
    assert trial.state == "suspect"


@pytest.mark.parametrize(
    ("scenario", "said"),
    [
        pytest.param(
            "shorter",
            "4 instead of 8",
            marks=pytest.mark.fault("load", "answers shorter than asked", "invalid, with both lengths"),
        ),
        pytest.param(
            "longer",
            "16 instead of 8",
            marks=pytest.mark.fault("load", "answers longer than asked", "invalid, with both lengths"),
        ),
    ],
)
def test_other_lengths(measure: Measure, scenario: str, said: str) -> None:
    trial = measure(load_plan(scenario, every=10))
    check = trial.check(LENGTHS)
    assert (check["state"], trial.state) == ("failed", "invalid")
    assert said in check["evidence"] and "max_model_len" in check["remedy"]


@pytest.mark.fault(
    "load",
    "the engine hangs in mid-stream, for all requests",
    "failed at load after the time-out of a few requests, however many are still to come; what came is kept",
)
@pytest.mark.parametrize("scenario", ["stall", "hang"])
def test_engine_that_hangs(measure: Measure, scenario: str) -> None:
    began_s = time.monotonic()
    trial = measure(load_plan(scenario, requests=4000, request_timeout_s=1))
    assert trial.failure is not None
    assert trial.failure.stage == "load"
    assert trial.failure.reason.startswith("single hangs: ")
    assert "requests in a row were not answered within 1 s" in trial.failure.reason
    assert "POST /v1/completions" in trial.failure.excerpt
    assert trial.metrics["state"] == "failed" and trial.metrics["points"] == []
    sent = Counter(row["outcome"] for row in trial.sends())
    assert sent["timeout"] >= 3 and sent["answered"] == 0, "what came until then is evidence"
    assert time.monotonic() - began_s < 60, "4000 requests would have waited for half an hour"


@pytest.mark.fault(
    "load",
    "the engine is so slow that the trial would take days",
    "failed at load after limits.trial_hours, though every single request is answered in time",
)
def test_trial_that_takes_too_long(measure: Measure) -> None:
    plan = fake_plan(requests=4000, FAKE_TOKEN_S="0.02")
    plan["trial"]["limits"]["trial_timeout_s"] = 4.0
    trial = measure(plan)
    assert trial.failure is not None
    assert trial.failure.stage in ("load", "warmup")  # on a busy machine the launch takes that long
    assert trial.failure.reason == "the trial was not over 4 s after its start (limits.trial_hours)"
    assert trial.metrics["points"] == []


@pytest.mark.fault("load", "every single request fails", "failed at load, with the most frequent error")
@pytest.mark.parametrize("scenario", ["status-500", "truncated", "garbage"])
def test_no_request_is_served(measure: Measure, scenario: str) -> None:
    trial = measure(load_plan(scenario, requests=8))
    said = {"status-500": "HTTP/1.1 500", "truncated": "closed", "garbage": "not an HTTP response"}[scenario]
    assert trial.failure is not None
    assert trial.failure.stage == "load"
    assert re.match(r"none of \d+ requests was served at c=2: ", trial.failure.reason)
    assert said in trial.failure.reason
    (point,) = trial.metrics["points"]
    assert point["requests"]["measured_ok"] == 0
    assert {point["metrics"][name]["median"] for name in ("ttft", "tpot", "itl", "e2el")} == {None}


@pytest.mark.fault(
    "load",
    "a slow network: every event arrives in ten parts",
    "all is measured; a token counts when its last byte is there",
)
def test_slow_network(measure: Measure) -> None:
    plan = load_plan("drip", requests=8)
    plan["instances"][0]["env"]["FAKE_TOKEN_S"] = "0.05"
    trial = measure(plan)
    assert trial.failure is None
    assert trial.check(ERRORS)["state"] == trial.check(LENGTHS)["state"] == "passed"
    (point,) = trial.metrics["points"]
    assert point["metrics"]["tpot"]["median"] == pytest.approx(0.05, rel=0.3)
    assert point["metrics"]["ttft"]["median"] >= 0.1  # 50 ms, and 50 ms on the line


@pytest.mark.fault(
    "load",
    "the client itself is held up while tokens arrive",
    "suspect, with how late the client was; its late stamps are not taken for the engine's",
)
def test_client_that_is_too_slow(measure: Measure, monkeypatch: pytest.MonkeyPatch) -> None:
    watch_load = Measurement.watch_load

    def dawdle(measurement: Measurement, done: int, total: int) -> None:
        watch_load(measurement, done, total)
        time.sleep(0.3)  # in the event loop, twice a second

    monkeypatch.setattr(Measurement, "watch_load", dawdle)
    trial = measure(fake_plan(requests=80))
    (point,) = trial.metrics["points"]
    assert point["client_late"]["max_s"] >= 0.25
    check = trial.check("answers read on time")
    assert check["state"] == "suspect"
    assert trial.state != "valid"
    assert "core of its own" in check["remedy"]
