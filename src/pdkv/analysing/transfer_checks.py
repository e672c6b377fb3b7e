"""Did the KV cache really travel from prefill to decode, and did no cache answer in place of a prefill?

Both read ``points`` of metrics.json: ``requests`` and what the engines counted (``server``).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pdkv.analysing.checks import Check, State
from pdkv.units import format_bytes

MAX_HIT_RATE = 0.01
# After a whole prompt has arrived, an engine may compute its last token again to get the first one of the output.
RECOMPUTED_TOKENS_PER_REQUEST = 1

_SILENT = "look whether the router passes kv_transfer_params on: without them a decode instance prefills by itself"


def check_kv_transfer(points: Sequence[Mapping[str, Any]], ranks: int = 1) -> list[Check]:
    """Three checks for a disaggregated trial, none for another one (``server.kv_transfer`` is null there).

    Each of an instance's ``ranks`` of tensor parallelism fetches its own heads, and counts that as a transfer.
    Counts are sums over all decode instances, faults over all instances. That KV was transferred must be shown: without
    a counter that does, the first check is ``suspect``, not ``unknown``, because a decode instance that prefills by
    itself answers just as well.
    """
    transfers = [point for point in points if _transfer(point) is not None]
    if not transfers:
        return []
    return [_check_every_request(transfers, ranks), _check_none_lost(transfers), _check_no_local_prefill(transfers)]


def check_prefix_cache(points: Sequence[Mapping[str, Any]]) -> Check:
    """Prompts are unique: hits in an engine's own prefix cache mean that prefill was skipped.

    Tokens that came over a KV connector are not hits.
    """
    name = "prefix cache not hit"
    rates = {_label(point): (point["server"] or {}).get("prefix_cache_hit_rate") for point in points}
    hit = {label: rate for label, rate in rates.items() if rate is not None and rate > MAX_HIT_RATE}
    if hit:
        evidence = ", ".join(f"{rate:.1%} of the prompt tokens at {label}" for label, rate in hit.items())
        return Check(name, "failed", evidence, "switch prefix caching off or make the prompts unique")
    known = [rate for rate in rates.values() if rate is not None]
    if not known or len(known) < len(rates):
        unknown = ", ".join(label for label, rate in rates.items() if rate is None) or "all points"
        return Check(name, "unknown", f"the engine's counters are missing at {unknown}", _SCRAPES)
    return Check(name, "passed", f"at most {max(known):.1%} of the prompt tokens")


_SCRAPES = "look into scrapes.jsonl for why /metrics did not answer before and after the point"


def _check_every_request(points: Sequence[Mapping[str, Any]], ranks: int) -> Check:
    name = "KV cache transferred for every request"
    verdicts: list[tuple[State, str]] = []
    for point in points:
        transfer, label, requests = _transfer(point), _label(point), point["requests"]["ok"]
        count, size = transfer["count"], transfer["bytes"]
        if count is None or size is None:
            # Other connectors than NIXL do not count transfers, but every engine counts where its prompts came from.
            verdicts.append(_judge_tokens(label, transfer))
            continue
        evidence = f"{count} transfers, {format_bytes(size)}, for {requests} requests at {label}"
        if count < requests or (requests and size <= 0):
            verdicts.append(("failed", evidence))
        elif count < requests * ranks:
            evidence = f"{count} transfers, {format_bytes(size)}, for {requests} requests and {ranks} ranks at {label}"
            verdicts.append(("suspect", evidence))
        else:
            verdicts.append(("passed", evidence))
    if all(state != "failed" for state, _ in verdicts):
        return _worst(name, verdicts, f"{_SCRAPES}; {_SILENT}")
    return _worst(name, verdicts, _SILENT)


def _judge_tokens(label: str, transfer: Mapping[str, Any]) -> tuple[State, str]:
    external, prompt = transfer["external_tokens"], transfer["prompt_tokens"]
    if external is None or prompt is None:
        return "suspect", f"not shown: no counter of transfers at {label}"
    state: State = "passed" if external > 0 and external >= prompt * (1 - MAX_HIT_RATE) else "failed"
    return state, f"{external:,} of {prompt:,} prompt tokens came over the connector at {label}"


def _check_none_lost(points: Sequence[Mapping[str, Any]]) -> Check:
    name = "no KV transfer failed or expired"
    verdicts: list[tuple[State, str]] = []
    for point in points:
        transfer, label = _transfer(point), _label(point)
        failed, expired = transfer["failed"], transfer["expired"]
        if failed or expired:
            verdicts.append(("failed", f"{failed or 0} failed, {expired or 0} expired at {label}"))
        elif failed is None or expired is None:
            verdicts.append(("unknown", f"no counter of failed and expired transfers at {label}"))
        else:
            verdicts.append(("passed", f"none at {label}"))
    return _worst(
        name, verdicts, "look into the instances' logs; lower the concurrency or raise the connector's time-out"
    )


def _check_no_local_prefill(points: Sequence[Mapping[str, Any]]) -> Check:
    name = "no prefill on decode instances"
    verdicts: list[tuple[State, str]] = []
    for point in points:
        transfer, label, requests = _transfer(point), _label(point), point["requests"]["ok"]
        local, prompt = transfer["local_prefill_tokens"], transfer["prompt_tokens"]
        if local is None:
            verdicts.append(("unknown", f"no counter of locally prefilled tokens at {label}"))
            continue
        evidence = f"{local:,} of {prompt:,} prompt tokens" if prompt is not None else f"{local:,} prompt tokens"
        allowed = RECOMPUTED_TOKENS_PER_REQUEST * requests
        verdicts.append(("passed" if local <= allowed else "failed", f"{evidence} prefilled by decode at {label}"))
    return _worst(name, verdicts, _SILENT)


def _worst(name: str, verdicts: Sequence[tuple[State, str]], remedy: str) -> Check:
    """One check out of one verdict a point: the worst state, with the evidence of the points that are in it."""
    order: list[State] = ["failed", "suspect", "unknown", "passed"]
    state = min((verdict for verdict, _ in verdicts), key=order.index)
    evidence = "; ".join(text for verdict, text in verdicts if verdict == state)
    return Check(name, state, evidence, {"passed": "", "unknown": _SCRAPES}.get(state, remedy))


def _transfer(point: Mapping[str, Any]) -> Any:
    return (point["server"] or {}).get("kv_transfer")


def _label(point: Mapping[str, Any]) -> str:
    if point.get("concurrency") is not None:
        return f"concurrency {point['concurrency']}"
    return f"{point['rate']:g} requests/s" if point.get("rate") is not None else f"point {point['point']}"
