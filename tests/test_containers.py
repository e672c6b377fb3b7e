"""Engines behind a command: a container whose process is no child of ours, wrappers, and what version they have."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_docker import IMAGE, start_daemon
from refusals import why_refused

from pdkv.errors import StageFailed, UserError
from pdkv.installing.engine_env import command_version
from pdkv.measuring.container_client import complete_run, require_runnable
from pdkv.measuring.deployment import Deployment
from pdkv.measuring.ports import reserved_ports
from pdkv.measuring.process_tree import read_process
from pdkv.measuring.survey import survey_study
from pdkv.study.config import load_study

FAKE_ENGINE = str(Path(__file__).with_name("fake_engine.py"))
Deploy = Callable[..., Deployment]


@pytest.fixture
def docker(tmp_path: Path) -> Iterator[str]:
    """The program ``docker``; its daemon and all containers end with the test."""
    daemon = start_daemon(tmp_path)
    yield str(tmp_path / "docker")
    children = Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children").read_text().split()
    for pid in [*map(int, children), daemon.pid]:
        os.kill(pid, signal.SIGKILL)
    daemon.wait()


@pytest.fixture
def deploy(tmp_path: Path) -> Iterator[Deploy]:
    deployments: list[Deployment] = []

    def start(command: list[str], **env: str) -> Deployment:
        argv = [*command, "serve", "m", "--port", "{port}"]
        instance = {"name": "single", "role": "single", "index": 0, "argv": argv, "env": env, "gpus": 0, "ranks": 1}
        plan = {
            "engine": {"kind": "custom", "device": "cuda"},
            "served_model": "pdkv-model",
            "instances": [instance],
            "router": None,
            "endpoint": None,
            "asked": {},
        }
        with reserved_ports() as ports:
            deployment = Deployment.place(plan, tmp_path / "server", ports, [])
            deployments.append(deployment)
            deployment.start()
        return deployment

    yield start
    for deployment in deployments:
        deployment.stop()


def in_docker(docker: str) -> list[str]:
    return [docker, "run", IMAGE, sys.executable, FAKE_ENGINE]


def container_pid(deployment: Deployment) -> int:
    assert deployment.find_containers()
    pid = deployment.instances[0].server.pid
    assert pid is not None
    return pid


def is_alive(pid: int) -> bool:
    return read_process(pid) is not None


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


class TestDocker:
    def test_the_server_is_found_in_the_container_and_ends_with_its_client(self, docker: str, deploy: Deploy) -> None:
        deployment = deploy(in_docker(docker), VLLM_SETTING="1")
        deployment.await_ready(30)
        client = deployment.instances[0].server.pid
        pid = container_pid(deployment)
        assert pid != client and FAKE_ENGINE in Path(f"/proc/{pid}/cmdline").read_text()
        assert deployment.records()[0]["pid"] == pid
        environment = Path(f"/proc/{pid}/environ").read_text().split("\0")
        assert "VLLM_SETTING=1" in environment  # a container inherits nothing that is not named
        assert f"PDKV_TRIAL={deployment.mark}" in environment
        assert deployment.stop() == []
        assert not is_alive(pid)

    def test_a_deaf_server_is_killed_though_it_is_nobody_s_child_here(
        self, docker: str, deploy: Deploy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("pdkv.measuring.server_process.GRACE_S", 0.3)
        deployment = deploy(in_docker(docker), FAKE_DEAF_S="60")
        deployment.await_ready(30)
        pid = container_pid(deployment)
        assert deployment.stop() == []
        assert not is_alive(pid)

    @pytest.mark.fault(
        "launch",
        "the client of a container's daemon is killed",
        "its container is ended too; the launch has failed, with the signal",
    )
    def test_a_client_that_dies_takes_its_container_along(self, docker: str, deploy: Deploy) -> None:
        deployment = deploy(in_docker(docker))
        deployment.await_ready(30)
        client = deployment.instances[0].server.pid
        pid = container_pid(deployment)
        assert client is not None
        os.kill(client, signal.SIGKILL)
        wait_until(lambda: not is_alive(pid))
        with pytest.raises(StageFailed, match="SIGKILL"):
            deployment.require_alive("load", 5)

    @pytest.mark.fault("launch", "a container's daemon refuses to remove it", "named among what is left")
    def test_a_container_that_can_t_be_removed_is_told(
        self, docker: str, deploy: Deploy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("pdkv.measuring.server_process.GRACE_S", 0.3)
        # In truth it is root's, so that nobody can read its mark, and the daemon's child, which is no child of ours.
        monkeypatch.setattr("pdkv.measuring.deployment.find_marked", lambda _mark: [])
        monkeypatch.setattr("pdkv.measuring.deployment.descendants", lambda _pid: [])
        monkeypatch.setenv("FAKE_DOCKER_RM", "fails")
        deployment = deploy(in_docker(docker), FAKE_DEAF_S="60")
        deployment.await_ready(30)
        pid = container_pid(deployment)
        (left,) = deployment.stop()
        assert is_alive(pid) and left["pid"] is None
        assert left["process"].startswith(f"container {deployment.instances[0].server.container.remove[-1]}: Cannot")  # type: ignore[union-attr]

    def test_its_command_is_completed_and_what_the_user_says_stays(self) -> None:
        run = complete_run(
            shlex.split("sudo docker --context x run --rm --shm-size=8g --gpus all i vllm"), "pdkv-1", ["B", "A"]
        )
        assert run is not None
        assert shlex.join(run.argv) == (
            "sudo docker --context x run --init --network=host --name pdkv-1 --env A --env B "
            "--rm --shm-size=8g --gpus all i vllm"
        )
        assert shlex.join(run.remove) == "sudo docker --context x rm --force pdkv-1"
        assert complete_run(["apptainer", "exec", "--nv", "vllm.sif", "vllm", "serve"], "x", []) is None
        assert complete_run(["/models/docker/vllm", "serve", "run"], "x", []) is None

    @pytest.mark.parametrize("option", ["-d", "-dt", "-di", "-dP", "-itd", "-d=true", "--detach", "--detach=true"])
    @pytest.mark.parametrize("before", ["", "--rm --gpus all ", "-e A=1 -v /m:/m:ro --newer-switch "])
    def test_what_would_lose_the_server_is_refused(self, option: str, before: str) -> None:
        with pytest.raises(UserError, match=f"engine.command.*{option}"):
            require_runnable(["docker", *shlex.split(f"--context x container run {before}{option} image vllm")])
        require_runnable(["mine", option])

    @pytest.mark.parametrize("name", ["--name=mine", "--name mine"])
    def test_a_name_of_its_own_is_refused(self, name: str) -> None:
        with pytest.raises(UserError, match="a name of its own"):
            require_runnable(["docker", "run", *name.split(), "image", "vllm"])

    @pytest.mark.parametrize(
        "rest", ["--rm", "--detach=false", "-it", "-d=false", "-v d:/d", "-ed=1", "-e d", "-w/d", "--sig-proxy=false"]
    )
    def test_what_loses_nothing_is_not_refused(self, rest: str) -> None:
        run = ["docker", "run", *rest.split(), "image"]
        assert why_refused(require_runnable, [*run, "vllm"]) is None
        assert why_refused(require_runnable, [*run, "sh", "-d", "--detach", "--name"]) is None

    @pytest.mark.parametrize(
        "command",
        [
            "docker exec mine vllm",
            "sudo docker --context x exec -it mine vllm",
            "podman --remote container exec mine run",
            "docker start -a mine",
            "docker compose run engine vllm",
            "apptainer -q instance start vllm.sif mine",
        ],
    )
    def test_a_server_that_is_somebody_else_s_is_refused(self, command: str) -> None:
        with pytest.raises(UserError, match=r"engine\.command: \w+ \w+ leaves its server") as raised:
            require_runnable(command.split())
        assert "endpoint" in raised.value.remedy


@pytest.mark.parametrize(
    "option", ["--cleanenv", "--cleanenv=true", "-e", "-C", "-ce", "-ec", "-ceB /a", "--containall", "--compat"]
)
@pytest.mark.parametrize("before", ["", "--nv ", "-B /models ", "--bind /e:/e --nv "])
def test_an_environment_that_would_be_lost_is_refused(option: str, before: str) -> None:
    """The cell would run with other settings than its name says: the KV cache's size, say, or the GPU."""
    with pytest.raises(UserError, match="would not reach"):
        require_runnable(["/usr/bin/apptainer", "exec", *before.split(), *option.split(), "vllm.sif", "vllm"])


