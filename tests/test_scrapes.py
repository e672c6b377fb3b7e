"""Counters out of recorded scrapes, and out of scrapes in which something is wrong."""

import re
from pathlib import Path

import pytest

from pdkv.analysing.scrapes import (
    cache_config,
    counter,
    increase,
    parse_scrape,
    point_counters,
    read_answer,
    read_scrape,
    server_counters,
)

DATA = Path(__file__).parent / "data"
DECODE = (DATA / "h200/pd_auto_D.metrics").read_text()
PREFILL = (DATA / "h200/pd_auto_P.metrics").read_text()

BROKEN = """# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_total counter
x:occupancy NaN
x:a +Inf
no sample at all {
vllm:prompt_tokens_total{engine="0"} 1.59744e+05
vllm:prefix_cache_hits_created{engine="0"} 1.796e+09
vllm:prefix_cache_hits_total{engine="0"} 0.0
vllm:request_queue_time_seconds_bucket{le="0.3"} 1.0
vllm:request_queue_time_seconds_sum 3.0
vllm:request_queue_time_seconds_count 2.0
vllm:prompt_tok"""


def zeroed(text: str) -> str:
    """The scrape as it was before the first request: every counter there, every value 0."""
    return re.sub(r"^([^#\n].*) \S+$", r"\1 0.0", text, flags=re.MULTILINE)


def row(
    text: str, when: str, instance: str, *, point: int | None = 0, kind: str = "metrics", ok: bool = True
) -> dict[str, object]:
    status = 200 if ok else None
    return {
        "t_s": 1.0,
        "when": when,
        "point": point,
        "instance": instance,
        "kind": kind,
        "ok": ok,
        "status": status,
        "text": text,
    }


@pytest.mark.fault(
    "load", "a metrics page with NaN, infinity and a broken line", "the other series are kept, the bad lines are named"
)
def test_one_bad_sample_costs_that_sample_only() -> None:
    scrape = parse_scrape(BROKEN)
    assert counter(scrape, "prompt_tokens") == 159_744
    assert counter(scrape, "prefix_cache_hits") == 0  # and not the 1.8 milliard seconds of _created
    assert scrape.cut
    assert len(scrape.bad) == 3
    assert {line.split()[0] for line in scrape.bad} == {"x:occupancy", "x:a", "no"}


@pytest.mark.fault("load", "a metrics page that lacks series", "null, never 0")
def test_what_is_missing_is_none() -> None:
    scrape = parse_scrape(BROKEN)
    assert counter(scrape, "kv_cache_usage_perc") is None
    assert counter(None, "prompt_tokens") is None
    assert cache_config(scrape) == {}
    assert parse_scrape("").series == {}


@pytest.mark.fault(
    "load", "a metrics page that is cut in mid-number", "the number is not read, the page is marked as cut"
)
def test_a_cut_number_is_not_read() -> None:
    scrape = parse_scrape('vllm:generation_tokens_total{engine="0"} 5.0\nvllm:prompt_tokens_total{engine="0"} 1.59')
    assert scrape.cut
    assert counter(scrape, "prompt_tokens") is None
    assert counter(scrape, "generation_tokens") == 5
    assert not parse_scrape(DECODE).cut
    assert parse_scrape(DECODE).bad == ()


@pytest.mark.fault("load", "series that another version names otherwise", "read under both names")
def test_former_names_and_suffixes_are_understood() -> None:
    assert counter(parse_scrape("vllm:gpu_cache_usage_perc 0.25\n"), "kv_cache_usage_perc") == 0.25
    assert counter(parse_scrape("vllm:prompt_tokens 7\n"), "prompt_tokens") == 7
    assert counter(parse_scrape("vllm:prompt_tokens_total 7\r\n"), "prompt_tokens") == 7


def test_engines_are_summed_and_labels_select() -> None:
    samples = [("0", "x", 1), ("1", "x", 2), ("0", "y", 4)]
    lines = [f'vllm:a_total{{engine="{engine}",source="{source}"}} {value}\n' for engine, source, value in samples]
    scrape = parse_scrape("".join(lines))
    assert counter(scrape, "a") == 7
    assert counter(scrape, "a", source="x") == 3
    assert counter(scrape, "a", source="z") is None


@pytest.mark.fault("load", "a counter that was set back", "its increase is null instead of a made-up number")
def test_increase_is_none_after_a_restart_and_counts_new_label_sets_from_zero() -> None:
    old = parse_scrape('vllm:a_total{engine="0"} 10\n')
    assert increase(old, parse_scrape('vllm:a_total{engine="0"} 25\n'), "a") == 15
    assert increase(old, parse_scrape('vllm:a_total{engine="0"} 3\n'), "a") is None
    # one engine set back is not hidden by another one's growth
    two = parse_scrape('vllm:a_total{engine="0"} 3\nvllm:a_total{engine="1"} 100\n')
    assert increase(old, two, "a") is None
    assert increase(old, parse_scrape('vllm:a_total{engine="0"} 10\nvllm:a_total{engine="1"} 5\n'), "a") == 5
    assert increase(old, parse_scrape("vllm:b_total 1\n"), "a") is None
    assert increase(None, old, "a") is None


