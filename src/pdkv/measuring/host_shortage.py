"""What a host ran out of while a server ran: memory, by the kernel's count of its kills, and room for the log."""

import os
from pathlib import Path

from pdkv.units import format_bytes

LITTLE_DISK_BYTES = 1 << 20
CGROUPS = Path("/sys/fs/cgroup")


def out_of_memory_kills() -> int | None:
    """How many processes the kernel has killed for lack of memory, in this container or job, else on this host.

    None where nobody counts them.
    """
    own = _read("/proc/self/cgroup").partition("0::/")[2].partition("\n")[0]
    for file in (CGROUPS / own / "memory.events", CGROUPS / "memory/memory.oom_control", Path("/proc/vmstat")):
        counted = dict(line.split(maxsplit=1) for line in _read(file).splitlines() if " " in line)
        if "oom_kill" in counted:
            return int(counted["oom_kill"])
    return None


def free_disk_bytes(folder: Path) -> int | None:
    """What an ordinary user may still write there; None where the folder can't be asked."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def describe_shortage(kills_before: int | None, log: Path) -> str:
    """What ran short since ``kills_before`` was counted; empty where nothing did."""
    kills, free = out_of_memory_kills(), free_disk_bytes(log.parent)
    if kills_before is not None and kills is not None and kills > kills_before:
        return "the kernel has killed a process because the host or job was out of memory"
    if free is not None and free < LITTLE_DISK_BYTES:
        return f"only {format_bytes(free)} are free where its log is"
    return ""


def _read(path: Path | str) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
