"""From a trial to commands, environments and estimates, without starting anything."""

import json
from pathlib import Path

import pytest

from pdkv.errors import UserError
from pdkv.measuring.feasibility import (
    Host,
    estimate_seconds,
    find_crowding,
    find_obstacles,
    find_shortages,
    find_waits,
)
from pdkv.measuring.gpu_memory import explain_shortage
from pdkv.measuring.model_shape import UNKNOWN, ModelShape, read_model_shape
from pdkv.measuring.plan import CPU_RANK_BYTES, CPU_RUNTIME_BYTES, ResolvedEngine, plan_trial, token_range
from pdkv.measuring.resolve import BUNDLED_SHAPE
from pdkv.study.config import load_study

CPU = ResolvedEngine("cpu", "cpu", ("python", "-m", "vllm"), "python", ("router",))
CUDA = ResolvedEngine("cuda", "cuda", ("python", "-m", "vllm"), "python", ("router",))
LLAMA_8B = ModelShape(8_030_000_000, 32, 8, 128, 128_256, 131_072)
STUDY = """\
model: {model}
workloads:
  w:
    {{input_tokens: 128, output_tokens: 16, concurrency: [2, 4], request_rate: [0.5], requests: 20, max_model_len: 512}}
modes: {modes}
dtypes: [{dtype}]
"""


def make_plan(tmp_path: Path, modes: str, *, engine=CPU, dtype="bf16", model="bundled", more="", shape=UNKNOWN):
    path = tmp_path / "study.yaml"
    path.write_text(STUDY.format(modes=modes, dtype=dtype, model=model) + more)
    trial = load_study(path).trials()[0]
    return trial, plan_trial(trial, engine, "/models/m", shape)


def argument(plan, flag: str, instance: int = 0) -> str | None:
    argv = plan["instances"][instance]["argv"]
    return argv[argv.index(flag) + 1] if flag in argv else None


def test_default_leaves_chunking_to_the_engine_and_fixes_all_else(tmp_path):
    _, plan = make_plan(tmp_path, "[default]")
    argv = plan["instances"][0]["argv"]
    assert argv[:5] == ["python", "-m", "vllm", "serve", "/models/m"]
    assert not any("chunked" in word for word in argv)
    assert "--no-enable-prefix-caching" in argv
    assert argument(plan, "--max-num-batched-tokens") == "2048"
    assert argument(plan, "--kv-cache-dtype") == "auto"
    assert plan["router"] is None


@pytest.mark.parametrize(
    ("mode", "flag"), [("chunked", "--enable-chunked-prefill"), ("unchunked", "--no-enable-chunked-prefill")]
)
def test_chunking_is_the_only_difference_between_modes(tmp_path, mode, flag):
    _, default = make_plan(tmp_path, "[default]")
    _, other = make_plan(tmp_path, f"[{mode}]")
    assert set(other["instances"][0]["argv"]) - set(default["instances"][0]["argv"]) == {flag}


