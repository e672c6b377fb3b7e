"""Record what real CPU engines log and report: ``python record.py ENGINE_ENV MODEL CELL…`` (see README.md here).

Stands on the standard library alone, so that a recording never depends on the code that is tested with it.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
SINGLE = {
    "default_auto": ["--dtype", "bfloat16", "--kv-cache-dtype", "auto"],
    "default_fp8": ["--dtype", "bfloat16", "--kv-cache-dtype", "fp8"],
    "default_float16": ["--dtype", "float16", "--kv-cache-dtype", "auto"],
    "default_float16_fp8": ["--dtype", "float16", "--kv-cache-dtype", "fp8"],
    "unchunked_auto": ["--dtype", "bfloat16", "--kv-cache-dtype", "auto", "--no-enable-chunked-prefill"],
}
PAIRS = {"pd_auto": ["--kv-cache-dtype", "auto"], "pd_fp8": ["--kv-cache-dtype", "fp8"]}
COMMON = [
    "--enforce-eager",
    "--max-model-len",
    "2048",
    "--max-num-batched-tokens",
    "2048",
    "--no-enable-prefix-caching",
]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def fetch(url: str, body: dict | None = None, timeout: float = 120) -> str:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        return answer.read().decode()


@contextlib.contextmanager
def running(argv: list[str], log: Path, env: dict[str, str]) -> Iterator[subprocess.Popen]:
    with log.open("wb") as sink:
        process = subprocess.Popen(
            argv, stdout=sink, stderr=subprocess.STDOUT, env=os.environ | env, start_new_session=True
        )
    try:
        yield process
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def wait_ready(process: subprocess.Popen, url: str, limit_s: float = 240) -> float:
    start = time.monotonic()
    while time.monotonic() - start < limit_s:
        if process.poll() is not None:
            raise SystemExit(f"server of {url} ended with status {process.returncode}")
        with contextlib.suppress(OSError):
            fetch(url + "/health", timeout=2)
            return time.monotonic() - start
        time.sleep(0.25)
    raise SystemExit(f"{url} was not ready in {limit_s:.0f} s")


def complete(url: str, model: str, seed: int, input_tokens: int, output_tokens: int) -> float:
    prompt = [1000 + (seed * 7919 + position * 31) % 40000 for position in range(input_tokens)]
    body = {"model": model, "prompt": prompt, "max_tokens": output_tokens, "ignore_eos": True, "temperature": 0}
    start = time.monotonic()
    usage = json.loads(fetch(url + "/v1/completions", body))["usage"]
    assert usage["completion_tokens"] == output_tokens, usage
    return time.monotonic() - start


def time_requests(url: str, model: str, count: int = 6) -> list[str]:
    return [f"{complete(url, model, seed, 128, 32):.2f}" for seed in range(count)]


def keep_answers(url: str, name: str) -> None:
    (HERE / f"{name}.metrics").write_text(fetch(url + "/metrics"))
    (HERE / f"{name}.version.json").write_text(fetch(url + "/version"))
    (HERE / f"{name}.server_info.json").write_text(fetch(url + "/server_info?config_format=json"))


def instance(engine: Path, model: str, port: int, arguments: list[str], cores: str) -> tuple[list[str], dict[str, str]]:
    argv = [str(engine / "bin/vllm"), "serve", model, "--host", "127.0.0.1", "--port", str(port), *COMMON, *arguments]
    env = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": cores, "VLLM_SERVER_DEV_MODE": "1"}
    return argv, env | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}


def record_single(engine: Path, model: str, name: str) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    argv, env = instance(engine, model, port, SINGLE[name], "0-1")
    with running(argv, HERE / f"{name}.log", env) as server:
        ready_s = wait_ready(server, url)
        print(f"{name}: ready in {ready_s:.1f} s; 128 + 32 tokens in {time_requests(url, model)} s", flush=True)
        keep_answers(url, name)


def pin(process: subprocess.Popen, core: int) -> None:
    """Put every thread of an instance on one core: the NIXL worker pins both instances to the last core otherwise."""
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError):
            if int(status.read_text().rsplit(")", 1)[1].split()[3]) == process.pid:  # same session
                for task in (status.parent / "task").iterdir():
                    with contextlib.suppress(OSError):
                        os.sched_setaffinity(int(task.name), {core})


def record_pair(engine: Path, model: str, name: str) -> None:
    with contextlib.ExitStack() as stack:
        urls, servers = {}, {}
        for core, (letter, role) in enumerate({"P": "kv_producer", "D": "kv_consumer"}.items()):
            port = free_port()
            transfer = {"kv_connector": "NixlConnector", "kv_role": role, "kv_buffer_device": "cpu"}
            arguments = ["--dtype", "bfloat16", *PAIRS[name], "--kv-transfer-config", json.dumps(transfer)]
            argv, env = instance(engine, model, port, arguments, str(core))
            env |= {"VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1", "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port())}
            env |= {"UCX_TLS": "tcp,self,sysv,posix,cma"}
            urls[letter] = f"http://127.0.0.1:{port}"
            servers[letter] = stack.enter_context(running(argv, HERE / f"{name}_{letter}.log", env))
        ready = {letter: f"{wait_ready(servers[letter], urls[letter]):.1f}" for letter in urls}
        for core, letter in enumerate(urls):
            pin(servers[letter], core)
        port, metrics_port = free_port(), free_port()
        argv = [str(engine / "bin/vllm-router"), "--host", "127.0.0.1", "--port", str(port)]
        argv += ["--vllm-pd-disaggregation", "--prefill", urls["P"], "--decode", urls["D"], "--policy", "round_robin"]
        argv += ["--disable-retries", "--disable-circuit-breaker", "--prometheus-port", str(metrics_port)]
        router = stack.enter_context(running(argv, HERE / f"{name}_router.log", {}))
        router_s = wait_ready(router, f"http://127.0.0.1:{port}", 60)
        times = time_requests(f"http://127.0.0.1:{port}", model)
        print(f"{name}: ready in {ready} s, router {router_s:.1f} s; 128 + 32 tokens in {times} s", flush=True)
        for letter in urls:
            keep_answers(urls[letter], f"{name}_{letter}")
        (HERE / f"{name}_router.metrics").write_text(fetch(f"http://127.0.0.1:{metrics_port}/metrics"))


def hide_home(name: str) -> None:
    """Replace the path of this checkout, which is nobody's business."""
    for path in HERE.glob(f"{name}[._]*"):
        path.write_bytes(path.read_bytes().replace(bytes(HERE.parents[2]), b"/home/user/pdkv"))


if __name__ == "__main__":
    engine_env, model_folder, *cells = sys.argv[1:]
    for cell in cells:
        (record_single if cell in SINGLE else record_pair)(Path(engine_env), model_folder, cell)
        hide_home(cell)
