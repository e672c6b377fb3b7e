"""A trial on several nodes of a Slurm job: planned, asked for, measured through steps, and never more said than known.

``srun`` and ``scontrol`` are stand-ins here, which start everything on this machine; the second node is 127.0.0.2. The
real ones: tests/slurm/test_pd_across_nodes.py.
"""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from trial_plans import fake_plan

from pdkv.analysing.cell_pairs import Pair, Side, pair_cells, refusal_of
from pdkv.analysing.comparability import differing_facts, environment_facts
from pdkv.analysing.hardware_units import hardware_units
from pdkv.analysing.trace_checks import unwatched_instances
from pdkv.artifacts import read_json
from pdkv.errors import StageFailed, UserError
from pdkv.measuring.feasibility import Host, find_obstacles
from pdkv.measuring.job_nodes import Node, nodes_of_job, step_environment
from pdkv.measuring.job_request import request_job
from pdkv.measuring.model_shape import UNKNOWN
from pdkv.measuring.other_node import OtherNode
from pdkv.measuring.plan import ResolvedEngine, plan_trial
from pdkv.measuring.readiness import await_ready
from pdkv.measuring.server_process import ServerProcess, stop_servers
from pdkv.measuring.trial import measure_trial
from pdkv.records import Trial
from pdkv.study.config import load_study

STUDY = """\
model: fake/model
engine: {{command: vllm, device: {device}}}
workloads:
  w: {{input_tokens: 16, output_tokens: 4, concurrency: [2], requests: 4, max_model_len: 64}}
modes: {{{modes}}}
dtypes: [fp16]
"""
SRUN = """\
#!/bin/bash
echo "$*" >> "$(dirname "$0")/steps"
while [[ $1 == --* ]]; do shift; done
PDKV_LEASE_DIR="$(dirname "$0")/../leases-second" exec "$@"
"""
SCONTROL = """\
#!/bin/bash
case "$*" in
  "--oneliner show job 7") echo "JobId=7 NodeList=n[1-2] BatchHost=n1 StdOut=/tmp/7.log" ;;
  "show hostnames n[1-2]") printf 'n2\\nn1\\n' ;;
  "--oneliner show node n1") echo "NodeName=n1 NodeAddr=127.0.0.1 NodeHostName=here" ;;
  "--oneliner show node n2") echo "NodeName=n2 NodeAddr=127.0.0.2 NodeHostName=here" ;;
  *) echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1 ;;
esac
"""

ENVIRONMENT = {"host_cpu": "CPU", "cores": 8, "cuda_driver": "13.0", "engine": {}, "gpus": [], "gpus_visible": 0}


def trials(folder: Path, modes: str, device: str = "cuda") -> dict[str, Trial]:
    path = folder / "study.yaml"
    path.write_text(STUDY.format(modes=modes, device=device), encoding="utf-8")
    return {trial.mode.id: trial for trial in load_study(path).trials()}


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the stand-ins, in job 7 on node n1."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    for name, value in (("SLURM_JOB_ID", "7"), ("SLURMD_NODENAME", "n1"), ("SLURM_GPUS", "4"), ("SRUN_X", "1")):
        monkeypatch.setenv(name, value)
    return folder


def test_instances_are_dealt_evenly_and_listen_at_their_node_s_address(tmp_path: Path) -> None:
    asked = trials(tmp_path, "1p1d: {nodes: 2}, 2p2d: {nodes: 2}, 4x: {nodes: 4}, 2p1d: {}")
    engine = ResolvedEngine("custom", "cuda", ("vllm",), None, ("vllm-router",))
    plans = {mode: plan_trial(trial, engine, "m", UNKNOWN) for mode, trial in asked.items()}
    places = {mode: [instance["node"] for instance in plan["instances"]] for mode, plan in plans.items()}
    assert places == {"1p1d": [0, 1], "2p2d": [0, 0, 1, 1], "4x": [0, 1, 2, 3], "2p1d": [0, 0, 0]}
    for mode, host in (("1p1d", "{host}"), ("2p1d", "127.0.0.1")):
        for instance in plans[mode]["instances"]:
            assert instance["argv"][instance["argv"].index("--host") + 1] == host
            assert instance["env"]["VLLM_NIXL_SIDE_CHANNEL_HOST"] == host
        router = plans[mode]["router"]["argv"]
        assert router[router.index("--host") + 1] == "127.0.0.1"


