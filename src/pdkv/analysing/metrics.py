"""Requests of a load point -> latencies, throughput and what else says how the load went.

Definitions (vLLM's, so that numbers can be compared with ``vllm bench serve``; ``n`` output tokens of a request):
TTFT = t_first − t_send. E2EL = t_last − t_send. TPOT = (t_last − t_first) / (n − 1), for n ≥ 2. ITL = gaps between
token-bearing events. All are taken over measured, successful requests, in seconds. Throughput: see :mod:`throughput`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pdkv.analysing import throughput
from pdkv.analysing.point_requests import PointRequests
from pdkv.analysing.stats import FloatArray, known, summarize

LATENCIES = ("ttft", "tpot", "itl", "e2el")
THROUGHPUTS = {
    "output_throughput": "tok/s",
    "total_throughput": "tok/s",
    "request_throughput": "req/s",
    "output_throughput_whole_run": "tok/s",
}


def point_facts(requests: PointRequests, point: Mapping[str, Any], server: Mapping[str, Any] | None) -> dict[str, Any]:
    """One entry of ``points`` in metrics.json, without its checks.

    ``point`` is the entry of stages.json (``point``, ``arrival``, ``concurrency``, ``rate``, and ``client_late`` where
    that was recorded), ``server`` what the engines counted meanwhile (:func:`scrapes.point_counters`).
    """
    window = throughput.steady_window(requests, point["arrival"])
    return {
        **{key: point[key] for key in ("point", "arrival", "concurrency", "rate")},
        "requests": count_requests(requests),
        "window": {"start_s": window.start_s, "end_s": window.end_s} if window else None,
        "achieved_concurrency": throughput.mean_in_flight(requests, window) if window else None,
        "achieved_rate": throughput.sends_in(requests, window) / window.length_s if window else None,
        "multi_token_events": count_multi_token_events(requests),
        "send_lag": send_lag(requests),
        "client_late": point.get("client_late"),
        "errors": count_errors(requests),
        "metrics": {**latency_metrics([requests]), **throughput_metrics(requests, window)},
        "server": dict(server) if server is not None else None,
    }


def latency_metrics(launches: Sequence[PointRequests]) -> dict[str, dict[str, Any]]:
    """TTFT, TPOT, ITL and E2EL in seconds over the measured requests of one launch or, pooled, of several."""
    return {name: {"unit": "s", **summarize(pooled_latency(launches, name))} for name in LATENCIES}


def pooled_latency(launches: Sequence[PointRequests], name: str) -> FloatArray:
    """The values of ``ttft``, ``tpot`` or ``e2el`` (one a request) or ``itl`` (one a gap), in seconds, unsorted."""
    parts = [_latency(requests, name) for requests in launches]
    return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0), *parts])


def throughput_metrics(requests: PointRequests, window: throughput.Window | None) -> dict[str, dict[str, Any]]:
    """Throughput of a point; null where no measured request was successful or the load was never full.

    ``request_throughput`` counts a request by the share of its tokens that arrived in the window: tokens in the window
    over mean output tokens of a measured request. ``total_throughput`` adds the input tokens of that many requests.
    ``output_throughput_whole_run`` is ``vllm bench``'s: all tokens of all successful requests over the time from the
    first send to the last end, so it holds the ramp and the drain. ``n``: successful requests behind the value.
    """
    values: dict[str, float | None] = dict.fromkeys(THROUGHPUTS)
    n = n_whole = 0
    measured = requests.measured
    mean_output = requests["output_tokens"][measured].mean() if measured.any() else np.nan
    if window and measured.any():
        n = throughput.requests_in(requests, window)
        tokens_per_s = throughput.tokens_in(requests, window) / window.length_s
        values["output_throughput"] = tokens_per_s
        values["request_throughput"] = tokens_per_s / mean_output
        values["total_throughput"] = tokens_per_s * (1 + requests["input_tokens"][measured].mean() / mean_output)
    whole_run_s = throughput.whole_run_s(requests)
    if whole_run_s and requests.ok.any():
        n_whole = int(requests.ok.sum())
        values["output_throughput_whole_run"] = requests["output_tokens"][requests.ok].sum() / whole_run_s
    counts = {name: n_whole if name == "output_throughput_whole_run" else n for name in THROUGHPUTS}
    return {
        name: {"unit": unit, "n": counts[name], "value": _finite(values[name])} for name, unit in THROUGHPUTS.items()
    }


def count_requests(requests: PointRequests) -> dict[str, int]:
    """How many requests were sent, were answered well and were not, and of which part they are.

    ``ramp`` and ``drain`` are what the statistics leave out; ``measured`` counts failed ones too.
    """
    parts = {part: int(np.count_nonzero(requests.part == part)) for part in ("ramp", "measured", "drain")}
    ok = int(requests.ok.sum())
    sent = int(requests.sent.sum())
    return {
        "sent": sent,
        "ok": ok,
        "failed": requests.ok.size - ok,
        **parts,
        "measured_ok": int(requests.measured.sum()),
    }


def count_multi_token_events(requests: PointRequests) -> int | None:
    """Events of measured requests that carried several tokens; ``None`` where a server did not say how many."""
    counts = requests.token_n[requests.per_token(requests.measured)]
    return None if np.isnan(counts).any() else int(np.count_nonzero(counts > 1))


def count_errors(requests: PointRequests) -> dict[str, int]:
    """Failed requests of any part by what went wrong, most frequent first."""
    failed = requests.table["error"].to_numpy(zero_copy_only=False)[~requests.ok]
    return dict(Counter(str(text or "no reason recorded") for text in failed).most_common())


def send_lag(requests: PointRequests) -> dict[str, float | None]:
    """How much later than scheduled the measured requests left the client, in seconds."""
    lag = known((requests["t_send_s"] - requests["scheduled_s"])[requests.part == "measured"])
    summary = summarize(lag)
    return {"median_s": summary["median"], "p99_s": summary["p99"], "max_s": summary["max"]}


def _latency(requests: PointRequests, name: str) -> FloatArray:
    if name == "itl":
        return requests.gaps_s(requests.measured)
    return known(requests[f"{name}_s"][requests.measured])


def _finite(value: float | None) -> float | None:
    return float(value) if value is not None and np.isfinite(value) else None