def test_token_budget_holds_the_longest_prompt(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text(STUDY.format(modes="[unchunked]", dtype="bf16", model="bundled").replace("512", "8192"))
    assert load_study(path).trials()[0].engine.token_budget == 8192


def test_disaggregated_mode_gives_each_role_its_connector_ports_and_router(tmp_path):
    _, plan = make_plan(tmp_path, "[2p1d]", dtype="fp8_e4m3")
    assert [i["name"] for i in plan["instances"]] == ["prefill-0", "prefill-1", "decode-0"]
    transfers = [json.loads(argument(plan, "--kv-transfer-config", i)) for i in range(3)]
    assert [t["kv_role"] for t in transfers] == ["kv_producer", "kv_producer", "kv_consumer"]
    assert {t["kv_buffer_device"] for t in transfers} == {"cpu"}
    assert all(i["env"]["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "{kv_port}" for i in plan["instances"])
    router = plan["router"]["argv"]
    assert router.count("--prefill") == 2 and router.count("--decode") == 1
    assert "{url:decode-0}" in router and "--vllm-pd-disaggregation" in router


def test_connector_by_name_with_its_own_settings(tmp_path):
    connector = "{name: MooncakeConnector, config: {kv_role: kv_both, kv_connector_extra_config: {n: 4}}}"
    modes = f"{{1p1d: {{kv_connector: {connector}}}}}"
    _, plan = make_plan(tmp_path, modes, engine=CUDA)
    transfer = json.loads(argument(plan, "--kv-transfer-config"))
    assert transfer["kv_connector"] == "MooncakeConnector"
    assert transfer["kv_role"] == "kv_both"
    assert transfer["kv_connector_extra_config"] == {"n": 4}
    assert not any("NIXL" in name for name in plan["instances"][0]["env"])


def test_replicas_stand_behind_the_same_router(tmp_path):
    _, plan = make_plan(tmp_path, "[2x]")
    assert [i["role"] for i in plan["instances"]] == ["replica", "replica"]
    assert plan["router"]["argv"][-3:] == ["--worker-urls", "{url:replica-0}", "{url:replica-1}"]


def test_arguments_of_engine_mode_and_role_in_that_order(tmp_path):
    modes = (
        "{1p1d: {args: {max_num_seqs: 8}, decode_args: {max_num_seqs: 16, enable_expert_parallel: true}, env: {A: b}}}"
    )
    _, plan = make_plan(
        tmp_path, modes, more="engine: {kind: cpu, args: {max_num_seqs: 4, seed: 1}, env: {A: a, C: d}}\n"
    )
    assert (argument(plan, "--max-num-seqs", 0), argument(plan, "--max-num-seqs", 1)) == ("8", "16")
    assert "--enable-expert-parallel" in plan["instances"][1]["argv"]
    assert argument(plan, "--seed") == "1"
    assert plan["instances"][0]["env"]["A"] == "b" and plan["instances"][0]["env"]["C"] == "d"


def test_gpus_per_instance_by_tensor_parallelism(tmp_path):
    _, plan = make_plan(tmp_path, "{1p1d: {tensor_parallel_size: 2}}", engine=CUDA)
    assert [i["gpus"] for i in plan["instances"]] == [2, 2]
    assert [i["ranks"] for i in plan["instances"]] == [2, 2]
    assert "--enforce-eager" not in plan["instances"][0]["argv"]


def test_ranks_of_a_cpu_engine_share_out_cores_and_cache(tmp_path):
    _, plan = make_plan(tmp_path, "{tp: {tensor_parallel_size: 2}}", more="engine: {kind: cpu, kv_cache_gib: 3}\n")
    [instance] = plan["instances"]
    assert (instance["gpus"], instance["ranks"]) == (0, 2)
    assert argument(plan, "--tensor-parallel-size") == "2"
    assert argument(plan, "--kv-cache-memory-bytes") == str(3 * 2**29)  # what each rank takes
    assert "VLLM_CPU_KVCACHE_SPACE" not in instance["env"]  # it would win over the argument
    assert instance["env"]["VLLM_CPU_OMP_THREADS_BIND"] == "{cores}"

    _, plan = make_plan(tmp_path, "[default]", more="engine: {kind: cpu, kv_cache_gib: 3}\n")
    assert argument(plan, "--kv-cache-memory-bytes") is None
    assert plan["instances"][0]["env"]["VLLM_CPU_KVCACHE_SPACE"] == "3"


def test_points_carry_ramp_and_drain(tmp_path):
    _, plan = make_plan(tmp_path, "[default]")
    assert [(p["point"], p["arrival"], p["ramp"], p["requests"], p["drain"]) for p in plan["points"]] == [
        (0, "closed", 2, 20, 1),
        (1, "closed", 4, 20, 3),
        (2, "poisson", 2, 20, 2),
    ]


def test_endpoint_is_asked_for_nothing(tmp_path):
    _, plan = make_plan(tmp_path, "{live: {endpoint: 'http://127.0.0.1:8000'}}")
    assert plan["instances"] == [] and plan["router"] is None
    assert plan["endpoint"] == "http://127.0.0.1:8000"
    assert set(plan["asked"].values()) == {None}


def test_memory_of_a_model_that_is_known(tmp_path):
    _, plan = make_plan(tmp_path, "[1p1d]", engine=CUDA, dtype="fp8", shape=LLAMA_8B)
    memory = plan["memory"]
    assert memory["weights_bytes"] == 16_060_000_000
    assert memory["kv_bytes_per_token"] == 2 * 32 * 8 * 128
    assert memory["kv_bytes_needed"] == memory["kv_bytes_per_token"] * 4 * (128 + 16)
    prefill, decode = memory["per_gpu"]
    assert (prefill["role"], decode["role"]) == ("prefill", "decode")
    assert prefill["weights_bytes"] == decode["weights_bytes"] == 16_060_000_000
    assert prefill["kv_bytes"] == memory["kv_bytes_per_token"] * 4 * 128  # until decode has fetched them
    assert decode["kv_bytes"] == memory["kv_bytes_needed"]
    assert prefill["transfer_bytes"] == 0  # NIXL registers the cache where it is
    assert memory["total_bytes"] == prefill["total_bytes"] + decode["total_bytes"]


def test_memory_of_a_gpu_by_tensor_parallelism_and_role(tmp_path):
    modes = "{2p1d: {tensor_parallel_size: 16, decode_args: {max_num_seqs: 3}, args: {enforce_eager: true}}}"
    _, plan = make_plan(tmp_path, modes, engine=CUDA, shape=LLAMA_8B)
    prefill, decode = plan["memory"]["per_gpu"]
    assert prefill["weights_bytes"] == 16_060_000_000 / 16
    per_head = 2 * 32 * 128 * 2
    assert prefill["kv_bytes"] == 2 * 128 * per_head  # half of the users; 8 heads on 16 GPUs: each has one
    assert (decode["users"], decode["kv_bytes"]) == (3, 3 * 144 * per_head)  # as many as it serves at once
    assert decode["kv_least_bytes"] == 512 * per_head
    assert prefill["graph_bytes"] == 0
    assert plan["memory"]["total_bytes"] == 16 * (2 * prefill["total_bytes"] + decode["total_bytes"])


def test_memory_of_a_connector_that_is_not_known_has_no_sum(tmp_path):
    modes = "{1p1d: {kv_connector: {name: MooncakeConnector}}}"
    _, plan = make_plan(tmp_path, modes, engine=CUDA, shape=LLAMA_8B)
    assert plan["memory"]["per_gpu"][0]["transfer_bytes"] is None
    assert plan["memory"]["total_bytes"] is None


def test_estimate_holds_against_what_vllm_stated_on_an_h200(tmp_path):
    """Llama-8B-shaped with a vocabulary of 49,152, bf16: 13.8 GiB weights, 104 GiB for 850,928 tokens of KV cache."""
    (tmp_path / "config.json").write_text(
        '{"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,'
        ' "intermediate_size": 14336, "vocab_size": 49152}'
    )
    _, plan = make_plan(tmp_path, "[default]", engine=CUDA, shape=read_model_shape(tmp_path))
    [single] = plan["memory"]["per_gpu"]
    assert single["weights_bytes"] == pytest.approx(13.8 * 2**30, rel=0.01)
    assert plan["memory"]["kv_bytes_per_token"] == pytest.approx(103.87 * 2**30 / 850_928, rel=0.001)
    assert single["activation_bytes"] >= (0.93 + 0.22) * 2**30
    assert single["graph_bytes"] >= 0.98 * 2**30


def test_memory_on_a_cpu_holds_the_whole_cache_of_each_instance(tmp_path):
    _, plan = make_plan(tmp_path, "[2x]", shape=LLAMA_8B, more="engine: {kind: cpu, kv_cache_gib: 8}\n")
    assert plan["memory"]["total_bytes"] == 2 * (16_060_000_000 + 8 * 2**30 + CPU_RUNTIME_BYTES)


def test_memory_of_ranks_on_a_cpu_holds_weights_and_cache_once(tmp_path):
    modes, more = "{2x: {tensor_parallel_size: 16}}", "engine: {kind: cpu, kv_cache_gib: 8}\n"
    _, plan = make_plan(tmp_path, modes, shape=LLAMA_8B, more=more)
    memory = plan["memory"]
    runtime = CPU_RUNTIME_BYTES + 15 * CPU_RANK_BYTES
    assert memory["total_bytes"] == 2 * (16_060_000_000 + 8 * 2**30 + runtime)
    assert memory["kv_bytes_needed"] == 2 * memory["kv_bytes_per_token"] * 4 * (128 + 16)  # 8 heads, each on two ranks


@pytest.mark.parametrize(
    ("heads", "kv_heads", "ranks", "possible"),
    [
        (9, 3, 1, True),
        (9, 3, 2, False),
        (9, 3, 3, True),
        (9, 3, 9, True),  # each KV head on three ranks
        (12, 3, 2, False),  # three KV heads can be neither dealt out to two ranks nor repeated on them
        (12, 3, 6, True),
        (12, 3, 4, False),
        (32, 8, 16, True),
        (8, 8, 16, False),
        (None, None, 7, True),  # not known: the engine will say
    ],
)
def test_heads_are_dealt_out_evenly(heads, kv_heads, ranks, possible):
    shape = ModelShape(None, None, kv_heads, None, None, None, heads)
    assert shape.can_be_split(ranks) == possible


@pytest.mark.parametrize("engine", [CPU, CUDA], ids=["cpu", "cuda"])
@pytest.mark.fault(
    "input",
    "tensor_parallel_size does not divide the heads of the model",
    "refused before anything starts, with the sizes that do",
)
def test_a_model_that_cannot_be_split_is_refused(tmp_path, engine):
    with pytest.raises(UserError, match="mode 1p1d: tensor_parallel_size 2 can't divide the model's 9 att") as caught:
        make_plan(tmp_path, "{1p1d: {tensor_parallel_size: 2}}", engine=engine, shape=BUNDLED_SHAPE)
    assert caught.value.remedy == "set it to 1 or 3 or 9, or name another model"


def test_max_model_len_beyond_the_model_is_refused(tmp_path):
    with pytest.raises(UserError, match="more than the model's 256 positions"):
        make_plan(tmp_path, "[default]", shape=ModelShape(1, 1, 1, 1, 100, 256))


def test_shape_of_an_8b_model_counts_its_parameters(tmp_path):
    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "hidden_size": 4096,
                "num_hidden_layers": 32,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "intermediate_size": 14336,
                "vocab_size": 128256,
                "max_position_embeddings": 131072,
            }
        )
    )
    shape = read_model_shape(tmp_path)
    assert shape.parameters == 8_030_261_248  # the published count of Llama 3.1 8B
    assert shape.head_dim == 128
    assert shape.heads == 32
    assert read_model_shape(tmp_path / "nowhere") == UNKNOWN


