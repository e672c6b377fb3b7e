"""How far the client's TTFT is from the truth, and what it costs: ours and, if its Python is named, vLLM's.

    python benchmarks/client_accuracy.py --vllm-python ENGINE/bin/python --tokenizer MODEL_FOLDER

The golden server plays known token times on one core, the client runs on another. Each client is a fresh process; its
CPU time is read from the kernel, its window from the server's record: first request received to last token written.
"Start-up and end" is all time of the process in which no request of its own was at the server: imports, preparation,
reading the answers, printing. Both clients are judged over all requests of the load, ramp and drain included.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import golden_server  # noqa: E402

TTFT_S, ITL_S, INPUT_TOKENS, OUTPUT_TOKENS = 0.05, 0.02, 128, 128
REQUESTS = {2: 24, 64: 320, 256: 768}
TARGETS = {2: "≤ 0.5 / 2", 64: "≤ 0.5 / 2 · 0.04", 256: "≤ 1 / 5 · 0.03"}
SERVER_CORE, CLIENT_CORE = 0, 1
CPU_SAMPLE_S = 0.05


@dataclass(frozen=True)
class Run:
    """One client process: errors in ms, CPU seconds per 1000 tokens in the window, seconds outside of it."""

    error_median_ms: float
    error_p99_ms: float
    cpu_s_per_1000: float
    outside_s: float
    in_flight_mean: float
    in_flight_max: int


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--concurrency", type=int, nargs="+", default=list(REQUESTS))
    parser.add_argument("--repeats", type=int, default=3, help="runs of each; medians are shown")
    parser.add_argument(
        "--vllm-python", type=Path, help="Python of an environment with vLLM, to measure its client too"
    )
    parser.add_argument("--tokenizer", type=Path, help="model folder for vLLM's client")
    options = parser.parse_args()
    clients: dict[str, Callable[[str, int, Path], list[str]]] = {"pdkv load": our_command}
    if options.vllm_python:
        clients["vllm bench serve"] = lambda url, level, out: vllm_command(options, url, level, out)
    print(
        f"load average at start: {os.getloadavg()[0]:.1f}; TTFT error (client - truth), {options.repeats} runs each\n"
    )
    print("| concurrency | client | error median / p99, ms | CPU s per 1000 tokens | start-up and end, s ", end="")
    print("| in flight, mean / max | ours must be |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for level in options.concurrency:
        for name, command in clients.items():
            runs = [measure(command, level, name == "pdkv load") for _ in range(options.repeats)]
            print(row(level, name, runs), flush=True)


def row(level: int, name: str, runs: list[Run]) -> str:
    def middle(field: str) -> float:
        return statistics.median(getattr(run, field) for run in runs)

    cells = [
        str(level),
        name,
        f"{middle('error_median_ms'):.2f} / {middle('error_p99_ms'):.2f}",
        f"{middle('cpu_s_per_1000'):.4f}",
        f"{middle('outside_s'):.2f}",
        f"{middle('in_flight_mean'):.1f} / {middle('in_flight_max'):.0f}",
        TARGETS.get(level, "") if name == "pdkv load" else "",
    ]
    return f"| {' | '.join(cells)} |"


def measure(command: Callable[[str, int, Path], list[str]], level: int, ours: bool) -> Run:
    """One run of one client against a fresh server."""
    times = ("--ttft-s", str(TTFT_S), "--itl-s", str(ITL_S))
    with tempfile.TemporaryDirectory() as folder, golden_server.running(*times, cores={SERVER_CORE}) as server:
        out = Path(folder)
        wall_s, cpu = run_client(command(server.url, level, out))
        truth = server.truth()
        told = our_ttfts(out) if ours else vllm_ttfts(out)
    outside_s = wall_s - busy_seconds(truth)
    truth = {name: request for name, request in truth.items() if name in told}  # without warm-up
    if len(told) != len(truth) or len(truth) < REQUESTS[level]:
        raise SystemExit(f"{len(truth)} requests at the server, {len(told)} at the client")
    errors = [1e3 * (ttft_s - truth[name]["token_s"][0] + truth[name]["received_s"]) for name, ttft_s in told.items()]
    begin_s = min(request["received_s"] for request in truth.values())
    end_s = max(request["token_s"][-1] for request in truth.values())
    tokens = sum(sum(request["token_n"]) for request in truth.values())
    cpu_s = float(np.diff(np.interp([begin_s, end_s], *zip(*cpu, strict=True)))[0])
    p99 = float(np.percentile(errors, 99))
    return Run(statistics.median(errors), p99, 1e3 * cpu_s / tokens, outside_s, *in_flight(truth, level))


def busy_seconds(truth: dict[str, dict[str, Any]]) -> float:
    """Seconds in which at least one request, warm-up included, was at the server."""
    busy_s, until_s = 0.0, 0.0
    for start_s, end_s in sorted((request["received_s"], request["token_s"][-1]) for request in truth.values()):
        busy_s += max(0.0, end_s - max(start_s, until_s))
        until_s = max(until_s, end_s)
    return busy_s


def in_flight(truth: dict[str, dict[str, Any]], level: int) -> tuple[float, int]:
    """(mean, maximum) of the requests at the server; the mean from when the level could be full to the last receipt."""
    received = np.sort([request["received_s"] for request in truth.values()])
    ended = np.sort([request["token_s"][-1] for request in truth.values()])
    grid = np.linspace(received[level - 1], received[-1], 2000)
    counts = np.searchsorted(received, grid, side="right") - np.searchsorted(ended, grid)
    at_receipt = np.arange(1, len(received) + 1) - np.searchsorted(ended, received)
    return float(counts.mean()), int(at_receipt.max())


def run_client(command: list[str]) -> tuple[float, list[tuple[float, float]]]:
    """(wall seconds, [(monotonic s, CPU s of the process and its children so far)])."""
    start_s = time.monotonic()
    pinned = ["taskset", "-c", str(CLIENT_CORE), *command]
    with tempfile.TemporaryFile() as said, subprocess.Popen(pinned, stdout=said, stderr=said) as process:
        cpu: list[tuple[float, float]] = [(start_s, 0.0)]
        over = threading.Event()

        def sample() -> None:
            while not over.wait(CPU_SAMPLE_S):
                cpu.append((time.monotonic(), sum(cpu_seconds(process.pid))))

        sampler = threading.Thread(target=sample)
        sampler.start()
        status = process.wait()
        wall_s = time.monotonic() - start_s
        over.set()
        sampler.join()
        if status:
            said.seek(0)
            raise SystemExit(f"{' '.join(command)} ended with {status}:\n{said.read().decode()[-3000:]}")
    # A sample taken as the process ended may lack it: time only grows.
    return wall_s, [(at_s, spent_s) for at_s, spent_s in cpu if at_s == start_s or spent_s > 0]


def cpu_seconds(pid: int) -> Iterator[float]:
    """CPU seconds of a process and of its living descendants."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return
    yield (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    for child in children:
        yield from cpu_seconds(int(child))


# ---- ours ------------------------------------------------------------------------------------------------------------


def our_command(url: str, level: int, out: Path) -> list[str]:
    measured = REQUESTS[level] - 2 * level + 1  # with ramp and drain as many requests as the other client sends
    lengths = ["--input-tokens", str(INPUT_TOKENS), "--output-tokens", str(OUTPUT_TOKENS)]
    load = ["--concurrency", str(level), "--requests", str(measured)]
    return [sys.executable, "-m", "pdkv", "load", "--url", url, "--model", "golden", *lengths, *load, "--out", str(out)]


def our_ttfts(out: Path) -> dict[str, float]:
    import pyarrow.parquet as pq

    requests = pq.read_table(out / "requests.parquet", columns=["phase", "request", "ttft_s"]).to_pylist()
    ids: dict[int, str] = {}
    for event in pq.read_table(out / "events.parquet").to_pylist():
        found = re.search(rb'"id":"([^"]+)"', event["data"])
        if found and event["phase"] == "load":
            ids.setdefault(event["request"], found[1].decode())
    return {ids[row["request"]]: row["ttft_s"] for row in requests if row["phase"] == "load"}


# ---- vLLM's ----------------------------------------------------------------------------------------------------------


def vllm_command(options: argparse.Namespace, url: str, level: int, out: Path) -> list[str]:
    return [
        *(str(options.vllm_python), "-m", "vllm.entrypoints.cli.main", "bench", "serve", "--backend", "vllm"),
        *("--base-url", url, "--model", str(options.tokenizer), "--served-model-name", "golden"),
        *(
            "--dataset-name",
            "random",
            "--random-input-len",
            str(INPUT_TOKENS),
            "--random-output-len",
            str(OUTPUT_TOKENS),
        ),
        *("--num-prompts", str(REQUESTS[level]), "--max-concurrency", str(level), "--ignore-eos", "--disable-tqdm"),
        *("--request-id-prefix", "bench-", "--ready-check-timeout-sec", "0"),
        *("--save-result", "--save-detailed", "--result-dir", str(out), "--result-filename", "result.json"),
    ]


def vllm_ttfts(out: Path) -> dict[str, float]:
    ttfts = json.loads((out / "result.json").read_text())["ttfts"]
    return {f"bench-{number}": ttft_s for number, ttft_s in enumerate(ttfts)}


if __name__ == "__main__":
    main()
