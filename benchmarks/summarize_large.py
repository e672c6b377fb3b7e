"""100,000 requests of 512 tokens: how long the analysis takes and how much memory it needs.

``python benchmarks/summarize_large.py [FOLDER]`` makes the trial once (about 400 MB in FOLDER, a temporary one if not
named), then runs metrics and the cell's summary with goodput, each in a process of its own. Limits: 60 s together and
4 GiB each. Reading the responses' bytes into requests comes before; its cost is by token and is measured last, on a
smaller load.
"""

import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pdkv.analysing.cell_summary import summarize_cell
from pdkv.analysing.load_facts import describe_load
from pdkv.analysing.responses import read_requests
from pdkv.analysing.service_levels import ServiceLevels
from pdkv.artifacts import read_parquet, write_json, write_parquet

REQUESTS, TOKENS, CONCURRENCY = 100_000, 512, 64
MAX_S, MAX_GIB = 60.0, 4.0
READ_REQUESTS = 2000  # of which the bytes are read: all of them would be 15 GB
LEVELS = ServiceLevels(ttft_ms=250, tpot_ms=10.2, e2el_ms=5500, target_share=0.9)
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


def make_answers(folder: Path) -> None:
    """sends.parquet and events.parquet of ``READ_REQUESTS`` answers as vLLM streams them, an event in each piece."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
    schema = pa.schema(
        {"phase": pa.string(), "point": pa.int16(), "request": pa.int32(), "t_s": pa.float64(), "data": pa.binary()}
    )
    sends = []
    with pq.ParquetWriter(folder / "events.parquet", schema, compression="zstd") as writer:
        for first in range(0, READ_REQUESTS, 200):
            requests = range(first, first + 200)
            data, times = [], []
            for request in requests:
                pieces = [head, *(_event(token, request) for token in range(TOKENS)), _usage(request)]
                data += pieces
                times.append(request * 0.1 + 0.2 + 0.01 * np.arange(len(pieces)))
            rows = len(data)
            columns: list[Any] = [["load"] * rows, np.zeros(rows, np.int16)]
            columns += [np.repeat(requests, TOKENS + 2).astype(np.int32), np.concatenate(times), data]
            writer.write_table(pa.table(columns, schema=schema))
            sends += [_send(request) for request in requests]
    write_parquet(folder / "sends.parquet", pa.Table.from_pylist(sends))


def _event(token: int, request: int) -> bytes:
    reason = '"length"' if token == TOKENS - 1 else "null"
    return _chunk(
        f'{{"id":"cmpl-{request:032x}","object":"text_completion","created":1790000000,"model":"m","choices":[{{"index":0,'
        f'"text":" word","logprobs":null,"finish_reason":{reason},"stop_reason":null,"token_ids":[{1000 + token}],'
        '"prompt_logprobs":null,"prompt_token_ids":null}],"usage":null}'
    )


def _usage(request: int) -> bytes:
    usage = f'{{"prompt_tokens":128,"total_tokens":{128 + TOKENS},"completion_tokens":{TOKENS}}}'
    told = f'{{"id":"cmpl-{request:032x}","object":"text_completion","created":1790000000,"model":"m","choices":[],'
    return _chunk(f'{told}"usage":{usage}}}') + _chunk("[DONE]") + b"0\r\n\r\n"


def _chunk(text: str) -> bytes:
    event = f"data: {text}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(event), event)


def _send(request: int) -> dict[str, Any]:
    return {
        "phase": "load", "point": 0, "request": request, "target": "single", "part": "measured", "prompt": request,
        "user": request % CONCURRENCY, "input_tokens": 128, "output_tokens": TOKENS, "scheduled_s": request * 0.1,
        "t_send_s": request * 0.1, "t_end_s": request * 0.1 + 6.0, "connection": "new", "outcome": "answered",
        "error": None,
    }  # fmt: skip


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
    summarize_cell([folder], folder / "cell.json", LEVELS)


def read_answers(folder: Path) -> None:
    table = read_requests(folder / "sends.parquet", folder / "events.parquet", [POINT])
    if set(table["status"].to_pylist()) != {"ok"} or set(table["output_tokens"].to_pylist()) != {TOKENS}:
        raise SystemExit(f"the answers were not read as they were made: {table['error'].to_pylist()[0]}")


def measure(step: Callable[[Path], None], folder: Path) -> tuple[float, float, float]:
    """Run a step in a fresh process; print and give its seconds, CPU seconds and peak GiB."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_timed, args=(step, folder, sender))
    process.start()
    took_s, cpu_s, peak_gib = receiver.recv()
    process.join()
    print(f"{step.__name__:15} {took_s:5.1f} s ({cpu_s:5.1f} s of CPU) {peak_gib:5.2f} GiB", flush=True)
    return took_s, cpu_s, peak_gib


def make(maker: Callable[[Path], None], folder: Path) -> None:
    """In a process of its own, so that its memory is not counted."""
    process = multiprocessing.get_context("spawn").Process(target=maker, args=(folder,))
    process.start()
    process.join()


def _timed(step: Callable[[Path], None], folder: Path, sender: "multiprocessing.connection.Connection") -> None:
    start_s, start_cpu_s = time.perf_counter(), time.process_time()
    step(folder)
    took_s, cpu_s = time.perf_counter() - start_s, time.process_time() - start_cpu_s
    sender.send((took_s, cpu_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20))


def main() -> int:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(temporary)
        if not (folder / "requests.parquet").exists():
            make(make_trial, folder)
            make(make_answers, folder)
        steps = [measure(step, folder) for step in (write_metrics, write_cell)]
        _, read_s, _ = measure(read_answers, folder)
    total_s, peak_gib = sum(took_s for took_s, _, _ in steps), max(peak for _, _, peak in steps)
    whole_s = read_s * REQUESTS / READ_REQUESTS
    print(f"  of {READ_REQUESTS} requests, a step before the others; for all {REQUESTS} that is {whole_s:.0f} s of CPU")
    print(f"{'together':15} {total_s:5.1f} s, limit {MAX_S:g} s; {peak_gib:.2f} GiB, limit {MAX_GIB:g} GiB")
    return 0 if total_s <= MAX_S and peak_gib <= MAX_GIB else 1


if __name__ == "__main__":
    sys.exit(main())
