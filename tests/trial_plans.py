"""Plans of trials on the fake engine, as ``plan.json`` holds them."""

import sys
from pathlib import Path
from typing import Any

FAKE_ENGINE = str(Path(__file__).with_name("fake_engine.py"))
MODEL = "pdkv-model"
ROUTER = (sys.executable, "-P", "-m", "vllm_router.launch_router")
ROLES = {
    "single": ["single"],
    "1p1d": ["prefill", "decode"],
    "2x": ["replica", "replica"],
}


def fake_plan(mode: str = "single", *, requests: int = 4, launch_timeout_s: float = 60, **env: str) -> dict[str, Any]:
    """A plan whose instances are fake engines with ``env``; more than one stand behind the real router."""
    point = {"arrival": "closed", "concurrency": 2, "rate": None, "requests": requests}
    disaggregated = mode == "1p1d"
    connector = "NixlConnector" if disaggregated else None
    instances = []
    for role in ROLES[mode]:
        index = sum(instance["role"] == role for instance in instances)
        instances.append(
            {
                "name": role if role == "single" else f"{role}-{index}",
                "role": role,
                "index": index,
                "argv": [sys.executable, FAKE_ENGINE, "serve", "m", "--port", "{port}", "--served-model-name", MODEL],
                "env": {"PYTHONUNBUFFERED": "1", **env},
                "gpus": 0,
                "ranks": 1,
            }
        )
    router = [*ROUTER, "--host", "127.0.0.1", "--port", "{port}", "--prometheus-port", "{metrics_port}"]
    router += ["--policy", "round_robin", "--disable-retries", "--disable-circuit-breaker"]
    if disaggregated:
        router += ["--vllm-pd-disaggregation", "--prefill", "{url:prefill-0}", "--decode", "{url:decode-0}"]
    else:
        router += ["--worker-urls", *(f"{{url:{instance['name']}}}" for instance in instances)]
    return {
        "trial": {
            "workload": {"id": "w", "input_tokens": 32, "output_tokens": 8, "max_model_len": 64, "points": [point]},
            "mode": {
                "id": mode,
                "prefill": int(disaggregated),
                "decode": int(disaggregated),
                "replicas": 0 if disaggregated else len(instances),
                "chunked_prefill": None,
                "tensor_parallel_size": 1,
                **{key: {} for key in ("args", "prefill_args", "decode_args", "env", "kv_connector_config")},
                "kv_connector": connector,
                "endpoint": None,
            },
            "dtype": {"id": "bf16", "model_dtype": "bfloat16", "kv_cache_dtype": "auto"},
            "repeat": 1,
            "model": {"name": "m", "load_format": "auto", "revision": None, "tokenizer": None},
            "engine": {
                "kind": "cpu",
                "python": None,
                "command": [],
                "args": {},
                "env": {},
                "token_budget": 512,
                "kv_cache_gib": 1,
                "gpu_memory_utilization": 0.9,
            },
            "limits": {
                "launch_timeout_s": launch_timeout_s,
                "request_timeout_s": 20,
                "ramp_interval_s": 0.01,
                "warmup_rounds": 2,
            },
            "seed": 1,
        },
        "engine": {"kind": "cpu", "device": "cpu", "command": [], "python": None},
        "served_model": MODEL,
        "instances": instances,
        "router": {"argv": router} if len(instances) > 1 else None,
        "endpoint": None,
        "points": [{"point": 0, **point, "ramp": 2, "drain": 1}],
        "token_range": [1000, 30_000],
        "asked": {"kv_connector": connector},
        "memory": {},
    }
