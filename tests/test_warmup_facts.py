"""Was every pair reached, and did its latency settle?"""

from itertools import product
from typing import Any

import pytest

from pdkv.analysing.warmup_facts import describe_warmup

PD = [(f"prefill-{p}", f"decode-{d}") for p, d in product(range(2), range(1))]


def stages(pairs: list[dict[str, str]], *, roles: dict[str, str], stage: str | None = None) -> dict[str, Any]:
    instances = [{"name": name, "role": role} for name, role in roles.items()]
    return {"outcome": {"status": "failed" if stage else "ok", "stage": stage}, "instances": instances, "pairs": pairs}


def pd_stages(rounds: int = 1) -> dict[str, Any]:
    roles = {"prefill-0": "prefill", "prefill-1": "prefill", "decode-0": "decode"}
    return stages([{"prefill": p, "decode": d} for p, d in PD] * rounds, roles=roles)


def requests(latencies: list[float | None], phase: str = "warmup", *, routed: int = 0) -> list[dict[str, Any]]:
    """Rows in order of sending; the last ``routed`` ones were sent by the users of a small load."""
    direct = len(latencies) - routed
    return [
        {
            "phase": phase,
            "request": number,
            "user": None if number < direct else number % 2,
            "status": "error" if e2el_s is None else "ok",
            "e2el_s": e2el_s,
        }
        for number, e2el_s in enumerate(latencies)
    ]


def test_pairs_that_settled() -> None:
    warmup = describe_warmup(pd_stages(rounds=3), requests([20.0, 17.0, 0.75, 0.70, 0.70, 0.68]))
    assert warmup["pairs"] == [
        {
            "prefill": "prefill-0",
            "decode": "decode-0",
            "instance": None,
            "requests": 3,
            "first_e2el_s": 20.0,
            "last_e2el_s": 0.70,
            "reached": True,
        },
        {
            "prefill": "prefill-1",
            "decode": "decode-0",
            "instance": None,
            "requests": 3,
            "first_e2el_s": 17.0,
            "last_e2el_s": 0.68,
            "reached": True,
        },
    ]
    assert warmup["settled"] is True
    assert [check["state"] for check in warmup["checks"]] == ["passed", "passed"]


def test_the_router_s_requests_are_shown_but_do_not_decide_what_settled() -> None:
    routed = pd_stages(rounds=2)
    routed["pairs"] += [{"instance": "router"}] * 4
    warmup = describe_warmup(routed, requests([0.7, 0.7, 0.7, 0.7, 3.0, 3.0, 1.4, 0.7], routed=4))
    assert warmup["settled"] is True
    assert warmup["pairs"][-1]["instance"] == "router"
    assert warmup["pairs"][-1]["requests"] == 4
    assert warmup["checks"][0]["evidence"] == "answers from prefill-0 → decode-0, prefill-1 → decode-0, router"


def test_the_load_of_a_single_server_does_not_decide_either() -> None:
    single = stages([{"instance": "single"}] * 6, roles={"single": "single"})
    warmup = describe_warmup(single, requests([9.0, 1.0, 1.0, 2.0, 2.0, 1.0], routed=3))
    assert (warmup["settled"], warmup["pairs"][0]["last_e2el_s"]) == (True, 1.0)


def test_a_connector_whose_pairs_cannot_be_addressed() -> None:
    one = stages([{"instance": "router"}] * 3, roles={"prefill-0": "prefill", "decode-0": "decode"})
    warmup = describe_warmup(one, requests([5.0, 1.0, 1.0], routed=3))
    assert [(pair["prefill"], pair["decode"], pair["reached"]) for pair in warmup["pairs"]] == [
        ("prefill-0", "decode-0", True)
    ]
    assert warmup["checks"][0]["state"] == "passed"
    two = pd_stages()
    two["pairs"] = [{"instance": "router"}] * 3
    warmup = describe_warmup(two, requests([5.0, 1.0, 1.0], routed=3))
    assert warmup["settled"] is None
    assert [check["state"] for check in warmup["checks"]] == ["unknown", "unknown"]


@pytest.mark.parametrize(("last", "settled"), [(1.0, True), (0.8, True), (0.79, False), (1.25, True), (1.26, False)])
def test_settled_is_within_a_fifth_of_the_longer_one(last: float, settled: bool) -> None:
    single = stages([{"instance": "single"}] * 3, roles={"single": "single"})
    warmup = describe_warmup(single, requests([9.0, 1.0, last]))
    assert warmup["settled"] is settled
    assert warmup["checks"][1]["state"] == ("passed" if settled else "suspect")


def test_a_pair_without_an_answer_is_cold() -> None:
    warmup = describe_warmup(pd_stages(rounds=2), requests([1.0, None, 1.0, None]))
    assert warmup["pairs"][1]["reached"] is False
    assert warmup["pairs"][1]["last_e2el_s"] is None
    assert warmup["settled"] is None
    assert [check["state"] for check in warmup["checks"]] == ["failed", "unknown"]
    assert warmup["checks"][0]["evidence"] == "no answer from prefill-1 → decode-0"


def test_a_pair_that_was_never_addressed_is_cold_too() -> None:
    roles = {"prefill-0": "prefill", "decode-0": "decode", "decode-1": "decode"}
    warmup = describe_warmup(
        stages([{"prefill": "prefill-0", "decode": "decode-0"}] * 2, roles=roles), requests([1.0, 1.0])
    )
    assert warmup["checks"][0]["state"] == "failed"
    assert "prefill-0 → decode-1" in warmup["checks"][0]["evidence"]


def test_one_round_is_too_few_to_tell() -> None:
    warmup = describe_warmup(pd_stages(), requests([1.0, 1.0]))
    assert warmup["settled"] is None
    assert [check["state"] for check in warmup["checks"]] == ["passed", "unknown"]


def test_requests_of_the_load_do_not_count() -> None:
    single = stages([{"instance": "single"}], roles={"single": "single"})
    warmup = describe_warmup(single, requests([1.0, 1.0], phase="load"))
    assert warmup["pairs"][0]["reached"] is False


def test_replicas_are_warmed_one_by_one() -> None:
    pairs = [{"instance": "replica-0"}, {"instance": "replica-1"}] * 3
    two = stages(pairs, roles={"replica-0": "replica", "replica-1": "replica"})
    warmup = describe_warmup(two, requests([3.0, 4.0, 1.0, 2.0, 1.0, 2.0]))
    assert [pair["last_e2el_s"] for pair in warmup["pairs"]] == [1.0, 2.0]
    assert warmup["settled"] is True


def test_a_launch_that_failed_had_nothing_to_warm() -> None:
    failed = stages([], roles={}, stage="launch")
    assert describe_warmup(failed, []) == {"pairs": [], "settled": None, "checks": []}


def test_an_unrecorded_warmup_is_unknown() -> None:
    assert [check["state"] for check in describe_warmup(stages([], roles={}), [])["checks"]] == ["unknown", "unknown"]
