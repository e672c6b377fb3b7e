"""Servers are started, watched and ended: with the fake engine, in seconds."""

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pdkv.errors import StageFailed
from pdkv.measuring import keeper
from pdkv.measuring.cores import (
    bind_to_cores,
    cores_of_gpus,
    format_binding,
    format_cores,
    split_among_ranks,
    split_cores,
)
from pdkv.measuring.engine import fill_placeholders, place_instances
from pdkv.measuring.ports import PortReservation, reserved_ports
from pdkv.measuring.process_tree import read_process, reap_children
from pdkv.measuring.readiness import await_ready
from pdkv.measuring.server_environment import clean_environment, inherited_settings
from pdkv.measuring.server_process import ServerProcess, stop_servers

FAKE_ENGINE = str(Path(__file__).with_name("fake_engine.py"))
MODEL = "pdkv-model"


@pytest.fixture
def ports() -> Iterator[PortReservation]:
    with reserved_ports() as reservation:
        yield reservation


@pytest.fixture
def make_server(tmp_path: Path, ports: PortReservation) -> Iterator[object]:
    servers: list[ServerProcess] = []

    def make(name: str = "single", **env: str) -> ServerProcess:
        port = ports.take()
        argv = [sys.executable, FAKE_ENGINE, "serve", "m", "--port", str(port)]
        server = ServerProcess(name, argv, env, port, tmp_path / f"{name}.log")
        servers.append(server)
        server.start()
        return server

    yield make
    stop_servers(servers)


def wait_for_log(server: ServerProcess, text: str, lines: int = 1) -> str:
    deadline = time.monotonic() + 20
    while server.log_tail().count(text) < lines:
        assert time.monotonic() < deadline, server.log_tail()
        time.sleep(0.02)
    return server.log_tail()


def workers_of(server: ServerProcess, count: int) -> list[int]:
    """Pids of the fake's workers, once they have left their group and changed their name."""
    log = wait_for_log(server, "worker ", count)
    pids = [int(line.split()[1]) for line in log.splitlines() if line.startswith("worker ")]
    deadline = time.monotonic() + 20
    while [getattr(read_process(pid), "name", None) for pid in pids] != ["VLLM::Worker"] * count:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return pids


def is_alive(pid: int | None) -> bool:
    assert pid is not None
    return read_process(pid) is not None


class TestReadiness:
    def test_servers_become_ready_at_the_same_time(self, make_server) -> None:  # type: ignore[no-untyped-def]
        servers = [make_server(f"replica-{i}", FAKE_READY_S="0.5") for i in range(2)]
        started = time.monotonic()
        await_ready(servers, MODEL, 30)
        assert all(server.ready_s is not None and server.ready_s >= 0.5 for server in servers)
        assert time.monotonic() - started < sum(server.ready_s for server in servers)

    def test_early_exit_is_told_with_its_reason(self, make_server) -> None:  # type: ignore[no-untyped-def]
        server = make_server(FAKE_EXIT="3")
        with pytest.raises(StageFailed) as failure:
            await_ready([server], MODEL, 60)
        assert failure.value.stage == "launch"
        assert failure.value.reason == "single ended with status 3: RuntimeError: the fake engine was told to fail"
        assert "loading weights" in failure.value.excerpt

    def test_time_out_shows_the_end_of_the_log(self, make_server) -> None:  # type: ignore[no-untyped-def]
        server = make_server(FAKE_READY_S="never")
        wait_for_log(server, "still loading weights")
        with pytest.raises(StageFailed) as failure:
            await_ready([server], MODEL, 0.5)
        assert failure.value.reason == "single not ready within 0.5 s (limits.launch_timeout_s)"
        assert "still loading weights" in failure.value.excerpt

    def test_a_command_that_is_not_there(self, tmp_path: Path, ports: PortReservation) -> None:
        server = ServerProcess("single", ["/nowhere/vllm", "serve"], {}, ports.take(), tmp_path / "single.log")
        server.start()
        with pytest.raises(StageFailed, match="cannot start /nowhere/vllm: No such file"):
            await_ready([server], MODEL, 30)
        assert stop_servers([server]) == []

    def test_another_model_is_no_readiness(self, make_server) -> None:  # type: ignore[no-untyped-def]
        server = make_server()
        with pytest.raises(StageFailed, match="serves 'pdkv-model', not 'other'"):
            await_ready([server], "other", 30)


