"""From a trial to the commands, environments and devices that serve it. Pure: nothing is started or looked up here."""

import json
import math
from dataclasses import asdict, dataclass
from typing import Any

from pdkv.errors import UserError
from pdkv.measuring.gpu_memory import estimate_gpu_memory, total_of_gpus
from pdkv.measuring.model_shape import ModelShape
from pdkv.records import LoadPoint, Mode, Trial
from pdkv.study.engine_args import render_args

OPEN_LOOP_MARGIN = 0.1  # share of extra requests before and after the measured ones of an open loop
CPU_RUNTIME_BYTES = 2 * 2**30  # Python, PyTorch and vLLM of one instance: its three processes without weights and cache
CPU_RANK_BYTES = 2**30  # of each further rank of tensor parallelism: one process more
MAX_RANKS = 64
SERVED_NAME = "pdkv-model"


@dataclass(frozen=True)
class ResolvedEngine:
    """The engine that was chosen: ``command`` stands for ``vllm``, ``device`` is ``cpu`` or ``cuda``."""

    kind: str
    device: str
    command: tuple[str, ...]
    python: str | None
    router_command: tuple[str, ...]


def plan_trial(trial: Trial, engine: ResolvedEngine, model_path: str, shape: ModelShape) -> dict[str, Any]:
    """The content of ``plan.json`` (docs/artifacts.md).

    Raises :class:`UserError` where the trial can't work whatever the machine.
    """
    _check_lengths(trial, shape)
    _check_heads(trial, shape)
    endpoint = trial.mode.endpoint
    instances = [] if endpoint else _instances(trial, engine, model_path)
    return {
        "trial": json.loads(trial.to_slice()),
        "engine": {
            "kind": "endpoint" if endpoint else engine.kind,
            "device": None if endpoint else engine.device,
            "command": [] if endpoint else list(engine.command),
            "python": None if endpoint else engine.python,
        },
        "resolved": {
            "engine": None if endpoint else json.loads(json.dumps(asdict(engine))),
            "model": model_path,
            "shape": asdict(shape),
        },
        "served_model": trial.model.name if endpoint else SERVED_NAME,
        "instances": instances,
        "router": None if endpoint or len(instances) == 1 else {"argv": _router_argv(instances, engine)},
        "endpoint": endpoint,
        "points": [_point(index, point) for index, point in enumerate(trial.workload.points)],
        "token_range": token_range(shape.vocab_size),
        "asked": _asked(trial),
        "memory": _memory(trial, engine, shape),
    }


