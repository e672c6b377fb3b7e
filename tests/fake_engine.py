"""A process that behaves as ``vllm serve`` does, and misbehaves on request.

``python tests/fake_engine.py serve MODEL --port N --served-model-name NAME …`` answers ``/health``, ``/metrics``,
``/version`` and ``/v1/completions`` (streamed or not, with KV transfer parameters where asked for). Environment:

FAKE_READY_S       seconds until it listens (0.1); ``never`` never does
FAKE_EXIT          ends at once with this status after a traceback in its log
FAKE_WORKERS       this many children in sessions of their own that retitle themselves VLLM::Worker and outlive a kill
FAKE_CORE          has an engine core, without which it answers with errors for a second and ends with status 0;
                   ``reaped``: asks at once how that has ended, so that nobody else can
FAKE_SHM           makes this file in /dev/shm and keeps it mapped
FAKE_DEAF_S        ignores SIGTERM for so many seconds
FAKE_DIES_AFTER    is killed (SIGKILL) when it gets its completion number N+1
FAKE_STATUS        answers completions with this HTTP status after the first one
FAKE_NO_TRANSFER   forgets to say where the KV cache is
FAKE_MEMORY_MB     takes so much memory, 100 MB every 0.1 s, before it listens
FAKE_TOKEN_S       seconds between tokens (0.005)
FAKE_LOG           begins its log with this file
FAKE_KILLED        is killed (SIGKILL) while it loads its model
FAKE_VERSION       says that it is this version
FAKE_ANSWERS       under load, streams this scenario of golden_scenarios.py to every FAKE_EVERYth request (1)
FAKE_RESTARTS_AT   begins anew, in the same process, when it gets this completion
FAKE_PREFILLS_FROM computes prompts itself from this transfer on, whatever came over the connector
FAKE_LOSES_FROM    from this transfer on none of them succeeds: the prompt is computed again
FAKE_EXPIRES_FROM  from this prompt on gives the KV cache up before anybody has fetched it
FAKE_COUNTS_NONE   says nothing of transfers on its metrics page
FAKE_TELLS_ALL     writes its environment into its log, and into what it says of itself, in answers and errors too
"""

import argparse
import ctypes
import json
import mmap
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from golden_scenarios import LAST_CHUNK, SCENARIOS, Ask

BEFORE_DEATH = """INFO 11-30 04:00:00 [fake.py:1] loading weights
Traceback (most recent call last):
  File "fake.py", line 1, in <module>
RuntimeError: the fake engine was told to fail
"""
PR_SET_NAME = 15
READINGS_BEFORE_LOAD = 3  # of the metrics page: when ready, when warm, before the first load level


class Engine:
    def __init__(self, model: str) -> None:
        self.model = model
        self.completions = 0
        self.under_load = 0
        self.metrics_read = 0
        self.started_s = time.time()
        self.is_dead = False
        self.counted: Counter[str] = Counter()
        self.lock = threading.Lock()

    def take_number(self) -> tuple[int, int]:
        """The completion's number from the start, and that under load, 0 before it."""
        with self.lock:
            self.completions += 1
            self.under_load += self.metrics_read >= READINGS_BEFORE_LOAD
            return self.completions, self.under_load

    def count(self, prompt: int, transfer: dict[str, Any]) -> None:
        """Where a prompt's KV cache came from, as vLLM counts it; an expired one is counted where it was kept."""
        with self.lock:
            counted = self.counted
            counted["prompt_tokens"] += prompt
            counted["kept"] += bool(transfer.get("do_remote_decode"))
            counted["fetched"] += bool(transfer.get("remote_engine_id"))
            counted["expired"] += bool(transfer.get("do_remote_decode")) and is_due(
                "FAKE_EXPIRES_FROM", counted["kept"]
            )
            lost = is_due("FAKE_LOSES_FROM", counted["fetched"])
            alone = not transfer.get("remote_engine_id") or is_due("FAKE_PREFILLS_FROM", counted["fetched"])
            counted["failed"] += bool(transfer.get("remote_engine_id")) and lost
            counted["transfers"] += not (lost or alone)
            counted["local_compute" if lost or alone else "external_kv_transfer"] += prompt

    def metrics(self) -> str:
        lines = {
            "process_start_time_seconds": self.started_s,
            'vllm:request_success_total{engine="0"}': self.completions,
            'vllm:prompt_tokens_total{engine="0"}': self.counted["prompt_tokens"],
            **{
                f'vllm:prompt_tokens_by_source_total{{engine="0",source="{source}"}}': self.counted[source]
                for source in ("local_compute", "external_kv_transfer")
            },
            'vllm:prefix_cache_hits_total{engine="0"}': 0,
        }
        if "FAKE_COUNTS_NONE" not in os.environ:
            lines |= {
                'vllm:nixl_bytes_transferred_count{engine="0"}': self.counted["transfers"],
                'vllm:nixl_bytes_transferred_sum{engine="0"}': self.counted["external_kv_transfer"] * 1000,
                'vllm:nixl_num_failed_transfers_total{engine="0"}': self.counted["failed"],
                'vllm:nixl_num_kv_expired_reqs_total{engine="0"}': self.counted["expired"],
            }
        return "".join(f"{name} {float(value)}\n" for name, value in lines.items())


