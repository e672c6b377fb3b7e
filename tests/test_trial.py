"""A trial from end to end on the fake engine: what it leaves when all goes well, when it fails, when it is stopped."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_nvml import GIB, FakeGpu, FakeNvml, write_pynvml
from trial_plans import MODEL, fake_plan

from pdkv.artifacts import read_json, read_json_lines, read_parquet, write_json
from pdkv.errors import StageFailed, UserError
from pdkv.measuring.deployment import Deployment
from pdkv.measuring.environment import fingerprint
from pdkv.measuring.leases import Lease, lease_gpus
from pdkv.measuring.ports import reserved_ports
from pdkv.measuring.process_tree import find_marked, read_process
from pdkv.measuring.readiness import await_ready
from pdkv.measuring.server_process import ServerProcess, stop_servers
from pdkv.measuring.trial import measure_trial
from pdkv.measuring.trial_folder import gathering_folder
from pdkv.wings import digest

EVIDENCE = {"stages.json", "sends.parquet", "events.parquet", "samples.parquet", "scrapes.jsonl", "server"}


@pytest.fixture(autouse=True)
def _leases_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDKV_LEASE_DIR", str(tmp_path / "leases"))
    monkeypatch.setattr("pdkv.measuring.trial_devices.fingerprint", partial(fingerprint, look_s=0.01))


def stages_of(out: Path) -> dict[str, Any]:
    return read_json(out / "stages.json", "stages/1")


def sends_of(out: Path, phase: str) -> list[dict[str, Any]]:
    return [row for row in read_parquet(out / "sends.parquet").to_pylist() if row["phase"] == phase]


def living_servers(out: Path) -> list[str]:
    marks = {instance["env"]["PDKV_TRIAL"] for instance in stages_of(out)["instances"]}
    return [process.name for mark in marks for process in find_marked(f"PDKV_TRIAL={mark}")]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one trial that went well."""
    folder = tmp_path_factory.mktemp("single")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PDKV_LEASE_DIR", str(folder / "leases"))
        assert measure_trial(fake_plan(requests=4), folder / "r1", attempt=2) is None
    return folder / "r1"


class TestDone:
    def test_all_evidence_is_there_and_nothing_else(self, out: Path) -> None:
        assert {path.name for path in out.iterdir()} == EVIDENCE

    def test_stages_follow_each_other_within_the_wall_time(self, out: Path) -> None:
        stages = stages_of(out)
        assert stages["attempt"] == 2
        assert stages["source"] == digest("plan", "resolve", "trial", "keeper"), "as the rule's params have it"
        assert stages["outcome"] == {"status": "ok", "stage": None, "reason": None, "excerpt": None}
        assert [stage["name"] for stage in stages["stages"]] == ["launch", "warmup", "load", "shutdown"]
        times = [stage[key] for stage in stages["stages"] for key in ("start_s", "end_s")]
        assert [stages["wall"]["start_s"], *times, stages["wall"]["end_s"]] == sorted(
            [stages["wall"]["start_s"], *times, stages["wall"]["end_s"]]
        )
        point = stages["points"][0]
        load = stages["stages"][2]
        assert load["start_s"] <= point["start_s"] < point["end_s"] <= load["end_s"]

    def test_every_request_of_the_load_is_recorded(self, out: Path) -> None:
        rows = sends_of(out, "load")
        assert Counter(row["part"] for row in rows) == {"ramp": 2, "measured": 4, "drain": 1}
        assert {row["target"] for row in rows} == {"single"}
        assert {row["outcome"] for row in rows} == {"answered"}

    def test_warm_up_says_which_way_each_request_took(self, out: Path) -> None:
        rows = sends_of(out, "warmup")
        assert stages_of(out)["pairs"] == [{"instance": "single"}] * len(rows)
        assert len(rows) >= 2 + 4  # two rounds, then twice the concurrency

    def test_servers_were_asked_at_every_moment(self, out: Path) -> None:
        lines = read_json_lines(out / "scrapes.jsonl")
        asked = Counter((line["when"], line["kind"]) for line in lines if line["when"] != "during")
        once = [("ready", "metrics"), ("ready", "version"), ("ready", "server_info"), ("warm", "metrics")]
        assert asked == dict.fromkeys([*once, ("before", "metrics"), ("after", "metrics"), ("end", "metrics")], 1)
        ok = {line["kind"]: line["ok"] for line in lines}
        assert ok == {"metrics": True, "version": True, "server_info": False}

    def test_devices_were_sampled_from_before_the_launch_to_after_the_shutdown(self, out: Path) -> None:
        times = read_parquet(out / "samples.parquet")["t_s"].to_pylist()
        stages = stages_of(out)["stages"]
        assert min(times) < stages[0]["start_s"]
        assert max(times) > stages[2]["end_s"]

    def test_cores_are_bound_and_looked_at_before_each_point(self, out: Path) -> None:
        stages = stages_of(out)
        assert stages["instances"][0]["cores"] == sorted(os.sched_getaffinity(0))
        assert [found["when"] for found in stages["bindings"]] == ["healthy", "ready", "before point 0"]
        assert stages["client"]["cores"] == sorted(os.sched_getaffinity(0))
        assert (stages["beside"], stages["environment"]["beside"]) == ([], 0)

    def test_no_server_lives_on(self, out: Path) -> None:
        assert stages_of(out)["leftovers"] == []
        assert living_servers(out) == []