@pytest.mark.parametrize("option", ["--nv", "-c", "--cleanenv=false", "-B e:C", "-He"])
def test_an_environment_that_stays_is_not_refused(option: str) -> None:
    assert why_refused(require_runnable, ["singularity", "exec", *option.split(), "vllm.sif", "vllm", "-e"]) is None


def test_a_variable_that_a_container_inherits_is_not_refused() -> None:
    assert why_refused(require_runnable, ["docker", "run", "-e", "HF_TOKEN", "image", "vllm"]) is None


@pytest.mark.fault(
    "input",
    "engine.command chooses GPUs itself (`docker run -e CUDA_VISIBLE_DEVICES=0`)",
    "refused: the trial would be measured on another GPU than the one it leased",
)
@pytest.mark.parametrize(
    "command",
    [
        "docker run -e CUDA_VISIBLE_DEVICES=0 image vllm",
        "docker run -eCUDA_VISIBLE_DEVICES=0 image vllm",
        "docker run -ite CUDA_VISIBLE_DEVICES=0 image vllm",
        "docker run --env=CUDA_VISIBLE_DEVICES=0 image vllm",
        "docker run --env NVIDIA_VISIBLE_DEVICES=0 image vllm",
        "docker run --env NVIDIA_VISIBLE_DEVICES image vllm",
        "apptainer exec --nv --env A=1,CUDA_VISIBLE_DEVICES=0 vllm.sif vllm",
        "env CUDA_VISIBLE_DEVICES=0 vllm",
        "sh -c 'CUDA_VISIBLE_DEVICES=0 exec vllm \"$@\"' vllm",
    ],
)
def test_a_command_that_chooses_gpus_is_refused(command: str) -> None:
    with pytest.raises(UserError, match=r"engine\.command: .*VISIBLE_DEVICES.* leases its own"):
        require_runnable(shlex.split(command))
    assert why_refused(require_runnable, shlex.split(command), on_gpus=False) is None


