"""What each GPU of a trial would have to hold, role by role, before anything is started; and whether it can. Pure.

Of vLLM's share of a GPU (``gpu_memory_utilization``) weights, activations and what CUDA keeps come first, and the KV
cache gets all the rest; graphs are captured on top of it. An engine starts if the rest holds one request of full
length. If it does not hold all users at once, some of them wait: that is a result, and no obstacle.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from pdkv.measuring.model_shape import ModelShape
from pdkv.records import Trial
from pdkv.units import format_bytes

# Allowances, a little above what vLLM states of an 8B model with 8192 batched tokens: 0.9 GiB of activations and
# 0.2 GiB outside of PyTorch; 1.0 GiB of graphs.
ACTIVATION_BYTES = 3 << 29
GRAPH_BYTES = 1 << 30
# NIXL registers the KV cache where it is; what other connectors allocate is not known.
IN_PLACE_CONNECTORS = (None, "NixlConnector")

GpuMemory = dict[str, Any]


def estimate_gpu_memory(trial: Trial, shape: ModelShape) -> list[GpuMemory]:
    """One entry per role: what one GPU of one of its instances holds, in bytes, null where unknown.

    ``{role, instances, gpus, users, weights_bytes, kv_bytes, kv_least_bytes, transfer_bytes, activation_bytes,
    graph_bytes, total_bytes}``: ``gpus`` of one instance; ``kv_bytes`` for all its ``users`` at full length,
    ``kv_least_bytes`` for one request of ``max_model_len``; the total is that of all the others but the least.
    """
    mode = trial.mode
    prompt, whole = trial.workload.input_tokens, trial.workload.input_tokens + trial.workload.output_tokens
    if mode.disaggregated:  # a prompt's cache stays on prefill until decode has fetched it
        roles = [("prefill", mode.prefill, prompt), ("decode", mode.decode, whole)]
    else:
        roles = [("single" if mode.replicas == 1 else "replica", mode.replicas, whole)]
    return [_estimate_role(trial, shape, *role) for role in roles]


def _estimate_role(trial: Trial, shape: ModelShape, role: str, instances: int, tokens: int) -> GpuMemory:
    gpus = trial.mode.tensor_parallel_size
    weights = shape.weights_bytes(trial.dtype.model_dtype)
    levels = [point.concurrency for point in trial.workload.points if point.concurrency is not None]
    users = math.ceil(max(levels, default=1) / instances)
    own = {"prefill": trial.mode.prefill_args, "decode": trial.mode.decode_args}.get(role, {})
    arguments = {**trial.engine.args, **trial.mode.args, **own}
    if isinstance(most := arguments.get("max-num-seqs"), int):
        users = min(users, most)
    per_token = shape.kv_bytes_per_token_of_rank(trial.dtype.kv_cache_dtype, gpus)
    parts = {
        "weights_bytes": None if weights is None else math.ceil(weights / gpus),
        "kv_bytes": None if per_token is None else users * tokens * per_token,
        "transfer_bytes": 0 if trial.mode.kv_connector in IN_PLACE_CONNECTORS else None,
        "activation_bytes": ACTIVATION_BYTES,
        "graph_bytes": 0 if arguments.get("enforce-eager") else GRAPH_BYTES,
    }
    known = [part for part in parts.values() if part is not None]
    return {
        "role": role,
        "instances": instances,
        "gpus": gpus,
        "users": users,
        **parts,
        "kv_least_bytes": None if per_token is None else trial.workload.max_model_len * per_token,
        "total_bytes": sum(known) if len(known) == len(parts) else None,
    }


def total_of_gpus(estimates: Iterable[Mapping[str, Any]]) -> int | None:
    """All GPUs of a trial together."""
    sizes = [each["total_bytes"] for each in estimates for _ in range(each["instances"] * each["gpus"])]
    return None if None in sizes else sum(sizes)


def explain_shortage(
    estimate: Mapping[str, Any], utilization: float, total_bytes: int, free_bytes: int | None = None
) -> str | None:
    """Why an engine of this role will not start on a GPU of ``total_bytes``, with numbers and what to do.

    None if it will, as far as is known. ``free_bytes`` None: as if nobody else were on the GPU.
    """
    share = utilization * total_bytes
    of_it = f"{format_bytes(share)} ({utilization:g} of {format_bytes(total_bytes)}, engine.gpu_memory_utilization)"
    if free_bytes is not None and free_bytes < share:
        return (
            f"{estimate['role']} takes {of_it} of each GPU, {format_bytes(free_bytes)} are free: end what uses the "
            "rest, or lower engine.gpu_memory_utilization"
        )
    weights, least = estimate["weights_bytes"], estimate["kv_least_bytes"]
    if weights is None:
        return None
    needed = weights + (least or 0) + estimate["activation_bytes"] + (estimate["transfer_bytes"] or 0)
    if needed <= share:
        return None
    return (
        f"{estimate['role']} needs about {format_bytes(needed)} of each GPU ({format_bytes(weights)} weights, "
        f"{format_bytes(least)} KV cache for one request of full length, {format_bytes(estimate['activation_bytes'])} "
        f"activations), of which it may use {of_it}: raise tensor_parallel_size, lower max_model_len, or name a "
        "smaller model"
    )


def explain_waiting(estimate: Mapping[str, Any], utilization: float, total_bytes: int) -> str | None:
    """That the KV cache of an engine will not hold all its users at once; None if it will, or if it is not known."""
    if estimate["total_bytes"] is None:
        return None
    others = sum(estimate[key] for key in ("weights_bytes", "activation_bytes", "transfer_bytes"))
    room = utilization * total_bytes - others
    if room >= estimate["kv_bytes"]:
        return None
    fitting = int(estimate["users"] * room / estimate["kv_bytes"])
    return (
        f"the KV cache of {estimate['role']} has about {format_bytes(room)} and holds {fitting} of {estimate['users']} "
        "users at full length: the others wait, or are preempted"
    )
