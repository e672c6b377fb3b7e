"""launch.json out of recorded logs and answers."""

import json
from pathlib import Path
from typing import Any

import pytest

from pdkv.analysing.launch_facts import describe_launch, read_launch
from pdkv.artifacts import read_json, write_json, write_text

DATA = Path(__file__).parent / "data"
ASKED: dict[str, Any] = {
    "model_dtype": "bfloat16",
    "kv_cache_dtype": "auto",
    "chunked_prefill": None,
    "max_num_batched_tokens": 2048,
    "max_model_len": 2048,
    "prefix_caching": False,
    "kv_connector": None,
    "load_format": "auto",
    "tensor_parallel_size": 1,
}
STAGES: dict[str, Any] = {
    "outcome": {"status": "ok", "stage": None, "reason": None, "excerpt": None},
    "instances": [{"name": "single", "ready_s": 41.5}],
    "leftovers": [],
}


def read(name: str) -> str:
    return (DATA / name).read_bytes().decode()


def planned(name: str = "single", role: str = "single", *argv: str, **env: str) -> dict[str, Any]:
    command = ["vllm", "serve", "/models/llama-8b", "--host", "127.0.0.1", "--port", "{port}", *argv]
    return {"name": name, "role": role, "index": 0, "argv": command, "env": env, "gpus": 1, "ranks": 1}


def plan(*instances: dict[str, Any], **asked: Any) -> dict[str, Any]:
    return {"endpoint": None, "instances": list(instances) or [planned()], "asked": {**ASKED, **asked}}


def answers(name: str, instance: str = "single") -> list[dict[str, Any]]:
    kinds = {"metrics": "metrics", "version.json": "version", "server_info.json": "server_info"}
    row = {"t_s": 1.0, "when": "ready", "point": None, "instance": instance, "ok": True, "status": 200}
    return [{**row, "kind": kind, "text": read(f"{name}.{ending}")} for ending, kind in kinds.items()]


def cpu(name: str, **asked: Any) -> dict[str, Any]:
    return describe_launch(plan(**asked), STAGES, {"single": read(f"cpu/{name}.log")}, answers(f"cpu/{name}"))


def h200(name: str, *argv: str, **asked: Any) -> dict[str, Any]:
    asked = {"max_num_batched_tokens": 8192, "load_format": "dummy", **asked}
    return describe_launch(
        plan(planned("single", "single", *argv), **asked), STAGES, {"single": read(f"h200/{name}.log")}, []
    )


def test_the_log_and_the_answers_together() -> None:
    launch = cpu("default_fp8", kv_cache_dtype="fp8")
    instance = launch["instances"][0]
    assert instance == {
        "name": "single",
        "role": "single",
        "engine_version": "0.32.0",
        "model_runner": "V1",
        "model": ".engine/models/bundled",
        "model_dtype": "bfloat16",
        "kv_cache_dtype": "fp8",
        "load_format": "auto",
        "quantization": "none",
        "chunked_prefill": True,
        "max_num_batched_tokens": 2048,
        "max_num_seqs": 128,  # the engine's own default: no log says it
        "max_model_len": 2048,
        "prefix_caching": False,
        "enforce_eager": True,
        "tensor_parallel_size": 1,
        "attention_backend": None,
        "flash_attention": None,
        "kv_cache_tokens": 93_184,
        "max_concurrency": 45.5,
        "kv_cache_bytes": 2**30,
        "block_size": 128,
        "kv_connector": "none",
        "async_scheduling": False,
        "memory": dict.fromkeys(("weights_bytes", "activation_bytes", "non_torch_bytes", "graph_bytes")),
        "startup": {
            "ready_s": 41.5,
            "engine_init_s": instance["startup"]["engine_init_s"],
            "model_load_s": instance["startup"]["model_load_s"],
            "compile_s": None,
            "compile_cache": None,
            "graph_capture_s": None,
        },
    }
    assert 0 < instance["startup"]["engine_init_s"] < 60
    assert launch["status"] == "ok"
    assert launch["resolved"]["single"]["kv_cache_dtype"] == "fp8_e4m3"
    assert {check["state"] for check in launch["checks"]} == {"passed"}