@pytest.mark.parametrize("option", ["-e CUDA_VISIBLE_DEVICES", "-e NVIDIA_VISIBLE_DEVICES=all", "--gpus all"])
def test_a_command_that_leaves_the_choice_is_not_refused(option: str) -> None:
    assert why_refused(require_runnable, ["docker", "run", *option.split(), "image", "vllm"]) is None


class TestWrappers:
    @pytest.mark.parametrize(
        "wrap",
        [
            pytest.param(lambda line: ["bash", "-c", f'exec {line} "$@"', "vllm"], id="module load, exec"),
            pytest.param(lambda line: ["bash", "-c", f'{line} "$@"; true', "vllm"], id="without exec"),
            pytest.param(lambda line: ["setsid", "--wait", "bash", "-c", f'{line} "$@"', "vllm"], id="own session"),
        ],
    )
    def test_a_shell_before_the_engine_ends_with_it(self, deploy: Deploy, wrap: Callable[[str], list[str]]) -> None:
        deployment = deploy(wrap(f"{sys.executable} {FAKE_ENGINE}"), FAKE_WORKERS="1")
        deployment.await_ready(30)
        port = deployment.instances[0].server.port
        assert deployment.stop() == []
        assert not [process for process in Path("/proc").glob("[0-9]*") if f"\0{port}\0" in command_line(process)]

    @pytest.mark.fault(
        "launch",
        "a wrapper starts the server through a daemon that nobody knows",
        "whatever still listens at the port is named",
    )
    def test_a_server_that_a_daemon_of_the_wrapper_starts_is_told(self, docker: str, deploy: Deploy) -> None:
        """As ``apptainer instance start``, or a client that is not known: nothing here says what to end."""
        other = Path(docker).with_name("other")
        other.write_text(f'#!/bin/sh\nexec {docker} run --name other {IMAGE} "$@"\n', encoding="utf-8")
        other.chmod(0o755)
        deployment = deploy([str(other), sys.executable, FAKE_ENGINE])
        deployment.await_ready(30)
        client = deployment.instances[0].server.pid
        assert client is not None and not deployment.find_containers()
        os.kill(client, signal.SIGKILL)
        port = deployment.instances[0].server.port
        assert deployment.stop() == [{"name": "single", "pid": None, "process": f"whatever listens at port {port}"}]


