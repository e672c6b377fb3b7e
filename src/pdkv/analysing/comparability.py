"""Which facts about the surroundings of a measurement must agree before two numbers may be compared."""

from collections.abc import Collection, Mapping
from typing import Any

_ENVIRONMENT = ("host_cpu", "cuda_driver")
_ENGINE = ("vllm", "torch", "transformers")  # router and connector belong to the mode
# When to give up does not touch a request that was answered.
_WITHOUT_EFFECT = ("limits.launch_timeout_s", "limits.request_timeout_s", "limits.trial_timeout_s")


def environment_facts(environment: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of a fingerprint (``environment`` in stages.json) that decide a measurement; unknown is ``None``.

    GPUs count by kind, not by number: how many there are belongs to the mode.
    """
    engine = environment.get("engine") or {}
    gpus = environment.get("gpus") or []
    return {
        **{key: environment.get(key) for key in _ENVIRONMENT},
        **_cores(environment),
        **{f"engine.{key}": engine.get(key) for key in _ENGINE},
        "gpu": sorted({f"{gpu['name']}, {gpu['memory_bytes']} bytes" for gpu in gpus}),
        "gpu driver": sorted({str(gpu["driver"]) for gpu in gpus}),
    }


def _cores(environment: Mapping[str, Any]) -> dict[str, Any]:
    """How many cores a trial might use. On GPUs, for each that it sees: a scheduler gives cores with every GPU."""
    cores, gpus = environment.get("cores"), environment.get("gpus_visible")
    return {"cores per GPU": f"{cores / gpus:g}"} if cores and gpus else {"cores": cores}


def config_facts(config: Mapping[str, Any], factors: Collection[str]) -> dict[str, Any]:
    """A cell's config slice without the compared ``factors`` (``mode``, ``dtype``), flat: ``{"model.name": …}``."""
    facts = _flatten("", {key: value for key, value in config.items() if key not in factors})
    return {key: value for key, value in facts.items() if key not in _WITHOUT_EFFECT}


def differing_facts(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """``"engine.vllm: 0.32.0 / 0.33.0"`` for each fact that is not the same in both; known and unknown differ."""
    keys = [*one, *(key for key in other if key not in one)]
    return [f"{key}: {_show(one.get(key))} / {_show(other.get(key))}" for key in keys if one.get(key) != other.get(key)]


def _flatten(prefix: str, content: Mapping[str, Any]) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for key, value in content.items():
        facts |= _flatten(f"{prefix}{key}.", value) if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return facts


def _show(value: Any) -> str:
    if value is None or value == []:
        return "unknown"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
