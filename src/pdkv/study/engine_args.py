"""Engine arguments as users write them: flag names with either dash, booleans as YAML spells them.

pdkv decides some arguments itself; a study that sets them too would measure something else than it says.
"""

import re
from typing import Any

from pdkv.errors import UserError
from pdkv.study.yaml_source import KeyPath, YamlSource, dotted

OWN_ARGS = {
    "host": "is always the loopback address",
    "port": "is chosen at launch",
    "uds": "is not used",
    "model": "comes from the key model",
    "revision": "comes from model.revision",
    "tokenizer": "comes from model.tokenizer",
    "load-format": "comes from model.load_format",
    "served-model-name": "is fixed",
    "dtype": "comes from the key dtypes",
    "kv-cache-dtype": "comes from the key dtypes",
    "kv-transfer-config": "comes from the mode's kv_connector",
    "max-model-len": "comes from the workload's max_model_len",
    "max-num-batched-tokens": "comes from engine.token_budget, the same in every mode",
    "enable-chunked-prefill": "comes from the mode's chunked_prefill",
    "no-enable-chunked-prefill": "comes from the mode's chunked_prefill",
    "tensor-parallel-size": "comes from the mode's tensor_parallel_size",
    "pipeline-parallel-size": "is not supported: GPUs are counted by tensor_parallel_size",
    "data-parallel-size": "is not supported: use a mode with replicas, such as 2x",
    "gpu-memory-utilization": "comes from engine.gpu_memory_utilization",
    "kv-cache-memory-bytes": "comes from engine.kv_cache_gib, on GPUs from engine.gpu_memory_utilization",
    "enable-prefix-caching": "is off in every mode: prompts are unique, and hits would hide prefill",
    "no-enable-prefix-caching": "is always set",
    "config": "would hide arguments from the record",
}
FLAG = re.compile(r"[A-Za-z][A-Za-z0-9.-]*")
YAML_BOOLEANS = {"yes": True, "on": True, "true": True, "no": False, "off": False, "false": False}


def flag_name(key: str) -> str:
    """``max_num_seqs``, ``--max-num-seqs`` → ``max-num-seqs``."""
    return key.lstrip("-").replace("_", "-")


def normalize_args(args: dict[str, Any]) -> dict[str, Any]:
    """One spelling for each flag, and real booleans for ``"no"`` and its kin."""
    return {flag_name(key): _value(value) for key, value in args.items()}


def check_args(args: dict[str, Any], where: KeyPath, source: YamlSource) -> None:
    """Raise :class:`UserError` for flags given twice, empty ones, what is no flag, and those that pdkv sets itself."""
    seen: dict[str, str] = {}
    for key, value in args.items():
        flag = flag_name(key)
        at = f"{source.where((*where, key))}: {dotted((*where, key))}"
        own = next((name for name in OWN_ARGS if flag and name.startswith(flag)), None)
        if own:  # the beginning of a flag stands for the whole of it
            raise UserError(f"{at}: pdkv sets --{own} itself", remedy=f"take it out: it {OWN_ARGS[own]}")
        if flag in seen:
            raise UserError(f"{at}: the same flag as {seen[flag]}", remedy="keep one of the two")
        if not flag or value is None:
            raise UserError(f"{at}: has no value", remedy="write true for a switch, or its value")
        if not FLAG.fullmatch(flag):  # `host=0.0.0.0` would be read as one that pdkv sets itself
            raise UserError(f"{at}: {flag!r} can't be a flag", remedy="allowed: letters, digits, - and .")
        seen[flag] = key


def render_args(args: dict[str, Any]) -> list[str]:
    """Command-line form: switches as ``--flag`` / ``--no-flag``, structures as JSON."""
    import json

    words: list[str] = []
    for flag, value in args.items():
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, dict | list):
            words += [f"--{flag}", json.dumps(value, sort_keys=True)]
        else:
            words += [f"--{flag}", str(value)]
    return words


def _value(value: Any) -> Any:
    return YAML_BOOLEANS.get(value.lower(), value) if isinstance(value, str) else value
