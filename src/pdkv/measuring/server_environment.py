"""The environment that a server inherits: the user's, without what would make it another server."""

import os
from collections.abc import Collection, Mapping

# What a shell may hold and a measured server must not see: it would measure another setup than the study names.
# NCCL_, TORCH_, NVSHMEM_ and UCX_ stay: on a managed host they say what its fabric can do (such as NVLink multicast
# off), the same for every cell, and a server without them can hang or do harm.
DROPPED_PREFIXES = ("VLLM_", "PYTHON", "PDKV_", "OMP_", "KMP_", "GOMP_", "MKL_", "NIXL_")
DROPPED = {"VIRTUAL_ENV", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "LD_PRELOAD", "MALLOC_ARENA_MAX"}
KEPT = {"VLLM_CACHE_ROOT", "VLLM_CONFIG_ROOT", "VLLM_USE_MODELSCOPE", "TORCH_HOME"}


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