def command_line(process: Path) -> str:
    try:
        return (process / "cmdline").read_text()
    except OSError:
        return ""


class TestVersion:
    @staticmethod
    def program(folder: Path, body: str) -> str:
        path = folder / "vllm"
        path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
        path.chmod(0o755)
        return str(path)

    @pytest.mark.parametrize(
        ("body", "version"),
        [
            ("echo 0.32.0", "0.32.0"),
            ("echo 'INFO 11-30 [x.py:1] platform 1.2'; echo 0.32.0+cu130", "0.32.0+cu130"),
            ("echo vllm v0.31.1", "0.31.1"),
            ("echo 0.32.0; exit 1", None),
            ("echo usage", None),
            ("sleep 60", None),
        ],
    )
    def test_what_a_command_tells(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, version: str | None
    ) -> None:
        monkeypatch.setattr("pdkv.installing.engine_env.VERSION_WITHIN_S", 1.0)
        assert command_version([self.program(tmp_path, body)]) == version

    def survey(self, folder: Path, body: str) -> Any:
        (folder / "study.yaml").write_text(
            f"model: org/model\nengine: {{command: {json.dumps([self.program(folder, body)])}, device: cpu}}\n"
            "workloads: {w: {input_tokens: 16, output_tokens: 4, concurrency: [2], requests: 4, max_model_len: 64}}\n"
            "modes: [default]\ndtypes: [fp16]\n",
            encoding="utf-8",
        )
        return survey_study(load_study(folder / "study.yaml"), folder)

    def test_check_tells_it(self, tmp_path: Path) -> None:
        survey = self.survey(tmp_path, "echo 0.32.0")
        assert survey.engine == "custom (cpu), vLLM 0.32.0" and not survey.obstacles

    def test_one_whose_logs_are_not_known_is_refused(self, tmp_path: Path) -> None:
        (obstacle,) = self.survey(tmp_path, "echo 0.10.2").obstacles
        assert "the engine is vLLM 0.10.2" in obstacle and "0.26 to 0.33" in obstacle

    def test_a_command_that_tells_none_is_not_refused(self, tmp_path: Path) -> None:
        survey = self.survey(tmp_path, "exit 3")
        assert survey.engine == "custom (cpu)" and not survey.obstacles

    def test_a_trial_records_what_its_server_tells(self, deploy: Deploy) -> None:
        deployment = deploy([sys.executable, FAKE_ENGINE])
        deployment.await_ready(30)
        assert deployment.engine_version() == "0.0.0+fake"


@pytest.mark.fault("host", "a measurement whose server runs in a container is killed", "the keeper ends the container")
def test_a_measurement_that_is_killed_leaves_no_container(docker: str, tmp_path: Path) -> None:
    """SIGKILL to what measures: the keeper is then alone with the client and its container."""
    words = [docker, "run", IMAGE, sys.executable, FAKE_ENGINE, "serve", "m", "--port"]
    code = f"""
import sys, time
from pathlib import Path
from pdkv.measuring.container_client import complete_run
from pdkv.measuring.ports import reserved_ports
from pdkv.measuring.readiness import await_ready
from pdkv.measuring.server_process import ServerProcess
with reserved_ports() as ports:
    port = ports.take()
    run = complete_run([*{words!r}, str(port)], "pdkv-x", [])
    server = ServerProcess("single", run.argv, {{}}, port, Path({str(tmp_path)!r}, "single.log"), run)
    server.start()
    await_ready([server], "pdkv-model", 30)
    server.find_container()
    print(server.pid, flush=True)
    time.sleep(60)
"""
    measuring = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert measuring.stdout is not None
    pid = int(measuring.stdout.readline())
    assert is_alive(pid)
    measuring.kill()
    measuring.wait()
    measuring.stdout.close()
    wait_until(lambda: not is_alive(pid))
