"""``pdkv load`` and ``vllm bench serve`` on the same running server, their numbers side by side.

    python benchmarks/against_vllm_bench.py --url http://127.0.0.1:8000 --model NAME --tokenizer MODEL_FOLDER \\
        --vllm-python ENGINE/bin/python [--together]

Both ask the same lengths, with the same number of users and of requests, and both are judged by vLLM's definitions,
which know neither ramp nor drain. In turn, each loads the server alone. Users that start at other moments meet other
prefills for as long as the load lasts: so pdkv runs twice, as it measures and with its users started as far apart as
those of ``vllm bench serve`` just before. With ``--together`` each has half of the load at the same time, and only
requests are compared that were sent while both were in full swing: what the server did then, it did to both. With
``--request-rate`` requests are sent at a constant rate instead, so that no answer decides when the next one is asked.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

THEIRS = "vllm bench serve"
THEY_SEND = "Starting main benchmark run"  # their line; pdkv is up in a second, they need many before it
STATISTICS: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": np.mean,
    "median": np.median,
    "p99": partial(np.percentile, q=99),
}
Statistics = dict[str, float]


@dataclass(frozen=True)
class Request:
    """One answered request, its times in seconds of the host's monotonic clock: both clients stamp with it."""

    sent_s: float
    ttft_s: float
    gaps_s: npt.NDArray[np.float64]  # between the pieces of the answer
    tokens: int

    @property
    def e2el_s(self) -> float:
        return self.ttft_s + float(np.sum(self.gaps_s))

    @property
    def ended_s(self) -> float:
        return self.sent_s + self.e2el_s


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True, help="the model's name at the server")
    parser.add_argument("--tokenizer", type=Path, required=True, help="model folder for vLLM's client")
    parser.add_argument("--vllm-python", type=Path, required=True)
    parser.add_argument("--input-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=16)
    parser.add_argument("--concurrency", type=int, default=2, help="users; of both with --together")
    parser.add_argument("--request-rate", type=float, help="per second, instead of users; of both with --together")
    parser.add_argument("--requests", type=int, default=32, help="in all, of each client")
    parser.add_argument("--repeats", type=int, default=2, help="runs of each: their spread is the noise")
    parser.add_argument("--together", action="store_true", help="both at the same time, each with half of the users")
    options = parser.parse_args()
    if options.output_tokens < 2:
        parser.error("--output-tokens must be 2 or more: one token has no TPOT")
    run_both = run_together if options.together else run_in_turn
    runs = [run_both(options) for _ in range(options.repeats)]
    load = f"{options.request_rate} requests/s" if options.request_rate else f"concurrency {options.concurrency}"
    lengths = f"{options.input_tokens} -> {options.output_tokens} tokens, {load}"
    how = "at the same time" if options.together else "in turn"
    print(f"{lengths}, {options.requests} requests, {options.repeats} runs of each {how}: mean (lowest to highest)\n")
    print("| | " + " | ".join(runs[0]) + " | ratio of the first two |\n|---|" + "---|" * (len(runs[0]) + 1))
    for name in runs[0][THEIRS]:
        columns = [[run[client][name] for run in runs] for client in runs[0]]
        ratio = np.mean(columns[1]) / np.mean(columns[0])
        print(f"| {name} | " + " | ".join(map(spread, columns)) + f" | {ratio:.3f} |")


def spread(values: Sequence[float]) -> str:
    return f"{np.mean(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def run_in_turn(options: argparse.Namespace) -> dict[str, Statistics]:
    theirs = run_vllm(options, share=1)
    runs = {THEIRS: theirs}
    if options.request_rate:
        runs["pdkv load"] = run_ours(options, share=1)
    else:
        starts_s = sorted(request.sent_s for request in theirs)[: options.concurrency]
        apart_ms = 1e3 * (starts_s[-1] - starts_s[0]) / max(1, len(starts_s) - 1)
        runs["pdkv load, started alike"] = run_ours(options, share=1, ramp_interval_ms=apart_ms)
        runs["pdkv load, users 10 ms apart"] = run_ours(options, share=1, ramp_interval_ms=10)
    return {client: statistics_of(load) for client, load in runs.items()}


def run_together(options: argparse.Namespace) -> dict[str, Statistics]:
    begun = Event()
    with ThreadPoolExecutor(1) as thread:
        theirs = thread.submit(run_vllm, options, share=2, on_start=begun.set)
        while not (begun.wait(1) or theirs.done()):
            pass
        ours = [] if theirs.done() else run_ours(options, share=2)
    # From when as many as may be in flight have been answered, to when the first client has no request left to send.
    loads = {THEIRS: theirs.result(), "pdkv load": ours}
    sent_s = [sorted(one.sent_s for one in load) for load in loads.values()]
    if min(map(len, sent_s)) <= options.concurrency:
        raise SystemExit("the two clients were never in full swing at the same time; ask for more requests")
    begin_s, end_s = max(sent[options.concurrency] for sent in sent_s), min(sent[-1] for sent in sent_s)
    shared = {client: [one for one in load if begin_s <= one.sent_s <= end_s] for client, load in loads.items()}
    if not all(shared.values()):
        raise SystemExit("the two clients were never in full swing at the same time; ask for more requests")
    return {client: statistics_of(load) for client, load in shared.items()}


def statistics_of(load: Sequence[Request]) -> Statistics:
    """In ms and tokens per second, over all requests given."""
    values = {
        "TTFT": [one.ttft_s for one in load],
        "TPOT": [(one.e2el_s - one.ttft_s) / (one.tokens - 1) for one in load],
        "ITL": [gap for one in load for gap in one.gaps_s],
        "E2EL": [one.e2el_s for one in load],
    }
    statistics = {
        f"{metric} {name}, ms": 1e3 * float(statistic(of_metric))
        for metric, of_metric in values.items()
        for name, statistic in STATISTICS.items()
    }
    whole_s = max(one.ended_s for one in load) - min(one.sent_s for one in load)
    statistics["output tokens/s"] = sum(one.tokens for one in load) / whole_s
    statistics["in flight"] = sum(one.e2el_s for one in load) / whole_s
    return {**statistics, "requests": len(load)}


def run_ours(options: argparse.Namespace, share: int, ramp_interval_ms: float = 0.0) -> list[Request]:
    """All requests of ``pdkv load`` with the ``share``-th part of the load."""
    users = options.concurrency // share
    measured = options.requests - (0 if options.request_rate else 2 * users - 1)
    if measured < 1:
        raise SystemExit(f"{options.requests} requests leave none between ramp and drain; ask for more")
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "pdkv", "load", "--url", options.url, "--model", options.model, "--out", out]
        command += ["--input-tokens", str(options.input_tokens), "--output-tokens", str(options.output_tokens)]
        if options.request_rate:
            command += ["--request-rate", str(options.request_rate / share), "--arrival", "constant"]
        else:
            command += ["--concurrency", str(users), "--ramp-interval-ms", str(ramp_interval_ms)]
        run([*command, "--requests", str(measured)])
        rows = pq.read_table(Path(out, "requests.parquet")).to_pylist()
    rows = [row for row in rows if row["phase"] == "load"]
    if failed := [row["error"] for row in rows if row["status"] != "ok"]:
        raise SystemExit(f"{len(failed)} requests of pdkv load failed: {failed[0]}")
    return [Request(row["t_send_s"], row["ttft_s"], np.diff(row["token_t_s"]), row["output_tokens"]) for row in rows]


