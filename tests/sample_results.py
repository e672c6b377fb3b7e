"""A synthetic results/ tree that keeps the contract of docs/artifacts.md: the report's tests read nothing else."""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from pdkv.analysing.load_activity import describe_levels
from pdkv.analysing.service_levels import pool_service_metrics
from pdkv.analysing.stats import summarize
from pdkv.analysing.token_energy import energy_metrics, pool_energy_metrics
from pdkv.artifacts import write_json, write_parquet

EXCERPT = "\n".join(
    (
        "see @fig1 #base cost $1",
        "C:\\new <frozen importlib>",
        "a_b*c",
        "an odd backquote ` here",
        "] closing",
        "// gone",
        "/* gone",
        "| pipe | cell |",
        "<img src=x>",
        "1. first",
        "x" * 5000,
        "a NUL \x00 and an escape \x1b[31mred\x1b[0m",
        "RuntimeError: NIXL agent could not be created",
    )
)

COMPARISON_COLUMNS = [
    "workload",
    "concurrency",
    "metric",
    "stat",
    "factor",
    "level_a",
    "level_b",
    "held",
    "mode",
    "dtype",
    "base_mode",
    "base_dtype",
    "value",
    "base_value",
    "ratio",
    "ci_low",
    "ci_high",
    "verdict",
    "launches",
    "base_launches",
    "note",
]


@dataclass(frozen=True)
class Sample:
    """What the tree holds: by default the study's six cells, one failed and one suspect, one launch each, on a CPU."""

    modes: Sequence[str] = ("default", "chunked", "1p1d")
    dtypes: Sequence[str] = ("fp16", "fp8")
    workload: str = "short"
    concurrencies: Sequence[int] = (2,)
    launches: int = 1
    requests: int = 40
    gpu: bool = False
    failed: frozenset[tuple[str, str]] = frozenset({("1p1d", "fp8")})
    suspect: frozenset[tuple[str, str]] = frozenset({("chunked", "fp8")})
    model: str = "bundled"
    load_format: str = "auto"
    scale: float = 1.0
    outputs: int = 16
    excerpt: str = EXCERPT
    extra: dict[str, Any] = field(default_factory=dict)
    ttft_limit_ms: float | None = None  # the study's only service level

    @property
    def cells(self) -> list[tuple[str, str]]:
        return [(mode, dtype) for mode in self.modes for dtype in self.dtypes]


def write_sample(results: Path, sample: Sample | None = None) -> list[Path]:
    """Write the tree below ``results``; the paths of its cell.json files in the study's order."""
    sample = sample or Sample()
    rng = np.random.default_rng(7)
    cells: dict[tuple[str, str], dict[str, Any]] = {}
    for mode, dtype in sample.cells:
        cells[mode, dtype] = _write_cell(results, sample, mode, dtype, rng)
    _write_comparisons(results, sample, cells)
    return [results / sample.workload / mode / dtype / "cell.json" for mode, dtype in sample.cells]


def _roles(mode: str) -> list[tuple[str, str]]:
    if mode == "1p1d":
        return [("prefill-0", "prefill"), ("decode-0", "decode")]
    if mode == "2x":
        return [("replica-0", "replica"), ("replica-1", "replica")]
    return [("single", "single")]


