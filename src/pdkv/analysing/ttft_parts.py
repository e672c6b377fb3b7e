"""Where the time to the first token goes, as means over the requests of one load point.

Servers keep sums and counts, so a mean is all that can be said, and it is one of every request of the point: ramp and
drain are in the counters too, and the client's TTFT is therefore taken over all of its requests that got a token.

What each counter spans (vLLM 0.26 to 0.32, vllm-router 0.1.17):

- the router's ``pd_decode_pending``: request at the router until the whole answer of prefill is there;
- ``http_request_duration`` on prefill: request at the HTTP layer until the answer is sent. The router may have it
  before that layer looks at its clock again, above all on a busy machine: what lies behind ``pending`` is no part;
- ``time_to_first_token``: request at the API server until the first token is back there;
- ``request_queue_time``: the engine took the request in until it is first scheduled. On decode the KV cache is fetched
  meanwhile: a request is not scheduled before its KV is there;
- ``request_prefill_time``: first scheduled until the first token. On decode that is its first step: the last prompt
  token is computed again;
- ``nixl_xfer_time`` on decode: one transfer is posted until the engine looks and finds it done.

What an API server counts beyond its engine is ``intake``: its own work, and the wait for a running step to end before
the engine takes new requests in, which vLLM does not call queueing. In no part, and so unexplained, are the ways from
the client to the router, from there to decode's API server, and of the token back to the client.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pdkv.analysing.checks import Check
from pdkv.analysing.scrapes import Span, read_scrape, total_increase
from pdkv.analysing.stats import FloatArray
from pdkv.units import format_ms

ROUTER = "router"
COMPLETIONS = "/v1/completions"
# In the order of time. Where one instance does it all, only those of prefill are there.
PREFILL_PARTS = ("prefill_intake", "prefill_queue", "prefill")
PARTS = ("router", *PREFILL_PARTS, "decode_intake", "decode_queue", "kv_transfer", "first_decode_step")
TOLERANCE = 0.05  # how much of TTFT may be in no part

EXPLAINED, UNEXPLAINED, MISMATCHED, UNKNOWN = "explained", "unexplained", "mismatched", "unknown"


@dataclass(frozen=True)
class _Mean:
    seconds: float
    count: int


def point_ttft_parts(
    rows: Sequence[Mapping[str, Any]], roles: Mapping[str, str], point: int, ttft_s: FloatArray
) -> dict[str, Any] | None:
    """``ttft_parts`` of one point in metrics.json, out of the rows of scrapes.jsonl.

    ``roles`` is ``{instance: role}``, ``ttft_s`` the TTFT of every request of the point (NaN without a token).
    """
    spans = {
        name: (read_scrape(rows, "before", name, point), read_scrape(rows, "after", name, point))
        for name in (*roles, ROUTER)
    }
    return split_ttft(spans, roles, ttft_s)


def split_ttft(spans: Mapping[str, Span], roles: Mapping[str, str], ttft_s: FloatArray) -> dict[str, Any] | None:
    """The parts of the mean TTFT in seconds, what the client saw, and what is in no part.

    ``spans`` are the scrapes ``{instance or "router": (before, after)}``. A part that the servers do not tell is null;
    ``None`` altogether where no instance is ours to ask. ``state`` is ``explained`` (at most 5% of TTFT is in no part),
    ``unexplained``, ``mismatched`` (servers and client did not count the same ones, so that the sum says
    nothing) or ``unknown``.
    """
    if not roles:
        return None
    by_role = {role: [spans[name] for name in roles if roles[name] == role] for role in roles.values()}
    split = _split_disaggregated if "decode" in by_role else _split_single
    parts, means = split(by_role, spans.get(ROUTER, (None, None)))
    answered = ttft_s[~np.isnan(ttft_s)]
    counted = {place: _count(found, answered.size) for place, found in means.items()}
    same = all(count in (None, answered.size) for count in counted.values())
    ttft_mean_s = float(answered.mean()) if answered.size else None
    return {**_judge(parts, ttft_mean_s, same=same), "requests": answered.size, "counted": counted}


def combine_ttft_parts(launches: Sequence[Mapping[str, Any] | None]) -> dict[str, Any] | None:
    """The ``ttft_parts`` of several launches as if they were one: means over all their requests.

    ``None`` if there is none or a launch has none; a part that one launch does not know is null.
    """
    known = [launch for launch in launches if launch is not None]
    if not known or len(known) < len(launches):
        return None
    weights = [launch["requests"] for launch in known]
    parts = {part: _weighted([launch["parts"][part] for launch in known], weights) for part in known[0]["parts"]}
    counted = {place: _sum([launch["counted"][place] for launch in known]) for place in known[0]["counted"]}
    # Two launches that counted one request too many and one too few did not count the same requests.
    same = all(launch["state"] != MISMATCHED for launch in known)
    split = _judge(parts, _weighted([launch["ttft_mean_s"] for launch in known], weights), same=same)
    return {**split, "requests": sum(weights), "counted": counted}


def check_ttft_parts(point: Mapping[str, Any]) -> list[Check]:
    """Whether the parts of TTFT add up, for a disaggregated trial; none for another one.

    Never worse than ``unknown``: what is in no part is a want of the breakdown, and TTFT is as it was measured. Whoever
    puts the checks of all load levels together names the level.
    """
    split = point["ttft_parts"]
    if split is None or "kv_transfer" not in split["parts"]:
        return []
    name = "parts of TTFT add up"
    missing = ", ".join(part for part, value in split["parts"].items() if value is None)
    untold = [f"not told by the servers: {missing}"] if missing else []
    share, ttft = split["unexplained_share"], format_ms(split["ttft_mean_s"])
    if split["state"] == EXPLAINED:
        return [Check(name, "passed", "; ".join([f"{share:.1%} of {ttft} ms are in no part", *untold]))]
    if split["state"] == UNEXPLAINED:
        seen = f"{share:.0%} of {ttft} ms are in no part"
    elif split["state"] == MISMATCHED:
        counted = ", ".join(f"{place} {count}" for place, count in split["counted"].items() if count is not None)
        seen = f"{split['requests']} requests got a token, but the servers counted {counted}"
    else:
        seen = "no parts are known"
    return [Check(name, "unknown", "; ".join([seen, *untold]), "see how TTFT breaks down; TTFT itself is not in doubt")]


_Split = tuple[dict[str, float | None], dict[str, list[_Mean | None]]]


def _split_single(by_role: Mapping[str, list[Span]], _router: Span) -> _Split:
    instances = [span for spans in by_role.values() for span in spans]
    first = _mean(instances, "time_to_first_token_seconds")
    queue = _mean(instances, "request_queue_time_seconds")
    prefill = _mean(instances, "request_prefill_time_seconds")
    parts = dict(zip(PREFILL_PARTS, (_rest(first, queue, prefill), _seconds(queue), _seconds(prefill)), strict=True))
    return parts, {"prefill": [first, queue, prefill]}


def _split_disaggregated(by_role: Mapping[str, list[Span]], router: Span) -> _Split:
    prefillers, decoders = by_role.get("prefill", []), by_role["decode"]
    pending = _mean([router], "vllm_router_pd_decode_pending_seconds")
    answered = _mean(prefillers, "http_request_duration_seconds", handler=COMPLETIONS)
    answered = answered or _mean(prefillers, "e2e_request_latency_seconds")  # then its HTTP layer is with the router
    answered = _within(answered, pending)
    queue, prefill = (_mean(prefillers, f"request_{name}_time_seconds") for name in ("queue", "prefill"))
    first = _mean(decoders, "time_to_first_token_seconds")
    waited, step = (_mean(decoders, f"request_{name}_time_seconds") for name in ("queue", "prefill"))
    transfer = _mean(decoders, "nixl_xfer_time_seconds")
    parts = {
        "router": _rest(pending, answered),
        "prefill_intake": _rest(answered, queue, prefill),
        "prefill_queue": _seconds(queue),
        "prefill": _seconds(prefill),
        "decode_intake": _rest(first, waited, step),
        # Of a connector that does not time its transfers, they are in here.
        "decode_queue": _rest(waited, transfer) if transfer else _seconds(waited),
        "kv_transfer": _seconds(transfer),
        "first_decode_step": _seconds(step),
    }
    # Not the transfers: one request makes several where tensors are parallel.
    means = {"router": [pending], "prefill": [answered, queue, prefill], "decode": [first, waited, step]}
    return parts, means


def _judge(parts: dict[str, float | None], ttft_s: float | None, *, same: bool) -> dict[str, Any]:
    """The breakdown with what is in no part; that is null where it would not be about the ``same`` requests."""
    known = [value for value in parts.values() if value is not None]
    rest = ttft_s - sum(known) if ttft_s and known and same else None
    share = rest / ttft_s if rest is not None and ttft_s else None
    if share is None:
        state = UNKNOWN if same else MISMATCHED
    else:
        state = EXPLAINED if abs(share) <= TOLERANCE else UNEXPLAINED
    return {
        "state": state,
        "ttft_mean_s": ttft_s,
        "parts": parts,
        "unexplained_s": rest,
        "unexplained_share": share,
    }


def _mean(spans: Sequence[Span], histogram: str, **labels: str) -> _Mean | None:
    """Over all instances together; ``None`` where one of them does not tell, or none saw a request."""
    count = total_increase(spans, f"{histogram}_count", **labels)
    total = total_increase(spans, f"{histogram}_sum", **labels)
    return _Mean(total / count, round(count)) if count and total is not None else None


def _within(part: _Mean | None, whole: _Mean | None) -> _Mean | None:
    """The part, cut at the end of the whole where it ends later by no more than the breakdown is exact to."""
    if part is None or whole is None or not whole.seconds < part.seconds <= (1 + TOLERANCE) * whole.seconds:
        return part
    return _Mean(whole.seconds, part.count)


def _rest(whole: _Mean | None, *parts: _Mean | None) -> float | None:
    """What a span holds beside its parts. Less than nothing would be a contradiction in the counters: not known."""
    known = [part.seconds for part in parts if part is not None]
    if whole is None or len(known) < len(parts):
        return None
    rest = whole.seconds - sum(known)
    return rest if rest >= 0 else None


def _seconds(mean: _Mean | None) -> float | None:
    return None if mean is None else mean.seconds


def _count(means: Iterable[_Mean | None], expected: int) -> int | None:
    """How many requests a place counted; where its counters differ, one that is not the expected number."""
    counts = {mean.count for mean in means if mean is not None}
    return next(iter(sorted(counts - {expected})), expected) if counts else None


def _weighted(values: Sequence[float | None], weights: Sequence[int]) -> float | None:
    known = [(value, weight) for value, weight in zip(values, weights, strict=True) if weight]
    if not known or any(value is None for value, _ in known):
        return None
    return sum(value * weight for value, weight in known if value is not None) / sum(weight for _, weight in known)


def _sum(counts: Sequence[int | None]) -> int | None:
    return None if None in counts else sum(count for count in counts if count is not None)
