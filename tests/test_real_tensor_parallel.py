"""Tensor parallelism on real vLLM on the CPU: one instance of two ranks, and such a prefill/decode pair."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from study_processes import require_free_leases, require_no_process

from pdkv.artifacts import read_json
from pdkv.measuring.cores import split_among_ranks

ROOT = Path(__file__).parent.parent
ENGINE = ROOT / ".engine/cpu/bin/python"
TOKENIZER = ROOT / ".engine/models/bundled"  # whose own nine heads can't be halved
LAYERS, KV_HEADS, HEAD_DIM, BLOCK = 2, 2, 64, 128  # tokens of a KV block of vLLM on a CPU
SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4 * HEAD_DIM,
    "head_dim": HEAD_DIM,
    "num_attention_heads": 4,
    "num_key_value_heads": KV_HEADS,
    "num_hidden_layers": LAYERS,
    "intermediate_size": 512,
    "vocab_size": 49_152,
    "max_position_embeddings": 512,
    "dtype": "bfloat16",
}
STUDY = """\
model: {{name: {model}, load_format: dummy}}
engine: {{python: {python}, device: cpu}}
workloads: {{w: {{input_tokens: 64, output_tokens: 4, concurrency: [2], requests: 4, max_model_len: 128}}}}
modes: {{default: {{tensor_parallel_size: 2}}, 1p1d: {{tensor_parallel_size: 2}}}}
dtypes: [bf16]
"""
REQUESTS = 7  # 2 ramp, 4 measured, 1 drain
MODES = ("default", "1p1d")
ON_TIME = {"requests sent on time", "answers read on time"}  # two ranks of busy threads leave the client no core
pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in which both modes were measured and reported; random weights."""
    folder = tmp_path_factory.mktemp("ranks")
    model = folder / "model"
    model.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TOKENIZER / name, model)
    (model / "config.json").write_text(json.dumps(SHAPE), encoding="utf-8")
    (folder / "config").mkdir()
    text = STUDY.format(model=json.dumps(str(model)), python=json.dumps(str(ENGINE)))
    (folder / "config/config.yaml").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile"), "--cores", "1"]
    leases = folder / "leases"
    done = subprocess.run(
        [*command, "reports/summary.md"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "PDKV_LEASE_DIR": str(leases)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=900,
    )
    assert done.returncode == 0, done.stdout
    yield folder
    require_no_process(folder)
    require_free_leases(leases)


def trial(study: Path, mode: str) -> Path:
    return study / "results/w" / mode / "bf16/r1"


def checks(study: Path, mode: str) -> dict[str, dict[str, Any]]:
    [launch] = read_json(trial(study, mode).parent / "cell.json", "cell/1")["trials"]
    assert launch["failure"] is None, launch["failure"]
    return {check["name"]: check for check in launch["checks"]}


@pytest.mark.parametrize("mode", MODES)
def test_every_instance_resolved_to_two_ranks_and_answered(study: Path, mode: str) -> None:
    found = checks(study, mode)
    assert not [check for check in found.values() if check["state"] == "failed" and check["name"] not in ON_TIME]
    assert found["tensor parallelism as asked"]["state"] == "passed"
    instances = read_json(trial(study, mode) / "launch.json", "launch/1")["instances"]
    assert {instance["tensor_parallel_size"] for instance in instances} == {2}
    # The whole cache of an instance, as the study gives it, dealt out to its ranks with the heads.
    assert {instance["kv_cache_bytes"] for instance in instances} == {2**30}
    assert {instance["kv_cache_tokens"] for instance in instances} == {2**30 // (2 * LAYERS * KV_HEADS * HEAD_DIM * 2)}
    [point] = read_json(trial(study, mode) / "metrics.json", "metrics/1")["points"]
    assert point["requests"]["measured_ok"] == 4


@pytest.mark.parametrize("mode", MODES)
def test_ranks_had_the_cores_that_they_were_given(study: Path, mode: str) -> None:
    instances = read_json(trial(study, mode) / "stages.json", "stages/1")["instances"]
    for instance in instances:
        log = (trial(study, mode) / instance["log"]).read_text(encoding="utf-8")
        for rank, cores in enumerate(split_among_ranks(instance["cores"], 2)):
            assert f"local_rank={rank}, core ids={cores}" in log
    enough = len({core for instance in instances for core in instance["cores"]}) >= 2 * len(instances)
    assert checks(study, mode)["ranks on cores of their own"]["state"] == ("passed" if enough else "suspect")


def test_each_rank_fetched_its_half_of_every_kv_cache(study: Path) -> None:
    [point] = read_json(trial(study, "1p1d") / "metrics.json", "metrics/1")["points"]
    transfer = point["server"]["kv_transfer"]
    assert transfer["count"] == 2 * REQUESTS
    assert transfer["bytes"] == REQUESTS * BLOCK * 2 * LAYERS * KV_HEADS * HEAD_DIM * 2  # K and V, bfloat16
    assert (transfer["failed"], transfer["expired"], transfer["local_prefill_tokens"]) == (0, 0, 0)
    assert checks(study, "1p1d")["KV cache transferred for every request"]["state"] == "passed"


@pytest.mark.parametrize("mode", MODES)
def test_no_rank_lives_on(study: Path, mode: str) -> None:
    stages = read_json(trial(study, mode) / "stages.json", "stages/1")
    assert stages["leftovers"] == []
    assert not [each["pid"] for each in stages["instances"] if psutil.pid_exists(each["pid"])]
    require_no_process(study)