def _write_cell(results: Path, sample: Sample, mode: str, dtype: str, rng: np.random.Generator) -> dict[str, Any]:
    folder = results / sample.workload / mode / dtype
    failed = (mode, dtype) in sample.failed
    state = "failed" if failed else "suspect" if (mode, dtype) in sample.suspect else "valid"
    trials, per_launch = [], []
    for repeat in range(1, sample.launches + 1):
        requests = [] if failed else _requests(sample, mode, dtype, rng)
        trace = _trace_table(sample, mode, failed, rng)
        trials.append(_trial(sample, mode, dtype, repeat, state, _levels(sample, mode, trace)))
        write_parquet(folder / f"r{repeat}/requests.parquet", _request_table(requests))
        write_parquet(folder / f"r{repeat}/trace.parquet", trace)
        per_launch.append(requests)
    content = {
        "workload": sample.workload,
        "mode": mode,
        "dtype": dtype,
        "state": state,
        "gpus": len(_roles(mode)) if sample.gpu else 0,
        "instances": len(_roles(mode)),
        "label": f"{mode} · {dtype}",
        "trials": trials,
        "points": []
        if failed
        else [_point(sample, index, per_launch, state, trials) for index in range(len(sample.concurrencies))],
        "memory": _memory(sample, mode, dtype),
        "environment": _environment(sample, mode),
        "slo": {"ttft_ms": sample.ttft_limit_ms, "tpot_ms": None, "e2el_ms": None, "target_share": 0.9}
        if sample.ttft_limit_ms
        else None,
        "config": _config(sample, mode, dtype),
        "checks": [],
    }
    write_json(folder / "cell.json", "cell/1", content)
    return content


def _requests(sample: Sample, mode: str, dtype: str, rng: np.random.Generator) -> list[dict[str, Any]]:
    rows = []
    base = {"1p1d": 0.13}.get(mode, 0.075) * sample.scale
    pace = {"1p1d": 0.0047}.get(mode, 0.0048) * (1.02 if dtype.startswith("fp8") else 1.0) * sample.scale
    for point, concurrency in enumerate(sample.concurrencies):
        for request in range(sample.requests + 2):
            send = 100.0 + point * 50 + request * 0.2
            ttft = base * concurrency**0.4 * float(rng.lognormal(0, 0.15))
            gaps = pace * concurrency**0.3 * rng.lognormal(0, 0.05, sample.outputs - 1)
            tokens = np.concatenate(([send + ttft], send + ttft + np.cumsum(gaps)))
            rows.append(
                {
                    "phase": "load",
                    "point": point,
                    "request": request,
                    "part": "ramp" if request < 2 else "measured",
                    "prompt": request,
                    "user": request % concurrency,
                    "target": "single",
                    "concurrency": concurrency,
                    "rate": None,
                    "status": "ok",
                    "error": None,
                    "http_status": 200,
                    "connection": "reused",
                    "scheduled_s": send,
                    "t_send_s": send,
                    "t_first_s": float(tokens[0]),
                    "t_last_s": float(tokens[-1]),
                    "t_end_s": float(tokens[-1]),
                    "asked_input_tokens": 128,
                    "asked_output_tokens": sample.outputs,
                    "input_tokens": 128,
                    "cached_tokens": 0,
                    "output_tokens": sample.outputs,
                    "finish_reason": "length",
                    "ttft_s": ttft,
                    "tpot_s": float(gaps.mean()) if sample.outputs > 1 else None,
                    "e2el_s": float(tokens[-1] - send),
                    "token_t_s": tokens.tolist(),
                    "token_n": [1] * sample.outputs,
                }
            )
    return rows


REQUEST_SCHEMA = pa.schema(
    [(name, pa.string()) for name in ("phase", "part", "target", "status", "error", "connection", "finish_reason")]
    + [(name, pa.int32()) for name in ("point", "request", "prompt", "user", "concurrency", "http_status")]
    + [
        (name, pa.int32())
        for name in ("asked_input_tokens", "asked_output_tokens", "input_tokens", "cached_tokens", "output_tokens")
    ]
    + [
        (name, pa.float64())
        for name in (
            "rate",
            "scheduled_s",
            "t_send_s",
            "t_first_s",
            "t_last_s",
            "t_end_s",
            "ttft_s",
            "tpot_s",
            "e2el_s",
        )
    ]
    + [("token_t_s", pa.list_(pa.float64())), ("token_n", pa.list_(pa.int32()))]
)


def _request_table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=REQUEST_SCHEMA)


def _measured(rows: Iterable[dict[str, Any]], point: int) -> list[dict[str, Any]]:
    return [row for row in rows if row["part"] == "measured" and row["point"] == point]