def test_the_server_s_answers_are_enough_without_a_log() -> None:
    rows = answers("cpu/default_auto")
    silent = describe_launch(plan(), STAGES, {}, rows)
    assert silent["instances"][0]["kv_cache_tokens"] == 46_592
    assert silent["identity"] is not None
    assert {check["state"] for check in silent["checks"]} == {"passed"}


def test_the_server_s_word_goes_before_its_log() -> None:
    rows = answers("cpu/default_fp8")
    instance = describe_launch(plan(), STAGES, {"single": read("cpu/default_auto.log")}, rows)["instances"][0]
    assert (instance["kv_cache_dtype"], instance["kv_cache_tokens"]) == ("fp8", 93_184)


def test_nothing_said_is_nothing_known() -> None:
    launch = describe_launch(plan(), STAGES, {"single": "garbage\n"}, [])
    instance = launch["instances"][0]
    facts = {key: value for key, value in instance.items() if key not in ("name", "role", "startup", "memory")}
    assert set(facts.values()) == {None}
    assert set(instance["memory"].values()) == {None}
    assert launch["identity"] is None
    assert {check["state"] for check in launch["checks"][:-1]} == {"unknown"}


def test_broken_answers_are_no_answers() -> None:
    rows = [{**row, "text": row["text"][:1000]} for row in answers("cpu/default_auto")]
    launch = describe_launch(plan(), STAGES, {"single": read("cpu/default_auto.log")}, rows)
    assert launch["instances"][0]["kv_cache_tokens"] == 46_592
    assert launch["instances"][0]["max_num_seqs"] is None
    refused = [{**row, "ok": False, "status": 404, "text": ""} for row in answers("cpu/default_auto")]
    assert describe_launch(plan(), STAGES, {"single": read("cpu/default_auto.log")}, refused)["identity"] is not None


@pytest.mark.parametrize(("cores", "state"), [([0], "suspect"), ([0, 1], "passed")])
def test_ranks_are_held_against_the_cores_of_the_launch(cores: list[int], state: str) -> None:
    stages = {**STAGES, "instances": [{"name": "single", "ready_s": 41.5, "cores": cores}]}
    logs = {"single": read("cpu/default_auto.log")}
    launch = describe_launch(plan(tensor_parallel_size=2), stages, logs, answers("cpu/default_auto"))
    checks = {check["name"]: check["state"] for check in launch["checks"]}
    assert checks["ranks on cores of their own"] == state


def test_a_pd_pair() -> None:
    both = [planned("prefill-0", "prefill"), planned("decode-0", "decode")]
    logs = {"prefill-0": read("h200/pd_auto_P.log"), "decode-0": read("h200/pd_auto_D.log")}
    asked = {"kv_connector": "NixlConnector", "max_num_batched_tokens": 8192, "load_format": "dummy"}
    launch = describe_launch(plan(*both, **asked), STAGES, logs, [])
    assert list(launch["resolved"]) == ["prefill", "decode"]
    assert launch["resolved"]["decode"]["kv_connector"] == "NixlConnector"
    assert {check["state"] for check in launch["checks"]} == {"passed"}
    # the same servers without a connector: known from the log, so it fails and is not "unknown"
    logs["decode-0"] = read("h200/default_auto.log")
    checks = {check["name"]: check for check in describe_launch(plan(*both, **asked), STAGES, logs, [])["checks"]}
    assert checks["KV connector as asked"]["state"] == "failed"
    assert "none on decode-0" in checks["KV connector as asked"]["evidence"]


def test_chunked_asked_and_chunked_by_default_are_the_same_thing() -> None:
    default, chunked = h200("default_auto"), h200("default_auto", "--enable-chunked-prefill", chunked_prefill=True)
    assert default["identity"] == chunked["identity"] is not None


