"""What the engines counted in several launches of a cell, taken together."""

from collections.abc import Mapping, Sequence
from typing import Any

_MEANS = ("prefix_cache_hit_rate", "queue_mean_s", "prefill_mean_s", "decode_mean_s")
_MAXIMA = ("kv_cache_usage_max",)


def combine_server_counters(launches: Sequence[Mapping[str, Any] | None]) -> dict[str, Any] | None:
    """Counts summed, means averaged over launches, maxima taken; null as soon as one launch does not know.

    ``launches`` are the ``server`` entries of metrics.json; null if there is none or one was not scraped.
    """
    known = [launch for launch in launches if launch is not None]
    if not known or len(known) < len(launches):
        return None
    return {key: _combine(key, [launch.get(key) for launch in known]) for key in known[0]}


def _combine(key: str, values: Sequence[Any]) -> Any:
    if any(value is None for value in values):
        return None
    if isinstance(values[0], Mapping):
        return combine_server_counters(values)
    if key in _MAXIMA:
        return max(values)
    return sum(values) / len(values) if key in _MEANS else sum(values)