def is_due(variable: str, number: int) -> bool:
    return number >= int(os.environ.get(variable, "1000000"))


class Handler(BaseHTTPRequestHandler):
    disable_nagle_algorithm = True  # else a token waits 40 ms for the acknowledgement of the one before
    protocol_version = "HTTP/1.1"
    engine: Engine

    def log_message(self, *_: object) -> None:
        print("INFO:     127.0.0.1 -", self.requestline, flush=True)

    def do_GET(self) -> None:
        self.engine.metrics_read += self.path == "/metrics"
        pages = {
            "/health": "",
            "/version": json.dumps({"version": os.environ.get("FAKE_VERSION", "0.0.0+fake")}),
            **({"/server_info?config_format=json": environment_told()} if "FAKE_TELLS_ALL" in os.environ else {}),
            "/metrics": self.engine.metrics(),
        }
        page = pages.get(self.path)
        self.answer(200 if page is not None else 404, page or "")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        number, under_load = self.engine.take_number()
        if number > int(os.environ.get("FAKE_DIES_AFTER", "1000000")):
            os.kill(os.getpid(), signal.SIGKILL)
        if number == int(os.environ.get("FAKE_RESTARTS_AT", "0")):
            os.environ.pop("FAKE_RESTARTS_AT")
            os.execv(sys.executable, [sys.executable, *sys.argv])
        status = 500 if self.engine.is_dead else int(os.environ.get("FAKE_STATUS", "200"))
        if status != 200 and number > 1:
            told = environment_told() if "FAKE_TELLS_ALL" in os.environ else ""
            self.answer(status, json.dumps({"error": {"message": f"told to fail {told}".strip(), "code": status}}))
            return
        transfer = body.get("kv_transfer_params") or {}
        self.engine.count(len(body["prompt"]), transfer)
        every = int(os.environ.get("FAKE_EVERY", "1"))
        if body.get("stream") and "FAKE_ANSWERS" in os.environ and under_load and (under_load - 1) % every == 0:
            self.play(os.environ["FAKE_ANSWERS"], body)
        elif body.get("stream"):
            self.stream(body)
        else:
            self.answer(200, json.dumps(self.whole(body, transfer)))

    def whole(self, body: dict[str, Any], transfer: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = {"model": self.engine.model, "choices": [{"index": 0, "text": " t"}]}
        if transfer.get("do_remote_decode") and "FAKE_NO_TRANSFER" not in os.environ:
            answer["kv_transfer_params"] = {"do_remote_prefill": True, "remote_engine_id": f"fake-{os.getpid()}"}
        return answer

    def stream(self, body: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": body["max_tokens"]}
        events: list[dict[str, Any]] = [
            {"model": self.engine.model, "choices": [{"index": 0, "text": " t", "token_ids": [100 + i]}]}
            for i in range(body["max_tokens"])
        ]
        events[-1]["choices"][0]["finish_reason"] = "length"
        if "FAKE_TELLS_ALL" in os.environ:
            events[0]["env"] = dict(os.environ)
        for event in [*events, {"model": self.engine.model, "choices": [], "usage": usage}]:
            time.sleep(float(os.environ.get("FAKE_TOKEN_S", "0.005")))
            self.chunk(f"data: {json.dumps(event)}\n\n")
        self.chunk("data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def play(self, scenario: str, body: dict[str, Any]) -> None:
        """What the golden server plays for this request; a script that does not end an answer leaves it hanging."""
        began_s = time.monotonic()
        tokens_s = float(os.environ.get("FAKE_TOKEN_S", "0.005"))
        ask = Ask("cmpl", self.engine.model, len(body["prompt"]), body["max_tokens"], tokens_s, tokens_s, usage=True)
        self.close_connection = True
        data = b""
        try:
            for step in SCENARIOS[scenario](ask):
                time.sleep(max(0.0, began_s + step.at_s - time.monotonic()))
                data = step.data or data
                self.wfile.write(step.data)
                if step.close:  # without a farewell: the peer's read ends with ECONNRESET
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    self.connection.close()
                    return
            if not data.endswith(LAST_CHUNK) and b"content-length" not in data:
                self.rfile.read(1)
        except OSError:
            pass  # the client has given up

    def chunk(self, text: str) -> None:
        self.wfile.write(f"{len(text.encode()):x}\r\n{text}\r\n".encode())
        self.wfile.flush()

    def answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())


def environment_told() -> str:
    return json.dumps({"vllm_config": {}, "env": dict(os.environ)})


def be_child(name: bytes) -> None:
    """Live on in a session of its own, under another name, deaf to everything that can be ignored."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_NAME, name, 0, 0, 0)
    print("named", flush=True)
    time.sleep(120)


def start_core(engine: Engine, server: ThreadingHTTPServer) -> None:
    core = subprocess.Popen([sys.executable, __file__, "core"], stdout=subprocess.PIPE)
    assert core.stdout
    core.stdout.readline()
    threading.Thread(target=end_with_core, args=(engine, core, server), daemon=True).start()


def end_with_core(engine: Engine, core: "subprocess.Popen[bytes]", server: ThreadingHTTPServer) -> None:
    """As vLLM's API server: it answers with errors for a while, and calls its end an orderly one."""
    if os.environ["FAKE_CORE"] == "reaped":
        core.wait()
    else:
        select.select([os.pidfd_open(core.pid)], [], [])
    engine.is_dead = True
    print("WARNING 11-30 04:00:00 [fake.py:3] [shutdown] MPClient: engine core exited unexpectedly", flush=True)
    time.sleep(1)
    server.shutdown()


def main() -> None:
    if sys.argv[1:] in (["worker"], ["core"]):
        be_child(b"VLLM::Worker" if sys.argv[1] == "worker" else b"VLLM::EngineCore")
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=["serve"])
    parser.add_argument("model")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--served-model-name", default="pdkv-model")
    options, _ = parser.parse_known_args()
    if "FAKE_DEAF_S" in os.environ:
        deaf_until = time.monotonic() + float(os.environ["FAKE_DEAF_S"])
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0) if time.monotonic() > deaf_until else None)
    for _ in range(int(os.environ.get("FAKE_WORKERS", "0"))):
        worker = subprocess.Popen([sys.executable, __file__, "worker"], start_new_session=True, env={})
        print(f"worker {worker.pid}", flush=True)
    if "FAKE_SHM" in os.environ:
        with Path("/dev/shm", os.environ["FAKE_SHM"]).open("xb+") as segment:
            segment.truncate(4096)
            globals()["kept_mapped"] = mmap.mmap(segment.fileno(), 4096)
        print("segment made", flush=True)
    if "FAKE_TELLS_ALL" in os.environ:
        print(*(f"{name}={value}" for name, value in os.environ.items()), sep="\n")
        print(environment_told(), flush=True)
    if "FAKE_LOG" in os.environ:
        print(Path(os.environ["FAKE_LOG"]).read_text(encoding="utf-8"), flush=True)
    if "FAKE_EXIT" in os.environ:
        print("" if "FAKE_LOG" in os.environ else BEFORE_DEATH, flush=True)
        sys.exit(int(os.environ["FAKE_EXIT"]))
    taken = []
    for _ in range(int(os.environ.get("FAKE_MEMORY_MB", "0")) // 100):
        taken.append(b"x" * 100_000_000)
        time.sleep(0.1)
    ready_s = os.environ.get("FAKE_READY_S", "0.1")
    print("INFO 11-30 04:00:00 [fake.py:2] still loading weights", flush=True)
    if "FAKE_KILLED" in os.environ:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600 if ready_s == "never" else float(ready_s))
    Handler.engine = Engine(options.served_model_name)
    server = ThreadingHTTPServer((options.host, options.port), Handler)
    server.daemon_threads = True
    if "FAKE_CORE" in os.environ:
        start_core(Handler.engine, server)
    server.serve_forever()


if __name__ == "__main__":
    main()
