"""The environment that a server inherits: the user's, without what would make it another server."""

import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from pdkv.measuring.container_client import complete_run
from pdkv.redaction import HIDDEN
from pdkv.secret_names import is_secret_name

# What a shell may hold and a measured server must not see: it would measure another setup than the study names.
# NCCL_, TORCH_, NVSHMEM_ and UCX_ stay: on a managed host they say what its fabric can do (such as NVLink multicast
# off), the same for every cell, and a server without them can hang or do harm.
DROPPED_PREFIXES = ("VLLM_", "PYTHON", "PDKV_", "OMP_", "KMP_", "GOMP_", "MKL_", "NIXL_")
DROPPED = {"VIRTUAL_ENV", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "LD_PRELOAD", "MALLOC_ARENA_MAX"}
KEPT = {"VLLM_CACHE_ROOT", "VLLM_CONFIG_ROOT", "VLLM_USE_MODELSCOPE", "TORCH_HOME"}

# What of the rest may change how fast a server is, or what it computes: settings of vLLM and of the libraries below it.
# LD_LIBRARY_PATH is none, though it may lead to another library: it is a list of places, which differs between nodes
# and modules that hold the same ones.
SETTING = re.compile(
    r"(?:NCCL|RCCL|UCX|NVSHMEM|SHARP|FI|GLOO|VLLM|TORCH\w*|PYTORCH|CUDA|CUBLAS|CUDNN|NVTE|TRITON|FLASHINFER|FLASH_ATTENTION|DG"
    r"|LMCACHE|MOONCAKE|OPENBLAS|ONEDNN|DNNL|MALLOC|HSA|HIP)_\w+|NVIDIA_TF32_OVERRIDE|GLIBC_TUNABLES"
)
# Of these: where something lies, what is logged, and what a scheduler gives each job; no two launches need share them.
# NCCL_DEBUG is what one exports to measure a failed cell again: that must not keep it from being compared. Not among
# them are a "debug" that checks or compiles otherwise, and the place of a compiler, a kernel or a configuration.
NO_SETTING = re.compile(
    r"\w+_(?:VISIBLE_DEVICES|CACHE(?:_ROOT|_DIR|_PATH)?|CONFIG_ROOT|PIPE_DIRECTORY|LOG_DIRECTORY|EXTENSIONS_DIR"
    r"|WORKSPACE_BASE|HOME)|(?:CUDA|HIP)_PATH(?:_V\w+)?|TRITON_(?!OVERRIDE_)\w+_DIR"
    r"|(?!TORCH_DISTRIBUTED|TRITON|FLASHINFER_JIT)\w+_DEBUG|\w+_DEBUG_(?:FILE|SUBSYS|INFO_TEMP_FILE)"
    r"|\w+_LOG_(?:FILE|LEVEL|SUBSYS)|\w+_DUMP_FILE|TORCH_LOGS|CUDA_COREDUMP_\w+"
)


def without_proxy(addresses: Collection[str], inherited: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What keeps every proxy away from ``addresses``."""
    return {
        name: ",".join(filter(None, [inherited.get(name), *sorted({"127.0.0.1", "localhost", *addresses})]))
        for name in ("no_proxy", "NO_PROXY")
    }


def clean_environment(inherited: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of a server before ours is added: the user's, without what would change the measured setup.

    Proxies stay (a model may have to be fetched), but never stand before the loopback address.
    """
    kept = {
        name: value
        for name, value in inherited.items()
        if name in KEPT or not (name in DROPPED or name.startswith(DROPPED_PREFIXES))
    }
    return kept | without_proxy((), inherited)


def inherited_settings(
    instances: Sequence[Mapping[str, Any]], environment: Mapping[str, str] = os.environ
) -> dict[str, str | None]:
    """Settings of the engine's libraries that a plan's servers get from the shell: ``{"NCCL_ALGO": "Ring"}``.

    None for one that the plan sets for each instance: there the shell's, if it has any, reaches nobody. What a name
    gives away as a secret is hidden, the home folder is ``~``.
    """
    planned = set.intersection(*(set(instance["env"]) for instance in instances)) if instances else set()
    reaching = {**environment, **dict.fromkeys(planned, "")}
    return {
        name: None if name in planned else _shown(name, value)
        for name, value in sorted(clean_environment(reaching).items())
        if _is_setting(name) and (name in planned or _enters_container(name, instances))
    }


def _is_setting(name: str) -> bool:
    return bool(SETTING.fullmatch(name)) and not NO_SETTING.fullmatch(name)


def _enters_container(name: str, instances: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the servers see a variable of the shell: in a daemon's container only one that the command names."""
    return any(
        complete_run(instance["argv"], "", ()) is None or any(word.split("=")[-1] == name for word in instance["argv"])
        for instance in instances
    )


def _shown(name: str, value: str) -> str:
    home = str(Path.home())
    return HIDDEN if is_secret_name(name) else value.replace(home, "~") if len(home) > 1 else value
