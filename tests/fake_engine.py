"""A process that behaves as ``vllm serve`` does, and misbehaves on request.

``python tests/fake_engine.py serve MODEL --port N --served-model-name NAME …`` answers ``/health``, ``/metrics``,
``/version`` and ``/v1/completions`` (streamed or not, with KV transfer parameters where asked for). Environment:

FAKE_READY_S       seconds until it listens (0.1); ``never`` never does
FAKE_EXIT          ends at once with this status after a traceback in its log
FAKE_WORKERS       this many children in sessions of their own that retitle themselves VLLM::Worker and outlive a kill
FAKE_SHM           makes this file in /dev/shm and keeps it mapped
FAKE_DEAF_S        ignores SIGTERM for so many seconds
FAKE_DIES_AFTER    is killed (SIGKILL) when it gets its completion number N+1
FAKE_STATUS        answers completions with this HTTP status after the first one
FAKE_NO_TRANSFER   forgets to say where the KV cache is
FAKE_MEMORY_MB     takes so much memory, 100 MB every 0.1 s, before it listens
FAKE_TOKEN_S       seconds between tokens (0.005)
FAKE_TELLS_ALL     writes its environment into its log, and into what it says of itself
"""

import argparse
import ctypes
import json
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

BEFORE_DEATH = """INFO 11-30 04:00:00 [fake.py:1] loading weights
Traceback (most recent call last):
  File "fake.py", line 1, in <module>
RuntimeError: the fake engine was told to fail
"""
PR_SET_NAME = 15


class Engine:
    def __init__(self, model: str) -> None:
        self.model = model
        self.completions = 0
        self.transfers = 0
        self.lock = threading.Lock()

    def take_number(self) -> int:
        with self.lock:
            self.completions += 1
            return self.completions


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    engine: Engine

    def log_message(self, *_: object) -> None:
        print("INFO:     127.0.0.1 -", self.requestline, flush=True)

    def do_GET(self) -> None:
        pages = {
            "/health": "",
            "/version": json.dumps({"version": "0.0.0+fake"}),
            **({"/server_info?config_format=json": environment_told()} if "FAKE_TELLS_ALL" in os.environ else {}),
            "/metrics": f'vllm:request_success_total{{engine="0"}} {self.engine.completions}.0\n'
            f'vllm:nixl_bytes_transferred_count{{engine="0"}} {self.engine.transfers}.0\n',
        }
        page = pages.get(self.path)
        self.answer(200 if page is not None else 404, page or "")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        number = self.engine.take_number()
        if number > int(os.environ.get("FAKE_DIES_AFTER", "1000000")):
            os.kill(os.getpid(), signal.SIGKILL)
        status = int(os.environ.get("FAKE_STATUS", "200"))
        if status != 200 and number > 1:
            self.answer(status, json.dumps({"error": {"message": "told to fail", "code": status}}))
            return
        transfer = body.get("kv_transfer_params") or {}
        if transfer.get("remote_engine_id"):
            self.engine.transfers += 1
        if body.get("stream"):
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
        for event in [*events, {"model": self.engine.model, "choices": [], "usage": usage}]:
            time.sleep(float(os.environ.get("FAKE_TOKEN_S", "0.005")))
            self.chunk(f"data: {json.dumps(event)}\n\n")
        self.chunk("data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

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


def be_worker() -> None:
    """Live on in a session of its own, under another name, deaf to everything that can be ignored."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_NAME, b"VLLM::Worker", 0, 0, 0)
    time.sleep(120)


def main() -> None:
    if sys.argv[1:] == ["worker"]:
        be_worker()
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=["serve"])
    parser.add_argument("model")
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
    if "FAKE_EXIT" in os.environ:
        print(BEFORE_DEATH, flush=True)
        sys.exit(int(os.environ["FAKE_EXIT"]))
    taken = []
    for _ in range(int(os.environ.get("FAKE_MEMORY_MB", "0")) // 100):
        taken.append(b"x" * 100_000_000)
        time.sleep(0.1)
    ready_s = os.environ.get("FAKE_READY_S", "0.1")
    print("INFO 11-30 04:00:00 [fake.py:2] still loading weights", flush=True)
    time.sleep(600 if ready_s == "never" else float(ready_s))
    Handler.engine = Engine(options.served_model_name)
    server = ThreadingHTTPServer(("127.0.0.1", options.port), Handler)
    server.daemon_threads = True
    server.serve_forever()


if __name__ == "__main__":
    main()
