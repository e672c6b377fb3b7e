"""Servers that don't come up, or not as they should: whole trials on the fake engine."""

import errno
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from trial_plans import MODEL, fake_plan
from whole_trials import MeasuredTrial

from pdkv.errors import StageFailed
from pdkv.measuring.deployment import Deployment
from pdkv.measuring.trial_stages import Measurement

Measure = Callable[[dict[str, Any]], MeasuredTrial]
DATA = Path(__file__).with_name("data")


def fail(measure: Measure, plan: dict[str, Any], stage: str = "launch") -> StageFailed:
    trial = measure(plan)
    assert trial.failure is not None
    assert trial.failure.stage == stage
    assert trial.stages["outcome"] == {
        "status": "failed",
        "stage": stage,
        "reason": trial.failure.reason,
        "excerpt": trial.failure.excerpt,
    }
    assert trial.metrics["state"] == "failed"
    return trial.failure


@pytest.mark.fault("launch", "the engine is not installed", "failed at launch, with the command that is not there")
def test_engine_that_is_not_installed(measure: Measure) -> None:
    plan = fake_plan()
    plan["instances"][0]["argv"][0] = "/opt/nowhere/bin/vllm"
    assert fail(measure, plan).reason == "single: cannot start /opt/nowhere/bin/vllm: No such file or directory"


@pytest.mark.fault("launch", "the engine may not be executed", "failed at launch, with the command and why")
def test_engine_that_may_not_be_executed(measure: Measure, tmp_path: Path) -> None:
    plan = fake_plan()
    (tmp_path / "vllm").write_text("#!/bin/sh\n")
    plan["instances"][0]["argv"][0] = str(tmp_path / "vllm")
    assert fail(measure, plan).reason == f"single: cannot start {tmp_path / 'vllm'}: Permission denied"


@pytest.mark.fault(
    "launch",
    "the engine has no kernel for the KV-cache dtype",
    "failed at launch, with the root of the error in its log instead of what followed from it",
)
def test_dtype_that_the_engine_does_not_support(measure: Measure) -> None:
    failure = fail(measure, fake_plan(FAKE_LOG=str(DATA / "h200/default_e5m2.log"), FAKE_EXIT="1"))
    wrong = "ValueError: The dtype of q torch.float8_e4m3fn does not match the q_data_type torch.float8_e5m2"
    assert failure.reason.startswith(f"single ended with status 1: {wrong}")
    assert wrong in failure.excerpt


@pytest.mark.fault("launch", "the model's path is wrong", "failed at launch, with the path")
def test_model_that_is_not_there(measure: Measure) -> None:
    failure = fail(measure, fake_plan(FAKE_LOG=str(DATA / "cpu/wrong_model.log"), FAKE_EXIT="1"))
    assert failure.reason.startswith("single ended with status 1: ")
    assert "/nonexistent/model" in failure.reason


@pytest.mark.fault(
    "launch",
    "the kernel kills the engine for lack of memory while it loads",
    "failed at launch, with the signal, and that the host ran out of memory where the kernel has counted it",
)
@pytest.mark.parametrize("counted", [True, False])
def test_engine_that_the_kernel_kills(measure: Measure, monkeypatch: pytest.MonkeyPatch, counted: bool) -> None:
    kills = iter([7, 8 if counted else 7])
    for module in ("server_process", "host_shortage"):
        monkeypatch.setattr(f"pdkv.measuring.{module}.out_of_memory_kills", lambda: next(kills, 8 if counted else 7))
    reason = "single was killed by signal 9 (SIGKILL)"
    said = fail(measure, fake_plan(FAKE_KILLED="1")).reason
    assert said.startswith(reason)
    assert ("out of memory" in said) is counted


@contextmanager
def listening(port: int, *, answers: bool) -> Iterator[None]:
    """Another program at this port; it takes connections, and closes them if it ``answers``."""
    with socket.create_server(("127.0.0.1", port)) as server:
        ended = threading.Event()

        def close_all() -> None:
            server.settimeout(0.05)
            while not ended.is_set():
                try:
                    server.accept()[0].close()
                except TimeoutError:
                    continue

        thread = threading.Thread(target=close_all)
        if answers:
            thread.start()
        try:
            yield
        finally:
            ended.set()
            if answers:
                thread.join()


@pytest.mark.fault(
    "launch", "another program takes the port between choice and bind", "failed at launch, with the engine's own words"
)
@pytest.mark.parametrize("answers", [False, True], ids=["silent", "closes"])
def test_port_that_is_taken(measure: Measure, monkeypatch: pytest.MonkeyPatch, answers: bool) -> None:
    start, stop = Deployment.start, Deployment.stop
    programs = []

    def take_port(deployment: Deployment) -> None:
        programs.append(listening(deployment.instances[0].server.port, answers=answers))
        programs[0].__enter__()
        start(deployment)

    def give_port_back(deployment: Deployment) -> list[dict[str, Any]]:
        programs[0].__exit__(None, None, None)
        return stop(deployment)

    monkeypatch.setattr(Deployment, "start", take_port)
    monkeypatch.setattr(Deployment, "stop", give_port_back)
    failure = fail(measure, fake_plan())
    assert failure.reason == f"single ended with status 1: OSError: [Errno {errno.EADDRINUSE}] Address already in use"


@pytest.mark.fault(
    "launch",
    "the server that answers at the port is another one",
    "failed at launch, with the model that it serves instead",
)
def test_another_server_at_the_port(measure: Measure) -> None:
    plan = fake_plan()
    argv = plan["instances"][0]["argv"]
    argv[argv.index(MODEL)] = "somebody-elses"
    assert fail(measure, plan).reason == (
        f"single serves 'somebody-elses', not '{MODEL}': another server answers on its port"
    )


@pytest.mark.fault(
    "launch", "no space is left for the server's log", "failed at launch, with the folder that is full and its space"
)
def test_no_space_for_the_log(measure: Measure, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine may write 4 KiB to files, and its log is longer."""
    monkeypatch.setattr("pdkv.measuring.host_shortage.free_disk_bytes", lambda _: 4096)
    plan = fake_plan(FAKE_LOG=str(DATA / "cpu/pd_auto_D.log"))
    plan["instances"][0]["argv"][:0] = ["/bin/sh", "-c", 'ulimit -f 8; exec "$@"', "sh"]
    said = fail(measure, plan).reason
    assert said.startswith("single ended with status ")
    assert ": only 4.00 KiB are free where its log is" in said


@pytest.mark.fault("launch", "the router dies under load", "failed at load, the router is named with its signal")
@pytest.mark.parametrize("mode", ["1p1d", "2x"])
def test_router_that_dies(measure: Measure, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    load = Measurement.load

    def load_and_kill(measurement: Measurement) -> None:
        assert measurement.deployment.router and measurement.deployment.router.server.pid
        threading.Timer(0.5, os.kill, (measurement.deployment.router.server.pid, signal.SIGKILL)).start()
        load(measurement)

    monkeypatch.setattr(Measurement, "load", load_and_kill)
    failure = fail(measure, fake_plan(mode, requests=4000), "load")
    assert failure.reason.startswith("router was killed by signal 9 (SIGKILL)")


@pytest.mark.fault("launch", "the router ends at once", "failed at launch, with the end of the router's log")
def test_router_that_exits(measure: Measure) -> None:
    plan = fake_plan("2x")
    plan["router"]["argv"] += ["--policy", "no-such-policy"]
    failure = fail(measure, plan)
    assert failure.reason.startswith("router ended with status 2: ")
    assert "no-such-policy" in failure.reason + failure.excerpt