MEMORY_FROM_FILE = """
from pathlib import Path
from types import SimpleNamespace
def memory():
    return SimpleNamespace(used=int(Path({used!r}).read_text() or 0))
"""


def write_number(path: Path, number: int) -> None:
    """At once, as seen by other processes."""
    temporary = path.with_suffix(".new")
    temporary.write_text(str(number))
    temporary.replace(path)


@pytest.mark.parametrize(("freed_after_s", "freed_within_s"), [(1.0, 5.0), (60.0, 0.5)])
def test_gpus_are_sampled_idle_before_the_launch_and_after_their_memory_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, freed_after_s: float, freed_within_s: float
) -> None:
    """The engine's memory is there until some time after its end; that is waited for, but not for ever."""
    used = tmp_path / "used"
    write_number(used, 0)
    setup = MEMORY_FROM_FILE.format(used=str(used))
    gpu = 'FakeGpu("GPU-1", answers={"nvmlDeviceGetMemoryInfo": memory})'
    monkeypatch.setenv("PYTHONPATH", str(write_pynvml(tmp_path / "nvml", gpu, setup)), prepend=os.pathsep)
    memory = {"nvmlDeviceGetMemoryInfo": lambda: SimpleNamespace(used=int(used.read_text()), total=80 * GIB)}
    monkeypatch.setattr("pdkv.measuring.trial_devices.open_nvml", lambda: FakeNvml(FakeGpu("GPU-1", answers=memory)))
    monkeypatch.setattr("pdkv.measuring.trial_devices.FREED_WITHIN_S", freed_within_s)
    monkeypatch.setattr(Deployment, "start", _then(Deployment.start, write_number, used, 60 * GIB))
    freeing = threading.Timer(freed_after_s, write_number, (used, 0))
    monkeypatch.setattr(Deployment, "stop", _then(Deployment.stop, freeing.start))
    plan = fake_plan()
    plan["engine"] |= {"kind": "cuda", "device": "cuda"}
    plan["instances"][0]["gpus"] = 1
    try:
        assert measure_trial(plan, tmp_path / "r1") is None
    finally:
        freeing.cancel()
    samples = read_parquet(tmp_path / "r1" / "samples.parquet").to_pylist()
    stages = stages_of(tmp_path / "r1")
    known = [(row["t_s"], row["mem_bytes"]) for row in samples if row["kind"] == "gpu"]
    before = [size for t_s, size in known if t_s < stages["stages"][0]["start_s"]]
    after = [size for t_s, size in known if t_s >= stages["stages"][-1]["end_s"]]
    freed = freed_after_s < freed_within_s
    assert len(before) >= 3
    assert set(before) == {0}
    assert after[-3:] == [0 if freed else 60 * GIB] * 3
    assert {row["device"] for row in samples if row["source"] == "nvml"} == {"GPU-1"}
    assert {row["pcie_rx_bytes_s"] for row in samples if row["kind"] == "gpu_link"} == {1e6}
    assert stages["leftovers"] == ([] if freed else [{"gpu": "GPU-1", "mem_bytes": 60 * GIB}])


