"""Where TTFT goes: parts out of hand-made counters whose truth is known, and out of what real engines counted."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pdkv.analysing.scrapes import Scrape, Span, parse_scrape
from pdkv.analysing.ttft_parts import (
    PARTS,
    PREFILL_PARTS,
    check_ttft_parts,
    combine_ttft_parts,
    point_ttft_parts,
    split_ttft,
)

DATA = Path(__file__).parent / "data"
Histograms = Mapping[str, tuple[float, int]]

# Ten requests, milliseconds each: router 2, prefill 5 + 30 + 50, decode 4 + 11 (9 of waiting) + 20 + 10.
ROUTER = {"vllm_router_pd_decode_pending_seconds": (0.87, 10)}
PREFILL = {
    'http_request_duration_seconds{handler="/v1/completions"}': (0.85, 10),
    "vllm:e2e_request_latency_seconds": (0.84, 10),
    "vllm:request_queue_time_seconds": (0.30, 10),
    "vllm:request_prefill_time_seconds": (0.50, 10),
}
DECODE = {
    "vllm:time_to_first_token_seconds": (0.43, 10),
    "vllm:request_queue_time_seconds": (0.29, 10),
    "vllm:request_prefill_time_seconds": (0.10, 10),
    "vllm:nixl_xfer_time_seconds": (0.20, 10),
}
TRUTH_MS = {
    "router": 2,
    "prefill_intake": 5,
    "prefill_queue": 30,
    "prefill": 50,
    "decode_intake": 4,
    "decode_queue": 9,
    "kv_transfer": 20,
    "first_decode_step": 10,
}
ROLES = {"prefill-0": "prefill", "decode-0": "decode"}


def counters(histograms: Histograms, before: float = 0.0) -> Scrape:
    lines = []
    for name, (total, count) in histograms.items():
        bare, _, labels = name.partition("{")
        labels = "{" + (labels or 'engine="0"}')
        lines += [f"{bare}_sum{labels} {before + total}", f"{bare}_count{labels} {7 * (before > 0) + count}"]
    return parse_scrape("\n".join(lines) + "\n")


def span(histograms: Histograms) -> Span:
    """An instance that had served seven requests before the point, for 100 s of each histogram."""
    return counters(dict.fromkeys(histograms, (0.0, 0)), 100.0), counters(histograms, 100.0)


def without(histograms: Histograms, name: str) -> Histograms:
    return {key: value for key, value in histograms.items() if name not in key}


def spans(router: Histograms = ROUTER, prefill: Histograms = PREFILL, decode: Histograms = DECODE) -> dict[str, Span]:
    return {"router": span(router), "prefill-0": span(prefill), "decode-0": span(decode)}


def split(found: Mapping[str, Span], ttft_ms: float = 132.0, n: int = 10) -> dict[str, Any]:
    parts = split_ttft(found, ROLES, np.full(n, ttft_ms / 1e3))
    assert parts is not None
    return parts


def milliseconds(parts: Mapping[str, float | None]) -> dict[str, float | None]:
    return {part: None if value is None else round(value * 1e3, 6) for part, value in parts.items()}


def check(split: Mapping[str, Any] | None) -> Any:
    (found,) = check_ttft_parts({"ttft_parts": split, "arrival": "closed", "concurrency": 2, "rate": None})
    return found


def test_every_part_is_what_it_was_made_to_be() -> None:
    found = split(spans())
    assert milliseconds(found["parts"]) == TRUTH_MS
    assert tuple(found["parts"]) == PARTS
    assert found["unexplained_s"] == pytest.approx(0.002)
    assert found["unexplained_share"] == pytest.approx(2 / 132)
    assert found["state"] == "explained"
    assert found["counted"] == {"router": 10, "prefill": 10, "decode": 10}
    assert check(found).state == "passed"


@pytest.mark.parametrize(("ttft_ms", "state"), [(136.8, "explained"), (137.0, "unexplained"), (110.0, "unexplained")])
def test_more_than_5_percent_in_no_part_is_said_and_does_not_make_the_trial_suspect(ttft_ms: float, state: str) -> None:
    found = split(spans(), ttft_ms)
    assert found["state"] == state
    assert found["unexplained_s"] == pytest.approx((ttft_ms - 130) / 1e3)
    assert check(found).state == ("passed" if state == "explained" else "unknown")


def test_parts_add_up_to_ttft_with_the_unexplained() -> None:
    found = split(spans(), 150.0)
    assert sum(found["parts"].values()) + found["unexplained_s"] == pytest.approx(found["ttft_mean_s"])


def test_ramp_and_drain_are_in_the_clients_mean_as_they_are_in_the_counters() -> None:
    ttft_s = np.array([*[0.1] * 5, *[0.164] * 5, np.nan])  # the last got no token
    found = split_ttft(spans(), ROLES, ttft_s)
    assert found is not None
    assert (found["requests"], found["ttft_mean_s"]) == (10, pytest.approx(0.132))


@pytest.mark.parametrize(
    ("place", "name", "lost"),
    [
        ("router", "pending", {"router": None}),
        ("prefill", "queue", {"prefill_queue": None, "prefill_intake": None}),
        ("decode", "first_token", {"decode_intake": None}),
        ("decode", "xfer", {"kv_transfer": None, "decode_queue": 29.0}),
        ("prefill", "http", {"router": 3.0, "prefill_intake": 4.0}),
    ],
)
def test_a_missing_counter_costs_its_parts_only(place: str, name: str, lost: dict[str, float | None]) -> None:
    whole = {"router": ROUTER, "prefill": PREFILL, "decode": DECODE}
    found = split(spans(**{**whole, place: without(whole[place], name)}))
    assert milliseconds(found["parts"]) == TRUTH_MS | lost
    known = sum(value for value in found["parts"].values() if value is not None)
    assert found["unexplained_s"] == pytest.approx(0.132 - known)


def test_what_the_servers_do_not_tell_is_named() -> None:
    found = split(dict.fromkeys(spans(), (None, None)))
    assert set(found["parts"].values()) == {None}
    assert (found["state"], found["unexplained_s"]) == ("unknown", None)
    assert check(found).state == "unknown"
    assert "router, prefill_intake" in check(found).evidence


def test_no_request_with_a_token() -> None:
    idle = {name: span(dict.fromkeys(held, (0.0, 0))) for name, held in
            {"router": ROUTER, "prefill-0": PREFILL, "decode-0": DECODE}.items()}  # fmt: skip
    for found in (split(idle, n=0), split(spans(), n=0), split(idle)):
        assert found["unexplained_s"] is None and found["unexplained_share"] is None
        assert found["state"] in ("unknown", "mismatched")
        assert check(found).state == "unknown"
    assert set(split(idle)["parts"].values()) == {None}


def test_requests_that_only_one_side_counted_leave_nothing_to_add_up() -> None:
    found = split(spans(), n=9)
    assert (found["state"], found["unexplained_s"]) == ("mismatched", None)
    assert "9 requests" in check(found).evidence and "decode 10" in check(found).evidence
    assert "concurrency" not in check(found).evidence  # whoever puts the levels together says at which
    one_off = split(spans(prefill={**PREFILL, "vllm:request_queue_time_seconds": (0.3, 11)}))
    assert one_off["counted"] == {"router": 10, "prefill": 11, "decode": 10}
    assert one_off["state"] == "mismatched"


def test_counters_that_contradict_each_other_give_no_negative_part() -> None:
    found = split(spans(router={"vllm_router_pd_decode_pending_seconds": (0.80, 10)}))
    assert found["parts"]["router"] is None
    late = split(spans(decode={**DECODE, "vllm:nixl_xfer_time_seconds": (0.40, 10)}))
    assert late["parts"]["decode_queue"] is None


def test_an_answer_that_the_router_had_before_prefill_looked_at_its_clock_is_no_contradiction() -> None:
    found = split(spans(router={"vllm_router_pd_decode_pending_seconds": (0.84, 10)}))
    assert milliseconds(found["parts"]) == {**TRUTH_MS, "router": 0, "prefill_intake": 4}
    assert found["counted"] == {"router": 10, "prefill": 10, "decode": 10}


def test_a_counter_that_was_set_back_is_not_known() -> None:
    before, after = span(DECODE)
    found = split({**spans(), "decode-0": (after, before)})
    assert found["parts"]["first_decode_step"] is None


def test_other_handlers_of_the_api_server_are_left_out() -> None:
    busy = {**PREFILL, 'http_request_duration_seconds{handler="/tokenize"}': (9.0, 3)}
    assert milliseconds(split(spans(prefill=busy))["parts"]) == TRUTH_MS


def test_instances_of_a_role_are_taken_together() -> None:
    """Two of each, of which the first served one request in five and was three times as slow."""
    roles = {"prefill-0": "prefill", "prefill-1": "prefill", "decode-0": "decode", "decode-1": "decode"}
    found = {"router": span(ROUTER)}
    for name, whole in {"prefill": PREFILL, "decode": DECODE}.items():
        found[f"{name}-0"] = span({key: (total * 3 / 7, 2) for key, (total, _) in whole.items()})
        found[f"{name}-1"] = span({key: (total * 4 / 7, 8) for key, (total, _) in whole.items()})
    parts = split_ttft(found, roles, np.full(10, 0.132))
    assert parts is not None
    assert milliseconds(parts["parts"]) == pytest.approx(TRUTH_MS)
    assert parts["state"] == "explained"
    del found["decode-1"]
    silent = split_ttft({**found, "decode-1": (None, None)}, roles, np.full(10, 0.132))
    assert silent is not None
    assert silent["parts"]["first_decode_step"] is None, "half of the requests would be in no number"


def test_several_transfers_of_a_request_ran_side_by_side() -> None:
    """Four ranks fetched their share of each request at once: the mean transfer, not their sum."""
    found = split(spans(decode={**DECODE, "vllm:nixl_xfer_time_seconds": (0.80, 40)}))
    assert milliseconds(found["parts"]) == TRUTH_MS
    assert found["state"] == "explained"


@pytest.mark.parametrize("count", [1, 2])
def test_without_disaggregation_one_instance_does_it_all(count: int) -> None:
    engine = {
        "vllm:time_to_first_token_seconds": (0.9 / count, 10 // count),
        "vllm:request_queue_time_seconds": (0.3 / count, 10 // count),
        "vllm:request_prefill_time_seconds": (0.5 / count, 10 // count),
    }
    roles = {f"replica-{number}": "replica" for number in range(count)}
    found = split_ttft({name: span(engine) for name in roles}, roles, np.full(10, 0.092))
    assert found is not None
    assert milliseconds(found["parts"]) == {"prefill_intake": 10, "prefill_queue": 30, "prefill": 50}
    assert tuple(found["parts"]) == PREFILL_PARTS
    assert found["unexplained_s"] == pytest.approx(0.002)
    assert found["counted"] == {"prefill": 10}
    assert not check_ttft_parts({"ttft_parts": found, "arrival": "closed", "concurrency": 2, "rate": None})


def test_a_server_that_is_not_ours_is_not_asked() -> None:
    assert split_ttft({}, {}, np.full(10, 0.1)) is None
    assert point_ttft_parts([], {}, 0, np.full(10, 0.1)) is None
    assert not check_ttft_parts({"ttft_parts": None, "arrival": "closed", "concurrency": 2, "rate": None})


def test_launches_are_taken_together_by_their_requests() -> None:
    twice = {key: (total * 6, 30) for key, (total, _) in DECODE.items()}
    thrice = {name: {key: (total * 3, 30) for key, (total, _) in held.items()}
              for name, held in {"router": ROUTER, "prefill": PREFILL}.items()}  # fmt: skip
    slow = split(spans(**thrice, decode=twice), 175.0, n=30)
    both = combine_ttft_parts([split(spans()), slow])
    assert both is not None
    assert both["parts"]["kv_transfer"] == pytest.approx((10 * 0.02 + 30 * 0.04) / 40)
    assert both["ttft_mean_s"] == pytest.approx((10 * 0.132 + 30 * 0.175) / 40)
    assert (both["requests"], both["counted"]["decode"], both["state"]) == (40, 40, "explained")
    assert both["unexplained_s"] == pytest.approx(both["ttft_mean_s"] - sum(both["parts"].values()))


def test_a_launch_that_does_not_tell_takes_the_part_from_all() -> None:
    told = split(spans())
    untold = split(spans(router=without(ROUTER, "pending")))
    both = combine_ttft_parts([told, untold])
    assert both is not None
    assert (both["parts"]["router"], both["counted"]["router"]) == (None, None)
    assert both["parts"]["prefill"] == pytest.approx(0.05)
    assert combine_ttft_parts([told, None]) is None
    assert combine_ttft_parts([]) is None


def test_one_request_too_many_here_and_too_few_there_is_no_match() -> None:
    both = combine_ttft_parts([split(spans(), n=9), split(spans(), n=11)])
    assert both is not None
    assert (both["requests"], both["state"], both["unexplained_s"]) == (20, "mismatched", None)


def recorded(machine: str) -> dict[str, Span]:
    """What a real pair had counted at its end, as if nothing had gone before."""
    files = {"router": "router", "prefill-0": "P", "decode-0": "D"}
    found: dict[str, Span] = {}
    for name, suffix in files.items():
        path = DATA / machine / f"pd_auto_{suffix}.metrics"
        text = path.read_text() if path.exists() else ""
        zeroed = re.sub(r"^([^#\n].*) \S+$", r"\1 0.0", text, flags=re.MULTILINE)
        found[name] = (parse_scrape(zeroed), parse_scrape(text))
    return found


def test_real_counters_of_a_cpu_pair_know_every_part() -> None:
    found = split(recorded("cpu"), 1e3 * (1.742470851 + 0.811821222) / 6 + 4, n=6)
    assert found["counted"] == {"router": 6, "prefill": 6, "decode": 6}
    assert None not in found["parts"].values()
    assert found["unexplained_s"] == pytest.approx(0.004, abs=1e-6)
    assert found["parts"]["kv_transfer"] == pytest.approx(0.048805 / 6)


def test_real_counters_of_a_gpu_pair_know_all_but_the_router() -> None:
    found = split(recorded("h200"), 600.0, n=156)
    parts = found["parts"]
    assert [part for part, value in parts.items() if value is None] == ["router"]
    assert parts["kv_transfer"] == pytest.approx(2.394712 / 156)
    assert parts["prefill_queue"] == pytest.approx(18.3279 / 156, rel=1e-4)
    prefill = parts["prefill_intake"] + parts["prefill_queue"] + parts["prefill"]
    assert prefill == pytest.approx(66.6922 / 156, rel=1e-4), "of /v1/completions alone"
