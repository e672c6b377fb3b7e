"""Which facts about the surroundings of a measurement must agree before two numbers may be compared."""

from collections.abc import Mapping
from typing import Any

_ENVIRONMENT = ("host_cpu", "cores", "cuda_driver")
_ENGINE = ("vllm", "torch", "transformers")  # router and connector belong to the mode
# What a study sets for all cells alike. Mode and dtype are what is compared; limits do not touch a request.
_CONFIG = ("workload", "model", "engine", "seed")


def environment_facts(environment: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of a fingerprint (``environment`` in stages.json) that decide a measurement; unknown is ``None``.

    GPUs count by kind, not by number: how many there are belongs to the mode.
    """
    engine = environment.get("engine") or {}
    gpus = environment.get("gpus") or []
    return {
        **{key: environment.get(key) for key in _ENVIRONMENT},
        **{f"engine.{key}": engine.get(key) for key in _ENGINE},
        "gpu": sorted({f"{gpu['name']}, {gpu['memory_bytes']} bytes" for gpu in gpus}),
        "gpu driver": sorted({str(gpu["driver"]) for gpu in gpus}),
    }


def config_facts(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a cell's config slice that are not compared and so must agree, flat: ``{"model.name": …}``."""
    facts: dict[str, Any] = {}
    for section in _CONFIG:
        content = config.get(section)
        if isinstance(content, Mapping):
            facts |= {f"{section}.{key}": value for key, value in content.items()}
        else:
            facts[section] = content
    return facts


def differing_facts(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """``"engine.vllm: 0.32.0 / 0.33.0"`` for each fact that is not the same in both; known and unknown differ."""
    keys = [*one, *(key for key in other if key not in one)]
    return [f"{key}: {_show(one.get(key))} / {_show(other.get(key))}" for key in keys if one.get(key) != other.get(key)]


def _show(value: Any) -> str:
    if value is None or value == []:
        return "unknown"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
