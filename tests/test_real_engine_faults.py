"""Faults on real vLLM on the CPU, where it may behave otherwise than the fake engine: each in a whole trial.

Trials that need not be quick run beside each other: what counts is how they end.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from study_processes import kill_all, require_free_leases, require_no_process
from whole_trials import require_free_port

from pdkv.analysing.launch_facts import read_launch
from pdkv.analysing.load_facts import read_load
from pdkv.artifacts import read_json, write_json
from pdkv.measuring.plan import plan_trial
from pdkv.measuring.resolve import choose_engine, resolve_model
from pdkv.measuring.trial_folder import GATHERING
from pdkv.measuring.trial_mark import MARK
from pdkv.study.config import load_study

ROOT = Path(__file__).parent.parent
ENGINE = ROOT / ".engine/cpu/bin/python"
MODEL = ROOT / ".engine/models/bundled"
STUDY = f"""\
model: "{MODEL}"
engine: {{python: "{ENGINE}"}}
workloads: {{w: {{input_tokens: 64, output_tokens: 8, concurrency: [2], requests: 400, max_model_len: 128}}}}
modes: {{default: {{}}, 1p1d: {{}}}}
dtypes: [bf16]
limits: {{launch_timeout_s: 280}}
"""
PATIENCE_S = 300.0
pytestmark = pytest.mark.engine


class RealTrial:
    """``pdkv measure`` on real engines, with leases of its own."""

    def __init__(self, folder: Path, mode: str = "default") -> None:
        folder.mkdir()
        (folder / "study.yaml").write_text(STUDY, encoding="utf-8")
        trial = load_study(folder / "study.yaml").trial("w", mode, "bf16", 1)
        engine = choose_engine(trial.engine, ROOT / ".engine")
        self.plan = plan_trial(trial, engine, *resolve_model(trial.model, ROOT / ".engine"))
        self.folder = folder
        self.out = folder / "results/w" / mode / "bf16/r1"
        self.titles: dict[str, bool] = {}

    def set(self, flag: str, value: str) -> "RealTrial":
        """Another value for a flag of every instance."""
        for instance in self.plan["instances"]:
            instance["argv"][instance["argv"].index(flag) + 1] = value
        return self

    def lead_past_prefill(self) -> "RealTrial":
        """A router that knows decode alone, and 16 requests for it before the others."""
        argv = self.plan["router"]["argv"]
        argv[argv.index("--vllm-pd-disaggregation") :] = ["--worker-urls", "{url:decode-0}"]
        for points in (self.plan["points"], self.plan["trial"]["workload"]["points"]):
            points[:] = [{**points[0], "requests": 16}, {**points[0], "concurrency": 1}]
        self.plan["points"][1]["point"] = 1
        return self

    def start(self) -> "RealTrial":
        write_json(self.out / "plan.json", "plan/1", {**self.plan, "source": ""})
        command = [sys.executable, "-m", "pdkv", "measure", str(self.out), "--log", str(self.folder / "measure.log")]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PDKV_LEASE_DIR": str(self.folder / "leases")}
        with (self.folder / "terminal.txt").open("wb") as terminal:
            self.process = subprocess.Popen(command, env=environment, stderr=terminal, start_new_session=True)
        return self

    def wait_for(self, found: Callable[[], Any]) -> Any:
        """What ``found`` returns as soon as it is something."""
        give_up_s = time.monotonic() + PATIENCE_S
        while not (result := found()):
            assert time.monotonic() < give_up_s, self.terminal
            assert self.process.poll() is None, self.terminal
            time.sleep(0.1)
        return result

    @property
    def terminal(self) -> str:
        return (self.folder / "terminal.txt").read_text(encoding="utf-8")

    def log(self, name: str = "single") -> str:
        path = self.out / GATHERING / "server" / f"{name}.log"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def server(self, name: str = "single") -> psutil.Process | None:
        """The API server of an instance: the process that serves and writes to its log."""
        for process in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess, OSError):
                log = Path(f"/proc/{process.pid}/fd/1").readlink()
                if ("serve" in process.cmdline() or name == "router") and log.name == f"{name}.log":
                    return process
        return None

    def engine_core(self) -> psutil.Process | None:
        for process in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if process.name().startswith("VLLM::EngineCor"):  # the kernel keeps 15 characters
                    return process
        return None

    def titled(self) -> dict[str, bool]:
        """Its processes that gave themselves a title, and whether the mark of the trial can be read in each."""
        found = {}
        for process in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if process.name().startswith("VLLM::"):
                    found[f"{process.name()} {process.pid}"] = MARK in process.environ()
        return found

    def is_loading_model(self) -> bool:
        return "Starting to load model" in self.log() or "Loading weights" in self.log()

    def is_under_load(self) -> bool:
        return "r1  load" in self.terminal and "during" in (self.out / GATHERING / "scrapes.jsonl").read_text()

    def ended(self) -> dict[str, Any]:
        """How it ended, by its record; and nothing of it is left."""
        assert self.process.wait(PATIENCE_S) == 0, self.terminal
        stages = read_json(self.out / "stages.json", "stages/1")
        self.require_nothing_left([server["port"] for server in (*stages["instances"], stages["router"]) if server])
        assert stages["leftovers"] == [], stages["leftovers"]
        return dict(stages["outcome"])

    def require_nothing_left(self, ports: list[int]) -> None:
        require_no_process(self.folder)
        require_free_leases(self.folder / "leases")
        for port in ports:
            require_free_port(port)


@pytest.fixture(scope="module")
def at_launch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, Any]]]:
    """How trials ended that fail before they are ready, by what was done to them."""
    folder = tmp_path_factory.mktemp("launch")
    trials = {
        "model": RealTrial(folder / "model"),
        "dtype": RealTrial(folder / "dtype").set("--kv-cache-dtype", "fp6"),
        "port": RealTrial(folder / "port"),
        "server": RealTrial(folder / "server"),
        "core": RealTrial(folder / "core"),
    }
    for instance in trials["model"].plan["instances"]:
        instance["argv"][instance["argv"].index("serve") + 1] = "/nonexistent/model"
    try:
        for trial in trials.values():
            trial.start()
        with socket.socket() as listener:
            due = {
                "port": partial(take_port, trials["port"], listener),
                "server": partial(kill_at_load, trials["server"], RealTrial.server),
                "core": partial(kill_at_load, trials["core"], RealTrial.engine_core),
            }
            # Each at its own time: to wait for one after the other would find the last one ready.
            strike_each(due)
            yield {name: trial.ended() for name, trial in trials.items() if name != "port"} | {
                "port": outcome_of(trials["port"])
            }
    finally:
        kill_all(folder)


def strike_each(due: dict[str, Callable[[], bool]]) -> None:
    """Do each of these as soon as its own moment has come (it says so by returning true), in whatever order that is.

    Waited for in turn, the moment of the last may have passed by the time that the first has come.
    """
    give_up_s = time.monotonic() + PATIENCE_S
    while due := {name: strike for name, strike in due.items() if not strike()}:
        assert time.monotonic() < give_up_s, f"never came to {', '.join(due)}"
        time.sleep(0.02)


def kill_at_load(trial: RealTrial, victim: Callable[[RealTrial], psutil.Process | None]) -> bool:
    """Kill the victim if the model is being loaded: whether it was."""
    if not trial.is_loading_model():
        return False
    process = victim(trial)
    assert process is not None, trial.terminal
    process.send_signal(signal.SIGKILL)
    return True


def kill_under_load(trial: RealTrial, victim: Callable[[RealTrial], psutil.Process | None]) -> bool:
    """Kill the victim if its trial has been under load for a second, once its processes are noted: whether it was."""
    assert trial.process.poll() is None, trial.terminal
    if not trial.is_under_load():
        return False
    time.sleep(1)
    trial.titles = trial.titled()
    process = victim(trial)
    assert process is not None, trial.terminal
    process.send_signal(signal.SIGKILL)
    return True


def take_port(trial: RealTrial, listener: socket.socket) -> bool:
    """Listen at the port of the first instance, after it was chosen and before vLLM binds it: whether it was chosen."""
    if (server := trial.server()) is None:
        return False
    command = server.cmdline()
    listener.bind(("127.0.0.1", int(command[command.index("--port") + 1])))
    listener.listen()
    return True


def outcome_of(trial: RealTrial) -> dict[str, Any]:
    assert trial.process.wait(PATIENCE_S) == 0, trial.terminal
    require_no_process(trial.folder)
    return dict(read_json(trial.out / "stages.json", "stages/1")["outcome"])


@pytest.mark.fault("launch", "the model's path is wrong", "failed at launch, with the path")
def test_wrong_model_path(at_launch: dict[str, dict[str, Any]]) -> None:
    assert at_launch["model"]["stage"] == "launch"
    assert "/nonexistent/model" in at_launch["model"]["reason"]


@pytest.mark.fault(
    "launch", "the engine does not know the KV-cache dtype", "failed at launch, with the engine's own words"
)
def test_unknown_kv_dtype(at_launch: dict[str, dict[str, Any]]) -> None:
    assert at_launch["dtype"]["stage"] == "launch"
    assert "invalid choice: 'fp6'" in at_launch["dtype"]["reason"]


@pytest.mark.fault(
    "launch", "another program takes the port between choice and bind", "failed at launch, with the engine's own words"
)
def test_port_taken(at_launch: dict[str, dict[str, Any]]) -> None:
    assert at_launch["port"]["stage"] == "launch"
    assert "ddress already in use" in at_launch["port"]["reason"]


@pytest.mark.fault(
    "launch",
    "the kernel kills the API server while the model is loaded",
    "failed at launch, with the signal; its engine core ends too",
)
def test_server_killed_at_load(at_launch: dict[str, dict[str, Any]]) -> None:
    assert at_launch["server"]["stage"] == "launch"
    assert at_launch["server"]["reason"].startswith("single was killed by signal 9 (SIGKILL)")


@pytest.mark.fault(
    "launch",
    "out of memory at load: the kernel kills the engine core",
    "failed at launch: the engine ends by itself, and says that its core has died",
)
def test_core_killed_at_load(at_launch: dict[str, dict[str, Any]]) -> None:
    assert at_launch["core"]["stage"] == "launch"
    assert re.search("engine core|EngineCore|engine process", at_launch["core"]["reason"], re.IGNORECASE)


@pytest.fixture(scope="module")
def under_load(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, RealTrial]]:
    """Trials that were struck in the middle of their load: the engine core of one, the measurement of the other."""
    folder = tmp_path_factory.mktemp("load")
    trials = {name: RealTrial(folder / name).start() for name in ("core", "measurement")}
    try:
        victims = {"core": RealTrial.engine_core, "measurement": lambda trial: psutil.Process(trial.process.pid)}
        strike_each({name: partial(kill_under_load, trial, victims[name]) for name, trial in trials.items()})
        yield trials
    finally:
        kill_all(folder)


@pytest.mark.fault(
    "load",
    "the engine core alone is killed in mid-load",
    "failed at load, though the server answers with errors first and then ends with status 0: with the process that "
    "died, its signal where that can be known, and where to look",
)
def test_core_killed_under_load(under_load: dict[str, RealTrial]) -> None:
    outcome = under_load["core"].ended()
    assert (outcome["status"], outcome["stage"]) == ("failed", "load")
    # vLLM calls that an orderly end, and asks so soon how its core ended that only newer kernels can tell it others.
    how = r"(been killed by signal 9 \(SIGKILL\).*|ended before)"
    told = rf"single ended with status 0: its process VLLM::EngineCore? \(\d+\) had {how}"
    assert re.fullmatch(told, outcome["reason"]), outcome
    assert "engine core exited unexpectedly" in outcome["excerpt"]


@pytest.mark.fault(
    "host",
    "everything above an engine's core and workers is killed, the keeper too, before they had time to notice",
    "they are found by the trial's mark, which their titles do not overwrite: `pdkv doctor --clean` ends them",
)
def test_engine_cores_and_workers_can_be_found_without_their_parents(under_load: dict[str, RealTrial]) -> None:
    for trial in under_load.values():
        assert any(title.startswith("VLLM::EngineCor") for title in trial.titles), trial.titles
        assert all(trial.titles.values()), trial.titles


@pytest.mark.fault(
    "host",
    "the measure job is killed in mid-load",
    "its servers end at once; nothing looks finished; measured next time",
)
def test_measurement_killed_under_load(under_load: dict[str, RealTrial]) -> None:
    trial = under_load["measurement"]
    assert trial.process.wait(10) == -signal.SIGKILL
    require_no_process(trial.folder)
    require_free_leases(trial.folder / "leases")
    assert not (trial.out / "stages.json").exists()


@pytest.mark.fault(
    "pd", "decode is killed in the middle of the load", "failed at load, decode is named with its signal"
)
def test_decode_killed_under_load(tmp_path: Path) -> None:
    trial = RealTrial(tmp_path / "pair", "1p1d").start()
    try:
        trial.wait_for(trial.is_under_load)
        trial.server("decode-0").send_signal(signal.SIGKILL)  # type: ignore[union-attr]
        outcome = trial.ended()
    finally:
        kill_all(tmp_path)
    assert (outcome["status"], outcome["stage"]) == ("failed", "load")
    assert outcome["reason"].startswith("decode-0 was killed by signal 9 (SIGKILL)")


@pytest.fixture(scope="module")
def past_prefill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealTrial]:
    """A pair whose router hands every request to decode alone; it is killed once the first load level is over."""
    folder = tmp_path_factory.mktemp("past")
    trial = RealTrial(folder / "pair", "1p1d").lead_past_prefill().start()
    try:
        trial.wait_for(lambda: "r1  load c=1" in trial.terminal)
        trial.server("router").send_signal(signal.SIGKILL)  # type: ignore[union-attr]
        yield trial
    finally:
        kill_all(folder)


@pytest.mark.fault("launch", "the router dies under load", "failed at load, the router is named with its signal")
def test_router_killed_under_load(past_prefill: RealTrial) -> None:
    outcome = past_prefill.ended()
    assert (outcome["status"], outcome["stage"]) == ("failed", "load")
    assert outcome["reason"].startswith("router was killed by signal 9 (SIGKILL)")


@pytest.mark.fault(
    "pd", "decode prefills by itself instead of fetching", "invalid, with the tokens that decode prefilled"
)
def test_decode_that_prefills_by_itself(past_prefill: RealTrial) -> None:
    """All requests of the first load level were answered, and rightly."""
    past_prefill.process.wait(PATIENCE_S)
    read_launch(past_prefill.out)
    read_load(past_prefill.out)
    level = read_json(past_prefill.out / "metrics.json", "metrics/1")["points"][0]
    states = {check["name"]: check["state"] for check in level["checks"]}
    assert states["requests answered without error"] == "passed"
    assert states["KV cache transferred for every request"] == "failed", states
    assert states["no prefill on decode instances"] == "failed"
    assert level["state"] == "invalid"