def _latencies(rows: list[dict[str, Any]]) -> dict[str, Any]:
    gaps = [np.diff(row["token_t_s"]) for row in rows]
    values = {
        "ttft": np.array([row["ttft_s"] for row in rows]),
        "tpot": np.array([row["tpot_s"] for row in rows if row["tpot_s"] is not None]),
        "itl": np.concatenate(gaps) if gaps else np.array([]),
        "e2el": np.array([row["e2el_s"] for row in rows]),
    }
    return {name: {"unit": "s", **summarize(array)} for name, array in values.items()}


def _rates(rows: list[dict[str, Any]]) -> dict[str, Any]:
    span = rows[-1]["t_last_s"] - rows[0]["t_send_s"]
    tokens = sum(row["output_tokens"] for row in rows)
    return {
        "output_throughput": {"unit": "tok/s", "n": len(rows), "value": tokens / span},
        "total_throughput": {"unit": "tok/s", "n": len(rows), "value": (tokens + 128 * len(rows)) / span},
        "request_throughput": {"unit": "req/s", "n": len(rows), "value": len(rows) / span},
        "output_throughput_whole_run": {"unit": "tok/s", "n": len(rows), "value": tokens / span},
    }


def _service(rows: list[dict[str, Any]], request_throughput: float, limit_ms: float | None) -> dict[str, Any]:
    if limit_ms is None:
        return {}
    met = sum(row["ttft_s"] <= limit_ms / 1e3 for row in rows)
    return {
        "goodput": {"unit": "req/s", "n": len(rows), "value": request_throughput * met / len(rows)},
        "slo_share": {"unit": "share", "n": len(rows), "met": met, "value": met / len(rows)},
    }


def _memory(sample: Sample, mode: str, dtype: str) -> dict[str, Any] | None:
    """The plan's estimate: an 8B-shaped model on GPUs."""
    if not sample.gpu:
        return None
    weights, per_token, count = 16_060_522_496, 65_536 if dtype.startswith("fp8") else 131_072, len(_roles(mode))
    needed = per_token * max(sample.concurrencies) * (128 + sample.outputs)
    return {
        "weights_bytes": weights,
        "kv_bytes_per_token": per_token,
        "kv_bytes_needed": needed,
        "instances": count,
        "total_bytes": count * weights + needed,
    }


def _point(
    sample: Sample, index: int, per_launch: list[list[dict[str, Any]]], state: str, trials: list[dict[str, Any]]
) -> dict[str, Any]:
    launches = [_measured(rows, index) for rows in per_launch]
    pooled = [row for rows in launches for row in rows]
    rates = [_rates(rows) for rows in launches]
    mean_rates = {
        name: {**rates[0][name], "n": len(pooled), "value": float(np.mean([r[name]["value"] for r in rates]))}
        for name in rates[0]
    }
    own = [
        {
            **_latencies(rows),
            **_rates(rows),
            **energy_metrics(trial["trace"], index),
            **_service(rows, _rates(rows)["request_throughput"]["value"], sample.ttft_limit_ms),
        }
        for rows, trial in zip(launches, trials, strict=True)
    ]
    served = pool_service_metrics(own) if sample.ttft_limit_ms else {}
    return {
        "point": index,
        "arrival": "closed",
        "concurrency": sample.concurrencies[index],
        "rate": None,
        "launches": len(launches),
        "repeats": list(range(1, len(launches) + 1)),
        "excluded": [],
        "state": state,
        "metrics": {**_latencies(pooled), **mean_rates, **pool_energy_metrics(own), **served},
        "per_launch": own,
        "requests": {
            "sent": len(pooled) + 2,
            "ok": len(pooled) + 2,
            "failed": 0,
            "ramp": 2,
            "measured": len(pooled),
            "drain": 0,
        },
        "server": {"preemptions": 0, "kv_cache_usage_max": 0.1},
        "achieved_concurrency": sample.concurrencies[index] * 0.98,
    }


