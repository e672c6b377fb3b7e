"""Device samples of a trial: a process of its own takes them, this one tells it what to watch and keeps the result."""

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import pyarrow as pa

from pdkv.artifacts import write_parquet
from pdkv.measuring import device_sampling

# An H200 renews its utilisation every 0.2 s, power and clocks every 0.1 s: asked more often it says nothing new.
GPU_PERIOD_S = 0.1
# The driver computes for 5 ms before it answers; every 2 s would move the energy of a load level by up to 3%.
ENERGY_PERIOD_S = 1.0
LINK_PERIOD_S = 1.0
CPU_PERIOD_S = 0.1
READY_WITHIN_S = 5.0
STOPPED_WITHIN_S = 5.0
ROWS_AT_ONCE = 50_000

COLUMNS: dict[str, pa.DataType] = {
    "t_s": pa.float64(),
    "source": pa.string(),
    "device": pa.string(),
    "kind": pa.string(),
    "instance": pa.string(),
    "role": pa.string(),
    "util": pa.float64(),
    "mem_util": pa.float64(),
    "mem_bytes": pa.int64(),
    "power_w": pa.float64(),
    "energy_j": pa.float64(),
    "sm_clock_mhz": pa.float64(),
    "mem_clock_mhz": pa.float64(),
    "temp_c": pa.float64(),
    "throttle": pa.int64(),
    "pcie_rx_bytes_s": pa.float64(),
    "pcie_tx_bytes_s": pa.float64(),
    "nvlink_rx_bytes": pa.int64(),
    "nvlink_tx_bytes": pa.int64(),
    "pid": pa.int64(),
    "process": pa.string(),
    "took_s": pa.float64(),
    "late_s": pa.float64(),
}
SCHEMA = pa.schema(COLUMNS)


class DeviceSampler:
    """Samples from :func:`start_sampler` on until :meth:`stop`. As a context it ends without leaving anything.

    A sampler that fails never fails the trial: :meth:`stop` says what went wrong, and what is missing is missing.
    """

    def __init__(self, process: subprocess.Popen[bytes], file: Path, errors: IO[bytes]) -> None:
        self.pid = process.pid
        self._process = process
        self._file = file
        self._errors = errors
        self._owners: dict[str, tuple[str, str]] = {}

    def assign(
        self, instance: str, role: str, *, pid: int | None = None, cores: Sequence[int] = (), gpus: Sequence[str] = ()
    ) -> None:
        """Whose a process tree, cores and GPUs (UUIDs) are.

        The process is watched from now on; cores and GPUs get the name in all rows, earlier ones included. Cores that
        several instances share keep no name.
        """
        for device in (*(f"cpu{core}" for core in cores), *gpus):
            mine = (instance, role)
            self._owners[device] = mine if self._owners.get(device, mine) == mine else _SHARED
        if pid is not None:
            self._tell({"watch": {"pid": pid, "instance": instance, "role": role}})

    def stop(self, path: Path) -> str | None:
        """End the sampler and write samples.parquet to ``path``. Returns what went wrong, None if nothing did.

        Also after a sampler that died: the rows up to then are kept, an empty table if there are none.
        """
        self._tell({"stop": True})
        problem = self._end()
        table = _read_samples(self._file, self._owners)
        write_parquet(path, table)
        self.discard()
        return problem

    def discard(self) -> None:
        """End the sampler, if it still runs, and remove what it wrote."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None and not stream.closed:
                _close(stream)
        self._file.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.discard()

    def _tell(self, command: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()
        except (OSError, ValueError):  # it died, and stop() will say why
            return

    def _end(self) -> str | None:
        try:
            status = self._process.wait(STOPPED_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return f"the sampler did not end within {STOPPED_WITHIN_S:.0f} s and was killed"
        if status == 0:
            return None
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return f"the sampler ended with status {status}: {lines[-1] if lines else 'no message'}"

    def wait_ready(self, within_s: float) -> bool:
        """Whether every device has given its first sample; waits up to ``within_s``, less if the sampler dies."""
        assert self._process.stdout is not None
        deadline_s = time.monotonic() + within_s
        readable, _, _ = select.select([self._process.stdout], [], [], max(0.0, deadline_s - time.monotonic()))
        return bool(readable) and self._process.stdout.readline().strip() == device_sampling.READY.encode()


def start_sampler(
    folder: Path,
    *,
    gpus: Sequence[str] = (),
    cores: Sequence[int] = (),
    run_on: Sequence[int] = (),
    gpu_period_s: float = GPU_PERIOD_S,
    energy_period_s: float = ENERGY_PERIOD_S,
    link_period_s: float = LINK_PERIOD_S,
    cpu_period_s: float = CPU_PERIOD_S,
) -> DeviceSampler:
    """Start sampling GPUs (by UUID) and cores (by number), and wait up to 5 s until each has given its first sample.

    ``folder`` holds the samples until :meth:`DeviceSampler.stop`; ``run_on`` are the cores that the sampler itself
    may use (all that this process may, if empty). The sampler is in a session of its own, so a Ctrl-C does not cut
    the trace short, and ends by itself when this process dies.
    """
    folder.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=folder, prefix=".samples.", suffix=".tmp")
    os.close(handle)
    command = [sys.executable, "-m", device_sampling.__name__, name]
    command += [f"--gpu-period-s={gpu_period_s}", f"--energy-period-s={energy_period_s}"]
    command += [f"--link-period-s={link_period_s}", f"--cpu-period-s={cpu_period_s}"]
    command += [f"--gpu={uuid}" for uuid in gpus]
    command += [f"--core={core}" for core in cores] + [f"--run-on={core}" for core in run_on]
    errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the sampler, closed by discard()
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(_import_path())},
        start_new_session=True,
    )
    sampler = DeviceSampler(process, Path(name), errors)
    sampler.wait_ready(READY_WITHIN_S)
    return sampler


def write_no_samples(path: Path) -> None:
    """The samples.parquet of a trial that was given no devices."""
    write_parquet(path, SCHEMA.empty_table())


_SHARED = ("", "")


def _read_samples(file: Path, owners: dict[str, tuple[str, str]]) -> pa.Table:
    """The sampler's lines as a table; a last line that a kill has cut is left out."""
    missing: dict[str, dict[str, str]] = {}
    batches = []
    with file.open("rb") as lines:
        while chunk := list(islice(lines, ROWS_AT_ONCE)):
            rows = list(_rows(chunk, owners, missing))
            batches.append(pa.RecordBatch.from_pylist(rows, schema=SCHEMA))
    schema = SCHEMA.with_metadata({"missing": json.dumps(missing)})
    return pa.Table.from_batches(batches, schema=SCHEMA).cast(schema)


def _rows(
    lines: Sequence[bytes], owners: dict[str, tuple[str, str]], missing: dict[str, dict[str, str]]
) -> Iterator[dict[str, Any]]:
    for line in lines:
        if not line.endswith(b"\n"):
            return
        row = json.loads(line)
        if "missing" in row:
            missing.setdefault(row["device"], {}).update(row["missing"])
            continue
        # A process on a GPU has an owner of its own, or none.
        owner = _SHARED if row["kind"] == "gpu_process" else owners.get(row["device"], _SHARED)
        if owner is not _SHARED:
            row["instance"], row["role"] = owner
        yield row


def _import_path() -> list[str]:
    """Where the sampler finds this package, also where it is not installed."""
    return [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]


def _close(stream: IO[bytes]) -> None:
    try:
        stream.close()
    except OSError:  # unsent commands to a sampler that has died
        return