@pytest.mark.fault(
    "launch", "a server that ends before its keeper has looked", "failed at launch at once, with how it ended"
)
def test_how_a_server_ended_is_known_however_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class EndsAtOnce(subprocess.Popen[bytes]):
        def __init__(self, *arguments: object, **options: object) -> None:
            super().__init__(*arguments, **options)  # type: ignore[call-overload]
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)

    monkeypatch.setattr(keeper.subprocess, "Popen", EndsAtOnce)
    order = {"argv": ["sh", "-c", "exit 3"], "env": dict(os.environ), "log": str(tmp_path / "log")}
    server = keeper._start_server(order)
    gc.collect()
    assert reap_children()[server.pid] == 3


class TestEnding:
    @pytest.mark.fault(
        "launch",
        "an engine deaf to SIGTERM whose workers have left its group and its name",
        "all are ended, and it is noted which had to be killed",
    )
    def test_nothing_outlives_a_deaf_engine_whose_workers_left_its_group(
        self,
        make_server,  # type: ignore[no-untyped-def]
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr("pdkv.measuring.server_process.GRACE_S", 0.3)
        server = make_server(FAKE_WORKERS="2", FAKE_DEAF_S="60", FAKE_READY_S="never")
        workers = workers_of(server, 2)
        assert stop_servers([server]) == []
        assert [pid for pid in [server.pid, *workers] if is_alive(pid)] == []
        assert sorted(process["pid"] for process in server.killed) == sorted(workers)

    @pytest.mark.fault("launch", "the engine is killed and its workers live on", "the keeper ends them")
    def test_workers_of_an_engine_that_was_killed_die_too(self, make_server) -> None:  # type: ignore[no-untyped-def]
        server = make_server(FAKE_WORKERS="1", FAKE_READY_S="never")
        workers = workers_of(server, 1)
        os.kill(server.pid, signal.SIGKILL)
        deadline = time.monotonic() + 10
        while any(map(is_alive, workers)):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert server.has_ended()
        assert server.ending() == "single was killed by signal 9 (SIGKILL)"

    @pytest.mark.fault(
        "launch", "a killed engine leaves shared memory", "removed and noted; that of others is never touched"
    )
    def test_shared_memory_of_a_killed_engine_is_removed_and_no_other(
        self,
        make_server,  # type: ignore[no-untyped-def]
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr("pdkv.measuring.server_process.GRACE_S", 0.3)
        name = f"psm_pdkvtest_{os.getpid()}"
        others, ours = Path("/dev/shm", f"{name}_others"), Path("/dev/shm", name)
        others.write_bytes(b"x")
        try:
            server = make_server(FAKE_SHM=name, FAKE_DEAF_S="60", FAKE_READY_S="never")
            wait_for_log(server, "segment made")
            assert ours.exists()
            stop_servers([server])
            assert server.removed == [{"path": str(ours), "bytes": 4096}]
            assert not ours.exists()
            assert others.exists()
        finally:
            others.unlink()

    def test_stopping_twice_is_stopping_once(self, make_server) -> None:  # type: ignore[no-untyped-def]
        server = make_server()
        await_ready([server], MODEL, 30)
        assert stop_servers([server]) == stop_servers([server]) == []
        assert not is_alive(server.pid)

    def test_stopping_what_never_started(self, tmp_path: Path) -> None:
        assert stop_servers([ServerProcess("single", ["x"], {}, 1, tmp_path / "x.log")]) == []


class TestPlacement:
    def plan(self, device: str, gpus: int) -> dict[str, object]:
        roles = ["prefill", "decode"]
        return {
            "engine": {"kind": device, "device": device},
            "asked": {"kv_connector": "NixlConnector"},
            "instances": [
                {
                    "name": f"{role}-0",
                    "role": role,
                    "index": 0,
                    "argv": ["vllm", "--port", "{port}", '{"kv": {"x": 1}}'],
                    "env": {"BIND": "{cores}", "KV_PORT": "{kv_port}"},
                    "gpus": gpus,
                    "ranks": max(1, gpus),
                }
                for role in roles
            ],
        }

    def test_ports_cores_and_json(self, tmp_path: Path, ports: PortReservation) -> None:
        instances, client = place_instances(
            self.plan("cpu", 0), tmp_path, ports=ports, cores=[0, 1], gpus=[], mark="unique"
        )
        assert [instance.cores for instance in instances] == [[0], [1]]
        assert client == [0, 1]
        assert [instance.server.env["BIND"] for instance in instances] == ["0", "1"]
        numbers = {instance.server.port for instance in instances} | {
            int(instance.server.env["KV_PORT"]) for instance in instances
        }
        assert len(numbers) == 4
        assert instances[0].server.argv == ["vllm", "--port", str(instances[0].server.port), '{"kv": {"x": 1}}']
        assert instances[0].server.env["PDKV_TRIAL"] == "unique"
        assert instances[0].server.env["SPT_NOENV"] == "1", "a title would be written over the mark"
        assert "CUDA_VISIBLE_DEVICES" not in instances[0].server.env

    def test_ranks_of_an_instance_share_out_its_cores(self, tmp_path: Path, ports: PortReservation) -> None:
        plan = self.plan("cpu", 0)
        for instance in plan["instances"]:
            instance["ranks"] = 2
        bound = {}
        for cores in (range(2), range(5)):
            placed, _ = place_instances(plan, tmp_path, ports=ports, cores=cores, gpus=[], mark="")
            bound[len(cores)] = [(instance.cores, instance.server.env["BIND"]) for instance in placed]
        assert bound[2] == [([0], "0|0"), ([1], "1|1")], "instances stay apart before ranks of one do"
        assert bound[5] == [([0, 1, 2], "0|1"), ([3, 4], "3|4")]
        side_channels = [int(instance.server.env["KV_PORT"]) for instance in placed]
        assert abs(side_channels[0] - side_channels[1]) >= 2

    def test_each_instance_gets_gpus_of_its_own(self, tmp_path: Path, ports: PortReservation) -> None:
        gpus = ["GPU-a", "GPU-b", "GPU-c", "GPU-d"]
        instances, client = place_instances(
            self.plan("cuda", 2), tmp_path, ports=ports, cores=[0, 1], gpus=gpus, mark=""
        )
        shown = [instance.server.env["CUDA_VISIBLE_DEVICES"] for instance in instances]
        assert shown == ["GPU-a,GPU-b", "GPU-c,GPU-d"]
        assert [instance.cores for instance in instances] == [None, None]
        assert client is None

    def test_the_side_channels_ports_are_the_same_in_the_next_launch(self, tmp_path: Path) -> None:
        launches = []
        for _ in range(2):
            with reserved_ports() as ports:
                plan = self.plan("cuda", 2)
                placed, _ = place_instances(plan, tmp_path, ports=ports, cores=[0], gpus=list("abcd"), mark="")
                launches.append([int(instance.server.env["KV_PORT"]) for instance in placed])
                with reserved_ports() as others:
                    beside, _ = place_instances(plan, tmp_path, ports=others, cores=[0], gpus=list("abcd"), mark="")
                    assert not {int(each.server.env["KV_PORT"]) for each in beside} & set(launches[-1])
        assert launches[0] == launches[1]
        assert abs(launches[0][0] - launches[0][1]) >= 2  # one for each of its two workers

    @pytest.mark.fault("launch", "a plan needs more GPUs than there are", "failed at launch, with both numbers")
    def test_too_few_gpus_is_a_failed_launch(self, tmp_path: Path, ports: PortReservation) -> None:
        with pytest.raises(StageFailed, match="needs 4 GPUs, 2 were given"):
            place_instances(self.plan("cuda", 2), tmp_path, ports=ports, cores=[0], gpus=["a", "b"], mark="")

    def test_unknown_braces_are_left_alone(self) -> None:
        assert fill_placeholders("{url:a} {x} {}", {"url:a": "http://h"}) == "http://h {x} {}"

    def test_a_placeholder_that_has_no_value_is_the_users_own_text(self) -> None:
        said = '{"remote": "{url:foo}", "at": "{kv_port}"}'
        assert fill_placeholders(said, {"port": "1"}) == said
        assert fill_placeholders("{{port}} {url:} {metrics_port}", {"port": "1"}) == "{1} {url:} {metrics_port}"


@pytest.mark.parametrize(
    ("cores", "mine", "count", "own"),
    [
        (range(8000, 8016), [0], 2, range(8000, 8008)),
        (range(8000, 8016), [1], 2, range(8008, 8016)),
        (range(8000, 8016), [0, 1], 2, range(8000, 8016)),
        (range(8000, 8013), [2], 3, range(8008, 8013)),
        (range(8000, 8016), [0], 1, range(8000, 8016)),  # all that this job was given
        (range(8000, 8007), [0], 2, range(8000, 8007)),  # too few to be divided
        (range(8000, 8016), [5], 8, range(8000, 8016)),
    ],
)
def test_cores_go_with_gpus(cores: range, mine: list[int], count: int, own: range) -> None:
    """Cores of no machine: nothing is known of their hardware threads."""
    assert cores_of_gpus(cores, mine, count) == list(own)


def test_hardware_threads_of_a_core_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    def siblings(path: Path, encoding: str) -> str:  # core n has the threads n and n + 8, as on many servers
        thread = int(path.parts[5].removeprefix("cpu"))
        return f"{thread % 8},{thread % 8 + 8}"

    monkeypatch.setattr(Path, "read_text", siblings)
    assert cores_of_gpus(range(16), [0], 2) == [0, 1, 2, 3, 8, 9, 10, 11]
    assert cores_of_gpus(range(16), [1], 2) == [4, 5, 6, 7, 12, 13, 14, 15]


@pytest.mark.parametrize(
    ("cores", "ranks", "shares", "client"),
    [
        ([0, 1], [1], [[0, 1]], [0, 1]),
        ([0, 1], [1, 1], [[0], [1]], [0, 1]),
        ([4], [1, 1], [[4], [4]], [4]),
        ([0, 1], [2], [[0, 1]], [0, 1]),
        ([0, 1], [2, 2], [[0], [1]], [0, 1]),
        ([0, 1, 2], [2, 2], [[0, 1], [2]], [0, 1, 2]),
        (range(4), [2, 2], [[0, 1], [2, 3]], [0, 1, 2, 3]),
        ([0, 1], [4], [[0, 1]], [0, 1]),
        (range(4), [2], [[0, 1, 2, 3]], [0, 1, 2, 3]),  # no core for the client alone: two for each rank first
        (range(5), [2], [[1, 2, 3, 4]], [0]),
        (range(8), [1, 1], [[1, 2, 3, 4], [5, 6, 7]], [0]),
        (range(9), [3, 1], [[1, 2, 3, 4, 5, 6], [7, 8]], [0]),
    ],
)
def test_cores_are_split_by_ranks(
    cores: list[int], ranks: list[int], shares: list[list[int]], client: list[int]
) -> None:
    assert split_cores(cores, ranks) == (shares, client)


@pytest.mark.parametrize(
    ("cores", "ranks", "binding"),
    [
        ([0, 1], 1, "0-1"),
        ([0, 1], 2, "0|1"),
        (range(4, 9), 2, "4-5|6-7"),  # as many for each; the last one is for the API server and the engine core
        ([3], 2, "3|3"),
        ([2, 5], 3, "2|5|2"),
    ],
)
def test_ranks_are_bound_as_vllm_spells_it(cores: list[int], ranks: int, binding: str) -> None:
    assert format_binding(cores, ranks) == binding


def test_a_rank_that_a_connector_has_moved_goes_back_to_its_cores() -> None:
    cores = sorted(os.sched_getaffinity(0))[:2]
    workers = [subprocess.Popen([f"VLLM::Worker_TP{rank}", "60"], executable="/bin/sleep") for rank in range(2)]
    other = subprocess.Popen(["sleep", "60"])
    try:
        for process in (*workers, other):  # as soon as it has its title
            deadline = time.monotonic() + 20
            while b"60" not in Path(f"/proc/{process.pid}/cmdline").read_bytes():
                assert time.monotonic() < deadline
            os.sched_setaffinity(process.pid, cores[-1:])
            bind_to_cores(process.pid, cores, ranks=2, free_main_threads=True)
        assert [os.sched_getaffinity(worker.pid) for worker in workers] == [
            set(share) for share in split_among_ranks(cores, 2)
        ]
        assert os.sched_getaffinity(other.pid) == set(cores)
    finally:
        for process in (*workers, other):
            process.kill()
            process.wait()


def test_cores_are_spelt_as_ranges() -> None:
    assert format_cores([3, 0, 1, 2, 6]) == "0-3,6"


def test_ports_of_two_reservations_are_apart(ports: PortReservation) -> None:
    first = ports.take(3)
    with reserved_ports() as other:
        assert not {other.take() for _ in range(50)} & {first, first + 1, first + 2}


def test_environment_of_a_server_holds_no_setting_of_the_shell() -> None:
    inherited = {
        "PATH": "/bin",
        "HF_HOME": "/hub",
        "https_proxy": "http://proxy",
        "VLLM_ATTENTION_BACKEND": "X",
        "VLLM_CACHE_ROOT": "/cache",
        "PYTHONPATH": "/src",
        "CUDA_VISIBLE_DEVICES": "3",
        "OMP_NUM_THREADS": "1",
    }
    assert clean_environment(inherited) == {
        "PATH": "/bin",
        "HF_HOME": "/hub",
        "https_proxy": "http://proxy",
        "VLLM_CACHE_ROOT": "/cache",
        "no_proxy": "127.0.0.1,localhost",
        "NO_PROXY": "127.0.0.1,localhost",
    }


def test_settings_that_servers_get_from_the_shell_are_recorded() -> None:
    shell = {
        "PATH": "/bin",
        "HF_TOKEN": "hf_1",
        "NCCL_ALGO": "Ring",
        "NCCL_TOPO_FILE": f"{Path.home()}/topology.xml",
        "UCX_TLS": "tcp",
        "UCX_NET_DEVICES": "eth0",
        "TORCH_AUTH_TOKEN": "not to be read",
        "CUDA_VISIBLE_DEVICES": "3",
        "TRITON_CACHE_DIR": "/cache",
        "VLLM_ATTENTION_BACKEND": "never reaches a server",
    }
    instances = [
        {"argv": ["vllm", "serve"], "env": {"UCX_TLS": "cuda_ipc", "UCX_NET_DEVICES": "all", "VLLM_X": "{port}"}},
        {"argv": ["vllm", "serve"], "env": {"UCX_TLS": "cuda_ipc"}},
    ]
    assert inherited_settings(instances, shell) == {
        "NCCL_ALGO": "Ring",
        "NCCL_TOPO_FILE": "~/topology.xml",
        "TORCH_AUTH_TOKEN": "[hidden]",
        "UCX_NET_DEVICES": "eth0",  # by the second one
        "UCX_TLS": None,
    }
    container = ["docker", "run", "--env", "NCCL_ALGO", "image"]
    assert inherited_settings([{"argv": container, "env": {}}], shell) == {"NCCL_ALGO": "Ring"}


@pytest.mark.parametrize(
    "name",
    [
        *("NCCL_ALGO", "NCCL_NET_PLUGIN", "UCX_TLS", "FI_PROVIDER", "SHARP_COLL_ENABLE_SAT", "CUDA_LAUNCH_BLOCKING"),
        *("PYTORCH_CUDA_ALLOC_CONF", "TRITON_PTXAS_PATH", "TRITON_OVERRIDE_DIR", "MOONCAKE_CONFIG_PATH"),
        *("TORCH_DISTRIBUTED_DEBUG", "TRITON_DEBUG", "FLASHINFER_JIT_DEBUG", "CUDA_ENABLE_COREDUMP_ON_EXCEPTION"),
    ],
)
def test_what_may_change_a_server_is_a_setting(name: str) -> None:
    assert inherited_settings([{"argv": ["vllm"], "env": {}}], {name: "1"}) == {name: "1"}


@pytest.mark.parametrize(
    "name",
    [
        *("TORCH_EXTENSIONS_DIR", "TRITON_HOME", "TRITON_DUMP_DIR", "TRITON_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE"),
        *("CUDA_HOME", "CUDA_PATH", "CUDA_PATH_V13_0", "HIP_PATH", "TORCH_HOME", "LD_LIBRARY_PATH"),
        *("NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS", "NVSHMEM_DEBUG", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
        *("UCX_LOG_FILE", "UCX_LOG_LEVEL", "FI_LOG_LEVEL", "SHARP_COLL_LOG_LEVEL", "TORCH_CPP_LOG_LEVEL", "TORCH_LOGS"),
        *("NCCL_TOPO_DUMP_FILE", "NCCL_GRAPH_DUMP_FILE", "CUDA_COREDUMP_FILE", "CUDA_COREDUMP_SHOW_PROGRESS"),
        *("CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY"),
    ],
)
def test_where_something_lies_and_what_is_logged_is_no_setting(name: str) -> None:
    assert inherited_settings([{"argv": ["vllm"], "env": {}}], {name: "1"}) == {}
