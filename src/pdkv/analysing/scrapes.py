"""What servers said on ``/metrics`` -> counters. What a scrape does not hold is ``None``, never 0.

A scrape is read line by line, so that one bad sample costs that sample only. Names are given without the ``vllm:``
prefix and without ``_total``: versions differ in the suffix, and some series have been renamed. What the HTTP layer of
an engine and what a router count has no such prefix: their names are given whole.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

_PREFIX = "vllm:"
_FORMER_NAMES = {
    "kv_cache_usage_perc": ("gpu_cache_usage_perc",),
    "prefix_cache_queries": ("gpu_prefix_cache_queries",),
    "prefix_cache_hits": ("gpu_prefix_cache_hits",),
}

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Scrape:
    """The samples of one ``/metrics`` answer: ``{series name: {labels: value}}``.

    ``cut`` is true where the text ends in the middle of a line (that line is not used); ``bad`` are the lines that
    could not be read or whose value is not a finite number.
    """

    series: Mapping[str, Mapping[Labels, float]]
    cut: bool = False
    bad: tuple[str, ...] = field(default=())


def parse_scrape(text: str) -> Scrape:
    """Read a Prometheus text. Never raises: what cannot be read is listed in ``bad``."""
    text = text.replace("\r\n", "\n")
    lines = text.split("\n")
    cut = bool(lines.pop())  # a whole scrape ends with a line end: a cut number would look like a number
    series: dict[str, dict[Labels, float]] = {}
    bad = []
    for line in lines:
        if not line.strip() or line.startswith("#"):
            continue
        sample = _parse_sample(line)
        if sample is None:
            bad.append(line)
        else:
            name, labels, value = sample
            series.setdefault(name, {})[labels] = value
    return Scrape(series, cut, tuple(bad))


def counter(scrape: Scrape | None, name: str, **labels: str) -> float | None:
    """The sum of a series over its engines and over all labels that are not named; ``None`` where there is none."""
    values = list(_select(scrape, name, labels).values())
    return math.fsum(values) if values else None


def increase(before: Scrape | None, after: Scrape | None, name: str, **labels: str) -> float | None:
    """How much a counter grew between two scrapes of one server; ``None`` where it is missing or was set back.

    A label set that came up in between counts from 0, provided that the series was there before.
    """
    old, new = _select(before, name, labels), _select(after, name, labels)
    if not old or not new:
        return None
    grown = [value - old.get(key, 0.0) for key, value in new.items()]
    if min(grown) < 0 or not old.keys() <= new.keys():
        return None
    return math.fsum(grown)


def cache_config(scrape: Scrape | None) -> dict[str, str]:
    """The labels of ``cache_config_info``, in which an engine states its KV cache; empty where it is missing."""
    return dict(next(iter(_select(scrape, "cache_config_info", {})), ()))


def read_scrape(rows: Iterable[Mapping[str, Any]], when: str, instance: str, point: int | None = None) -> Scrape | None:
    """The last ``metrics`` answer of an instance in the rows of scrapes.jsonl, ``None`` where none was ok."""
    return next(iter(list(_scrapes(rows, when, instance, point))[-1:]), None)


def read_answer(rows: Iterable[Mapping[str, Any]], kind: str, instance: str) -> str | None:
    """The text of the last ok answer of a kind (``version``, ``server_info``) of an instance."""
    texts = [row["text"] for row in rows if row["kind"] == kind and row["instance"] == instance and row["ok"]]
    return str(texts[-1]) if texts else None


def point_counters(rows: list[dict[str, Any]], roles: Mapping[str, str], point: int) -> dict[str, Any]:
    """``server`` of one point in metrics.json, out of the rows of scrapes.jsonl. ``roles`` is ``{instance: role}``."""
    return server_counters(
        before={name: read_scrape(rows, "before", name, point) for name in roles},
        after={name: read_scrape(rows, "after", name, point) for name in roles},
        during={name: list(_scrapes(rows, "during", name, point)) for name in roles},
        roles=roles,
    )


def server_counters(
    before: Mapping[str, Scrape | None],
    after: Mapping[str, Scrape | None],
    during: Mapping[str, list[Scrape]],
    roles: Mapping[str, str],
) -> dict[str, Any]:
    """What the engines counted over a point, ``{instance: scrape}`` in, tokens, bytes and seconds out.

    With disaggregation the prompt is counted where it is prefilled and the output where it is decoded: both engines
    count both, and their sum would count every request twice. ``prefix_cache_hit_rate`` is the share of prompt tokens
    that came from an engine's own prefix cache; tokens that came over a KV connector are not among them.
    """
    everyone = [(before.get(name), after.get(name)) for name in roles]
    prefillers = [(before.get(name), after.get(name)) for name, role in roles.items() if role != "decode"]
    decoders = [(before.get(name), after.get(name)) for name, role in roles.items() if role != "prefill"]
    prompt_tokens = total_increase(prefillers, "prompt_tokens")
    hits = total_increase(everyone, "prefix_cache_hits")
    usages = [counter(scrape, "kv_cache_usage_perc") for name in roles for scrape in during.get(name, [])]
    return {
        "prompt_tokens": _whole(prompt_tokens),
        "generation_tokens": _whole(total_increase(decoders, "generation_tokens")),
        "prefix_cache_hit_rate": hits / prompt_tokens if hits is not None and prompt_tokens else None,
        "preemptions": _whole(total_increase(everyone, "num_preemptions")),
        "kv_transfer": _kv_transfer(everyone, decoders) if "decode" in roles.values() else None,
        "kv_cache_usage_max": max((usage for usage in usages if usage is not None), default=None),
        "queue_mean_s": _mean_over(prefillers, "request_queue_time_seconds"),
        "prefill_mean_s": _mean_over(prefillers, "request_prefill_time_seconds"),
        "decode_mean_s": _mean_over(decoders, "request_decode_time_seconds"),
    }


Span = tuple[Scrape | None, Scrape | None]


def _kv_transfer(everyone: list[Span], decoders: list[Span]) -> dict[str, Any]:
    """What the decode instances fetched, and what they prefilled themselves.

    What went wrong is summed over all instances: a KV cache that nobody fetched in time expires where it was kept.
    """
    prompt = total_increase(decoders, "prompt_tokens")
    external = total_increase(decoders, "prompt_tokens_by_source", source="external_kv_transfer")
    if external is None:
        external = total_increase(decoders, "external_prefix_cache_hits")
    # Not request_prefill_kv_computed_tokens: 0.32 counts fetched tokens there as well, 0.26 does not.
    local = total_increase(decoders, "prompt_tokens_by_source", source="local_compute")
    cached = total_increase(decoders, "prefix_cache_hits")
    if local is None and prompt is not None and external is not None and cached is not None:
        local = prompt - external - cached
    return {
        "count": _whole(total_increase(decoders, "nixl_bytes_transferred_count")),
        "bytes": _whole(total_increase(decoders, "nixl_bytes_transferred_sum")),
        "seconds": total_increase(decoders, "nixl_xfer_time_seconds_sum"),
        "failed": _whole(_total_of_faults(everyone, "nixl_num_failed_transfers")),
        "expired": _whole(_total_of_faults(everyone, "nixl_num_kv_expired_reqs")),
        "prompt_tokens": _whole(prompt),
        "external_tokens": _whole(external),
        "local_prefill_tokens": _whole(local),
    }


def total_increase(spans: Sequence[Span], name: str, **labels: str) -> float | None:
    """Sum of increases over instances; ``None`` as soon as one of them is not known, or where there is none."""
    grown = [increase(before, after, name, **labels) for before, after in spans]
    known = [value for value in grown if value is not None]
    return math.fsum(known) if known and len(known) == len(grown) else None


def _total_of_faults(spans: Sequence[Span], name: str) -> float | None:
    """As :func:`total_increase`; faults that one instance counted are known, whatever another one does not say."""
    grown = [increase(before, after, name) for before, after in spans]
    known = math.fsum(value for value in grown if value is not None)
    return known if known or (grown and None not in grown) else None


def _mean_over(spans: list[Span], histogram: str) -> float | None:
    count, total = total_increase(spans, f"{histogram}_count"), total_increase(spans, f"{histogram}_sum")
    return total / count if count and total is not None else None


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _scrapes(rows: Iterable[Mapping[str, Any]], when: str, instance: str, point: int | None) -> Iterator[Scrape]:
    for row in rows:
        if row["kind"] != "metrics" or row["instance"] != instance or row["when"] != when or not row["ok"]:
            continue
        if point is None or row["point"] == point:
            yield parse_scrape(row["text"])


def _select(scrape: Scrape | None, name: str, labels: Mapping[str, str]) -> Mapping[Labels, float]:
    """The samples of a series under the first of its names that is there."""
    if scrape is None:
        return {}
    for base in (name, *_FORMER_NAMES.get(name, ())):
        for full in (f"{_PREFIX}{base}_total", f"{_PREFIX}{base}", base):
            if full in scrape.series:
                samples = scrape.series[full]
                return {key: value for key, value in samples.items() if labels.items() <= dict(key).items()}
    return {}


def _parse_sample(line: str) -> tuple[str, Labels, float] | None:
    try:
        samples = [sample for family in text_string_to_metric_families(line + "\n") for sample in family.samples]
    except Exception:  # the parser raises whatever a line happens to break
        return None
    if len(samples) != 1 or not math.isfinite(samples[0].value):
        return None
    sample = samples[0]
    return sample.name, tuple(sorted(sample.labels.items())), float(sample.value)
