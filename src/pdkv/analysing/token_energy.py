"""Energy for an output token: of each launch from its trace.json, and of the launches together."""

from collections.abc import Mapping, Sequence
from typing import Any

ENERGY = "energy_per_output_token"
TOKENS_PER_JOULE = "tokens_per_joule"
ENERGY_UNITS = {ENERGY: "J/tok", TOKENS_PER_JOULE: "tok/J"}


def energy_metrics(trace: Mapping[str, Any], index: int) -> dict[str, dict[str, Any]]:
    """``{metric: {unit, n, value}}`` of one launch at a load level, over all its GPUs; nothing where it had none.

    ``n``: the requests behind the tokens. ``value``: null where a GPU did not tell or the load was never full.
    """
    level = next((each for each in trace.get("levels") or () if each["point"] == index), None)
    if level is None or level["kind"] != "gpu":
        return {}
    return {name: {"unit": unit, "n": level["requests"], "value": level[name]} for name, unit in ENERGY_UNITS.items()}


def pool_energy_metrics(launches: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The mean energy per token of the launches that tell, and its inverse. ``launches``: the metrics of each."""
    stated = [launch[ENERGY] for launch in launches if ENERGY in launch]
    if not stated:
        return {}
    told = [metric for metric in stated if metric["value"] is not None]
    mean = sum(metric["value"] for metric in told) / len(told) if told else None
    values = {ENERGY: mean, TOKENS_PER_JOULE: 1 / mean if mean else None}
    n = sum(metric["n"] for metric in told)
    return {name: {"unit": unit, "n": n, "value": values[name]} for name, unit in ENERGY_UNITS.items()}
