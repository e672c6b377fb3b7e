"""100,000 requests of 512 tokens: how long the analysis takes and how much memory it needs.

``python benchmarks/summarize_large.py [FOLDER]`` makes the trial once (about 400 MB in FOLDER, a temporary one if not
named), then runs metrics and the cell's summary, each in a process of its own. Limits: 60 s and 4 GiB.
"""

import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from pdkv.analysing.cell_summary import summarize_cell
from pdkv.analysing.load_facts import describe_load
from pdkv.artifacts import read_parquet, write_json, write_parquet

REQUESTS, TOKENS, CONCURRENCY = 100_000, 512, 64
MAX_S, MAX_GIB = 60.0, 4.0
POINT = {"point": 0, "arrival": "closed", "concurrency": CONCURRENCY, "rate": None}


def make_trial(folder: Path) -> None:
    """A closed loop of 64 users, each request right after the user's last one."""
    rng = np.random.default_rng(1)
    ttft = rng.lognormal(np.log(0.2), 0.2, REQUESTS)
    gaps = rng.lognormal(np.log(0.01), 0.1, (REQUESTS, TOKENS - 1))
    e2el = ttft + gaps.sum(axis=1)
    user = np.arange(REQUESTS) % CONCURRENCY
    send = np.empty(REQUESTS)
    for number in range(CONCURRENCY):
        ends = np.cumsum(e2el[user == number])
        send[user == number] = number * 0.01 + np.concatenate(([0], ends[:-1]))
    times = np.empty((REQUESTS, TOKENS))
    times[:, 0] = send + ttft
    np.cumsum(gaps, axis=1, out=times[:, 1:])
    times[:, 1:] += times[:, :1]
    order = np.argsort(send, kind="stable")
    part = np.full(REQUESTS, "measured", dtype=object)
    part[:CONCURRENCY], part[-CONCURRENCY + 1 :] = "ramp", "drain"
    offsets = pa.array(np.arange(0, REQUESTS * TOKENS + 1, TOKENS, dtype=np.int32))
    send, ttft, e2el, times = send[order], ttft[order], e2el[order], times[order]
    whole = {
        name: pa.array(np.full(REQUESTS, value, np.int32))
        for name, value in (("input_tokens", 128), ("output_tokens", TOKENS))
    }
    table = pa.table(
        {
            "phase": pa.array(["load"] * REQUESTS),
            "point": pa.array(np.zeros(REQUESTS, np.int16)),
            "request": pa.array(np.arange(REQUESTS, dtype=np.int32)),
            "part": pa.array(part),
            "prompt": pa.array(np.arange(REQUESTS, dtype=np.int32)),
            "user": pa.array(user[order].astype(np.int32)),
            "status": pa.array(["ok"] * REQUESTS),
            "error": pa.array([None] * REQUESTS, pa.string()),
            **whole,
            **{f"asked_{name}": column for name, column in whole.items()},
            "scheduled_s": pa.array(send),
            "t_send_s": pa.array(send),
            "t_first_s": pa.array(times[:, 0]),
            "t_last_s": pa.array(times[:, -1]),
            "t_end_s": pa.array(times[:, -1]),
            "ttft_s": pa.array(ttft),
            "tpot_s": pa.array((times[:, -1] - times[:, 0]) / (TOKENS - 1)),
            "e2el_s": pa.array(e2el),
            "token_t_s": pa.ListArray.from_arrays(offsets, pa.array(times.ravel())),
            "token_n": pa.ListArray.from_arrays(offsets, pa.array(np.ones(REQUESTS * TOKENS, np.int32))),
        }
    )
    write_parquet(folder / "requests.parquet", table)
    names = {"workload": {"id": "large"}, "mode": {"id": "default"}, "dtype": {"id": "fp16"}, "repeat": 1}
    write_json(folder / "plan.json", "plan/1", {"trial": names, "instances": [], "points": [POINT]})
    write_json(folder / "stages.json", "stages/1", STAGES)
    for name in ("launch", "warmup", "trace"):
        write_json(folder / f"{name}.json", f"{name}/1", {"checks": []})


STAGES = {
    "attempt": 1,
    "outcome": {"status": "ok", "stage": None, "reason": None, "excerpt": None},
    "stages": [],
    "wall": {"start_s": 0.0, "end_s": 1.0},
    "instances": [],
    "points": [{**POINT, "start_s": 0.0, "end_s": 1000.0}],
    "environment": {},
    "client": {"cpu_s": None},
}


def write_metrics(folder: Path) -> None:
    write_json(
        folder / "metrics.json", "metrics/1", describe_load(read_parquet(folder / "requests.parquet"), STAGES, [])
    )


def write_cell(folder: Path) -> None:
    summarize_cell([folder], folder / "cell.json")


def measure(step: Callable[[Path], None], folder: Path) -> bool:
    """Run a step in a fresh process; print seconds and peak memory; whether both are within the limits."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_timed, args=(step, folder, sender))
    process.start()
    took_s, peak_gib = receiver.recv()
    process.join()
    print(f"{step.__name__:15} {took_s:5.1f} s {peak_gib:5.2f} GiB")
    return bool(took_s <= MAX_S and peak_gib <= MAX_GIB)


def _timed(step: Callable[[Path], None], folder: Path, sender: "multiprocessing.connection.Connection") -> None:
    start_s = time.perf_counter()
    step(folder)
    took_s = time.perf_counter() - start_s
    sender.send((took_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20))


def main() -> int:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(temporary)
        if not (folder / "requests.parquet").exists():
            context = multiprocessing.get_context("spawn")
            maker = context.Process(target=make_trial, args=(folder,))
            maker.start()
            maker.join()
        kept = [measure(step, folder) for step in (write_metrics, write_cell)]
        return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
