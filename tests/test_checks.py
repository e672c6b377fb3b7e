"""Every check can pass, fail and say that it does not know."""

from typing import Any

import pytest

from pdkv.analysing.checks import Check, state_of
from pdkv.analysing.launch_checks import check_cores_of_ranks, check_launch, kv_format
from pdkv.analysing.transfer_checks import check_kv_transfer, check_prefix_cache

ASKED: dict[str, Any] = {
    "model_dtype": "bfloat16",
    "kv_cache_dtype": "fp8",
    "chunked_prefill": True,
    "max_num_batched_tokens": 2048,
    "max_model_len": 2048,
    "prefix_caching": False,
    "kv_connector": "NixlConnector",
    "load_format": "dummy",
    "tensor_parallel_size": 1,
}


def instance(name: str = "decode-0", role: str = "decode", **changes: Any) -> dict[str, Any]:
    stated = {**ASKED, "engine_version": "0.32.0", "attention_backend": "FLASH_ATTN"}
    return {"name": name, "role": role, **stated, **changes}


def launch_check(name: str, *instances: dict[str, Any], **asked: Any) -> Check:
    return next(each for each in check_launch({**ASKED, **asked}, instances, []) if each.name == name)


def test_state_of_a_trial() -> None:
    passed, suspect, failed, unknown = (Check(state, state, "") for state in ("passed", "suspect", "failed", "unknown"))
    assert state_of([passed, unknown]) == "valid"
    assert state_of([passed, suspect, unknown]) == "suspect"
    assert state_of([suspect, failed]) == "invalid"
    assert state_of([]) == "valid"
    assert failed.as_json() == {"name": "failed", "state": "failed", "evidence": "", "remedy": ""}


def test_a_launch_that_became_what_was_asked_passes_everywhere() -> None:
    checks = check_launch(ASKED, [instance("prefill-0", "prefill"), instance()], [])
    assert {check.state for check in checks} == {"passed"}
    assert len(checks) == len(ASKED) + 2


@pytest.mark.parametrize(
    ("name", "key", "other"),
    [
        ("KV-cache precision as asked", "kv_cache_dtype", "fp8_e5m2"),
        ("KV-cache precision as asked", "kv_cache_dtype", "auto"),
        ("model precision as asked", "model_dtype", "float16"),
        ("chunked prefill as asked", "chunked_prefill", False),
        ("token budget as asked", "max_num_batched_tokens", 8192),
        ("maximum length as asked", "max_model_len", 4096),
        ("prefix caching as asked", "prefix_caching", True),
        ("weights loaded as asked", "load_format", "auto"),
        ("tensor parallelism as asked", "tensor_parallel_size", 2),
        ("KV connector as asked", "kv_connector", "none"),
    ],
)
@pytest.mark.fault(
    "launch",
    "the engine resolves another setting than was asked",
    "invalid, with what was asked and what it resolved to",
)
def test_another_setting_fails_and_an_unknown_one_is_unknown(name: str, key: str, other: object) -> None:
    failed = launch_check(name, instance("prefill-0", "prefill"), instance(**{key: other}))
    assert failed.state == "failed"
    assert "decode-0" in failed.evidence
    assert failed.remedy
    unknown = launch_check(name, instance("prefill-0", "prefill"), instance(**{key: None}))
    assert unknown.state == "unknown"
    assert "decode-0" in unknown.evidence


@pytest.mark.parametrize(
    ("asked", "resolved", "state"),
    [
        ("fp8", "fp8_e4m3", "passed"),
        ("fp8_e4m3", "fp8", "passed"),
        ("fp8", "fp8_e4m3fnuz", "passed"),
        ("fp8_e5m2", "fp8", "failed"),
        ("auto", "auto", "passed"),
        ("auto", "bfloat16", "passed"),
        ("auto", "fp8", "failed"),
    ],
)
def test_names_of_one_kv_format(asked: str, resolved: str, state: str) -> None:
    assert (
        launch_check("KV-cache precision as asked", instance(kv_cache_dtype=resolved), kv_cache_dtype=asked).state
        == state
    )


def test_one_name_for_each_kv_format() -> None:
    assert kv_format("fp8", "bfloat16") == kv_format("fp8_e4m3", "float16") == "fp8_e4m3"
    assert kv_format("auto", "bfloat16") == kv_format("bfloat16", None) == "bfloat16"
    assert kv_format("fp8_e4m3fnuz", None) == "fp8_e4m3fnuz"
    assert kv_format("auto", None) == "auto"


