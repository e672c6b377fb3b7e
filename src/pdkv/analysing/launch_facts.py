"""What was launched: plan.json, stages.json, logs and scrapes of a trial -> launch.json.

Where the server itself answers (``/server_info``, ``/version``, the labels of ``cache_config_info``), that is preferred
to what its log says.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pdkv.analysing.checks import Check
from pdkv.analysing.launch_checks import check_cores_of_ranks, check_launch, kv_format
from pdkv.analysing.scrapes import cache_config, read_answer, read_scrape
from pdkv.analysing.server_log import NONE, LogFacts, read_server_log
from pdkv.artifacts import read_json, read_json_lines, write_json
from pdkv.seals import check_seals

# What decides how an instance behaves; capacity and start-up times are results, not settings.
SETTINGS = (
    "engine_version",
    "model_runner",
    "model",
    "model_dtype",
    "kv_cache_dtype",
    "load_format",
    "quantization",
    "chunked_prefill",
    "max_num_batched_tokens",
    "max_num_seqs",
    "max_model_len",
    "prefix_caching",
    "enforce_eager",
    "tensor_parallel_size",
    "attention_backend",
    "flash_attention",
    "block_size",
    "kv_connector",
    "async_scheduling",
)
# Settings whose arguments need no place in the identity, since it holds what they resolved to. Without knowing all of
# them nobody can say that two cells ran the same thing.
_ESSENTIAL = (
    "engine_version",
    "model",
    "model_dtype",
    "kv_cache_dtype",
    "load_format",
    "chunked_prefill",
    "max_num_batched_tokens",
    "max_model_len",
    "prefix_caching",
    "enforce_eager",
    "tensor_parallel_size",
)
_STARTUP = ("engine_init_s", "model_load_s", "compile_s", "compile_cache", "graph_capture_s")
_MEMORY = ("weights_bytes", "activation_bytes", "non_torch_bytes", "graph_bytes")


def read_launch(trial: Path) -> None:
    """Write ``launch.json`` of the trial folder from what the folder holds."""
    plan = read_json(trial / "plan.json", "plan/1")
    stages = read_json(trial / "stages.json", "stages/1")
    check_seals(trial, stages, "server", "scrapes.jsonl")
    logs = {path.stem: path.read_text(encoding="utf-8", errors="replace") for path in (trial / "server").glob("*.log")}
    scrapes = trial / "scrapes.jsonl"
    rows = read_json_lines(scrapes) if scrapes.exists() else []
    write_json(trial / "launch.json", "launch/1", describe_launch(plan, stages, logs, rows))


def describe_launch(
    plan: Mapping[str, Any], stages: Mapping[str, Any], logs: Mapping[str, str], rows: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The content of launch.json. ``logs`` is ``{instance: text}``, ``rows`` are those of scrapes.jsonl."""
    if plan.get("endpoint"):
        return _describe_endpoint(rows)
    launched = {each["name"]: each for each in stages["instances"]}
    instances = [
        _describe_instance(planned, launched.get(planned["name"], {}), logs.get(planned["name"], ""), rows)
        for planned in plan["instances"]
    ]
    failed = stages["outcome"]["status"] == "failed" and stages["outcome"]["stage"] in ("plan", "launch")
    resolved = _merge_by_role(instances)
    checks = check_launch(plan["asked"], instances, stages.get("leftovers"))
    checks += check_cores_of_ranks(plan["asked"].get("tensor_parallel_size") or 1, stages["instances"])
    return {
        "status": "failed" if failed else "ok",
        "instances": instances,
        "resolved": resolved,
        "identity": None if failed else _identity(plan["instances"], instances, resolved),
        # A launch that failed is a result by itself; whether it would have become what was asked is moot.
        "checks": [] if failed else [check.as_json() for check in checks],
    }


