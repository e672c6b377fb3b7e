"""A study that Snakemake runs on the test's cluster, and what is left of its jobs."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from slurm_cluster import Cluster, wait_until

from pdkv.measuring.process_tree import descendants, find_marked

ROOT = Path(__file__).parent.parent.parent
FAKE_GPUS = Path(__file__).parent / "fake_gpus"
ENGINE = json.dumps([sys.executable, str(ROOT / "tests/fake_engine.py")])
STUDY = """\
model: fake/model
engine: {{command: {engine}, device: cuda}}
workloads:
  w: {{input_tokens: 16, output_tokens: 4, concurrency: [2], requests: 4, max_model_len: 64}}
modes:
{modes}
dtypes: [fp16]
"""
RUNS_JOBS = re.compile(r"-m snakemake |^srun |^slurmstepd|/slurm_script")
ENDED = {"CANCELLED", "COMPLETED", "FAILED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL"}


class Study:
    """A folder in which Snakemake runs with the profile, on sources that nobody edits meanwhile."""

    def __init__(self, folder: Path, sources: Path, *, fake_gpus: bool = True) -> None:
        self.folder = folder
        self.sources = sources
        paths = [*([str(FAKE_GPUS)] if fake_gpus else []), str(sources / "src")]
        self.environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        self.environment |= {"PDKV_LEASE_DIR": str(folder / "leases-%h")}
        self.environment.pop("CUDA_VISIBLE_DEVICES", None)
        self.output = folder / "output.txt"

    def write(self, **modes: str) -> None:
        (self.folder / "config").mkdir(parents=True, exist_ok=True)
        lines = "\n".join(f"  {mode}: {settings}" for mode, settings in modes.items())
        text = STUDY.format(engine=ENGINE, modes=lines)
        (self.folder / "config/config.yaml").write_text(text, encoding="utf-8")

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        # Beside the profile: what it leaves to the cluster's owner, and less patience than a person has.
        command = [sys.executable, "-m", "snakemake", "--snakefile", str(self.sources / "Snakefile")]
        command += ["--profile", str(self.sources / "profiles/slurm"), "--slurm-no-account"]
        command += ["--slurm-status-command", "squeue", "--slurm-init-seconds-before-status-checks", "3"]
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.output.open("wb") as output:
            return subprocess.Popen(
                [*command, *arguments], cwd=self.folder, env=self.environment, stdout=output, stderr=subprocess.STDOUT
            )

    @contextmanager
    def running(self, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        run = self.start(*arguments)
        try:
            yield run
        finally:
            if run.poll() is None:
                run.kill()
                run.wait()

    def said(self) -> str:
        return self.output.read_text(encoding="utf-8", errors="replace")

    def trial(self, mode: str) -> Path:
        return self.folder / f"results/w/{mode}/fp16/r1"

    def stages(self, mode: str) -> dict[str, Any]:
        return dict(json.loads((self.trial(mode) / "stages.json").read_text(encoding="utf-8")))

    def measured(self) -> set[str]:
        return {path.parent.parent.parent.name for path in self.folder.glob("results/w/*/fp16/r1/stages.json")}

    def server_log(self, mode: str) -> str:
        """What the servers of a trial that is being measured have said so far."""
        logs = self.trial(mode).glob(".measuring/server/*.log")
        return "\n".join(log.read_text(encoding="utf-8", errors="replace") for log in logs)

    def job_logs(self, mode: str) -> str:
        logs = self.folder.glob(f"results/logs/slurm/rule_measure/w_{mode}_fp16_1/*.log")
        return "\n".join(log.read_text(encoding="utf-8", errors="replace") for log in logs)


@dataclass(frozen=True)
class Run:
    """How a run of Snakemake ended: its exit status, its jobs by trial, and what lived on of trials that were ended."""

    status: int
    said: str
    jobs: dict[str, list[str]]
    survivors: dict[str, list[str]]


def living(study: Study, mode: str, job: str) -> list[str]:
    """Processes of a trial: those that carry its job's mark, and those that write to its servers' logs.

    Not Slurm's and Snakemake's own: where Slurm tracks processes by their parents (no cgroups) it loses sight of a
    job's Snakemake when the job's shell has ended, and leaves it to end by itself.
    """
    found = {process.pid for process in find_marked(f"SLURM_JOB_ID={job}")}
    for process in descendants(os.getpid()):
        with suppress(OSError):
            if Path(f"/proc/{process.pid}/fd/1").readlink().is_relative_to(study.trial(mode)):
                found.add(process.pid)
    commands = {pid: command_of(pid) for pid in found}
    return [f"{pid} {command}" for pid, command in commands.items() if not RUNS_JOBS.search(command)]


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return "ended"


def survivors_of(study: Study, mode: str, job: str) -> list[str]:
    """What of a trial still lives half a minute after its job has ended; returns as soon as that is nothing."""
    give_up_s = time.monotonic() + 30
    while (left := living(study, mode, job)) and time.monotonic() < give_up_s:
        time.sleep(0.3)
    return left


def await_state(cluster: Cluster, job: str, states: set[str], patience_s: float = 60.0) -> str:
    wait_until(
        lambda: cluster.job_states()[job] in states,
        f"job {job} is {' or '.join(states)}",
        lambda: f"{cluster.job_states()}",
        patience_s,
    )
    return cluster.job_states()[job]


def wait_amid(run: subprocess.Popen[bytes], study: Study, condition: Callable[[], object], what: str) -> None:
    """Wait for something that happens while Snakemake runs."""
    give_up_s = time.monotonic() + 240
    while not condition():
        assert run.poll() is None, f"the run ended before {what}:\n{study.said()[-3000:]}"
        assert time.monotonic() < give_up_s, f"not within 240 s: {what}\n{study.said()[-3000:]}"
        time.sleep(0.3)


def end_of(run: subprocess.Popen[bytes], study: Study, patience_s: float) -> int:
    try:
        return run.wait(patience_s)
    except subprocess.TimeoutExpired:
        pytest.fail(f"still running after {patience_s:g} s:\n{study.said()[-3000:]}")