def test_what_was_not_asked_is_not_checked() -> None:
    names = {check.name for check in check_launch(dict.fromkeys(ASKED), [instance()], [])}
    assert names == {"engine version supported", "nothing left after shutdown"}


@pytest.mark.parametrize(
    ("versions", "state"),
    [
        (["0.26.0"], "passed"),
        (["0.33.1+cu130"], "passed"),
        (["0.25.9"], "suspect"),
        (["0.34.0"], "suspect"),
        (["1.0.0"], "suspect"),
        (["dev"], "suspect"),
        (["0.32.0", "0.31.0"], "failed"),
        ([None], "unknown"),
        (["0.32.0", None], "unknown"),
    ],
)
def test_engine_versions(versions: list[str | None], state: str) -> None:
    instances = [instance(f"decode-{index}", engine_version=version) for index, version in enumerate(versions)]
    assert launch_check("engine version supported", *instances).state == state


@pytest.mark.fault(
    "launch", "instances of one role resolve to different settings", "invalid, with the settings that differ"
)
def test_instances_of_a_role_must_be_alike() -> None:
    alike = [instance("decode-0"), instance("decode-1")]
    assert launch_check("decode instances alike", *alike).state == "passed"
    differing = [instance("decode-0"), instance("decode-1", attention_backend="FLASHINFER")]
    check = launch_check("decode instances alike", *differing)
    assert check.state == "failed"
    assert check.evidence == "attention_backend: FLASH_ATTN, FLASHINFER"


@pytest.mark.fault(
    "launch", "a process or GPU memory is left after the shutdown", "suspect, with its pid and how to end it"
)
def test_leftovers_are_named_with_what_to_do() -> None:
    left = [{"name": "single", "pid": 123, "process": "VLLM::Worker"}, {"gpu": "GPU-1", "mem_bytes": 9}]
    remedy = check_launch(ASKED, [instance()], left)[-1].remedy
    assert "`kill 123`" in remedy
    assert "nvidia-smi" in remedy
    assert "nvidia-smi" not in check_launch(ASKED, [instance()], left[:1])[-1].remedy
    assert "kill 123" not in check_launch(ASKED, [instance()], left[1:])[-1].remedy


@pytest.mark.parametrize(
    ("leftovers", "state"), [([], "passed"), ([{"pid": 123, "process": "VLLM::Worker"}], "suspect"), (None, "unknown")]
)
def test_leftovers(leftovers: list[dict[str, Any]] | None, state: str) -> None:
    check = check_launch(ASKED, [instance()], leftovers)[-1]
    assert (check.name, check.state) == ("nothing left after shutdown", state)
    assert ("still there: pid 123, process VLLM::Worker" in check.evidence) == bool(leftovers)


# --- KV transfer and prefix cache


def point(ok: int = 156, hit_rate: float | None = 0.0, **transfer: Any) -> dict[str, Any]:
    healthy = {
        "count": 156,
        "bytes": 20_937_965_568,
        "seconds": 2.4,
        "failed": 0,
        "expired": 0,
        "prompt_tokens": 159_744,
        "external_tokens": 159_744,
        "local_prefill_tokens": 0,
    }
    server = {"prefix_cache_hit_rate": hit_rate, "kv_transfer": {**healthy, **transfer}}
    return {"point": 0, "concurrency": 2, "rate": None, "requests": {"ok": ok}, "server": server}


def states(*points: dict[str, Any]) -> list[str]:
    return [check.state for check in check_kv_transfer(points)]


def test_a_healthy_transfer() -> None:
    checks = check_kv_transfer([point()])
    assert [check.state for check in checks] == ["passed"] * 3
    assert checks[0].evidence == "156 transfers, 19.5 GiB, for 156 requests at concurrency 2"


