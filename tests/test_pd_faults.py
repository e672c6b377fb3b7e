"""Prefill and decode that do not work together: whole trials on the fake engine, behind the real router."""

from collections.abc import Callable
from typing import Any

import pytest
from trial_plans import fake_plan
from whole_trials import MeasuredTrial

Measure = Callable[[dict[str, Any]], MeasuredTrial]
EVERY = "KV cache transferred for every request"
LOST = "no KV transfer failed or expired"
LOCAL = "no prefill on decode instances"
RAN = "servers ran through the load"
AFTER_WARMUP = "12"  # the launch and warm-up make 7 to 11 transfers


def pd_plan(**env: str) -> dict[str, Any]:
    return fake_plan("1p1d", requests=24, **env)


def test_a_pair_that_works(measure: Measure) -> None:
    """What the faults below are to be told from."""
    trial = measure(pd_plan())
    assert trial.failure is None
    assert {name: trial.check(name)["state"] for name in (EVERY, LOST, LOCAL, RAN)} == dict.fromkeys(
        (EVERY, LOST, LOCAL, RAN), "passed"
    )


@pytest.mark.fault(
    "pd", "decode prefills by itself instead of fetching", "invalid, with the tokens that decode prefilled"
)
def test_fallback_to_local_prefill(measure: Measure) -> None:
    trial = measure(pd_plan(FAKE_PREFILLS_FROM=AFTER_WARMUP))
    assert trial.failure is None, "every request is answered as if nothing were wrong"
    local, every = trial.check(LOCAL), trial.check(EVERY)
    assert (local["state"], every["state"], trial.state) == ("failed", "failed", "invalid")
    assert "prompt tokens prefilled by decode at concurrency 2" in local["evidence"]
    assert "kv_transfer_params" in local["remedy"]


@pytest.mark.fault(
    "pd", "KV transfers fail and decode prefills instead", "invalid, with the number of failed transfers"
)
def test_transfers_that_fail(measure: Measure) -> None:
    trial = measure(pd_plan(FAKE_LOSES_FROM=AFTER_WARMUP))
    assert trial.failure is None
    lost = trial.check(LOST)
    assert (lost["state"], trial.state) == ("failed", "invalid")
    assert "failed, 0 expired at concurrency 2" in lost["evidence"] and not lost["evidence"].startswith("0 failed")
    assert "logs" in lost["remedy"]


@pytest.mark.fault(
    "pd", "the lease of a KV cache expires before decode has fetched it", "invalid, though only prefill counts it"
)
def test_leases_that_expire(measure: Measure) -> None:
    trial = measure(pd_plan(FAKE_EXPIRES_FROM=AFTER_WARMUP))
    lost = trial.check(LOST)
    assert (lost["state"], trial.state) == ("failed", "invalid")
    assert lost["evidence"].startswith("0 failed, ") and not lost["evidence"].startswith("0 failed, 0 expired")


@pytest.mark.fault("pd", "the connector counts no transfers", "suspect until prompts are shown to have come over it")
def test_transfers_that_nobody_counts(measure: Measure) -> None:
    trial = measure(pd_plan(FAKE_COUNTS_NONE="1"))
    assert trial.check(EVERY)["state"] == "passed", "the engine counts where its prompts came from"
    assert trial.check(LOST)["state"] == "unknown"


@pytest.mark.fault("pd", "prefill dies in the middle of the load", "failed at load, prefill is named with its signal")
def test_prefill_that_dies(measure: Measure) -> None:
    plan = fake_plan("1p1d", requests=4000)
    plan["instances"][0]["env"]["FAKE_DIES_AFTER"] = "20"
    trial = measure(plan)
    assert trial.failure is not None
    assert (trial.failure.stage, trial.failure.reason) == ("load", "prefill-0 was killed by signal 9 (SIGKILL)")


@pytest.mark.fault(
    "pd",
    "prefill ends in the middle of the load and something starts it again",
    "invalid: prefill began anew, with what failed meanwhile",
)
def test_prefill_that_restarts(measure: Measure) -> None:
    plan = fake_plan("1p1d")
    sent = {"arrival": "constant", "concurrency": None, "rate": 20.0, "requests": 100, "ramp": 10, "drain": 0}
    plan["points"] = [{"point": 0, **sent}]  # goes on while prefill is away
    plan["instances"][0]["env"]["FAKE_RESTARTS_AT"] = "20"
    trial = measure(plan)
    assert trial.failure is None
    ran = trial.check(RAN)
    assert (ran["state"], ran["evidence"]) == ("failed", "prefill-0 began anew during the load")
    assert trial.check("requests answered without error")["state"] != "passed"
    assert trial.state == "invalid"


@pytest.mark.fault("pd", "decode is ready and prefill never is", "failed at launch, prefill is named with its log")
def test_decode_without_prefill(measure: Measure) -> None:
    plan = fake_plan("1p1d", launch_timeout_s=3)
    plan["instances"][0]["env"]["FAKE_READY_S"] = "never"
    trial = measure(plan)
    assert trial.failure is not None
    assert trial.failure.stage == "launch"
    assert trial.failure.reason == "prefill-0 not ready within 3 s (limits.launch_timeout_s)"
    assert "still loading weights" in trial.failure.excerpt and "POST" not in trial.failure.excerpt


@pytest.mark.fault("pd", "prefill and decode run different versions", "invalid, with both versions")
def test_different_versions(measure: Measure) -> None:
    plan = pd_plan(FAKE_VERSION="0.32.0")
    plan["instances"][1]["env"]["FAKE_VERSION"] = "0.31.1"
    trial = measure(plan)
    check = trial.check("engine version supported")
    assert (check["state"], trial.state) == ("failed", "invalid")
    assert check["evidence"] == "instances run 0.31.1 and 0.32.0"
    assert check["remedy"] == "run all instances with one engine"
