"""May the numbers of a load be believed? Each check is put to one point; a trial carries the worst of its points."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pdkv.analysing.checks import Check, State
from pdkv.analysing.point_requests import PointRequests
from pdkv.analysing.stats import known, median_or_none

MAX_ERROR_RATE = 0.05
LAG_OF_TTFT = 0.05  # send lag p99 as a part of the median TTFT
LONG_STALL = 0.01  # of the load: longer than the time that a p99 leaves out
LAG_FLOOR_S = 0.002  # below this a lag says nothing: it is the resolution of timers and wake-ups
MAX_CLIENT_CPU = 0.7  # of one core: the client has one thread that may be busy
MIN_ACHIEVED = 0.95
STEADY_WITHIN = 0.10
MIN_STEADY_REQUESTS = 8

_ORDER: tuple[State, ...] = ("failed", "suspect", "unknown", "passed")


def check_point(requests: PointRequests, facts: Mapping[str, Any], client_cpu_share: float | None) -> list[Check]:
    """The checks of one point. ``facts`` is its entry in metrics.json.

    ``client_cpu_share`` is the client's CPU time per second of load; ``None`` where it was not recorded.
    """
    return [
        _check_lengths(requests),
        _check_errors(facts),
        _check_send_lag(facts),
        _check_read_lag(requests, facts),
        _check_client_cpu(client_cpu_share),
        _check_level(requests, facts),
        _check_steady(requests),
    ]


def merge_points(checks_of_points: Mapping[str, Sequence[Check]]) -> list[Check]:
    """One check per name over all points (``{label: checks}``): the worst state, with the evidence of those in it."""
    by_name: dict[str, list[tuple[str, Check]]] = {}
    for label, checks in checks_of_points.items():
        for check in checks:
            by_name.setdefault(check.name, []).append((label, check))
    return [_merge(name, found) for name, found in by_name.items()]


def point_label(point: Mapping[str, Any]) -> str:
    """``concurrency 2`` or ``0.5 requests/s``: how a person is told which point is meant."""
    return f"concurrency {point['concurrency']}" if point["arrival"] == "closed" else f"{point['rate']:g} requests/s"


def _merge(name: str, found: Sequence[tuple[str, Check]]) -> Check:
    worst = min((check.state for _, check in found), key=_ORDER.index)
    those = [(label, check) for label, check in found if check.state == worst]
    if len({check.evidence for _, check in those}) == 1:
        evidence = those[0][1].evidence
        if len(those) < len(found):
            evidence = f"at {', '.join(label for label, _ in those)}: {evidence}"
    else:
        evidence = "; ".join(f"at {label}: {check.evidence}" for label, check in those)
    return Check(name, worst, evidence, those[0][1].remedy)


def _check_lengths(requests: PointRequests) -> Check:
    name = "input and output lengths as asked"
    measured = requests.measured
    if not measured.any():
        return Check(name, "unknown", "no measured request was answered")
    wrong = {}
    for side in ("input", "output"):
        got, asked = requests[f"{side}_tokens"][measured], requests[f"asked_{side}_tokens"][measured]
        if np.isnan(got).any() or np.isnan(asked).any():
            return Check(name, "unknown", f"the server did not say how many {side} tokens it counted")
        differing = got != asked
        if differing.any():
            wrong[side] = (
                f"{int(differing.sum())} of {got.size} with other {side} lengths than asked (e.g. "
                f"{int(got[differing][0])} instead of {int(asked[differing][0])})"
            )
    if wrong:
        return Check(
            name, "failed", ", ".join(wrong.values()), "check max_model_len and that the server honours ignore_eos"
        )
    return Check(name, "passed", f"all {int(measured.sum())} measured requests")


def _check_errors(facts: Mapping[str, Any]) -> Check:
    name = "requests answered without error"
    counts = facts["requests"]
    failed, total = counts["failed"], counts["failed"] + counts["ok"]
    if not total:
        return Check(name, "failed", "no request was sent", "look at the outcome in stages.json")
    if not failed:
        return Check(name, "passed", f"all {total} requests")
    text = next(iter(facts["errors"]), "no reason recorded")
    evidence = f"{failed} of {total} failed, most often: {text}"
    # Where no measured request survived there is nothing to be suspicious of.
    lost = failed > MAX_ERROR_RATE * total or counts["measured_ok"] == 0
    return Check(name, "failed" if lost else "suspect", evidence, "look into the server's log at the time of the load")


def _check_send_lag(facts: Mapping[str, Any]) -> Check:
    name = "requests sent on time"
    lag_s, ttft_s = facts["send_lag"]["p99_s"], facts["metrics"]["ttft"]["median"]
    if lag_s is None or ttft_s is None:
        return Check(name, "unknown", "no measured request was answered")
    evidence = f"99% left at most {lag_s * 1e3:.3g} ms late; the median TTFT is {ttft_s * 1e3:.3g} ms"
    if lag_s <= max(LAG_OF_TTFT * ttft_s, LAG_FLOOR_S):
        return Check(name, "passed", evidence)
    remedy = "give the client a core of its own, lower the load, or end what else runs on this machine"
    return Check(name, "failed" if lag_s > ttft_s else "suspect", evidence, remedy)


def _check_read_lag(requests: PointRequests, facts: Mapping[str, Any]) -> Check:
    """Were tokens stamped when they came? What the client read late looks as if the server had sent it late."""
    name = "answers read on time"
    late = facts["client_late"]
    ttft_s, tpot_s = (facts["metrics"][metric]["median"] for metric in ("ttft", "tpot"))
    if late is None or ttft_s is None:
        return Check(name, "unknown", "no measured request was answered" if late else "the client did not watch itself")
    tolerated_s = max(LAG_FLOOR_S, min(LAG_OF_TTFT * ttft_s, tpot_s or math.inf))
    took_s = float(np.nanmax(requests["t_end_s"]) - np.nanmin(requests["t_send_s"]))
    evidence = (
        f"the client was late by at most {late['p99_s'] * 1e3:.3g} ms in 99% of its wake-ups, "
        f"by {late['max_s'] * 1e3:.3g} ms once; {tolerated_s * 1e3:.3g} ms would not show in the numbers"
    )
    if late["p99_s"] <= tolerated_s and late["max_s"] <= max(tolerated_s, LONG_STALL * took_s):
        return Check(name, "passed", evidence)
    remedy = "give the client a core of its own, lower the load, or end what else runs on this machine"
    return Check(name, "suspect", evidence, remedy)


def _check_client_cpu(share: float | None) -> Check:
    name = "client not saturated"
    if share is None:
        return Check(name, "unknown", "the client's CPU time was not recorded")
    evidence = f"it used {share:.0%} of one core during the load"
    if share <= MAX_CLIENT_CPU:
        return Check(name, "passed", evidence)
    return Check(name, "suspect", evidence, "lower the load or run the client on a faster machine")


def _check_level(requests: PointRequests, facts: Mapping[str, Any]) -> Check:
    name = "load as high as asked"
    if facts["arrival"] == "closed":
        achieved, asked = facts["achieved_concurrency"], facts["concurrency"]
        if achieved is None:
            return Check(name, "unknown", "the load was never full")
        share = achieved / asked
        evidence = f"{achieved:.2f} of {asked} requests in flight on average"
    else:
        share_or_none = _share_of_schedule(requests)
        if share_or_none is None:
            return Check(name, "unknown", "fewer than two requests were sent on a schedule")
        share = share_or_none
        evidence = f"{share:.1%} of the scheduled rate"
    if share >= MIN_ACHIEVED:
        return Check(name, "passed", evidence)
    return Check(name, "suspect", evidence, "give the client a core of its own, or lower the load")


def _share_of_schedule(requests: PointRequests) -> float | None:
    """Scheduled over actual duration of the sends.

    Not against the rate: the gaps of few Poisson arrivals add up to another rate than asked by chance alone.
    """
    sent = requests.sent & (requests.part == "measured") & ~np.isnan(requests["scheduled_s"])
    if np.count_nonzero(sent) < 2:
        return None
    took_s = float(np.ptp(requests["t_send_s"][sent]))
    return float(np.ptp(requests["scheduled_s"][sent])) / took_s if took_s else None


def _check_steady(requests: PointRequests) -> Check:
    name = "steady state"
    e2el_s = known(requests["e2el_s"][requests.measured])
    if e2el_s.size < MIN_STEADY_REQUESTS:
        return Check(
            name, "unknown", f"{e2el_s.size} requests are too few to compare two halves", "ask for more requests"
        )
    first, second = median_or_none(e2el_s[: e2el_s.size // 2]), median_or_none(e2el_s[e2el_s.size // 2 :])
    assert first is not None and second is not None  # both halves hold values
    change = second / first - 1 if first else 0.0
    evidence = f"median E2EL of the second half {change:+.1%} against the first"
    if abs(change) <= STEADY_WITHIN:
        return Check(name, "passed", evidence)
    return Check(name, "suspect", evidence, "warm up longer, or ask for more requests")