def test_who_measured_beside_it_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pdkv.measuring.trial_devices.LOOK_BESIDE_EVERY_S", 0.0)
    nvml = FakeNvml(FakeGpu("GPU-1"))
    came: list[Lease] = []

    def come() -> None:  # after the launch has begun
        came.append(lease_gpus(1, {}, nvml, trial="w/default/fp8/r1"))

    monkeypatch.setattr(Deployment, "start", _then(Deployment.start, come))
    assert measure_trial(fake_plan(), tmp_path / "r1") is None
    came[0].release()
    stages = stages_of(tmp_path / "r1")
    assert (stages["beside"], stages["environment"]["beside"]) == (["w/default/fp8/r1"], 1)


def test_a_trial_on_a_gpu_keeps_to_the_cores_of_its_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.sched_getaffinity(0)
    one = min(before)
    monkeypatch.setattr("pdkv.measuring.trial_devices.cores_of_gpus", lambda cores, mine, count: [one])
    monkeypatch.setattr("pdkv.measuring.trial_devices.open_nvml", lambda: FakeNvml(FakeGpu("GPU-1"), FakeGpu("GPU-2")))
    monkeypatch.setenv("PDKV_LEASE_DIR", str(tmp_path / "leases"))
    plan = fake_plan()
    plan["engine"] |= {"kind": "cuda", "device": "cuda"}
    plan["instances"][0]["gpus"] = 1
    assert measure_trial(plan, tmp_path / "r1") is None
    stages = stages_of(tmp_path / "r1")
    assert stages["client"]["cores"] == [one]
    assert stages["environment"]["cores"] == len(before)  # what it might have had: the same for all trials
    assert {
        row["device"] for row in read_parquet(tmp_path / "r1" / "samples.parquet").to_pylist() if row["kind"] == "core"
    } == {f"cpu{one}"}
    assert os.sched_getaffinity(0) == before


def test_roles_sit_on_the_gpus_that_their_engines_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML's index 0 sits on bus 41, so CUDA calls it 1; and the user has turned the order round once more."""
    cards = 'FakeGpu("GPU-a", bus=41), FakeGpu("GPU-b", bus=7)'
    monkeypatch.setattr("pdkv.measuring.trial_devices.open_nvml", lambda: eval(f"FakeNvml({cards})"))
    monkeypatch.setenv("PYTHONPATH", str(write_pynvml(tmp_path / "nvml", cards)), prepend=os.pathsep)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    plan = fake_plan("1p1d")
    plan["engine"] |= {"kind": "cuda", "device": "cuda"}
    for instance in plan["instances"]:
        instance["gpus"] = 1
    assert measure_trial(plan, tmp_path / "r1") is None
    stages = stages_of(tmp_path / "r1")
    placed = {instance["role"]: (instance["gpus"], instance["env"]) for instance in stages["instances"]}
    assert {role: gpus for role, (gpus, _) in placed.items()} == {"prefill": ["GPU-b"], "decode": ["GPU-a"]}
    assert {role: env["CUDA_VISIBLE_DEVICES"] for role, (_, env) in placed.items()} == {
        "prefill": "GPU-b",
        "decode": "GPU-a",
    }
    samples = read_parquet(tmp_path / "r1" / "samples.parquet").to_pylist()
    traced = {(row["device"], row["role"]) for row in samples if row["kind"] in ("gpu", "gpu_link")}
    assert traced == {("GPU-b", "prefill"), ("GPU-a", "decode")}
    assert {gpu["uuid"]: gpu["index"] for gpu in stages["environment"]["gpus"]} == {"GPU-a": 0, "GPU-b": 1}


def test_what_will_not_fit_is_said_before_anything_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cards = FakeNvml(FakeGpu("GPU-1"), FakeGpu("GPU-2", memory_total=8 * GIB))
    monkeypatch.setattr("pdkv.measuring.trial_devices.open_nvml", lambda: cards)
    monkeypatch.setattr(Deployment, "start", lambda self: pytest.fail("a server was started"))
    plan = fake_plan("1p1d")
    plan["engine"] |= {"kind": "cuda", "device": "cuda"}
    needs = {"weights_bytes": 15 * GIB, "kv_least_bytes": GIB, "activation_bytes": GIB, "transfer_bytes": 0}
    plan["memory"] = {"per_gpu": [{"role": role, **needs} for role in ("prefill", "decode")]}
    for instance in plan["instances"]:
        instance["gpus"] = 1
    failure = measure_trial(plan, tmp_path / "r1")
    assert failure is not None
    assert failure.stage == "launch"
    assert failure.reason.startswith("GPU-2: decode needs about 17.0 GiB of each GPU (15.0 GiB weights, ")
    assert stages_of(tmp_path / "r1")["outcome"]["reason"] == failure.reason


