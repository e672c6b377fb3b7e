"""Which facts about the surroundings of a measurement must agree before two numbers may be compared."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

_ENVIRONMENT = ("host_cpu", "cuda_driver")
_ENGINE = ("vllm", "torch", "transformers")  # router and connector belong to the mode
MEASURING_CODE = "pdkv's measuring code"
UNSET = "not set"
LONGEST_VALUE = 60
# When to give up does not touch a request that was answered.
_WITHOUT_EFFECT = ("limits.launch_timeout_s", "limits.request_timeout_s", "limits.trial_timeout_s")


def environment_facts(environment: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of a fingerprint (``environment`` in cell.json) that decide a measurement; unknown is ``None``.

    GPUs count by kind, not by number: how many there are belongs to the mode. Of several nodes all must agree with each
    other, or else with nobody: then a fact is the list of theirs.
    """
    engine = environment.get("engine") or {}
    nodes = [environment, *(environment.get("nodes") or ())]
    gpus = [gpu for node in nodes for gpu in node.get("gpus") or ()]
    return {
        **{key: _of_all(node.get(key) for node in nodes) for key in _ENVIRONMENT},
        **_cores(nodes),
        **{f"engine.{key}": engine.get(key) for key in _ENGINE},
        "gpu": sorted({f"{gpu['name']}, {gpu['memory_bytes']} bytes" for gpu in gpus}),
        "gpu driver": sorted({str(gpu["driver"]) for gpu in gpus}),
        MEASURING_CODE: environment.get("source"),
    }


def differing_environments(*environments: Mapping[str, Any]) -> list[str]:
    """What keeps fingerprints from being one: facts, and variables that the servers got from the shell."""
    first, *others = map(environment_facts, environments)
    facts = [text for other in others for text in differing_facts(first, other)]
    variables = [
        f"{name}: {' / '.join(_told_apart(list(dict.fromkeys(values))))}"
        for name, values in differing_variables(environments).items()
    ]
    return [*dict.fromkeys(facts), *variables]


def differing_variables(environments: Sequence[Mapping[str, Any]]) -> dict[str, list[str | None]]:
    """What servers got from the shell and was not the same everywhere: values in that order, None where not set.

    A launch from before this was recorded is not known to differ from any other, and takes part with no variable. So
    does one whose plan has a value of its own for it: that belongs to the compared config.
    """
    recorded = [each["inherited"] for each in environments if each.get("inherited") is not None]
    found = {}
    for name in sorted({name for settings in recorded for name in settings}):
        values = [settings.get(name) for settings in recorded if settings.get(name, "") is not None]
        if len(set(values)) > 1:
            found[name] = values
    return found


def _told_apart(values: Sequence[str | None]) -> list[str]:
    """Values that differ, each in few characters: from their start, or from shortly before they differ."""
    given = [value for value in values if value is not None]
    start, length = 0, LONGEST_VALUE
    if len({value[:length] for value in given}) < len(given):
        columns = enumerate(zip(*given, strict=False))
        same = next((at for at, letters in columns if len(set(letters)) > 1), min(map(len, given)))
        start = max(0, same - LONGEST_VALUE // 3)
    while len({value[start : start + length] for value in given}) < len(given):
        length *= 2
    return [UNSET if value is None else _cut(value, start, start + length) for value in values]


def _cut(value: str, start: int, end: int) -> str:
    return f"{'…' if start else ''}{value[start:end]}{'…' if len(value) > end else ''}"


def _of_all(values: Iterable[Any]) -> Any:
    """What all nodes have in common, or all that they have."""
    found = list(dict.fromkeys(values))
    return found[0] if len(found) == 1 else sorted(map(str, found))


def _cores(nodes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How many cores a trial might use. On GPUs, for each that it sees: a scheduler gives cores with every GPU."""
    if all(node.get("cores") and node.get("gpus_visible") for node in nodes):
        return {"cores per GPU": _of_all(f"{node['cores'] / node['gpus_visible']:g}" for node in nodes)}
    return {"cores": total_cores(nodes[0])}


def total_cores(environment: Mapping[str, Any]) -> int | None:
    """The cores of all nodes of a trial; None where one of them is not known."""
    counts = [node.get("cores") for node in (environment, *(environment.get("nodes") or ()))]
    return sum(counts) if all(counts) else None


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