def _describe_endpoint(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A server that somebody else started: only its own answers are known, and nothing was asked of it."""
    instance = _describe_instance({"name": "endpoint", "role": "single"}, {}, "", rows)
    check = Check("settings as asked", "unknown", "the server was started by its user, with settings of their own")
    return {
        "status": "skipped",
        "instances": [instance],
        "resolved": _merge_by_role([instance]),
        "identity": None,
        "checks": [check.as_json()],
    }


def _describe_instance(
    planned: Mapping[str, Any], launched: Mapping[str, Any], log: str, rows: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    name = planned["name"]
    facts = asdict(read_server_log(log) if log else LogFacts())
    # From the least to the most direct word of the server; what a source does not say does not replace anything.
    for source in (_stated_by_metrics(rows, name), _stated_by_server(rows, name)):
        facts.update({key: value for key, value in source.items() if value is not None})
    startup = {"ready_s": launched.get("ready_s"), **{key: facts.pop(key) for key in _STARTUP}}
    memory = {key: facts.pop(key) for key in _MEMORY}
    return {"name": name, "role": planned["role"], **facts, "memory": memory, "startup": startup}


def _stated_by_metrics(rows: Sequence[Mapping[str, Any]], instance: str) -> dict[str, Any]:
    times = ("ready", "warm", "end")
    scrapes = [scrape for when in times if (scrape := read_scrape(rows, when, instance)) is not None]
    labels = next((found for scrape in scrapes if (found := cache_config(scrape))), {})
    return {
        "kv_cache_dtype": _label(labels, "cache_dtype", str),
        "block_size": _label(labels, "block_size", int),
        "prefix_caching": _label(labels, "enable_prefix_caching", lambda text: text == "True"),
        "kv_cache_tokens": _label(labels, "kv_cache_size_tokens", int),
        "max_concurrency": _label(labels, "kv_cache_max_concurrency", float),
    }


def _label(labels: Mapping[str, str], name: str, convert: Any) -> Any:
    text = labels.get(name, "None")
    try:
        return None if text == "None" else convert(text)
    except ValueError:
        return None


def _stated_by_server(rows: Sequence[Mapping[str, Any]], instance: str) -> dict[str, Any]:
    info, version = _json(read_answer(rows, "server_info", instance)), _json(read_answer(rows, "version", instance))
    config = info.get("vllm_config")
    if not isinstance(config, dict):
        return {"engine_version": version.get("version")}
    model, cache, load = _part(config, "model_config"), _part(config, "cache_config"), _part(config, "load_config")
    scheduler, parallel = _part(config, "scheduler_config"), _part(config, "parallel_config")
    return {
        "engine_version": version.get("version"),
        "model": model.get("model"),
        "model_dtype": str(model["dtype"]).removeprefix("torch.") if model.get("dtype") else None,
        "max_model_len": model.get("max_model_len"),
        "enforce_eager": model.get("enforce_eager"),
        "quantization": (model["quantization"] or NONE) if "quantization" in model else None,
        "kv_cache_dtype": cache.get("cache_dtype"),
        "block_size": cache.get("block_size"),
        "prefix_caching": cache.get("enable_prefix_caching"),
        "kv_cache_tokens": cache.get("kv_cache_size_tokens"),
        "max_concurrency": cache.get("kv_cache_max_concurrency"),
        "load_format": load.get("load_format"),
        "chunked_prefill": scheduler.get("enable_chunked_prefill"),
        "max_num_batched_tokens": scheduler.get("max_num_batched_tokens"),
        "max_num_seqs": scheduler.get("max_num_seqs"),
        "async_scheduling": scheduler.get("async_scheduling"),
        "tensor_parallel_size": parallel.get("tensor_parallel_size"),
        "kv_connector": _connector(config),
    }


def _connector(config: Mapping[str, Any]) -> str | None:
    if "kv_transfer_config" not in config:
        return None
    return NONE if config["kv_transfer_config"] is None else _part(config, "kv_transfer_config").get("kv_connector")


def _json(text: str | None) -> dict[str, Any]:
    try:
        content = json.loads(text or "{}")
    except json.JSONDecodeError:
        return {}
    return content if isinstance(content, dict) else {}


def _part(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    part = config.get(name)
    return part if isinstance(part, dict) else {}


def _merge_by_role(instances: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """``{role: {setting: value}}``; where instances of a role differ, the value is the list of theirs."""
    merged: dict[str, dict[str, Any]] = {}
    for role in dict.fromkeys(each["role"] for each in instances):
        peers = [each for each in instances if each["role"] == role]
        merged[role] = {}
        for key in SETTINGS:
            values = [_setting(each, key) for each in peers]
            merged[role][key] = values[0] if all(value == values[0] for value in values) else values
    return merged


def _setting(instance: Mapping[str, Any], key: str) -> Any:
    value = instance[key]
    if key == "kv_cache_dtype" and value is not None:
        return kv_format(value, instance["model_dtype"])
    return value


def _identity(
    planned: Sequence[Mapping[str, Any]], instances: Sequence[Mapping[str, Any]], resolved: Mapping[str, Any]
) -> str | None:
    """A digest of everything that decides behaviour, ``None`` where too little is known to call two cells the same.

    Besides the resolved settings it holds the arguments and variables that no setting stands for, as they were planned:
    two cells that differ in one of them are never called the same.
    """
    if any(settings[key] is None for settings in resolved.values() for key in _ESSENTIAL):
        return None
    content = {
        "topology": Counter(each["role"] for each in instances),
        "resolved": resolved,
        "arguments": sorted({(each["role"], *_other_arguments(each["argv"])) for each in planned}),
        "environment": sorted({(each["role"], json.dumps(each["env"], sort_keys=True)) for each in planned}),
        "gpus": sorted({(each["role"], each["gpus"]) for each in planned}),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


_COVERED = {
    "dtype",
    "enable-chunked-prefill",
    "enable-prefix-caching",
    *(setting.replace("_", "-") for setting in _ESSENTIAL),
}


def _other_arguments(argv: Sequence[str]) -> list[str]:
    """The arguments behind ``serve`` that no setting stands for, each ``flag=value``, sorted."""
    words = list(argv[argv.index("serve") + 1 :]) if "serve" in argv else list(argv)
    arguments: list[list[str]] = [[]]
    for word in words:
        if word.startswith("--"):
            arguments.append(word[2:].split("=", 1))
        else:
            arguments[-1].append(word)
    return sorted("=".join(each) for each in arguments if each and each[0].removeprefix("no-") not in _COVERED)