def _then(method: Callable[..., Any], follow: Callable[..., Any], *arguments: Any) -> Callable[..., Any]:
    def both(self: Deployment) -> Any:
        result = method(self)
        follow(*arguments)
        return result

    return both


def test_pairs_are_warmed_as_the_router_does_it(tmp_path: Path) -> None:
    assert measure_trial(fake_plan("1p1d"), tmp_path) is None
    stages = stages_of(tmp_path)
    rows = sends_of(tmp_path, "warmup")
    assert len(stages["pairs"]) == len(rows)
    direct = [row for row, way in zip(rows, stages["pairs"], strict=True) if "prefill" in way]
    assert 2 <= len(direct) <= 6
    assert {row["target"] for row in direct} == {"prefill-0+decode-0"}
    assert {row["target"] for row in sends_of(tmp_path, "load")} == {"router"}
    transfers = {
        line["when"]: int(line["text"].partition("nixl_bytes_transferred_count{")[2].split()[1].split(".")[0])
        for line in read_json_lines(tmp_path / "scrapes.jsonl")
        if line["instance"] == "decode-0" and line["kind"] == "metrics"
    }
    assert transfers["ready"] == 1  # the router's own first completion
    assert transfers["after"] - transfers["before"] == 7  # every request of the load
    assert stages["router"]["metrics_url"].startswith("http://127.0.0.1:")
    assert living_servers(tmp_path) == []


def test_replicas_are_warmed_each_by_itself(tmp_path: Path) -> None:
    assert measure_trial(fake_plan("2x"), tmp_path) is None
    ways = Counter(way["instance"] for way in stages_of(tmp_path)["pairs"])
    assert ways["replica-0"] == ways["replica-1"] >= 2
    assert ways["router"] == 4