def _resolved(sample: Sample, mode: str, dtype: str) -> dict[str, Any]:
    keys = {
        "kv_cache_dtype": "auto" if dtype in ("fp16", "bf16") else dtype,
        "model_dtype": "bfloat16",
        "chunked_prefill": mode != "unchunked",
        "max_num_batched_tokens": 2048,
        "attention_backend": "FLASH_ATTN" if sample.gpu else "CPU_ATTN",
        "model_runner": "V1",
        "load_format": sample.load_format,
        "kv_connector": "NixlConnector" if mode == "1p1d" else None,
    }
    return {role: dict(keys) for _, role in _roles(mode)}


def _trial(
    sample: Sample, mode: str, dtype: str, repeat: int, state: str, levels: list[dict[str, Any]]
) -> dict[str, Any]:
    failed = state == "failed"
    resolved = _resolved(sample, mode, dtype)
    instances = [
        {
            "name": name,
            "role": role,
            "engine_version": "0.32.0",
            **resolved[role],
            "kv_cache_tokens": 93184 if dtype.startswith("fp8") else 46592,
            "max_concurrency": 182.0 if dtype.startswith("fp8") else 91.0,
            "kv_cache_bytes": 1 << 30,
            "block_size": 128,
            "startup": {
                "ready_s": 41.2,
                "engine_init_s": 8.0,
                "model_load_s": 1.2,
                "compile_s": (27.6 if repeat == 1 else 6.2) if sample.gpu else None,
                "compile_cache": ("cold" if repeat == 1 else "warm") if sample.gpu else None,
                "graph_capture_s": 7.0 if sample.gpu else None,
            },
            "memory": {
                "weights_bytes": round(14.98 * 2**30) if sample.gpu else None,
                "activation_bytes": round(0.93 * 2**30) if sample.gpu else None,
                "non_torch_bytes": round(0.22 * 2**30) if sample.gpu else None,
                "graph_bytes": round(0.98 * 2**30) if sample.gpu else None,
            },
        }
        for name, role in _roles(mode)
    ]
    checks = [
        {
            "name": "lengths",
            "state": "passed",
            "evidence": "128 in, 16 out in 40 of 40",
            "remedy": "",
            "source": "load",
        },
        {"name": "prefix cache", "state": "unknown", "evidence": "no counter", "remedy": "", "source": "load"},
    ]
    if state == "suspect":
        checks.append(
            {
                "name": "foreign load",
                "state": "suspect",
                "evidence": "other processes used 31% of the cores | during the load",
                "remedy": "run again on a quiet machine",
                "source": "trace",
            }
        )
    failure = (
        {"stage": "launch", "reason": "decode-0 ended before it was ready", "excerpt": sample.excerpt}
        if failed
        else None
    )
    group = "default" if mode in ("default", "chunked") else mode
    return {
        "repeat": repeat,
        "state": state,
        "attempt": 2 if failed else 1,
        "failure": failure,
        "stages": {
            "launch_s": 45.0,
            "warmup_s": None if failed else 6.0,
            "load_s": None if failed else 30.0,
            "shutdown_s": 2.0,
            "wall_s": 50.0 if failed else 84.0,
            "overhead_s": None if failed else 3.0,
        },
        "checks": checks,
        "launch": None if failed else {"resolved": resolved, "identity": f"{group}-{dtype}", "instances": instances},
        "trace": None if failed else {**_trace_summary(sample, mode), "levels": levels},
    }


def _devices(sample: Sample, mode: str) -> list[tuple[str, str, str | None, str | None]]:
    """(device, kind, instance, role)."""
    roles = _roles(mode)
    if sample.gpu:
        return [(f"GPU-{index}", "gpu", name, role) for index, (name, role) in enumerate(roles)]
    cores = [(f"cpu{index}", "core", roles[index % len(roles)][0], roles[index % len(roles)][1]) for index in range(2)]
    processes = [(f"pid:{100 + index}", "process", name, role) for index, (name, role) in enumerate(roles)]
    return cores + processes + [("pid:99", "process", "client", "client")]


