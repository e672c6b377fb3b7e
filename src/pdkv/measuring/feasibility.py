"""What a study would need, and whether this machine has it: asked before anything is started."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psutil

from pdkv.measuring.gpu_memory import explain_shortage, explain_waiting
from pdkv.measuring.gpu_visibility import open_nvml, visible_gpus
from pdkv.records import Trial
from pdkv.units import format_bytes

# Orders of magnitude for the estimate of time, deliberately coarse: (bytes/s of memory, FLOP/s, seconds to start).
SPEED = {"cpu": (4e9, 2e11, 45.0), "cuda": (2e12, 3e14, 120.0)}
UNKNOWN_WEIGHTS = 16e9


@dataclass(frozen=True)
class Host:
    """What this process may use: cores, memory, and the memory of each visible GPU (None where not told)."""

    cores: int
    memory_bytes: int
    gpus: tuple[int | None, ...]


def look_at_host() -> Host:
    """The machine as it is now; other people's GPUs are not counted."""
    nvml = open_nvml()
    gpus = visible_gpus(nvml, os.environ) if nvml else []
    return Host(
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=psutil.virtual_memory().total,
        gpus=tuple(gpu.memory_bytes for gpu in gpus),
    )


def estimate_seconds(trial: Trial, plan: dict[str, Any]) -> float:
    """Rough time of one trial: start-up, and load by memory bandwidth (decode) and arithmetic (prefill)."""
    bandwidth, flops, start = SPEED[plan["engine"]["device"] or "cuda"]
    weights = plan["memory"]["weights_bytes"] or UNKNOWN_WEIGHTS
    # On a CPU, ranks share out the cores that the instance had anyway.
    share = 1 if plan["engine"]["device"] == "cpu" else trial.mode.tensor_parallel_size
    per_token = weights / bandwidth / share
    prefill = weights * trial.workload.input_tokens / flops / share
    request = prefill + per_token * trial.workload.output_tokens
    # Instances start side by side; on a CPU they share the cores that starting needs.
    total = start * (len(plan["instances"]) if plan["engine"]["device"] == "cpu" else bool(plan["instances"]))
    for point in plan["points"]:
        count = point["ramp"] + point["requests"] + point["drain"]
        if point["rate"] is not None:
            total += count / point["rate"] + request
        else:
            total += count * (prefill + per_token * trial.workload.output_tokens / point["concurrency"])
    return total


def find_obstacles(trial: Trial, plan: dict[str, Any], host: Host) -> list[str]:
    """Why this trial can't run here, each with what to do. Empty when it can."""
    if plan["endpoint"]:
        return []
    if trial.mode.nodes > 1:
        obstacles = [
            f"runs on {trial.mode.nodes} nodes of a Slurm cluster: use --profile profiles/slurm, or leave nodes out"
        ]
    else:
        obstacles = _device_obstacles(plan, host) + _memory_obstacles(trial, plan, host)
    return [f"{trial.workload.id}/{trial.mode.id}/{trial.dtype.id}: {obstacle}" for obstacle in obstacles]


def _device_obstacles(plan: dict[str, Any], host: Host) -> list[str]:
    count = len(plan["instances"])
    if plan["engine"]["device"] == "cpu":
        if count > host.cores:
            return [f"needs {count} cores for {count} instances, this process has {host.cores}: take out the mode"]
        return []
    needed = sum(instance["gpus"] for instance in plan["instances"])
    if needed > len(host.gpus):
        return [
            f"needs {needed} GPUs, {len(host.gpus)} are visible: lower tensor_parallel_size or the number of "
            "instances, or take out the mode"
        ]
    return []


def find_shortages(plan: dict[str, Any], host: Host) -> list[str]:
    """Why engines of a trial will not start for want of GPU memory. No obstacle to the study: it is a result."""
    return _on_smallest_gpu(explain_shortage, plan, host)


def find_crowding(plan: dict[str, Any], host: Host) -> list[str]:
    """Where ranks of tensor parallelism have no core of their own. They run nevertheless: a suspect result."""
    ranks = sum(instance["ranks"] for instance in plan["instances"])
    # Without tensor parallelism, instances that would have to share a core are an obstacle.
    if plan["engine"]["device"] != "cpu" or not len(plan["instances"]) <= host.cores < ranks:
        return []
    return [
        f"{ranks} ranks of tensor parallelism share {host.cores} cores: they wait for each other, so that their times "
        "say nothing about tensor parallelism or disaggregation, and its trials will be suspect"
    ]


def find_waits(plan: dict[str, Any], host: Host) -> list[str]:
    """Where the KV cache will not hold all users at once."""
    return _on_smallest_gpu(explain_waiting, plan, host)


def _on_smallest_gpu(explain: Callable[..., str | None], plan: dict[str, Any], host: Host) -> list[str]:
    if not host.gpus or None in host.gpus:
        return []
    smallest = min(size for size in host.gpus if size is not None)
    utilization = plan["trial"]["engine"]["gpu_memory_utilization"]
    return [text for role in plan["memory"]["per_gpu"] if (text := explain(role, utilization, smallest))]


def _memory_obstacles(trial: Trial, plan: dict[str, Any], host: Host) -> list[str]:
    """Of a CPU engine, whose cache is taken whole at the start."""
    memory = plan["memory"]
    if plan["engine"]["device"] != "cpu" or memory["total_bytes"] is None:
        return []
    obstacles = []
    cache = trial.engine.kv_cache_gib * 2**30
    if memory["kv_bytes_needed"] > cache:
        obstacles.append(
            f"needs {format_bytes(memory['kv_bytes_needed'])} of KV cache, engine.kv_cache_gib gives "
            f"{format_bytes(cache)}: raise it, or lower concurrency"
        )
    if memory["total_bytes"] > host.memory_bytes:
        obstacles.append(
            f"needs {format_bytes(memory['total_bytes'])} of memory, this machine has "
            f"{format_bytes(host.memory_bytes)}: lower engine.kv_cache_gib, or name a smaller model"
        )
    return obstacles
