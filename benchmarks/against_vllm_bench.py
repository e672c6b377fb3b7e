"""``pdkv load`` and ``vllm bench serve`` one after the other on the same running server, side by side.

    python benchmarks/against_vllm_bench.py --url http://127.0.0.1:8000 --model NAME --tokenizer MODEL_FOLDER \\
        --vllm-python ENGINE/bin/python

Both ask the same lengths at the same concurrency and send the same number of requests. All requests of each client are
compared, ramp and drain included, by vLLM's definitions: its table knows no other. ``vllm bench serve`` starts all its
users at once, pdkv starts them apart: so pdkv runs twice, as it measures and, for the comparison, all at once as well.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

LATENCIES = ("ttft", "tpot", "itl", "e2el")
STATISTICS = ("mean", "median", "p99")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True, help="the model's name at the server")
    parser.add_argument("--tokenizer", type=Path, required=True, help="model folder for vLLM's client")
    parser.add_argument("--vllm-python", type=Path, required=True)
    parser.add_argument("--input-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=16)
    parser.add_argument("--concurrency", type=int, default=2)
    parser.add_argument("--requests", type=int, default=32, help="in all, of each client")
    parser.add_argument("--repeats", type=int, default=2, help="runs of each, in turn: their spread is the noise")
    options = parser.parse_args()
    clients = {
        "pdkv load, users 10 ms apart": partial(run_ours, ramp_interval_ms=10),
        "pdkv load, all at once": partial(run_ours, ramp_interval_ms=0),
        "vllm bench serve": run_vllm,
    }
    runs: dict[str, list[dict[str, float]]] = {client: [] for client in clients}
    for _ in range(options.repeats):
        for client, load in clients.items():
            runs[client].append(load(options))
    lengths = f"{options.input_tokens} -> {options.output_tokens} tokens, concurrency {options.concurrency}"
    print(f"{lengths}, {options.requests} requests, {options.repeats} runs each: mean (lowest to highest)\n")
    print("| | " + " | ".join(runs) + " |\n|---|" + "---|" * len(runs))
    for name in runs["vllm bench serve"][0]:
        print(
            f"| {name} | " + " | ".join(spread([run[name] for run in of_client]) for of_client in runs.values()) + " |"
        )


def spread(values: Sequence[float]) -> str:
    return f"{np.mean(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def run_ours(options: argparse.Namespace, ramp_interval_ms: int) -> dict[str, float]:
    """Our statistics in ms and tokens per second, over all requests of the load."""
    measured = options.requests - 2 * options.concurrency + 1
    if measured < 1:
        raise SystemExit(f"{options.requests} requests leave none between ramp and drain; ask for more")
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "pdkv", "load", "--url", options.url, "--model", options.model, "--out", out]
        command += ["--input-tokens", str(options.input_tokens), "--output-tokens", str(options.output_tokens)]
        command += ["--ramp-interval-ms", str(ramp_interval_ms)]
        run([*command, "--concurrency", str(options.concurrency), "--requests", str(measured)])
        rows = [row for row in read(Path(out, "requests.parquet")) if row["phase"] == "load"]
    if failed := [row["error"] for row in rows if row["status"] != "ok"]:
        raise SystemExit(f"{len(failed)} requests of pdkv load failed: {failed[0]}")
    values = {
        name: [row[f"{name}_s"] for row in rows if row[f"{name}_s"] is not None] for name in ("ttft", "tpot", "e2el")
    }
    values["itl"] = [gap for row in rows for gap in np.diff(row["token_t_s"])]
    statistics = {}
    for name in LATENCIES:
        found = 1e3 * np.array(values[name])
        numbers = (found.mean(), np.median(found), np.percentile(found, 99))
        statistics |= {f"{name.upper()} {kind}, ms": float(n) for kind, n in zip(STATISTICS, numbers, strict=True)}
    whole_s = max(row["t_last_s"] for row in rows) - min(row["t_send_s"] for row in rows)
    statistics["output tokens/s, whole run"] = sum(row["output_tokens"] for row in rows) / whole_s
    statistics["requests"] = len(rows)
    return statistics


def read(path: Path) -> list[dict[str, object]]:
    table: pa.Table = pq.read_table(path)
    return list(table.to_pylist())


def run_vllm(options: argparse.Namespace) -> dict[str, float]:
    """The same from the result file of ``vllm bench serve``."""
    with tempfile.TemporaryDirectory() as out:
        run(
            [
                *(str(options.vllm_python), "-m", "vllm.entrypoints.cli.main", "bench", "serve", "--backend", "vllm"),
                *("--base-url", options.url, "--model", str(options.tokenizer), "--served-model-name", options.model),
                *("--dataset-name", "random", "--random-input-len", str(options.input_tokens)),
                *("--random-output-len", str(options.output_tokens), "--num-prompts", str(options.requests)),
                *(
                    "--max-concurrency",
                    str(options.concurrency),
                    "--ignore-eos",
                    "--disable-tqdm",
                    "--temperature",
                    "0",
                ),
                *("--percentile-metrics", ",".join(LATENCIES), "--metric-percentiles", "99"),
                *("--save-result", "--result-dir", out, "--result-filename", "result.json"),
            ]
        )
        result = json.loads(Path(out, "result.json").read_text())
    statistics = {
        f"{name.upper()} {kind}, ms": result[f"{kind}_{name}_ms"] for name in LATENCIES for kind in STATISTICS
    }
    return {**statistics, "output tokens/s, whole run": result["output_throughput"], "requests": result["completed"]}


def run(command: list[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-3000:]}")


if __name__ == "__main__":
    main()