@pytest.mark.parametrize("vocabulary", [None, 20, 1000, 49_152, 128_256])
def test_token_range_lies_inside_the_vocabulary(vocabulary):
    low, high = token_range(vocabulary)
    assert 0 < low < high <= (vocabulary or 30_000)


def test_obstacles_name_the_cell_and_the_remedy(tmp_path):
    trial, plan = make_plan(tmp_path, "{1p1d: {tensor_parallel_size: 2}}", engine=CUDA, shape=LLAMA_8B)
    assert find_obstacles(trial, plan, Host(8, 2**40, (80 * 2**30,) * 4)) == []
    [few] = find_obstacles(trial, plan, Host(8, 2**40, (80 * 2**30,) * 2))
    assert few.startswith("w/1p1d/bf16: needs 4 GPUs, 2 are visible")

    trial, plan = make_plan(tmp_path, "[1p1d]", shape=LLAMA_8B)
    assert "needs 2 cores" in find_obstacles(trial, plan, Host(1, 2**40, ()))[0]
    assert "this machine has 16.0 GiB" in find_obstacles(trial, plan, Host(8, 16 * 2**30, ()))[0]


def test_ranks_without_cores_of_their_own_are_told(tmp_path):
    trial, plan = make_plan(tmp_path, "{1p1d: {tensor_parallel_size: 2}}", shape=LLAMA_8B)
    [told] = find_crowding(plan, Host(2, 2**40, ()))
    assert told.startswith("4 ranks of tensor parallelism share 2 cores")
    assert find_obstacles(trial, plan, Host(2, 2**40, ())) == []
    assert find_crowding(plan, Host(4, 2**40, ())) == find_crowding(plan, Host(1, 2**40, ())) == []
    assert "needs 2 cores for 2 instances" in find_obstacles(trial, plan, Host(1, 2**40, ()))[0]
    _, plan = make_plan(tmp_path, "{1p1d: {tensor_parallel_size: 2}}", engine=CUDA)
    assert find_crowding(plan, Host(2, 2**40, ())) == []


