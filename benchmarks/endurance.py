"""The smoke study again and again, with SIGKILL at random moments: does it always come to its end, and leave nothing?

``python benchmarks/endurance.py`` runs config/smoke.yaml 20 times, each in a fresh folder, on the tests' fake engine
(``--real``: on the embedded vLLM). In each run some of its processes are killed, one at a time: which (snakemake, the
measurement, the keeper of a server, a server) and when is drawn by ``--seed``. Then plain ``snakemake`` is called
again, without a flag, until all launches were measured and the report is written. After each run nothing may be left:
no process, no lock, no lease, no port, no half file, no shared memory; and the results must have the shape of those of
a run in which nothing was killed.
"""

import argparse
import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import yaml

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from study_processes import (  # noqa: E402 - the tests' way to find what is left
    KINDS,
    kill_all,
    processes_by_kind,
    require_free_leases,
    require_no_process,
)

from pdkv.artifacts import read_csv, read_json  # noqa: E402
from pdkv.measuring.leftovers import find_leftovers  # noqa: E402
from pdkv.measuring.process_tree import send_signal  # noqa: E402

TRIALS = ("smoke/default/fp16/r1", "smoke/1p1d/fp16/r1")
TABLES = ("sends.parquet", "requests.parquet")
MOST_CALLS = 12  # of snakemake in one run; more would mean that it does not come to an end
GONE_WITHIN_S = 60.0
CALL_WITHIN_S = 900.0


@dataclass
class Run:
    """What happened in one run."""

    kills: list[str] = field(default_factory=list)
    calls: int = 0
    took_s: float = 0.0
    longest_end_s: float = 0.0
    attempts: int = 0

    def __str__(self) -> str:
        killed = ", ".join(self.kills) or "nothing"
        gone = f"all gone within {self.longest_end_s:.1f} s of snakemake's end"
        return f"{self.took_s:5.0f} s, {self.calls} calls of snakemake, killed {killed}; {gone}"


def main() -> None:
    """One run in which nothing is killed, then those in which something is; a table of what happened at the end."""
    arguments = _arguments()
    deadline_s = time.monotonic() + arguments.minutes * 60
    runs: list[Run] = []
    with tempfile.TemporaryDirectory(prefix="pdkv-endurance-") as above:
        expected, reference = endure(Path(above, "reference"), random.Random(), 0, arguments)
        print(f"reference: {reference}", flush=True)
        for number in range(1, arguments.runs + 1):
            if time.monotonic() + 1.5 * max([reference.took_s, *(run.took_s for run in runs)]) > deadline_s:
                print(f"{arguments.minutes:g} minutes are over")
                break
            chance = random.Random(f"{arguments.seed}/{number}")
            shape, run = endure(Path(above, f"run{number}"), chance, chance.randint(1, arguments.kills), arguments)
            runs.append(run)
            print(f"{number:3}: {run}", flush=True)
            if shape != expected:
                sys.exit(f"run {number}: other results than without kills:\n{_difference(expected, shape)}")
    print_summary(reference, runs)


def endure(folder: Path, chance: random.Random, kills: int, arguments: argparse.Namespace) -> tuple[Any, Run]:
    """One study until it is finished; the shape of its results. AssertionError if it does not end or leaves a thing."""
    write_study(folder, arguments.real)
    run = Run()
    began_s = time.monotonic()
    try:
        while not is_finished(folder) or run.calls == 0:
            assert run.calls < MOST_CALLS, f"not finished after {run.calls} calls of snakemake, killed: {run.kills}"
            call_snakemake(folder, chance, len(run.kills) < kills, run, arguments)
        run.took_s = time.monotonic() - began_s
        require_nothing_left(folder)
        run.attempts = sum(
            read_json(folder / "results" / trial / "stages.json", "stages/1")["attempt"] for trial in TRIALS
        )
        return shape_of(folder), run
    finally:
        kill_all(folder)


def write_study(folder: Path, real: bool) -> None:
    """config/smoke.yaml with an engine that lies outside the folder."""
    study = yaml.safe_load((ROOT / "config/smoke.yaml").read_text(encoding="utf-8"))
    if real:
        study |= {
            "model": str(ROOT / ".engine/models/bundled"),
            "engine": {"python": str(ROOT / ".engine/cpu/bin/python")},
        }
    else:
        study |= {"model": "fake/model", "engine": {"command": [sys.executable, str(ROOT / "tests/fake_engine.py")]}}
    (folder / "config").mkdir(parents=True)
    (folder / "config/config.yaml").write_text(yaml.safe_dump(study), encoding="utf-8")


def call_snakemake(folder: Path, chance: random.Random, kill: bool, run: Run, arguments: argparse.Namespace) -> None:
    """Call it once, kill one of its processes if told to, and wait until all have ended."""
    run.calls += 1
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PDKV_LEASE_DIR": str(folder / "leases")}
    snakefile = ["--snakefile", str(ROOT / "Snakefile")]
    command = [sys.executable, "-m", "snakemake", *snakefile, "--quiet", "rules", "--cores", "1", "reports/summary.pdf"]
    with (folder / "terminal.txt").open("ab") as terminal:
        snakemake = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdout=terminal,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    struck = strike(folder, chance, snakemake, arguments) if kill else None
    if struck:
        run.kills.append(struck)
    status = snakemake.wait(CALL_WITHIN_S)
    ended_s = time.monotonic()
    if struck is None and status != 0:
        said = (folder / "terminal.txt").read_text(encoding="utf-8", errors="replace")[-3000:]
        raise AssertionError(f"{said}\nsnakemake ended with status {status}, though nothing was killed in this call")
    require_no_process(folder, GONE_WITHIN_S)
    run.longest_end_s = max(run.longest_end_s, time.monotonic() - ended_s)