def test_cells_that_differ_have_another_identity() -> None:
    identities = [
        h200("default_auto")["identity"],
        h200("default_fp8")["identity"],
        h200("nochunk_auto")["identity"],
        h200("default_auto", "--scheduling-policy", "priority")["identity"],  # no fact stands for it
        describe_launch(plan(planned(VLLM_X="1")), STAGES, {"single": read("h200/default_auto.log")}, [])["identity"],
        describe_launch(
            plan(planned("replica-0", "replica"), planned("replica-1", "replica")),
            STAGES,
            dict.fromkeys(("replica-0", "replica-1"), read("h200/default_auto.log")),
            [],
        )["identity"],
    ]
    assert None not in identities
    assert len(set(identities)) == len(identities)


def test_fp8_and_e4m3_are_the_same_thing() -> None:
    text = read("h200/default_fp8.log")
    renamed = text.replace("kv_cache_dtype=fp8,", "kv_cache_dtype=fp8_e4m3,")
    first = describe_launch(plan(), STAGES, {"single": text}, [])
    assert describe_launch(plan(), STAGES, {"single": renamed}, [])["identity"] == first["identity"]


def test_instances_that_differ_show_all_their_values() -> None:
    replicas = [planned("replica-0", "replica"), planned("replica-1", "replica")]
    logs = {"replica-0": read("h200/default_auto.log"), "replica-1": read("h200/default_fp8.log")}
    launch = describe_launch(plan(*replicas), STAGES, logs, [])
    assert launch["resolved"]["replica"]["kv_cache_dtype"] == ["bfloat16", "fp8_e4m3"]
    assert "failed" in {check["state"] for check in launch["checks"] if check["name"] == "replica instances alike"}


def test_a_failed_launch_keeps_what_is_known_and_claims_nothing() -> None:
    stages = {
        **STAGES,
        "outcome": {"status": "failed", "stage": "launch", "reason": "died", "excerpt": ""},
        "instances": [],
    }
    launch = describe_launch(plan(kv_cache_dtype="fp8_e5m2"), stages, {"single": read("h200/default_e5m2.log")}, [])
    assert (launch["status"], launch["identity"], launch["checks"]) == ("failed", None, [])
    assert launch["instances"][0]["attention_backend"] == "FLASHINFER"
    assert launch["instances"][0]["startup"]["ready_s"] is None


def test_a_server_of_the_user_is_described_by_its_own_answers() -> None:
    asked = {"endpoint": "http://host:8000", "instances": [], "asked": dict.fromkeys(ASKED)}
    stages = {**STAGES, "instances": []}
    launch = describe_launch(asked, stages, {}, answers("cpu/default_auto", "endpoint"))
    assert (launch["status"], launch["identity"]) == ("skipped", None)
    assert launch["instances"][0]["kv_cache_tokens"] == 46_592
    assert [check["state"] for check in launch["checks"]] == ["unknown"]
    silent = describe_launch(asked, stages, {}, [])["instances"][0]
    assert silent["engine_version"] is None


@pytest.mark.parametrize("with_scrapes", [True, False])
def test_a_trial_folder(tmp_path: Path, with_scrapes: bool) -> None:
    write_json(tmp_path / "plan.json", "plan/1", plan())
    write_json(tmp_path / "stages.json", "stages/1", STAGES)
    write_text(tmp_path / "server" / "single.log", read("cpu/default_auto.log"))
    if with_scrapes:
        lines = [json.dumps(row) + "\n" for row in answers("cpu/default_auto")]
        write_text(tmp_path / "scrapes.jsonl", "".join(lines))
    read_launch(tmp_path)
    launch = read_json(tmp_path / "launch.json", "launch/1")
    assert launch["instances"][0]["kv_cache_tokens"] == 46_592
    assert launch["instances"][0]["max_num_seqs"] == (128 if with_scrapes else None)
