"""Did the servers become what the study asked for? The plan against what each instance says of itself."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pdkv.analysing.checks import Check

SUPPORTED_VERSIONS = ((0, 26), (0, 33))

_SAME_KV_FORMAT = {"fp8": "fp8_e4m3", "fp8_e4m3fn": "fp8_e4m3", "float8_e4m3fn": "fp8_e4m3", "float8_e5m2": "fp8_e5m2"}
_SAME_DTYPE = {"half": "float16", "fp16": "float16", "bf16": "bfloat16", "float": "float32"}


def check_launch(
    asked: Mapping[str, Any], instances: Sequence[Mapping[str, Any]], leftovers: Sequence[Mapping[str, Any]] | None
) -> list[Check]:
    """All checks of a launch. ``instances`` are those of launch.json, ``leftovers`` those of stages.json."""
    checks = [
        _check_asked(name, asked[key], {str(each["name"]): each[key] for each in instances}, same, remedy)
        for name, key, same, remedy in _ASKED
        if asked.get(key) is not None
    ]
    return [*checks, _check_versions(instances), *_check_roles_agree(instances), _check_leftovers(leftovers)]


def check_cores_of_ranks(ranks: int, launched: Sequence[Mapping[str, Any]]) -> list[Check]:
    """Whether each rank of tensor parallelism on a CPU had a core; no check without such ranks.

    ``launched`` are the instances of stages.json, whose ``cores`` are null on GPUs.
    """
    instances = [each for each in launched if each.get("cores")]
    if ranks == 1 or not instances:
        return []
    cores = {(each.get("node"), core) for each in instances for core in each["cores"]}
    name, evidence = "ranks on cores of their own", f"{ranks * len(instances)} ranks on {len(cores)} cores"
    if len(cores) < ranks * len(instances):
        remedy = f"give the study at least {ranks * len(instances)} cores, or lower tensor_parallel_size"
        return [Check(name, "suspect", evidence, remedy)]
    return [Check(name, "passed", evidence)]


def kv_format(name: str, model_dtype: str | None) -> str:
    """One name for each format of the KV cache: ``fp8`` is ``fp8_e4m3``, ``auto`` is the model's own dtype.

    ``fp8_e4m3fnuz`` (ROCm) is another encoding and stays what it is.
    """
    if name == "auto" and model_dtype:
        return model_dtype
    return _SAME_DTYPE.get(name, _SAME_KV_FORMAT.get(name, name))


def _same_kv_format(asked: Any, resolved: Any) -> bool:
    if asked == "auto":
        return resolved in ("auto", *_SAME_DTYPE.values())
    wanted, found = kv_format(asked, None), kv_format(resolved, None)
    return wanted == found or (wanted == "fp8_e4m3" and found == "fp8_e4m3fnuz")  # ROCm's own form of what was asked


def _same_dtype(asked: Any, resolved: Any) -> bool:
    return bool(asked == "auto" or _SAME_DTYPE.get(asked, asked) == resolved)


def _same_load_format(asked: Any, resolved: Any) -> bool:
    return bool(asked == resolved or (asked == "auto" and resolved != "dummy"))


def _same_connector(asked: Any, resolved: Any) -> bool:
    # The engine builds NixlConnector as one of its pull and push variants.
    return bool(asked == resolved or (asked == "NixlConnector" and re.fullmatch(r"Nixl\w*Connector", str(resolved))))


def _equal(asked: Any, resolved: Any) -> bool:
    return bool(asked == resolved)


# (name of the check, key of plan.json's asked and of an instance, when both are the same, what to do if they differ)
_ASKED: list[tuple[str, str, Callable[[Any, Any], bool], str]] = [
    ("KV-cache precision as asked", "kv_cache_dtype", _same_kv_format, "name in dtypes what this engine can keep"),
    ("model precision as asked", "model_dtype", _same_dtype, "name in dtypes what this engine can compute with"),
    ("chunked prefill as asked", "chunked_prefill", _equal, "compare the mode under what the engine resolved it to"),
    ("token budget as asked", "max_num_batched_tokens", _equal, "set engine.token_budget to what the engine accepts"),
    ("maximum length as asked", "max_model_len", _equal, "set max_model_len to what the model allows"),
    ("prefix caching as asked", "prefix_caching", _equal, "take engine arguments out that switch prefix caching on"),
    ("weights loaded as asked", "load_format", _same_load_format, "take load_format out of the engine arguments"),
    ("tensor parallelism as asked", "tensor_parallel_size", _equal, "take tensor_parallel_size out of the arguments"),
    ("KV connector as asked", "kv_connector", _same_connector, "see the instances' logs for why it was not set up"),
]


def _check_asked(
    name: str, asked: Any, resolved: Mapping[str, Any], same: Callable[[Any, Any], bool], remedy: str
) -> Check:
    missing = [instance for instance, value in resolved.items() if value is None]
    wrong = [
        f"{value} on {instance}" for instance, value in resolved.items() if value is not None and not same(asked, value)
    ]
    if wrong:
        return Check(name, "failed", f"asked {_shown(asked)}, resolved {', '.join(wrong)}", remedy)
    if missing or not resolved:
        where = ", ".join(missing) or "any instance"
        return Check(
            name,
            "unknown",
            f"asked {_shown(asked)}; the log and answers of {where} do not say",
            "look into the server's log",
        )
    found = ", ".join(sorted({_shown(value) for value in resolved.values()}))
    return Check(name, "passed", f"asked {_shown(asked)}, resolved {found} on {', '.join(resolved)}")


def _shown(value: Any) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def _check_versions(instances: Sequence[Mapping[str, Any]]) -> Check:
    name = "engine version supported"
    versions = sorted({str(each["engine_version"]) for each in instances if each["engine_version"] is not None})
    low, high = (".".join(map(str, version)) for version in SUPPORTED_VERSIONS)
    if not versions or any(each["engine_version"] is None for each in instances):
        return Check(name, "unknown", "not every instance states its version", "look into the server's log")
    if len(versions) > 1:
        return Check(name, "failed", f"instances run {' and '.join(versions)}", "run all instances with one engine")
    found = re.match(r"(\d+)\.(\d+)", versions[0])
    if found and SUPPORTED_VERSIONS[0] <= (int(found[1]), int(found[2])) <= SUPPORTED_VERSIONS[1]:
        return Check(name, "passed", f"vLLM {versions[0]}, supported are {low} to {high}")
    return Check(
        name,
        "suspect",
        f"vLLM {versions[0]}, supported are {low} to {high}",
        "logs and counters of this version may read differently: look at what launch.json lacks",
    )


def _check_roles_agree(instances: Sequence[Mapping[str, Any]]) -> list[Check]:
    """One check for each role with several instances: they must have resolved to the same thing."""
    checks = []
    for role in dict.fromkeys(str(each["role"]) for each in instances):
        peers = [each for each in instances if each["role"] == role]
        if len(peers) < 2:
            continue
        differing = [key for key in _AGREE if len({str(each[key]) for each in peers}) > 1]
        name = f"{role} instances alike"
        if differing:
            evidence = "; ".join(f"{key}: {', '.join(str(each[key]) for each in peers)}" for key in differing)
            checks.append(Check(name, "failed", evidence, "look into the instances' logs for why they differ"))
        else:
            checks.append(Check(name, "passed", f"{len(peers)} instances with the same settings"))
    return checks


_AGREE = (
    "model_dtype",
    "kv_cache_dtype",
    "chunked_prefill",
    "max_num_batched_tokens",
    "attention_backend",
    "kv_connector",
)


def _check_leftovers(leftovers: Sequence[Mapping[str, Any]] | None) -> Check:
    name = "nothing left after shutdown"
    if leftovers is None:
        return Check(name, "unknown", "the shutdown was not recorded")
    if not leftovers:
        return Check(name, "passed", "no process and no device memory of this trial was left")
    listed = "; ".join(", ".join(f"{key} {value}" for key, value in each.items()) for each in leftovers)
    pids = " ".join(str(each["pid"]) for each in leftovers if each.get("pid"))
    remedy = f"if they still live, end them with `kill {pids}`" if pids else ""
    if any("gpu" not in each and each.get("pid") is None for each in leftovers):
        outside = "`docker ps` and `ss -ltnp` name what runs outside of the trial's processes: end it"
        remedy = f"{remedy}; {outside}" if remedy else outside
    if any("gpu" in each for each in leftovers):
        held = "nvidia-smi names by its pid what still holds GPU memory: end it with `kill PID`"
        remedy = f"{remedy}; {held}" if remedy else held
    return Check(name, "suspect", f"still there: {listed}", f"before the next study: {remedy}")
