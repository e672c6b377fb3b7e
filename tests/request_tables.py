"""Requests tables for tests: made by hand, or by a simulated server of known throughput."""

import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

SCHEMA = pa.schema(
    [
        ("phase", pa.string()),
        ("point", pa.int16()),
        ("request", pa.int32()),
        ("part", pa.string()),
        ("prompt", pa.int32()),
        ("user", pa.int32()),
        ("target", pa.string()),
        ("concurrency", pa.int32()),
        ("rate", pa.float64()),
        ("status", pa.string()),
        ("error", pa.string()),
        ("http_status", pa.int16()),
        ("connection", pa.string()),
        ("scheduled_s", pa.float64()),
        ("t_send_s", pa.float64()),
        ("t_first_s", pa.float64()),
        ("t_last_s", pa.float64()),
        ("t_end_s", pa.float64()),
        ("asked_input_tokens", pa.int32()),
        ("asked_output_tokens", pa.int32()),
        ("input_tokens", pa.int32()),
        ("cached_tokens", pa.int32()),
        ("output_tokens", pa.int32()),
        ("finish_reason", pa.string()),
        ("ttft_s", pa.float64()),
        ("tpot_s", pa.float64()),
        ("e2el_s", pa.float64()),
        ("token_t_s", pa.list_(pa.float64())),
        ("token_n", pa.list_(pa.int32())),
    ]
)


def answered(t_send_s: float, token_t_s: Sequence[float], **changes: Any) -> dict[str, Any]:
    """A successful request of 128 input tokens whose tokens arrived one by one at the given times."""
    times = [float(t) for t in token_t_s]
    n = len(times)
    row = {
        "phase": "load",
        "point": 0,
        "request": 0,
        "part": "measured",
        "prompt": 0,
        "user": 0,
        "target": "single",
        "concurrency": 1,
        "rate": None,
        "status": "ok",
        "error": None,
        "http_status": 200,
        "connection": "reused",
        "scheduled_s": t_send_s,
        "t_send_s": t_send_s,
        "t_first_s": times[0],
        "t_last_s": times[-1],
        "t_end_s": times[-1],
        "asked_input_tokens": 128,
        "asked_output_tokens": n,
        "input_tokens": 128,
        "cached_tokens": 0,
        "output_tokens": n,
        "finish_reason": "length",
        "ttft_s": times[0] - t_send_s,
        "tpot_s": (times[-1] - times[0]) / (n - 1) if n > 1 else None,
        "e2el_s": times[-1] - t_send_s,
        "token_t_s": times,
        "token_n": [1] * n,
    }
    return row | changes


def failed(t_send_s: float | None, error: str = "HTTP 500", **changes: Any) -> dict[str, Any]:
    """A request that was not answered."""
    nothing = ("t_first_s", "t_last_s", "input_tokens", "output_tokens", "ttft_s", "tpot_s", "e2el_s", "finish_reason")
    row = answered(t_send_s or 0.0, [(t_send_s or 0.0) + 1.0])
    row |= dict.fromkeys(nothing) | {"status": "error", "error": error, "token_t_s": [], "token_n": []}
    return row | {"t_send_s": t_send_s, "t_end_s": None if t_send_s is None else t_send_s + 1.0} | changes


def table_of(rows: Sequence[dict[str, Any]]) -> pa.Table:
    """The rows as requests.parquet holds them, numbered in their order."""
    numbered = [row | {"request": number} for number, row in enumerate(rows)]
    return pa.Table.from_pylist(numbered, schema=SCHEMA)


def closed_point(concurrency: int, point: int = 0) -> dict[str, Any]:
    return {"point": point, "arrival": "closed", "concurrency": concurrency, "rate": None}


def simulate_closed_loop(
    concurrency: int,
    measured: int,
    *,
    ttft_s: float = 0.2,
    tpot_s: float = 0.02,
    tokens: int = 64,
    jitter: float = 0.05,
    prefill_s: float = 0.0,
    ramp_interval_s: float = 0.01,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """A load as the client makes it: a ramp of one request for each user, one less to drain.

    ``prefill_s`` > 0 is a server that prefills one prompt at a time; else a prompt takes ``ttft_s``. ``jitter`` is the
    relative spread of each request's pace.
    """
    rng = np.random.default_rng(seed)
    free = [(user * ramp_interval_s, user) for user in range(concurrency)]
    rows: list[dict[str, Any]] = []
    started: set[int] = set()
    extra = 0  # the ramp goes on until every user has started
    prefill_free_s = 0.0
    while True:
        send_s, user = heapq.heappop(free)
        started.add(user)
        if len(rows) >= concurrency + extra and len(started) < concurrency:
            extra += 1
        ramp_end = concurrency + extra
        if len(rows) >= ramp_end + measured + concurrency - 1:
            return rows
        part = "ramp" if len(rows) < ramp_end else "measured" if len(rows) < ramp_end + measured else "drain"
        if prefill_s:
            prefill_free_s = max(send_s, prefill_free_s) + prefill_s
            first_s = prefill_free_s
        else:
            first_s = send_s + ttft_s * rng.lognormal(0, jitter)
        times = first_s + tpot_s * rng.lognormal(0, jitter) * np.arange(tokens)
        rows.append(answered(send_s, times.tolist(), part=part, user=user, concurrency=concurrency, prompt=len(rows)))
        heapq.heappush(free, (float(times[-1]) + 1e-4, user))