def _trace_summary(sample: Sample, mode: str) -> dict[str, Any]:
    rows = []
    for device, kind, instance, role in _devices(sample, mode):
        for stage, point in [("launch", None), ("warmup", None), ("load", None)] + [
            ("load", index) for index in range(len(sample.concurrencies))
        ]:
            rows.append(
                {
                    "device": device,
                    "kind": kind,
                    "instance": instance,
                    "role": role,
                    "stage": stage,
                    "point": point,
                    "util_mean": 0.61,
                    "util_max": 1.0,
                    "mem_util_mean": 0.3 if sample.gpu else None,
                    "mem_bytes_max": 2 << 30,
                    "power_mean_w": 410.0 if sample.gpu else None,
                    "energy_j": 1234.0 if sample.gpu else None,
                    "sm_clock_mean_mhz": 1755.0 if sample.gpu else None,
                    "power_limited_share": 0.25 if sample.gpu else None,
                    "energy_from": "counter" if sample.gpu else None,
                    "samples": 300,
                }
            )
    return {
        "source": ["nvml", "psutil"] if sample.gpu else ["psutil"],
        "resolution_s": {
            "sampler": 0.1,
            "by_kind": {"gpu": 0.05, "process": 0.1} if sample.gpu else {"process": 0.1},
            "counter": 1.0 if sample.gpu else None,
        },
        "devices": rows,
        "phases": _phases(rows),
        "missing": []
        if sample.gpu
        else [{"devices": ["cpu0", "cpu1"], "fields": ["mem_util", "power_w"], "reason": "not available on this host"}],
        "checks": [],
    }


def _phases(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        if row["role"] is not None:
            groups.setdefault((row["role"], row["kind"], row["stage"], row["point"]), []).append(row)
    keys = ("util_mean", "util_max", "mem_util_mean", "mem_bytes_max", "power_mean_w", "energy_j")
    keys += ("sm_clock_mean_mhz", "power_limited_share")
    return [
        {
            "role": role,
            "kind": kind,
            "stage": stage,
            "point": point,
            "devices": len(members),
            **{k: members[0][k] for k in keys},
        }
        for (role, kind, stage, point), members in groups.items()
    ]


LOAD_S = (51.0, 81.0)
START_S = 5000.0
GPU_JOULES = {"prefill": 0.7 * 1234, "decode": 1.3 * 1234}  # under full load at each level; of other roles 1234


def _spans(sample: Sample) -> list[tuple[float, float]]:
    """Start and end of each load level, seconds since the first sample."""
    edges = np.linspace(*LOAD_S, len(sample.concurrencies) + 1)
    return list(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True))


def _window(span: tuple[float, float]) -> tuple[float, float]:
    """Where the load is full: all but the first and last tenth."""
    margin = (span[1] - span[0]) / 10
    return span[0] + margin, span[1] - margin


def _levels(sample: Sample, mode: str, trace: pa.Table) -> list[dict[str, Any]]:
    """What trace_devices reads off the trace; each level brought the tokens of its requests."""
    points = [
        {"point": index, "start_s": START_S + low, "end_s": START_S + high}
        for index, (low, high) in enumerate(_spans(sample))
    ]
    measured = []
    for point in points:
        low, high = _window((point["start_s"], point["end_s"]))
        rate = {"unit": "tok/s", "n": sample.requests, "value": sample.requests * sample.outputs / (high - low)}
        window = {"start_s": low, "end_s": high}
        measured.append({"point": point["point"], "window": window, "metrics": {"output_throughput": rate}})
    return describe_levels(trace.to_pandas(), {"points": points}, measured) if len(trace) else []