def test_ranks_make_no_core_faster(tmp_path):
    trial, plan = make_plan(tmp_path, "[default]", shape=LLAMA_8B)
    ranks, on_ranks = make_plan(tmp_path, "{tp: {tensor_parallel_size: 2}}", shape=LLAMA_8B)
    assert estimate_seconds(ranks, on_ranks) == estimate_seconds(trial, plan)
    ranks, on_ranks = make_plan(tmp_path, "{tp: {tensor_parallel_size: 2}}", shape=LLAMA_8B, engine=CUDA)
    trial, plan = make_plan(tmp_path, "[default]", shape=LLAMA_8B, engine=CUDA)
    assert estimate_seconds(ranks, on_ranks) < estimate_seconds(trial, plan)


def test_a_shortage_has_numbers_and_a_remedy(tmp_path):
    _, plan = make_plan(tmp_path, "{1p1d: {tensor_parallel_size: 2}}", engine=CUDA, shape=LLAMA_8B)
    assert find_shortages(plan, Host(8, 2**40, (80 * 2**30,) * 4)) == []
    prefill, decode = find_shortages(plan, Host(8, 2**40, (8 * 2**30, 80 * 2**30)))
    assert prefill.startswith("prefill needs about 9.01 GiB of each GPU (7.48 GiB weights, 32.0 MiB KV cache for one")
    assert "7.20 GiB (0.9 of 8.00 GiB, engine.gpu_memory_utilization): raise tensor_parallel_size" in prefill
    assert decode.startswith("decode needs")


