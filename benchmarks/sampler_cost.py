"""What the device sampler costs, and how late its samples are, on invented GPUs that answer as slowly as real ones.

The sampler is the real one, in its own process, beside cores and process trees; only the module ``pynvml`` is invented.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pyarrow.parquet as pq

sys.path.append(str(Path(__file__).parent.parent / "tests"))

from fake_nvml import write_pynvml

from pdkv.measuring.devices import start_sampler

# Seconds that a query waits for the driver: what NVIDIA states of PCIe counters, the others as fractions of a
# millisecond each.
DELAYS = """
import time
def slow(answer, delay_s):
    def wait(*_):
        time.sleep(delay_s)
        return answer() if callable(answer) else answer
    return wait
from types import SimpleNamespace
ANSWERS = {
    "nvmlDeviceGetUtilizationRates": slow(SimpleNamespace(gpu=50, memory=20), 2e-4),
    "nvmlDeviceGetMemoryInfo": slow(SimpleNamespace(used=1, total=2, free=1), 2e-4),
    "nvmlDeviceGetPowerUsage": slow(60_000, 2e-4),
    "nvmlDeviceGetTotalEnergyConsumption": slow(1_000, 2e-4),
    "nvmlDeviceGetPcieThroughput": slow(1_000, 2e-2),
}
"""


def measure(gpus: int, seconds: float, folder: Path) -> list[str]:
    """One row of the table."""
    names = [f"GPU-{number}" for number in range(gpus)]
    cards = ", ".join(
        f"FakeGpu({name!r}, answers=ANSWERS, nvlink_kib=(1, 1), processes=[({os.getpid()}, 1)])" for name in names
    )
    nvml = write_pynvml(folder / f"nvml{gpus}", cards, DELAYS)
    os.environ["PYTHONPATH"] = str(nvml)
    trees = [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) for _ in range(3)]
    try:
        with start_sampler(folder, gpus=names, cores=sorted(os.sched_getaffinity(0))) as sampler:
            for number, tree in enumerate(trees):
                sampler.assign(f"replica-{number}", "replica", pid=tree.pid)
            time.sleep(2)
            process = psutil.Process(sampler.pid)
            before, began_s = process.cpu_times(), time.monotonic()
            time.sleep(seconds)
            after, ended_s = process.cpu_times(), time.monotonic()
            problem = sampler.stop(folder / "samples.parquet")
    finally:
        for tree in trees:
            tree.kill()
            tree.wait()
    assert problem is None, problem
    frame = pq.read_table(folder / "samples.parquet").to_pandas()
    frame = frame[(frame["kind"] == "gpu") & frame["t_s"].between(began_s, ended_s)]
    share = (after.user + after.system - before.user - before.system) / (ended_s - began_s)
    late, took = frame["late_s"] * 1e3, frame["took_s"] * 1e3
    return [
        str(gpus),
        f"{share:.1%}",
        f"{len(frame) / gpus / (ended_s - began_s):.1f}",
        f"{late.median():.2f} / {late.quantile(0.99):.2f} / {late.max():.2f}",
        f"{took.median():.2f} / {took.quantile(0.99):.2f}",
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.2f} on {os.cpu_count()} cores")
    print("| GPUs | of a core | samples/s | late, median / p99 / max, ms | query, median / p99, ms |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for gpus in options.gpus:
            print("| " + " | ".join(measure(gpus, options.seconds, Path(folder))) + " |", flush=True)


if __name__ == "__main__":
    main()