def _gpu_counter(times: Any, role: str | None, rng: np.random.Generator) -> Any:
    """Utilisation as NVML shows it, means over 200 ms in whole percent: prefill in bursts, decode on a plateau."""
    fine = np.arange(0, times[-1] + 0.4, 0.01)
    launching = (fine < 45) & (rng.uniform(size=fine.size) < 0.05)
    warming = (fine >= 45) & (fine < LOAD_S[0]) & (fine % 2.0 < 0.9)
    loaded = (fine >= LOAD_S[0]) & (fine < LOAD_S[1])
    bursts = (fine + 0.13) % 2.93 < 0.87
    dips = rng.uniform(size=fine.size) < np.where(fine % 5 < 0.3, 0.5, 0.95)
    truth = launching | warming | (loaded & (bursts if role == "prefill" else dips))
    means = truth[: truth.size // 20 * 20].reshape(-1, 20).mean(axis=1).round(2)
    return means[np.minimum((times / 0.2 + 1e-9).astype(int), means.size - 1)]


def _trace_table(sample: Sample, mode: str, failed: bool, rng: np.random.Generator) -> pa.Table:
    times = np.arange(0, 84, 0.05 if sample.gpu else 0.1)
    stage = np.where(times < 45, "launch", np.where(times < 51, "warmup", np.where(times < 81, "load", "shutdown")))
    point = np.full(times.size, None, dtype=object)
    for index, (low, high) in enumerate(_spans(sample)):
        point[(times >= low) & (times < high)] = index
    watts = 1.0 / (_window(_spans(sample)[0])[1] - _window(_spans(sample)[0])[0])
    parts = []
    for device, kind, instance, role in [] if failed else _devices(sample, mode):
        if kind == "gpu":
            util = _gpu_counter(times, role, rng)
        else:
            level = np.where(stage == "load", 0.9 if role != "prefill" else 0.25, 0.1)
            util = np.clip(level + rng.normal(0, 0.08, times.size), 0, 1)
        power = watts * GPU_JOULES.get(role or "", 1234.0) if sample.gpu else np.nan
        parts.append(
            pd.DataFrame(
                {
                    "t_s": START_S + times,
                    "util": util,
                    "mem_util": util * 0.5 if sample.gpu else np.nan,
                    "mem_bytes": 118e9 if sample.gpu else np.nan,
                    "power_w": power,
                    "energy_j": 1e6 + power * times if sample.gpu else np.nan,
                    "device": device,
                    "kind": kind,
                    "instance": instance,
                    "role": role,
                    "stage": stage,
                    "source": "nvml" if sample.gpu else "psutil",
                    "point": point,
                }
            )
        )
    schema = pa.schema(
        [(name, pa.float64()) for name in ("t_s", "util", "mem_util", "mem_bytes", "power_w", "energy_j")]
        + [(name, pa.string()) for name in ("device", "kind", "instance", "role", "stage", "source")]
        + [("point", pa.int32())]
    )
    if not parts:
        return schema.empty_table()
    return pa.Table.from_pandas(pd.concat(parts), schema=schema, preserve_index=False)


def _environment(sample: Sample, mode: str) -> dict[str, Any]:
    gpus = [
        {"uuid": f"GPU-{index}", "name": "NVIDIA H200", "memory_bytes": 141 << 30, "driver": "570.1", "index": index}
        for index in range(len(_roles(mode)) if sample.gpu else 0)
    ]
    return {
        "host_cpu": "AMD EPYC 9354",
        "cores": 2,
        "memory_bytes": 16 << 30,
        "kernel": "6.1.0",
        "python": "3.11.2",
        "pdkv": "0.1.0",
        "engine": {"vllm": "0.32.0", "torch": "2.13.0", "transformers": "5.0", "router": "0.1.17", "nixl": "1.5.1"},
        "gpus": gpus,
        "cuda_driver": None,
        "load_average_start": 0.2,
        "foreign_cpu_share": 0.01,
        "virtualized": True,
        "numa_nodes": 1,
    }


def _config(sample: Sample, mode: str, dtype: str) -> dict[str, Any]:
    points = [
        {"arrival": "closed", "concurrency": c, "rate": None, "requests": sample.requests} for c in sample.concurrencies
    ]
    return {
        "workload": {
            "id": sample.workload,
            "input_tokens": 128,
            "output_tokens": 16,
            "max_model_len": 512,
            "points": points,
        },
        "mode": {
            "id": mode,
            "prefill": 1 if mode == "1p1d" else 0,
            "decode": 1 if mode == "1p1d" else 0,
            "replicas": 0 if mode == "1p1d" else 2 if mode == "2x" else 1,
            "chunked_prefill": {"chunked": True, "unchunked": False}.get(mode),
            "tensor_parallel_size": 1,
            "args": {},
            "prefill_args": {},
            "decode_args": {},
            "env": {},
            "kv_connector": "NixlConnector" if mode == "1p1d" else None,
            "kv_connector_config": {},
            "endpoint": None,
        },
        "dtype": {
            "id": dtype,
            "model_dtype": "bfloat16",
            "kv_cache_dtype": "auto" if dtype in ("fp16", "bf16") else dtype,
        },
        "model": {"name": sample.model, "load_format": sample.load_format, "revision": None, "tokenizer": None},
        "engine": {
            "kind": "cuda" if sample.gpu else "cpu",
            "python": None,
            "command": [],
            "args": {},
            "env": {},
            "token_budget": 2048,
            "kv_cache_gib": 1,
            "gpu_memory_utilization": 0.9,
        },
        "limits": {"launch_timeout_s": 900, "request_timeout_s": 600, "ramp_interval_s": 0.01, "warmup_rounds": 2},
        "seed": 0,
        **sample.extra,
    }


def _statistics(metrics: dict[str, Any]) -> dict[tuple[str, str], float | None]:
    values: dict[tuple[str, str], float | None] = {}
    for metric, summary in metrics.items():
        for stat in ("mean", "median", "p90", "p99", "value"):
            if stat in summary:
                values[metric, stat] = summary[stat]
    return values


def _write_comparisons(results: Path, sample: Sample, cells: dict[tuple[str, str], dict[str, Any]]) -> None:
    base_mode, base_dtype = sample.modes[0], sample.dtypes[0]
    rows = []
    for (mode, dtype), cell in cells.items():
        pairs = [
            ("baseline", (base_mode, base_dtype)),
            ("dtype", (mode, base_dtype)),
            ("mode", (base_mode, dtype)),
        ]
        if mode == "1p1d" and ("2x", dtype) in cells:
            pairs.append(("hardware", ("2x", dtype)))
        for effect, base in pairs:
            if base != (mode, dtype):
                rows += _effect_rows(sample, effect, cell, cells[base])
    path = results / "comparisons.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COMPARISON_COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _verdict(ratio: float | None, interval: bool) -> str:
    if ratio is None:
        return ""
    if not interval:
        return "not decided: one launch"
    return "lower" if ratio < 0.97 else "higher" if ratio > 1.03 else "cannot tell"


def _effect_rows(sample: Sample, effect: str, cell: dict[str, Any], base: dict[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for point, base_point in zip(cell["points"], base["points"], strict=False):
        values, base_values = _statistics(point["metrics"]), _statistics(base_point["metrics"])
        for key, value in values.items():
            base_value = base_values[key]
            ratio = value / base_value if value is not None and base_value else None
            interval = sample.launches > 1 and ratio is not None
            rows.append(
                {
                    "workload": sample.workload,
                    "concurrency": str(point["concurrency"]),
                    "metric": key[0],
                    "stat": key[1],
                    "factor": effect,
                    "mode": cell["mode"],
                    "dtype": cell["dtype"],
                    "base_mode": base["mode"],
                    "base_dtype": base["dtype"],
                    "value": value,
                    "base_value": base_value,
                    "ratio": ratio,
                    "ci_low": ratio * 0.98 if interval and ratio else None,
                    "ci_high": ratio * 1.02 if interval and ratio else None,
                    "verdict": _verdict(ratio, interval),
                    "launches": sample.launches,
                    "base_launches": sample.launches,
                    "note": "",
                }
            )
    return rows