def token_range(vocab_size: int | None) -> list[int]:
    """Token ids that prompts draw from, [low, high): special tokens sit at one of the ends of a vocabulary."""
    if vocab_size is None:
        return [1000, 30_000]
    return [min(1000, vocab_size // 10), max(vocab_size * 9 // 10, vocab_size // 10 + 2)]


def margins(point: LoadPoint) -> tuple[int, int]:
    """(ramp, drain): requests sent before and after the measured ones so that these meet a steady load."""
    if point.concurrency is not None:
        return point.concurrency, point.concurrency - 1
    extra = math.ceil(point.requests * OPEN_LOOP_MARGIN)
    return extra, extra


def _check_lengths(trial: Trial, shape: ModelShape) -> None:
    if shape.max_positions is not None and trial.workload.max_model_len > shape.max_positions:
        raise UserError(
            f"workload {trial.workload.id}: max_model_len {trial.workload.max_model_len} is more than the model's "
            f"{shape.max_positions} positions",
            remedy=f"set max_model_len to at most {shape.max_positions}, or name another model",
        )


def _check_heads(trial: Trial, shape: ModelShape) -> None:
    ranks = trial.mode.tensor_parallel_size
    if not shape.can_be_split(ranks):
        possible = [str(count) for count in range(1, MAX_RANKS + 1) if shape.can_be_split(count)]
        raise UserError(
            f"mode {trial.mode.id}: tensor_parallel_size {ranks} can't divide the model's {shape.heads} attention "
            f"heads and {shape.kv_heads} KV heads",
            remedy=f"set it to {' or '.join(possible)}, or name another model",
        )


def _point(index: int, point: LoadPoint) -> dict[str, Any]:
    ramp, drain = margins(point)
    return {"point": index, **asdict(point), "ramp": ramp, "drain": drain}


def _asked(trial: Trial) -> dict[str, Any]:
    if trial.mode.endpoint:  # a server that the user runs was not asked for anything
        return dict.fromkeys(_ASKED_KEYS)
    return {
        "model_dtype": None if trial.dtype.model_dtype == "auto" else trial.dtype.model_dtype,
        "kv_cache_dtype": trial.dtype.kv_cache_dtype,
        "chunked_prefill": trial.mode.chunked_prefill,
        "max_num_batched_tokens": trial.engine.token_budget,
        "max_model_len": trial.workload.max_model_len,
        "prefix_caching": False,
        "kv_connector": trial.mode.kv_connector,
        "load_format": trial.model.load_format,
        "tensor_parallel_size": trial.mode.tensor_parallel_size,
    }


_ASKED_KEYS = (
    "model_dtype",
    "kv_cache_dtype",
    "chunked_prefill",
    "max_num_batched_tokens",
    "max_model_len",
    "prefix_caching",
    "kv_connector",
    "load_format",
    "tensor_parallel_size",
)


def _instances(trial: Trial, engine: ResolvedEngine, model_path: str) -> list[dict[str, Any]]:
    mode = trial.mode
    if mode.disaggregated:
        roles = [("prefill", i) for i in range(mode.prefill)] + [("decode", i) for i in range(mode.decode)]
    else:
        roles = [("single", 0)] if mode.replicas == 1 else [("replica", i) for i in range(mode.replicas)]
    return [
        {
            "name": role if role == "single" else f"{role}-{index}",
            "role": role,
            "index": index,
            "argv": [*engine.command, *_serve_argv(trial, engine, model_path, role)],
            "env": _environment(trial, engine, model_path),
            "gpus": mode.tensor_parallel_size if engine.device == "cuda" else 0,
            "ranks": mode.tensor_parallel_size,
            "node": number * mode.nodes // len(roles),
        }
        for number, (role, index) in enumerate(roles)
    ]


def _host(mode: Mode) -> str:
    """Where servers listen: nowhere but on this machine, unless they run on several."""
    return "{host}" if mode.nodes > 1 else "127.0.0.1"


def _serve_argv(trial: Trial, engine: ResolvedEngine, model_path: str, role: str) -> list[str]:
    mode = trial.mode
    args: dict[str, Any] = {
        "host": _host(mode),
        "port": "{port}",
        "served-model-name": SERVED_NAME,
        "dtype": trial.dtype.model_dtype,
        "kv-cache-dtype": trial.dtype.kv_cache_dtype,
        "max-model-len": trial.workload.max_model_len,
        "max-num-batched-tokens": trial.engine.token_budget,
        "enable-prefix-caching": False,
        "load-format": trial.model.load_format,
        "tensor-parallel-size": mode.tensor_parallel_size,
    }
    if mode.chunked_prefill is not None:
        args["enable-chunked-prefill"] = mode.chunked_prefill
    if trial.model.revision:
        args["revision"] = trial.model.revision
    if trial.model.tokenizer:
        args["tokenizer"] = trial.model.tokenizer
    if engine.device == "cpu":
        args["enforce-eager"] = True  # compiling for a CPU costs minutes per launch
        if mode.tensor_parallel_size > 1:  # the variable counts whole GiB of each rank
            args["kv-cache-memory-bytes"] = _cache_of_rank(trial)
    else:
        args["gpu-memory-utilization"] = trial.engine.gpu_memory_utilization
    if mode.kv_connector:
        args["kv-transfer-config"] = _kv_transfer(trial, engine, role)
    own = {"prefill": mode.prefill_args, "decode": mode.decode_args}.get(role, {})
    return ["serve", model_path, *render_args({**args, **trial.engine.args, **mode.args, **own})]


def _kv_transfer(trial: Trial, engine: ResolvedEngine, role: str) -> dict[str, Any]:
    return {
        "kv_connector": trial.mode.kv_connector,
        "kv_role": "kv_producer" if role == "prefill" else "kv_consumer",
        "kv_buffer_device": engine.device,
        **trial.mode.kv_connector_config,
    }


def _environment(trial: Trial, engine: ResolvedEngine, model_path: str) -> dict[str, str]:
    environment = {
        "VLLM_SERVER_DEV_MODE": "1",  # /server_info: the server's own word on what it resolved
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_COLOR": "0",
    }
    if model_path != trial.model.name or model_path.startswith(("/", ".")):
        environment["HF_HUB_OFFLINE"] = "1"
    if engine.device == "cpu":
        environment["VLLM_CPU_OMP_THREADS_BIND"] = "{cores}"
        if trial.mode.tensor_parallel_size == 1:
            environment["VLLM_CPU_KVCACHE_SPACE"] = str(trial.engine.kv_cache_gib)
    if trial.mode.kv_connector == "NixlConnector":
        environment |= {"VLLM_NIXL_SIDE_CHANNEL_HOST": _host(trial.mode), "VLLM_NIXL_SIDE_CHANNEL_PORT": "{kv_port}"}
        # UCX finds no fast path by itself: shared memory and loopback on a CPU, every device on a GPU host.
        environment |= {"UCX_TLS": "tcp,self,sysv,posix,cma"} if engine.device == "cpu" else {"UCX_NET_DEVICES": "all"}
    return {**environment, **trial.engine.env, **trial.mode.env}


def _cache_of_rank(trial: Trial) -> int:
    """Its share of the KV cache of a CPU instance, in bytes."""
    return trial.engine.kv_cache_gib * 2**30 // trial.mode.tensor_parallel_size


def _router_argv(instances: list[dict[str, Any]], engine: ResolvedEngine) -> list[str]:
    """One router for every mode that needs one, so that a comparison of such modes does not compare routers."""
    argv = [*engine.router_command, "--host", "127.0.0.1", "--port", "{port}", "--policy", "round_robin"]
    argv += ["--prometheus-port", "{metrics_port}", "--disable-retries", "--disable-circuit-breaker"]
    if instances[0]["role"] == "replica":
        return [*argv, "--worker-urls", *(f"{{url:{instance['name']}}}" for instance in instances)]
    argv.append("--vllm-pd-disaggregation")
    for instance in instances:
        argv += [f"--{instance['role']}", f"{{url:{instance['name']}}}"]
    return argv


def _memory(trial: Trial, engine: ResolvedEngine, shape: ModelShape) -> dict[str, Any]:
    """Estimates for the whole trial; the KV need is that of the highest closed-loop level at full length."""
    weights = shape.weights_bytes(trial.dtype.model_dtype)
    per_token = shape.kv_bytes_per_token(trial.dtype.kv_cache_dtype)
    levels = [point.concurrency for point in trial.workload.points if point.concurrency is not None]
    tokens = max(levels, default=1) * (trial.workload.input_tokens + trial.workload.output_tokens)
    ranks = trial.mode.tensor_parallel_size
    of_rank = shape.kv_bytes_per_token_of_rank(trial.dtype.kv_cache_dtype, ranks)
    needed = None if of_rank is None else of_rank * ranks * tokens
    count = trial.mode.instance_count
    per_gpu = estimate_gpu_memory(trial, shape) if engine.device == "cuda" and count else []
    if engine.device == "cuda":
        total = total_of_gpus(per_gpu) if per_gpu else None
    elif weights is None or needed is None:
        total = None
    else:  # the cache is taken whole at the start
        runtime = CPU_RUNTIME_BYTES + (ranks - 1) * CPU_RANK_BYTES
        total = count * (weights + trial.engine.kv_cache_gib * 2**30 + runtime)
    return {
        "weights_bytes": weights,
        "kv_bytes_per_token": per_token,
        "kv_bytes_needed": needed,
        "instances": count,
        "total_bytes": total,
        "per_gpu": per_gpu,
    }
