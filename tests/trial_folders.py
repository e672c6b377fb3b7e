"""Trial folders as the analysing wing reads them, without an engine."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from request_tables import table_of

from pdkv.analysing.load_facts import describe_load
from pdkv.artifacts import write_json, write_parquet

ENVIRONMENT: dict[str, Any] = {
    "host_cpu": "AMD EPYC 9354",
    "cores": 2,
    "memory_bytes": 16 << 30,
    "kernel": "6.1.0",
    "engine": {"vllm": "0.32.0", "torch": "2.13.0", "transformers": "5.0", "router": "0.1.17", "nixl": "1.5.1"},
    "gpus": [],
    "cuda_driver": None,
}


def config_of(mode: str, dtype: str, concurrencies: Sequence[int] = (2,)) -> dict[str, Any]:
    points = [{"arrival": "closed", "concurrency": c, "rate": None, "requests": 8} for c in concurrencies]
    return {
        "workload": {"id": "w", "input_tokens": 128, "output_tokens": 16, "max_model_len": 512, "points": points},
        "mode": {
            "id": mode,
            "prefill": int(mode == "1p1d"),
            "decode": int(mode == "1p1d"),
            "replicas": {"1p1d": 0, "2x": 2}.get(mode, 1),
        },
        "dtype": {"id": dtype, "model_dtype": "auto", "kv_cache_dtype": "auto" if dtype in ("fp16", "bf16") else dtype},
        "model": {"name": "bundled", "load_format": "auto", "revision": None, "tokenizer": None},
        "engine": {"kind": "cpu", "token_budget": 2048, "kv_cache_gib": 1, "args": {}},
        "limits": {"launch_timeout_s": 900},
        "seed": 0,
    }


def roles_of(mode: str) -> list[tuple[str, str]]:
    if mode == "1p1d":
        return [("prefill-0", "prefill"), ("decode-0", "decode")]
    return [(f"replica-{i}", "replica") for i in range(2)] if mode == "2x" else [("single", "single")]


def write_trial(
    folder: Path,
    rows: Sequence[dict[str, Any]],
    *,
    mode: str = "default",
    dtype: str = "fp16",
    repeat: int = 1,
    concurrencies: Sequence[int] = (2,),
    failure: Mapping[str, str] | None = None,
    environment: Mapping[str, Any] = ENVIRONMENT,
    gpus: int = 0,
    identity: str | None = None,
    checks: Mapping[str, Sequence[dict[str, str]]] | None = None,
    config: Mapping[str, Any] | None = None,
    source: str | None = None,
) -> Path:
    """All artefacts of one launch but its raw evidence; ``checks`` by source (launch, warmup, trace).

    ``source``: digest of what measured it; None as in evidence from before it was recorded.
    """
    checks = checks or {}
    points = [{"point": i, "arrival": "closed", "concurrency": c, "rate": None} for i, c in enumerate(concurrencies)]
    instances = [{"name": name, "role": role, "gpus": gpus} for name, role in roles_of(mode)]
    trial = {**config_of(mode, dtype, concurrencies), **(config or {}), "repeat": repeat}
    write_json(folder / "plan.json", "plan/1", {"trial": trial, "instances": instances, "points": points})
    stages: dict[str, Any] = {
        "attempt": 1,
        "outcome": {
            "status": "failed" if failure else "ok",
            "stage": None,
            "reason": None,
            "excerpt": None,
            **(failure or {}),
        },
        "stages": [{"name": "launch", "start_s": 1.0, "end_s": 41.0}]
        + (
            []
            if failure
            else [{"name": n, "start_s": s, "end_s": e} for n, s, e in (("warmup", 42.0, 50.0), ("load", 50.5, 80.5))]
        )
        + [{"name": "shutdown", "start_s": 81.0, "end_s": 83.0}],
        "wall": {"start_s": 0.0, "end_s": 84.0},
        "instances": instances,
        "points": [{**point, "start_s": 50.5, "end_s": 80.5} for point in points],
        "environment": dict(environment),
        "client": {"cpu_s": 0.6},
        **({"source": source} if source else {}),
    }
    write_json(folder / "stages.json", "stages/1", stages)
    tokens = {"kv_cache_tokens": 46592, "max_concurrency": 91.0, "kv_cache_bytes": 1 << 30}
    launched = [{"name": name, "role": role, **tokens} for name, role in roles_of(mode)]
    identity = identity or f"{mode}-{dtype}"
    launch = {"status": "failed" if failure else "ok", "instances": launched, "resolved": {}, "identity": identity}
    write_json(folder / "launch.json", "launch/1", {**launch, "checks": list(checks.get("launch", ()))})
    write_json(
        folder / "trace.json", "trace/1", {"source": "psutil", "devices": [], "checks": list(checks.get("trace", ()))}
    )
    table = table_of([] if failure else rows)
    write_parquet(folder / "requests.parquet", table)
    warmup = {"pairs": [], "settled": True, "checks": list(checks.get("warmup", ()))}
    write_json(folder / "metrics.json", "metrics/1", {**describe_load(table, stages, []), "warmup": warmup})
    return folder


def check(name: str, state: str) -> dict[str, str]:
    return {"name": name, "state": state, "evidence": "as seen", "remedy": ""}