def test_a_healthy_pd_pair() -> None:
    roles = {"prefill-0": "prefill", "decode-0": "decode"}
    after = {"prefill-0": parse_scrape(PREFILL), "decode-0": parse_scrape(DECODE)}
    before = {"prefill-0": parse_scrape(zeroed(PREFILL)), "decode-0": parse_scrape(zeroed(DECODE))}
    during = {
        "decode-0": [parse_scrape("vllm:kv_cache_usage_perc 0.093\n"), parse_scrape("vllm:kv_cache_usage_perc 0.057\n")]
    }
    counters = server_counters(before, after, during, roles)
    assert counters == {
        "prompt_tokens": 159_744,  # 156 × 1024, counted once although both instances count them
        "generation_tokens": 79_872,  # 156 × 512, without the one token per request that prefill makes
        "prefix_cache_hit_rate": 0.0,  # what came over the connector is no hit, though 100% is "external" on D
        "preemptions": 0,
        "kv_transfer": {
            "count": 156,
            "bytes": 20_937_965_568,
            "seconds": pytest.approx(2.394712),
            "failed": 0,
            "expired": 0,
            "prompt_tokens": 159_744,
            "external_tokens": 159_744,
            "local_prefill_tokens": 0,
        },
        "kv_cache_usage_max": 0.093,
        "queue_mean_s": pytest.approx(18.327942553999605 / 156),
        "prefill_mean_s": pytest.approx(31.405948631997717 / 156),
        "decode_mean_s": pytest.approx(578.7596674879986 / 156),
    }


def test_what_went_wrong_is_counted_where_it_did() -> None:
    """A KV cache expires on the instance that kept it; a fault of one is known though another one tells nothing."""
    roles = {"p": "prefill", "d": "decode"}
    expired = 'vllm:nixl_num_kv_expired_reqs_total{engine="0"} '
    start = {name: parse_scrape(expired + "1\n") for name in roles}
    end = {"p": parse_scrape(expired + "4\n"), "d": start["d"]}
    assert server_counters(start, end, {}, roles)["kv_transfer"]["expired"] == 3
    assert server_counters(start, {**end, "d": None}, {}, roles)["kv_transfer"]["expired"] == 3
    assert server_counters(start, start, {}, roles)["kv_transfer"]["expired"] == 0
    assert server_counters(start, {**start, "d": None}, {}, roles)["kv_transfer"]["expired"] is None


def test_decode_fetched_on_the_cpu_engine_too() -> None:
    text = (DATA / "cpu/pd_auto_D.metrics").read_text()
    counters = server_counters({"d": parse_scrape(zeroed(text))}, {"d": parse_scrape(text)}, {}, {"d": "decode"})
    transfer = counters["kv_transfer"]
    assert (transfer["count"], transfer["bytes"]) == (6, 17_694_720)
    assert (transfer["prompt_tokens"], transfer["external_tokens"], transfer["local_prefill_tokens"]) == (768, 768, 0)


def test_a_single_server_has_no_transfer_and_counts_everything_itself() -> None:
    text = (DATA / "cpu/default_auto.metrics").read_text()
    counters = server_counters(
        {"single": parse_scrape(zeroed(text))}, {"single": parse_scrape(text)}, {}, {"single": "single"}
    )
    assert counters["kv_transfer"] is None
    assert counters["prompt_tokens"] == 768
    assert counters["generation_tokens"] == 192
    assert counters["prefix_cache_hit_rate"] == 0
    assert counters["kv_cache_usage_max"] is None  # never scraped during the load


def test_an_unknown_instance_makes_the_sum_unknown() -> None:
    after = {"replica-0": parse_scrape(PREFILL), "replica-1": parse_scrape(PREFILL)}
    before = {"replica-0": parse_scrape(zeroed(PREFILL)), "replica-1": None}
    roles = {"replica-0": "replica", "replica-1": "replica"}
    assert server_counters(before, after, {}, roles)["prompt_tokens"] is None
    before["replica-1"] = before["replica-0"]
    assert server_counters(before, after, {}, roles)["prompt_tokens"] == 2 * 159_744


def test_local_prefill_where_a_version_does_not_break_prompts_down_by_source() -> None:
    text = re.sub(r"^vllm:prompt_tokens_by_source.*\n", "", DECODE, flags=re.MULTILINE)
    text = text.replace(
        'external_prefix_cache_hits_total{engine="0",model_name="m"} 159744',
        'external_prefix_cache_hits_total{engine="0",model_name="m"} 158720',
    )
    counters = server_counters({"d": parse_scrape(zeroed(text))}, {"d": parse_scrape(text)}, {}, {"d": "decode"})
    assert counters["kv_transfer"]["external_tokens"] == 158_720
    assert counters["kv_transfer"]["local_prefill_tokens"] == 1024


def test_rows_of_scrapes_jsonl_are_chosen_by_time_point_and_instance() -> None:
    rows = [
        row("vllm:prompt_tokens_total 5\n", "before", "single"),
        row("vllm:prompt_tokens_total 5\nvllm:kv_cache_usage_perc 0.5\n", "during", "single"),
        row("vllm:prompt_tokens_total 25\n", "after", "single"),
        row("vllm:prompt_tokens_total 25\n", "before", "single", point=1),
        row("", "after", "single", point=1, ok=False),
        row("x 1\n", "after", "router"),
        row('{"version":"0.32.0"}', "ready", "single", point=None, kind="version"),
    ]
    roles = {"single": "single"}
    assert point_counters(rows, roles, 0)["prompt_tokens"] == 20
    assert point_counters(rows, roles, 0)["kv_cache_usage_max"] == 0.5
    assert point_counters(rows, roles, 1)["prompt_tokens"] is None  # the answer after the point never came
    assert counter(read_scrape(rows, "after", "single"), "prompt_tokens") == 25
    assert read_scrape(rows, "warm", "single") is None
    assert read_answer(rows, "version", "single") == '{"version":"0.32.0"}'
    assert read_answer(rows, "server_info", "single") is None


def test_an_engine_states_its_cache_in_labels() -> None:
    labels = cache_config(parse_scrape(DECODE))
    assert (labels["cache_dtype"], labels["kv_cache_size_tokens"], labels["block_size"]) == ("auto", "851408", "16")