def test_without_disaggregation_there_is_nothing_to_check() -> None:
    single = point()
    single["server"]["kv_transfer"] = None
    assert check_kv_transfer([single]) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"count": 155}, ["failed", "passed", "passed"]),
        ({"bytes": 0}, ["failed", "passed", "passed"]),
        ({"count": 0, "bytes": 0, "local_prefill_tokens": 159_744}, ["failed", "passed", "failed"]),
        ({"failed": 1}, ["passed", "failed", "passed"]),
        ({"expired": 2}, ["passed", "failed", "passed"]),
        ({"local_prefill_tokens": 156}, ["passed"] * 3),  # the last token of each prompt, computed again
        ({"local_prefill_tokens": 1024}, ["passed", "passed", "failed"]),  # one whole prompt
        ({"failed": None}, ["passed", "unknown", "passed"]),
        ({"local_prefill_tokens": None}, ["passed", "passed", "unknown"]),
        # another connector: no counter of transfers, but prompts that came from outside
        ({"count": None, "bytes": None}, ["passed"] * 3),
        ({"count": None, "bytes": None, "external_tokens": 100_000}, ["failed", "passed", "passed"]),
        ({"count": None, "bytes": None, "external_tokens": None}, ["suspect", "passed", "passed"]),  # not shown
    ],
)
@pytest.mark.fault(
    "pd", "fewer KV transfers than requests, or none, or failed ones", "invalid, each by a check of its own"
)
def test_transfers_that_did_not_happen(changes: dict[str, Any], expected: list[str]) -> None:
    assert states(point(**changes)) == expected


@pytest.mark.parametrize(("count", "state"), [(312, "passed"), (311, "suspect"), (156, "suspect"), (155, "failed")])
@pytest.mark.fault(
    "pd", "not every rank of tensor parallelism counts its KV transfers", "suspect, with transfers, requests and ranks"
)
def test_every_rank_transfers_for_every_request(count: int, state: str) -> None:
    check = check_kv_transfer([point(count=count)], ranks=2)[0]
    assert check.state == state
    seen = f"{count} transfers, 19.5 GiB, for 156 requests"
    assert check.evidence.startswith(seen + (" and 2 ranks" if state == "suspect" else " at"))


@pytest.mark.parametrize(
    ("ranks", "cores", "state"),
    [
        (2, [[0], [1]], "suspect"),
        (2, [[0, 1], [0, 1]], "suspect"),
        (2, [[0, 1], [0, 2]], "suspect"),
        (2, [[0, 1], [2, 3]], "passed"),
    ],
)
@pytest.mark.fault("launch", "fewer cores than ranks of tensor parallelism on a CPU", "suspect, with both numbers")
def test_ranks_want_cores_of_their_own(ranks: int, cores: list[list[int]], state: str) -> None:
    launched = [{"name": name, "cores": own} for name, own in zip(("prefill-0", "decode-0"), cores, strict=True)]
    [check] = check_cores_of_ranks(ranks, launched)
    assert check.state == state
    assert check.evidence == f"4 ranks on {len({*cores[0], *cores[1]})} cores"
    assert ("at least 4 cores" in check.remedy) == (state == "suspect")


def test_cores_are_no_matter_without_ranks_on_a_cpu() -> None:
    assert check_cores_of_ranks(1, [{"name": "single", "cores": [0]}]) == []
    assert check_cores_of_ranks(2, [{"name": "single", "cores": None}, {"name": "endpoint"}]) == []


def test_a_transfer_that_is_not_shown_is_suspect_and_says_where_to_look() -> None:
    check = check_kv_transfer([point(count=None, bytes=None, external_tokens=None)])[0]
    assert check.state == "suspect"
    assert "scrapes.jsonl" in check.remedy


def test_one_bad_point_is_enough_and_is_named() -> None:
    bad = {**point(count=3), "concurrency": 64}
    check = check_kv_transfer([point(), bad])[0]
    assert check.state == "failed"
    assert check.evidence == "3 transfers, 19.5 GiB, for 156 requests at concurrency 64"
    assert "kv_transfer_params" in check.remedy


@pytest.mark.parametrize(
    ("rates", "state"),
    [([0.0], "passed"), ([0.0, 0.4], "failed"), ([0.0, None], "unknown"), ([None, 0.4], "failed"), ([], "unknown")],
)
@pytest.mark.fault(
    "load",
    "prompts are found in the engine's own prefix cache",
    "invalid, with the share of tokens that were not computed",
)
def test_prefix_cache_hits(rates: list[float | None], state: str) -> None:
    points = [{**point(hit_rate=rate), "concurrency": 2**index} for index, rate in enumerate(rates)]
    assert check_prefix_cache(points).state == state


@pytest.mark.fault("load", "the engine's metrics page never answers", "the checks that need it are unknown, not passed")
def test_counters_that_never_came_are_unknown() -> None:
    assert check_prefix_cache([{**point(), "server": None}]).state == "unknown"