def run_vllm(options: argparse.Namespace, share: int, on_start: Callable[[], None] = lambda: None) -> list[Request]:
    """All requests of ``vllm bench serve`` with the ``share``-th part of the load."""
    with tempfile.TemporaryDirectory() as out:
        command = [str(options.vllm_python), "-m", "vllm.entrypoints.cli.main", "bench", "serve", "--backend", "vllm"]
        command += ["--base-url", options.url, "--model", str(options.tokenizer), "--served-model-name", options.model]
        command += ["--dataset-name", "random", "--random-input-len", str(options.input_tokens)]
        command += ["--random-output-len", str(options.output_tokens), "--num-prompts", str(options.requests)]
        if options.request_rate:
            command += ["--request-rate", str(options.request_rate / share), "--burstiness", "inf"]
        else:
            command += ["--max-concurrency", str(options.concurrency // share)]
        command += ["--ignore-eos", "--disable-tqdm", "--temperature", "0"]
        command += ["--save-result", "--save-detailed", "--result-dir", out, "--result-filename", "result.json"]
        run(command, lambda line: on_start() if THEY_SEND in line else None)
        result = json.loads(Path(out, "result.json").read_text())
    if result["failed"]:
        raise SystemExit(f"requests of vllm bench serve failed: {next(filter(None, result['errors']))}")
    rows = zip(result["start_times"], result["ttfts"], result["itls"], result["output_lens"], strict=True)
    load = [Request(sent_s, ttft_s, np.array(gaps_s), tokens) for sent_s, ttft_s, gaps_s, tokens in rows]
    own = result["median_tpot_ms"], result["median_ttft_ms"]
    ours = statistics_of(load)
    if not np.allclose(own, (ours["TPOT median, ms"], ours["TTFT median, ms"]), rtol=1e-3):
        raise SystemExit(f"medians of its requests are not those vllm bench serve prints: {own}, {ours}")
    return load


def run(command: list[str], on_line: Callable[[str], None] = lambda line: None) -> None:
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    said = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        for line in process.stdout or ():
            said.append(line)
            on_line(line)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}:\n{''.join(said)[-3000:]}")


if __name__ == "__main__":
    main()