@pytest.mark.parametrize(
    ("modes", "told"),
    [
        ("2p1d: {nodes: 2}", "3 instances can't be dealt evenly to 2 nodes"),
        ("own: {nodes: 2}", "1 instances can't be dealt evenly to 2 nodes"),
        ("default: {nodes: 2}", "with nodes it is not what default means"),
        ("1p1d: {nodes: 0}", "a whole number of nodes"),
    ],
)
def test_nodes_that_cannot_be_are_refused(tmp_path: Path, modes: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        trials(tmp_path, modes)


def test_a_job_asks_for_the_nodes_and_for_memory_on_each(tmp_path: Path) -> None:
    asked = trials(tmp_path, "together: {prefill: 1, decode: 1}, 1p1d: {nodes: 2}")
    together, apart = (request_job(asked[mode], tmp_path) for mode in ("together", "1p1d"))
    assert (together.nodes, together.gpus) == (1, 2) and (apart.nodes, apart.gpus) == (2, 2)
    assert together.memory_mb / 2 < apart.memory_mb < together.memory_mb


def test_without_a_cluster_such_a_mode_stops_the_study_before_it_begins(tmp_path: Path) -> None:
    trial = trials(tmp_path, "1p1d: {nodes: 2}", "cpu")["1p1d"]
    plan = plan_trial(trial, ResolvedEngine("custom", "cpu", ("vllm",), None, ()), "m", UNKNOWN)
    [obstacle] = find_obstacles(trial, plan, Host(cores=8, memory_bytes=1 << 40, gpus=()))
    assert "2 nodes of a Slurm cluster" in obstacle and "--profile profiles/slurm" in obstacle


def test_the_node_that_measures_comes_first(slurm: Path) -> None:
    assert [(node.name, node.address) for node in nodes_of_job(2)] == [("n1", "127.0.0.1"), ("n2", "127.0.0.2")]
    with pytest.raises(UserError, match="needs 3"):
        nodes_of_job(3)


@pytest.mark.fault(
    "pd",
    "Slurm's addresses of two hosts are loopback addresses (127.0.1.1 in /etc/hosts)",
    "failed at launch, with the addresses and what to mend",
)
def test_hosts_that_would_listen_to_themselves_alone_are_refused(slurm: Path, tmp_path: Path) -> None:
    two_hosts = SCONTROL.replace("NodeAddr=127.0.0.1 NodeHostName=here", "NodeAddr=198.18.77.1 NodeHostName=n1")
    two_hosts = two_hosts.replace("NodeAddr=127.0.0.2 NodeHostName=here", "NodeAddr=127.0.1.1 NodeHostName=n2")
    (slurm / "scontrol").write_text(two_hosts, encoding="utf-8")
    failure = measure_trial(two_node_plan(), tmp_path / "r1")
    assert failure is not None and failure.stage == "launch"
    assert "127.0.1.1 for n2" in failure.reason and "/etc/hosts" in failure.reason
    assert not (slurm / "steps").exists()
    (slurm / "scontrol").write_text(two_hosts.replace("127.0.1.1", "198.18.77.2"), encoding="utf-8")
    assert [node.address for node in nodes_of_job(2)] == ["198.18.77.1", "198.18.77.2"]


def test_outside_of_a_job_there_are_no_nodes(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "8")
    with pytest.raises(UserError, match="Invalid job id"):
        nodes_of_job(2)
    monkeypatch.delenv("SLURM_JOB_ID")
    with pytest.raises(UserError, match="needs a Slurm job of 2 nodes"):
        nodes_of_job(2)


def test_a_step_inherits_no_options_of_the_job(slurm: Path) -> None:
    names = set(step_environment())
    assert "SLURM_JOB_ID" in names and "PATH" in names and not names & {"SLURM_GPUS", "SRUN_X"}


# ---- measured ----------------------------------------------------------------------------------------------------


def two_node_plan(**env: str) -> dict[str, Any]:
    plan = fake_plan("1p1d", **env)
    for number, instance in enumerate(plan["instances"]):
        instance["node"] = number
        instance["argv"] += ["--host", "{host}"]
    return plan


@pytest.fixture
def no_process_is_left() -> Iterator[None]:
    yield
    children = [process for process in psutil.Process().children(recursive=True) if process.status() != "zombie"]
    commands = [" ".join(process.cmdline()) for process in children]
    assert not [command for command in commands if "fake_engine.py" in command or "node_agent" in command]


def test_both_nodes_serve_and_are_left_clean(slurm: Path, tmp_path: Path, no_process_is_left: None) -> None:
    assert measure_trial(two_node_plan(FAKE_WORKERS="1"), tmp_path / "r1") is None
    stages = read_json(tmp_path / "r1/stages.json", "stages/1")
    assert stages["nodes"] == ["n1", "n2"] and stages["leftovers"] == [] and stages["beside"] == []
    prefill, decode = stages["instances"]
    assert (prefill["node"], decode["node"]) == ("n1", "n2")
    assert prefill["url"].startswith("http://127.0.0.1:") and decode["url"].startswith("http://127.0.0.2:")
    assert decode["ready_s"] > 0 and (tmp_path / "r1/server/decode-0.log").stat().st_size
    [other] = stages["environment"]["nodes"]
    assert other["host_cpu"] == stages["environment"]["host_cpu"]
    assert unwatched_instances(stages) == ["decode-0"]
    steps = (slurm / "steps").read_text(encoding="utf-8").splitlines()
    assert len(steps) == 2 and all("--nodelist=n2" in step and "--overlap" in step for step in steps)
    assert not any(path.name.startswith("pid:") for path in tmp_path.rglob("*"))


def test_a_server_of_the_other_node_that_dies_fails_the_cell(
    slurm: Path, tmp_path: Path, no_process_is_left: None
) -> None:
    plan = two_node_plan()
    plan["instances"][1]["env"]["FAKE_EXIT"] = "3"
    failure = measure_trial(plan, tmp_path / "r1")
    assert failure is not None and failure.stage == "launch"
    assert failure.reason.startswith("decode-0 ended with status 3")


def test_a_step_that_cannot_be_started_is_told(slurm: Path, tmp_path: Path) -> None:
    (slurm / "srun").write_text("#!/bin/bash\necho 'srun: error: Unable to create step' >&2\nexit 1\n")
    failure = measure_trial(two_node_plan(), tmp_path / "r1")
    assert failure is not None
    assert "node n2" in failure.reason


@pytest.mark.fault(
    "pd", "a prolog of the cluster prints into the output of every job step", "its words are no answers: measured"
)
def test_what_a_prolog_prints_is_no_answer(slurm: Path, tmp_path: Path, no_process_is_left: None) -> None:
    words = """echo 'loading modules'; echo 7; echo '{"module": "loaded"}'; printf 'and {no} end of line '"""
    (slurm / "srun").write_text(SRUN.replace("PDKV_LEASE_DIR", f"{words}\nPDKV_LEASE_DIR"), encoding="utf-8")
    assert measure_trial(two_node_plan(), tmp_path / "r1") is None
    stages = read_json(tmp_path / "r1/stages.json", "stages/1")
    assert stages["leftovers"] == [] and all(instance["pid"] for instance in stages["instances"])


SILENT = """\
#!/bin/bash
echo 'waiting for better times'
exec sleep 1000
"""


@pytest.mark.fault(
    "pd",
    "srun waits for ever and starts no step on the other node",
    "failed at launch after `limits.launch_timeout_s`, with what it printed",
)
def test_a_node_on_which_no_step_begins_is_given_up(slurm: Path, tmp_path: Path, no_process_is_left: None) -> None:
    (slurm / "srun").write_text(SILENT, encoding="utf-8")
    plan = two_node_plan()
    plan["trial"]["limits"]["launch_timeout_s"] = 0.5
    began_s = time.monotonic()
    failure = measure_trial(plan, tmp_path / "r1")
    assert failure is not None and failure.stage == "launch"
    assert failure.reason.startswith("node n2 told nothing within 0.5 s: it printed waiting for better times")
    assert "limits.launch_timeout_s" in failure.reason
    assert time.monotonic() - began_s < 300


def test_a_server_whose_step_does_not_begin_is_given_up(
    slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node had answered, and srun starts no more there. The stand-in's child holds its output open for ever."""
    (slurm / "srun").write_text(SILENT.replace("exec sleep 1000", "sleep 1000 &\necho $!\nwait"), encoding="utf-8")
    for name in ("GRACE_S", "STEP_TELLS_WITHIN_S", "LAST_WORDS_S"):
        monkeypatch.setattr(f"pdkv.measuring.server_process.{name}", 0.1)
    node = Node("n2", "127.0.0.2")
    server = ServerProcess("decode-0", ["vllm"], {}, 9, tmp_path / "log", node=node, elsewhere=OtherNode(node, []))
    server.start()
    # The load of the machine decides how soon the stand-in prints.
    while server.silence.count(" / ") < 1:
        assert not server.has_ended()
        time.sleep(0.01)
    sleeping = int(server.silence.rpartition(" / ")[2])
    try:
        with pytest.raises(StageFailed) as raised:
            await_ready([server], "m", 0.2)
        assert raised.value.reason == (
            "decode-0 not ready within 0.2 s (limits.launch_timeout_s): its step on node n2 told nothing: "
            f"it printed waiting for better times / {sleeping}"
        )
        assert server.pid is None
        stop_servers([server])
        assert server.has_ended()
    finally:
        os.kill(sleeping, signal.SIGKILL)


# ---- what may be said of it --------------------------------------------------------------------------------------


def gpus(name: str) -> dict[str, Any]:
    return {"gpus": [{"name": name, "memory_bytes": 1, "driver": "570"}], "gpus_visible": 1}


def test_nodes_of_one_kind_are_like_one_node(tmp_path: Path) -> None:
    node = {**ENVIRONMENT, **gpus("H100")}
    both = environment_facts({**node, "nodes": [node]})
    assert differing_facts(both, environment_facts(node)) == []


def test_nodes_of_two_kinds_are_like_none(tmp_path: Path) -> None:
    one, other = {**ENVIRONMENT, **gpus("H100")}, {**ENVIRONMENT, **gpus("A100"), "host_cpu": "Another"}
    both = environment_facts({**one, "nodes": [other]})
    assert "gpu: A100, 1 bytes, H100, 1 bytes / H100, 1 bytes" in differing_facts(both, environment_facts(one))
    assert "host_cpu: Another, CPU / CPU" in differing_facts(both, environment_facts(one))


def test_cores_of_two_nodes_without_gpus_are_twice_the_hardware() -> None:
    both = {**ENVIRONMENT, "nodes": [ENVIRONMENT]}
    assert hardware_units({"gpus": 0, "environment": both}) == (16, "core")
    assert differing_facts(environment_facts(both), environment_facts(ENVIRONMENT)) == ["cores: 16 / 8"]


@pytest.mark.parametrize(("nodes", "rival"), [(1, "2x"), (2, "2x-apart")])
def test_the_rival_on_equal_hardware_is_on_as_many_nodes(nodes: int, rival: str) -> None:
    def cell(mode: str, **config: int) -> dict[str, Any]:
        content = {"workload": "w", "mode": mode, "dtype": "fp16", "gpus": 2, "instances": 2}
        return {**content, "config": {"mode": {"id": mode, **config}}}

    replicas = [cell("2x", replicas=2), cell("2x-apart", replicas=2, nodes=2)]
    pairs = pair_cells([*replicas, cell("1p1d", prefill=1, decode=1, nodes=nodes)], "default", "fp16")
    assert [pair.base.cell["mode"] for pair in pairs if pair.factor == "hardware"] == [rival]


def test_cells_of_a_block_on_unequal_gpus_are_not_compared() -> None:
    def cell(mode: str, *kinds: str) -> dict[str, Any]:
        state = "passed" if len(set(kinds)) == 1 else "suspect"
        check = {"name": "same environment in all launches", "state": state, "evidence": " / ".join(kinds)}
        content = {"mode": mode, "label": mode, "state": "valid", "trials": [], "checks": [check], "config": {}}
        return {**content, "environment": {**ENVIRONMENT, **gpus(kinds[0])}}

    def refusal(one: dict[str, Any], other: dict[str, Any]) -> str | None:
        return refusal_of(Pair("mode", Side(one), Side(other)))

    assert refusal(cell("1p1d", "H100", "H100"), cell("default", "H100", "H100")) is None
    assert "gpu: H100, 1 bytes / A100" in (refusal(cell("1p1d", "H100"), cell("default", "A100")) or "")
    mixed = refusal(cell("1p1d", "H100", "A100"), cell("default", "H100", "H100"))
    assert mixed is not None and mixed.startswith("1p1d: not the same environment in all launches")