def test_memory_that_others_hold_is_a_shortage(tmp_path):
    _, plan = make_plan(tmp_path, "[default]", engine=CUDA, shape=LLAMA_8B)
    [single] = plan["memory"]["per_gpu"]
    assert explain_shortage(single, 0.9, 80 * 2**30, 72 * 2**30) is None
    assert explain_shortage(single, 0.9, 80 * 2**30, 71 * 2**30) == (
        "single takes 72.0 GiB (0.9 of 80.0 GiB, engine.gpu_memory_utilization) of each GPU, 71.0 GiB are free: "
        "end what uses the rest, or lower engine.gpu_memory_utilization"
    )


def test_users_that_will_wait_are_told_and_no_shortage(tmp_path):
    more = "engine: {kind: cuda, gpu_memory_utilization: 0.5}\n"
    _, plan = make_plan(tmp_path, "[default]", engine=CUDA, shape=LLAMA_8B, more=more)
    plan["memory"]["per_gpu"][0] |= {"users": 64, "kv_bytes": 64 * 2**30}
    host = Host(8, 2**40, (80 * 2**30,))
    assert find_shortages(plan, host) == []
    assert find_waits(plan, host) == [
        "the KV cache of single has about 23.5 GiB and holds 23 of 64 users at full length: the others wait, "
        "or are preempted"
    ]


def test_unknown_sizes_are_no_obstacle(tmp_path):
    trial, plan = make_plan(tmp_path, "[1p1d]", engine=CUDA)
    assert plan["memory"]["total_bytes"] is None
    assert find_obstacles(trial, plan, Host(8, 2**30, (None, None))) == []
    assert find_shortages(plan, Host(8, 2**30, (None, None))) == find_waits(plan, Host(8, 2**30, (1, 1))) == []
    assert find_shortages(plan, Host(8, 2**30, (1, 1))) == []
    assert estimate_seconds(trial, plan) > 0