def strike(
    folder: Path, chance: random.Random, snakemake: "subprocess.Popen[bytes]", arguments: argparse.Namespace
) -> str | None:
    """Draw a kind of process and a delay; SIGKILL one of that kind so long after the first was seen. The kind, or None.

    None: there was none before the end of the call, or it had ended before its time had come.
    """
    kind = chance.choice(sorted(KINDS))
    delay_s = chance.uniform(0.0, arguments.latest_s if kind == "snakemake" else arguments.trial_s)
    while snakemake.poll() is None and not processes_by_kind(folder)[kind]:
        time.sleep(0.05)
    with contextlib.suppress(subprocess.TimeoutExpired):
        snakemake.wait(delay_s)
    living = processes_by_kind(folder)[kind]
    if not living or snakemake.poll() is not None:
        return None
    send_signal(chance.choice(living), signal.SIGKILL)
    return kind


def is_finished(folder: Path) -> bool:
    """All launches measured, and the report of them written: snakemake would say that nothing is to be done."""
    stages = [folder / "results" / trial / "stages.json" for trial in TRIALS]
    if not all(path.exists() for path in [*stages, folder / "reports/summary.pdf"]):
        return False
    if any(read_json(path, "stages/1")["outcome"]["status"] != "ok" for path in stages):
        return False
    pdf_s = (folder / "reports/summary.pdf").stat().st_mtime
    return all((path.parent.parent / "cell.json").stat().st_mtime <= pdf_s for path in stages)


def require_nothing_left(folder: Path) -> None:
    """AssertionError for a process, a lease, a port, a lock, a half file, or shared memory of this study."""
    require_no_process(folder)
    require_free_leases(folder / "leases")
    left = find_leftovers(folder, at_work=False)
    assert not (left.folders or left.files or left.locks or left.segments), left.describe()
    assert not list((folder / "results").rglob(".*.tmp")), "half files"
    for trial in TRIALS:
        stages = read_json(folder / "results" / trial / "stages.json", "stages/1")
        assert stages["leftovers"] == [], stages["leftovers"]
        for instance in stages["instances"]:
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", instance["port"]))


def shape_of(folder: Path) -> dict[str, Any]:
    """Which files there are, how many requests of which kind, and which numbers the summary holds; not the numbers."""
    below = [path.relative_to(folder) for name in ("results", "reports") for path in (folder / name).rglob("*")]
    shape: dict[str, Any] = {"files": sorted(str(path) for path in below if "logs" not in path.parts)}
    for trial in TRIALS:
        for table in TABLES:
            rows = pq.read_table(folder / "results" / trial / table).select(["phase", "part"]).to_pylist()
            shape[f"{trial}/{table}"] = dict(Counter(f"{row['part']}" for row in rows if row["phase"] == "load"))
        cell = read_json((folder / "results" / trial).parent / "cell.json", "cell/1")
        shape[f"{trial}/launches"] = len(cell["trials"])
    keys = ("workload", "mode", "dtype", "concurrency", "metric", "stat", "unit")
    shape["summary"] = sorted(tuple(row[key] for key in keys) for row in read_csv(folder / "results/summary.csv"))
    return shape


def _difference(expected: dict[str, Any], found: dict[str, Any]) -> str:
    lines = []
    for key in expected:
        if isinstance(expected[key], list):
            lines += [f"{key}: lacks {each}" for each in expected[key] if each not in found[key]]
            lines += [f"{key}: has {each}" for each in found[key] if each not in expected[key]]
        elif expected[key] != found[key]:
            lines.append(f"{key}: {found[key]} instead of {expected[key]}")
    return "\n".join(lines)


def print_summary(reference: Run, runs: Sequence[Run]) -> None:
    """A Markdown table of all runs together."""
    killed = Counter(kind for run in runs for kind in run.kills)
    columns = ("runs", "finished", "killed", "calls of snakemake", "launches measured (needed)", "all gone within")
    print(f"\n| {' | '.join(columns)} |")
    print("|---|---|---|---|---|---|")
    by_kind = ", ".join(f"{count} {kind}" for kind, count in sorted(killed.items()))
    attempts = f"{sum(run.attempts for run in runs)} ({len(TRIALS) * len(runs)})"
    gone = max((run.longest_end_s for run in runs), default=0.0)
    print(f"| {len(runs)} | {len(runs)} | {by_kind} | {sum(run.calls for run in runs)} | {attempts} | {gone:.1f} s |")
    print(f"\na run without kills {reference.took_s:.0f} s; with kills {[round(run.took_s) for run in runs]} s")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--kills", type=int, default=3, help="at most so many in a run, at least one")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--real", action="store_true", help="the embedded vLLM on the CPU instead of the fake engine")
    parser.add_argument("--minutes", type=float, default=600.0, help="begin no run that would not fit into them")
    parser.add_argument(
        "--latest-s", type=float, default=30.0, help="snakemake is killed at most so long after its start"
    )
    parser.add_argument("--trial-s", type=float, default=3.0, help="other processes at most so long after theirs")
    return parser.parse_args()


if __name__ == "__main__":
    main()
