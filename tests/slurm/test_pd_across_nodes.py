"""Prefill and decode on two nodes of one Slurm job: a real Slurm whose two nodes have networks of their own."""

import json
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from slurm_cluster import SUBNET, Cluster
from slurm_study import ENDED, ROOT, Run, Study, await_state, end_of, living, survivors_of, wait_amid

FIRST, SECOND = "pdkv-node1", "pdkv-node2"
ADDRESSES = {FIRST: f"{SUBNET}.11", SECOND: f"{SUBNET}.12"}
HELD = "{prefill: 1, decode: 1, nodes: 2, env: {FAKE_READY_S: never, FAKE_WORKERS: '2', FAKE_DEAF_S: '120'}}"
MODES = {
    "cancelled": HELD,
    "killed": HELD,
    "dying": HELD,
    "1p1d": "{nodes: 2}",
    "2x": "{nodes: 2}",
    "together": "{prefill: 1, decode: 1}",
    "4x": "{nodes: 2, tensor_parallel_size: 2}",
}
REAL = """\
model: bundled
engine: cpu
workloads:
  w: {input_tokens: 64, output_tokens: 8, concurrency: [2], requests: 4, max_model_len: 128}
modes: {1p1d: {nodes: 2, env: {UCX_TLS: "tcp,self"}}}  # two nodes of one machine share memory as well
dtypes: [fp16]
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="pdkv-slurm-") as folder, Cluster(Path(folder), nodes=2) as running:
        yield running


@pytest.fixture(scope="module")
def study(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Study:
    return Study(tmp_path_factory.mktemp("nodes") / "study", sources)


@pytest.fixture(scope="module")
def run(cluster: Cluster, study: Study) -> Run:
    """Seven trials with a fake engine.

    One is cancelled, of one the measurement is killed, of one the second server, one wants more GPUs than there are.
    """
    study.write(**MODES)
    survivors: dict[str, list[str]] = {}
    ends = {"cancelled": cancel, "killed": kill_measurement, "dying": kill_second_server}

    def begun() -> list[str]:
        return [mode for mode in ends if mode not in survivors and study.server_log(mode).count("worker") == 4]

    with study.running("--set-resources", "measure:cpus_per_gpu=2") as running:
        while len(survivors) < len(ends):  # two of them fill the nodes, whichever these are
            wait_amid(running, study, begun, "the next one has begun")
            mode = begun()[0]
            job = cluster.running_job(f"w/{mode}/fp16/r1")
            assert job is not None
            processes = living(study, mode, job)
            assert {address for address in ADDRESSES.values() if any(address in each for each in processes)} == set(
                ADDRESSES.values()
            ), processes
            ends[mode](cluster, job, processes)
            await_state(cluster, job, ENDED)
            survivors[mode] = survivors_of(study, mode, job)
        status = end_of(running, study, 300)
    jobs = {mode: cluster.jobs_of(f"w/{mode}/fp16/r1") for mode in MODES}
    return Run(status, study.said(), jobs, survivors)


def cancel(cluster: Cluster, job: str, processes: list[str]) -> None:
    cluster.cancel(job)


def kill_measurement(cluster: Cluster, job: str, processes: list[str]) -> None:
    kill_one(processes, " -m pdkv measure ")


def kill_second_server(cluster: Cluster, job: str, processes: list[str]) -> None:
    kill_one(processes, f"serve fake/model --host {ADDRESSES[SECOND]}")


def kill_one(processes: list[str], words: str) -> None:
    [pid] = [process.partition(" ")[0] for process in processes if words in process]
    os.kill(int(pid), signal.SIGKILL)


def instances(stages: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {instance["name"]: instance for instance in stages["instances"]}


def test_all_that_can_be_measured_is_measured(run: Run, study: Study) -> None:
    assert study.measured() == {"1p1d", "2x", "together", "dying"}, study.said()[-3000:]
    assert run.status == 1  # one was cancelled, one killed, and Slurm refused one
    assert "Requested node configuration is not available" in run.said
    for mode in ("1p1d", "2x", "together"):
        assert study.stages(mode)["outcome"]["status"] == "ok", study.stages(mode)["outcome"]


def test_prefill_and_decode_ran_on_two_nodes_and_listened_at_their_addresses(run: Run, study: Study) -> None:
    for mode, names in (("1p1d", ("prefill-0", "decode-0")), ("2x", ("replica-0", "replica-1"))):
        stages = study.stages(mode)
        first, second = stages["nodes"]
        assert {first, second} == {FIRST, SECOND}
        for name, node in zip(names, (first, second), strict=True):
            instance = instances(stages)[name]
            assert instance["node"] == node
            assert instance["url"] == f"http://{ADDRESSES[node]}:{instance['port']}"
            assert instance["argv"][instance["argv"].index("--host") + 1] == ADDRESSES[node]
            [gpu] = instance["gpus"]
            assert gpu.startswith(f"GPU-{node}-")  # Slurm's choice there
        assert stages["router"]["url"].startswith("http://127.0.0.1:")
        assert stages["leftovers"] == []
    decode = instances(study.stages("1p1d"))["decode-0"]
    assert decode["env"]["VLLM_NIXL_SIDE_CHANNEL_HOST"] == ADDRESSES[decode["node"]]


def test_a_trial_on_one_node_listens_nowhere_but_there(run: Run, study: Study) -> None:
    stages = study.stages("together")
    assert stages["nodes"] == []
    for instance in stages["instances"]:
        assert instance["node"] is None and instance["url"].startswith("http://127.0.0.1:")
        assert instance["env"]["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "127.0.0.1"


def test_servers_on_the_second_node_are_read_and_loaded(run: Run, study: Study) -> None:
    lines = (study.trial("1p1d") / "scrapes.jsonl").read_text(encoding="utf-8").splitlines()
    scrapes = [json.loads(line) for line in lines]
    told = {scrape["when"] for scrape in scrapes if scrape["instance"] == "decode-0" and scrape["ok"]}
    assert told >= {"ready", "before", "after", "end"}
    metrics = json.loads((study.trial("1p1d") / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["points"][0]["requests"]["measured_ok"] == 4


@pytest.mark.fault(
    "pd", "the devices of another node are not sampled", "named as not watched; no check of them has passed"
)
def test_what_was_not_watched_is_told(run: Run, study: Study) -> None:
    trace = json.loads((study.trial("1p1d") / "trace.json").read_text(encoding="utf-8"))
    [unseen] = [entry for entry in trace["missing"] if entry["devices"] == ["decode-0"]]
    assert "another node" in unseen["reason"]
    assert not [check for check in trace["checks"] if check["state"] == "passed"]
    environment = study.stages("1p1d")["environment"]
    assert len(environment["nodes"]) == 1 and environment["nodes"][0]["gpus_visible"] == 1


def test_nothing_lives_on_on_either_node(run: Run) -> None:
    assert run.survivors == {"cancelled": [], "killed": [], "dying": []}


@pytest.mark.fault(
    "pd", "the server on another node dies", "failed, the server is named with its signal; the other cells are measured"
)
def test_a_server_that_dies_on_the_second_node_fails_its_cell_alone(run: Run, study: Study) -> None:
    stages = study.stages("dying")
    assert (stages["outcome"]["status"], stages["outcome"]["stage"]) == ("failed", "launch")
    assert stages["outcome"]["reason"].startswith("decode-0 was killed by signal 9 (SIGKILL)")
    assert stages["leftovers"] == []


# ---- real engines ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real(cluster: Cluster, sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Study:
    """One prefill and one decode instance of vLLM on processor cores, the KV cache over NIXL and TCP between them."""
    study = Study(tmp_path_factory.mktemp("real") / "study", sources, fake_gpus=False)
    (study.folder / "config").mkdir(parents=True)
    (study.folder / ".engine").symlink_to(ROOT / ".engine")
    (study.folder / "config/config.yaml").write_text(REAL, encoding="utf-8")
    with study.running("results/w/1p1d/fp16/cell.json") as running:
        status = end_of(running, study, 450)
    assert status == 0, study.said()[-4000:]
    return study


def test_a_kv_cache_travels_between_the_nodes(real: Study) -> None:
    stages = real.stages("1p1d")
    assert stages["outcome"]["status"] == "ok", stages["outcome"]
    urls = [instance["url"].rpartition(":")[0] for instance in stages["instances"]]
    assert sorted(urls) == [f"http://{address}" for address in ADDRESSES.values()]
    metrics = json.loads((real.trial("1p1d") / "metrics.json").read_text(encoding="utf-8"))
    [point] = metrics["points"]
    assert point["requests"]["measured_ok"] == 4
    transfer = point["server"]["kv_transfer"]
    assert transfer["count"] == 7  # 2 ramp, 4 measured, 1 drain
    assert transfer["bytes"] >= 7 * 64 * 30 * 2 * 3 * 64 * 2  # tokens × layers × K and V × heads × head size × 2 bytes
    assert transfer["failed"] == 0 and transfer["expired"] == 0
    assert transfer["local_prefill_tokens"] == 0
    states = {check["name"]: check["state"] for check in metrics["checks"]}
    assert states["KV cache transferred for every request"] == "passed"


def test_what_travelled_went_over_the_network(real: Study, cluster: Cluster) -> None:
    metrics = json.loads((real.trial("1p1d") / "metrics.json").read_text(encoding="utf-8"))
    _, decoding = real.stages("1p1d")["nodes"]
    assert cluster.bytes_received(decoding) >= metrics["points"][0]["server"]["kv_transfer"]["bytes"]


def test_real_engines_on_two_nodes_are_gone(real: Study, cluster: Cluster) -> None:
    stages = real.stages("1p1d")
    assert stages["leftovers"] == []
    [job] = cluster.jobs_of("w/1p1d/fp16/r1")[-1:]
    assert survivors_of(real, "1p1d", job.partition(" ")[0]) == []
    assert [binding for binding in stages["bindings"] if binding["instance"] == "decode-0" and binding["threads"]]