class TestFailing:
    def fail(self, out: Path, plan: dict[str, Any]) -> StageFailed:
        failure = measure_trial(plan, out)
        assert failure is not None
        assert {path.name for path in out.iterdir()} - {"leases"} == EVIDENCE
        outcome = stages_of(out)["outcome"]
        assert outcome == {
            "status": "failed",
            "stage": failure.stage,
            "reason": failure.reason,
            "excerpt": failure.excerpt,
        }
        assert living_servers(out) == []
        assert stages_of(out)["stages"][-1]["name"] == "shutdown"
        return failure

    @pytest.mark.fault(
        "launch",
        "the engine exits at once",
        "failed at launch, with its status and the last error of its log",
    )
    def test_engine_that_exits(self, tmp_path: Path) -> None:
        failure = self.fail(tmp_path, fake_plan(FAKE_EXIT="1"))
        assert (failure.stage, failure.reason) == (
            "launch",
            "single ended with status 1: RuntimeError: the fake engine was told to fail",
        )
        assert sends_of(tmp_path, "load") == []

    @pytest.mark.fault(
        "launch",
        "one of two servers of a trial exits at once",
        "failed at launch, the server is named, the other one is ended",
    )
    def test_one_of_two_instances_that_exits(self, tmp_path: Path) -> None:
        plan = fake_plan("1p1d")
        plan["instances"][1]["env"]["FAKE_EXIT"] = "1"
        failure = self.fail(tmp_path, plan)
        assert failure.reason.startswith("decode-0 ended with status 1")

    @pytest.mark.fault(
        "launch",
        "/dev/shm is full",
        "failed at launch before anything is started, with what is free, what is needed and how to get it",
    )
    def test_shared_memory_that_is_full(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("pdkv.measuring.deployment.free_bytes", lambda: 3 << 20)
        failure = self.fail(tmp_path, fake_plan("2x"))
        assert failure.stage == "launch"
        assert failure.reason.startswith("/dev/shm has 3.00 MiB free, vLLM needs 256 MiB: ")
        assert "--shm-size" in failure.reason
        assert not list((tmp_path / "server").iterdir()), "nothing was started"

    @pytest.mark.fault(
        "launch",
        "the engine never gets ready",
        "failed at launch after limits.launch_timeout_s, with the end of its log",
    )
    def test_engine_that_never_gets_ready(self, tmp_path: Path) -> None:
        failure = self.fail(tmp_path, fake_plan(FAKE_READY_S="never", launch_timeout_s=1.5))
        assert failure.reason == "single not ready within 1.5 s (limits.launch_timeout_s)"
        assert failure.excerpt.endswith("still loading weights")

    @pytest.mark.fault(
        "launch",
        "the engine is healthy and serves nothing",
        "failed at warm-up, with the status and the words of its answer",
    )
    def test_engine_that_refuses_to_serve(self, tmp_path: Path) -> None:
        failure = self.fail(tmp_path, fake_plan(FAKE_STATUS="500"))
        assert failure.stage == "warmup"
        assert "HTTP/1.1 500" in failure.reason
        assert "told to fail" in failure.reason
        assert [row["outcome"] for row in sends_of(tmp_path, "warmup")] == ["answered"]

    @pytest.mark.fault(
        "pd",
        "prefill does not say where its KV cache is",
        "failed at warm-up, before anything is measured",
    )
    def test_prefill_that_does_not_say_where_its_cache_is(self, tmp_path: Path) -> None:
        failure = self.fail(tmp_path, fake_plan("1p1d", FAKE_NO_TRANSFER="1"))
        assert failure.stage == "warmup"
        assert "did not say where its KV cache is" in failure.reason

    @pytest.mark.fault("load", "the engine is killed in the middle of the load", "failed at load, with the signal")
    @pytest.mark.parametrize("requests", [4, 4000])
    def test_engine_that_dies_in_mid_load(self, tmp_path: Path, requests: int) -> None:
        """Also where the load is over before the death is seen, and where it would go on for minutes."""
        plan = fake_plan(requests=requests, FAKE_DIES_AFTER="12")  # warm-up takes 7 to 11
        failure = self.fail(tmp_path, plan)
        assert (failure.stage, failure.reason) == ("load", "single was killed by signal 9 (SIGKILL)")


@pytest.mark.fault(
    "host",
    "the same trial is measured twice at the same time",
    "the second waits 30 s for the first, then is refused with the folder",
)
def test_a_second_measurement_of_the_same_trial_is_refused(tmp_path: Path) -> None:
    with (
        gathering_folder(tmp_path, tmp_path / "logs"),
        pytest.raises(UserError, match="another measurement is running"),
        gathering_folder(tmp_path, tmp_path / "logs"),
    ):
        raise AssertionError("two measurements in one folder")


@pytest.mark.fault(
    "host", "half files of a killed measurement lie in the folder", "thrown away by the next one, never read"
)
def test_what_a_killed_measurement_left_is_thrown_away(tmp_path: Path) -> None:
    (tmp_path / ".measuring").mkdir()
    (tmp_path / ".measuring" / "events.parquet").write_bytes(b"half")
    with gathering_folder(tmp_path, tmp_path / "logs") as folder:
        assert [path.name for path in folder.iterdir()] == ["server"]
    assert {path.name for path in tmp_path.iterdir()} == {"server"}


def test_an_endpoint_is_loaded_but_neither_launched_nor_ended(tmp_path: Path) -> None:
    argv = [sys.executable, fake_plan()["instances"][0]["argv"][1], "serve", "m", "--port", "0"]
    with reserved_ports() as ports:
        argv[-1] = str(ports.take())
        server = ServerProcess("mine", argv, {}, int(argv[-1]), tmp_path / "mine.log")
        server.start()
        await_ready([server], MODEL, 30)
        plan = fake_plan() | {"endpoint": server.url, "instances": []}
        plan["engine"] = {"kind": "endpoint", "device": None, "command": [], "python": None}
        assert measure_trial(plan, tmp_path / "r1") is None
        assert not server.has_ended()
        assert stop_servers([server]) == []
    stages = stages_of(tmp_path / "r1")
    assert [stage["name"] for stage in stages["stages"]] == ["warmup", "load"]
    known = {key: value for key, value in stages["instances"][0].items() if value is not None}
    assert known == {"name": "endpoint", "role": "single", "index": 0, "url": server.url}
    assert {row["target"] for row in sends_of(tmp_path / "r1", "load")} == {"endpoint"}


# ---- told to stop --------------------------------------------------------------------------------------------------

MEASURE = """
import sys
from pathlib import Path
from pdkv.measuring import server_process
from pdkv.measuring.interruption import Interrupted
from pdkv.measuring.trial import measure
server_process.GRACE_S = 1.0
folder = Path(sys.argv[1])
try:
    measure(folder, attempt=1, position="", log=folder / "logs" / "measure.log")
except Interrupted as error:
    sys.exit(128 + error.signal_number)
"""


def start_measurement(folder: Path, plan: dict[str, Any]) -> "subprocess.Popen[bytes]":
    write_json(folder / "plan.json", "plan/1", plan)
    return subprocess.Popen([sys.executable, "-c", MEASURE, str(folder)], start_new_session=True)


def wait_for_workers(folder: Path, count: int) -> list[int]:
    log = folder / ".measuring" / "server" / "single.log"
    deadline = time.monotonic() + 30
    while True:
        text = log.read_text() if log.exists() else ""
        pids = [int(line.split()[1]) for line in text.splitlines() if line.startswith("worker ")]
        if len(pids) == count and all(getattr(read_process(pid), "name", "") == "VLLM::Worker" for pid in pids):
            return pids
        assert time.monotonic() < deadline, text
        time.sleep(0.05)


def wait_until_gone(pids: list[int], within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while living := [pid for pid in pids if read_process(pid)]:
        assert time.monotonic() < deadline, f"still alive: {living}"
        time.sleep(0.05)


@pytest.mark.fault(
    "host",
    "SIGTERM, SIGHUP or Ctrl-C to the measure job while a deaf engine starts",
    "all servers end, nothing is written, it counts as an interruption and not as a failure of the cell",
)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_during_start_up_ends_everything(tmp_path: Path, number: signal.Signals) -> None:
    """The engine is deaf, its workers have left its group: a second signal in the middle of it changes nothing."""
    deaf = fake_plan(FAKE_WORKERS="2", FAKE_DEAF_S="60", FAKE_READY_S="never")
    measurement = start_measurement(tmp_path, deaf)
    workers = wait_for_workers(tmp_path, 2)
    os.killpg(measurement.pid, number)
    time.sleep(0.3)
    os.killpg(measurement.pid, number)
    assert measurement.wait(20) == 128 + number
    wait_until_gone(workers, 0.5)
    assert {path.name for path in tmp_path.iterdir()} == {"plan.json", "logs", "leases"}
    log = (tmp_path / "logs" / "measure.log").read_text()
    assert f"interrupted by {number.name}: nothing was written" in log
    assert "worker" in (tmp_path / "logs" / "server" / "single.log").read_text()


@pytest.mark.fault(
    "host", "SIGTERM to the measure job in mid-load", "all servers end, nothing is written, measured next time"
)
def test_a_signal_during_the_load_ends_everything(tmp_path: Path) -> None:
    measurement = start_measurement(tmp_path, fake_plan(requests=4000, FAKE_WORKERS="1"))
    workers = wait_for_workers(tmp_path, 1)
    scrapes = tmp_path / ".measuring" / "scrapes.jsonl"
    deadline = time.monotonic() + 30
    while not scrapes.exists() or '"during"' not in scrapes.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    measurement.send_signal(signal.SIGTERM)
    assert measurement.wait(20) == 128 + signal.SIGTERM
    wait_until_gone(workers, 0.5)
    assert not (tmp_path / "stages.json").exists()


@pytest.mark.fault(
    "host",
    "the measure job is killed in mid-load",
    "its servers end at once; nothing looks finished; measured next time",
)
def test_a_killed_measurement_leaves_no_server(tmp_path: Path) -> None:
    """SIGKILL gives the measurement no chance: the keepers see that it is gone."""
    measurement = start_measurement(tmp_path, fake_plan(FAKE_WORKERS="2", FAKE_READY_S="never"))
    workers = wait_for_workers(tmp_path, 2)
    parents = [read_process(pid) for pid in workers]
    servers = [parent.parent for parent in parents if parent is not None]
    os.killpg(measurement.pid, signal.SIGKILL)
    measurement.wait()
    wait_until_gone([*workers, *servers], 20)
    assert json.loads((tmp_path / "plan.json").read_text())["schema"] == "plan/1"
    assert not (tmp_path / "stages.json").exists()
