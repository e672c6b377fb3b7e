"""Did the devices work for this trial alone, at their full clock, and were they watched all the time?"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from pdkv.analysing.checks import MAX_FOREIGN_CPU, Check
from pdkv.analysing.sampling import HARDWARE, POWER_LIMIT
from pdkv.units import format_bytes, format_duration

# NVML's reasons for a lower clock that mean trouble; idle, application clocks and sync boost are not among them.
_TROUBLE = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
MAX_THROTTLED = 0.01  # share of the load's samples
MEMORY_SLACK_BYTES = 256 << 20
LOST_AFTER_S = 2.0  # a device without samples for that long before the others' end was lost
SLOW_SAMPLER_S = 0.15  # 10 Hz, and something for a busy host


def check_trace(frame: pd.DataFrame, devices: Sequence[Mapping[str, Any]], stages: Mapping[str, Any]) -> list[Check]:
    """All checks of a trace. ``frame`` are the samples with their stages, ``devices`` those of trace.json."""
    checks = [_check_complete(frame, stages), _check_sampler(frame)]
    if (frame["source"] == "nvml").any():
        gpus = frame[frame["kind"] == "gpu"]
        checks += [_check_clocks(gpus), *_check_memory(gpus, stages), _check_foreign_processes(frame, stages)]
    if (frame["kind"] == "core").any():
        checks.append(_check_foreign_cpu(frame, devices, stages))
    if unwatched := unwatched_instances(stages):
        checks = [_of_a_part(check, unwatched) for check in checks]
    if stages.get("bindings"):
        checks.append(_check_bindings(stages["bindings"], stages["points"]))
    return checks


def unwatched_instances(stages: Mapping[str, Any]) -> list[str]:
    """Instances whose devices were not sampled: they ran on other nodes than the measurement."""
    here = (stages.get("nodes") or [None])[0]
    return [str(each["name"]) for each in stages.get("instances") or () if here and each.get("node") != here]


def _of_a_part(check: Check, unwatched: Sequence[str]) -> Check:
    """What holds for the devices of one node is not known to hold for those of the trial; a doubt stays one."""
    if check.state != "passed":
        return check
    return Check(check.name, "unknown", f"on another node, not watched: {', '.join(unwatched)}")


def _check_complete(frame: pd.DataFrame, stages: Mapping[str, Any]) -> Check:
    """Devices answer to the end; a card that fell off the bus gives no values any more, a dead sampler none of any."""
    name = "devices watched to the end"
    hardware = frame[frame["kind"].isin(HARDWARE)]
    answered = hardware[hardware[["util", "mem_bytes", "power_w", "energy_j"]].notna().any(axis=1)]
    if answered.empty:
        return Check(name, "unknown", "no device gave any value", "look at what the sampler says in the trial's log")
    loaded = [each["end_s"] for each in stages["stages"] if each["name"] == "load" and each["end_s"] is not None]
    end = max([hardware["t_s"].max(), *loaded])
    last = answered.groupby("device")["t_s"].max()
    lost = [
        f"{device} for the last {format_duration(end - t_s)}"
        for device, t_s in last.items()
        if end - t_s > LOST_AFTER_S
    ]
    lost += [f"{device} at all" for device in sorted(set(hardware["device"]) - set(last.index))]
    if lost:
        return Check(name, "suspect", f"no values from {', '.join(lost)}", "look for the device in the kernel's log")
    return Check(name, "passed", f"{len(last)} devices")


def _check_sampler(frame: pd.DataFrame) -> Check:
    name = "sampler kept pace"
    gaps_by_kind = {
        kind: gaps
        for kind in HARDWARE
        if not (gaps := frame[frame["kind"] == kind].groupby("device")["t_s"].diff().dropna()).empty
    }
    if not gaps_by_kind:
        return Check(name, "unknown", "fewer than two samples of a device")
    evidence = "; ".join(
        f"a sample of each {kind} every {gaps.median() * 1e3:.0f} ms, the longest gap {gaps.max():.2f} s"
        for kind, gaps in gaps_by_kind.items()
    )
    if max(gaps.median() for gaps in gaps_by_kind.values()) > SLOW_SAMPLER_S:
        return Check(name, "suspect", evidence, "give the client a core of its own: utilisation peaks may be missed")
    return Check(name, "passed", evidence)


def _check_clocks(gpus: pd.DataFrame) -> Check:
    name = "clocks not throttled"
    masks = gpus.loc[gpus["stage"] == "load", "throttle"].dropna().astype("int64")
    if masks.empty:
        return Check(name, "unknown", "the devices do not say why they lower their clocks")
    shares = {reason: float((masks & bit != 0).mean()) for bit, reason in _TROUBLE.items()}
    throttled = [f"{reason} in {share:.0%} of the samples" for reason, share in shares.items() if share > MAX_THROTTLED]
    if throttled:
        return Check(name, "suspect", ", ".join(throttled), "look at cooling and power supply, and measure again")
    capped = float((masks & POWER_LIMIT != 0).mean())
    # The power limit is how a card is meant to run under full load: told, but no reason to doubt the figures.
    return Check(name, "passed", f"no slowdown; at the power limit in {capped:.0%} of the samples")


def _check_memory(gpus: pd.DataFrame, stages: Mapping[str, Any]) -> list[Check]:
    """Device memory before anything was launched, and after everything was shut down."""
    alone, clean = "no foreign memory on the devices", "device memory back to base"
    launch = min((each["start_s"] for each in stages["stages"]), default=None)
    ends = [each["end_s"] for each in stages["stages"] if each["name"] == "shutdown" and each["end_s"] is not None]
    known = gpus[gpus["mem_bytes"].notna()]
    before = known[known["t_s"] < launch] if launch is not None else known.iloc[:0]
    after = known[known["t_s"] >= ends[-1]] if ends else known.iloc[:0]
    base = before.groupby("device")["mem_bytes"].last()
    left = after.groupby("device")["mem_bytes"].last() - base
    watched = sorted(gpus["device"].unique())
    count = len(watched)
    checks = []
    if len(base) < count:
        checks.append(Check(alone, "unknown", _unseen("before the launch", watched, base)))
    else:
        foreign = base[base > 4 * MEMORY_SLACK_BYTES]  # a driver and its context keep some hundred MiB
        evidence = ", ".join(f"{format_bytes(size)} in use on {device}" for device, size in foreign.items())
        remedy = "end the other processes on these devices, or leave them out"
        checks.append(
            Check(alone, "suspect", evidence, remedy) if evidence else Check(alone, "passed", f"{count} devices")
        )
    if left.notna().sum() < count:
        unseen = _unseen("before the launch", watched, base) if len(base) < count else ""
        checks.append(Check(clean, "unknown", unseen or _unseen("after the shutdown", watched, left.dropna())))
    else:
        kept = left[left > MEMORY_SLACK_BYTES]
        evidence = ", ".join(f"{format_bytes(size)} more than before on {device}" for device, size in kept.items())
        remedy = f"an engine process may still live: nvidia-smi names it by its pid; end it with `{_kill(stages)}`"
        checks.append(
            Check(clean, "suspect", evidence, remedy) if evidence else Check(clean, "passed", f"{count} devices")
        )
    return checks


def _check_foreign_processes(frame: pd.DataFrame, stages: Mapping[str, Any]) -> Check:
    """Processes on our GPUs under load that belong to none of our trees.

    Where the driver numbers processes as another namespace does, only those that were there before the launch are
    certainly none of ours.
    """
    name = "no foreign process on the devices"
    rows = frame[frame["kind"] == "gpu_process"]
    load = rows[rows["stage"] == "load"]
    if load.empty or "pid" not in frame:
        return Check(name, "unknown", "the driver named no process on the devices under load")
    launch = min((each["start_s"] for each in stages["stages"]), default=-math.inf)
    ours = set(rows.loc[rows["instance"].notna(), "pid"])
    before = set(rows.loc[rows["t_s"] < launch, "pid"])
    strange = load[~load["pid"].isin(ours)]
    knows_ours = not load[load["pid"].isin(ours)].empty
    foreign = strange[strange["pid"].isin(before) | (strange["process"].notna() if knows_ours else False)]
    if not foreign.empty:
        remedy = "end other work on these devices, or leave them out, and measure again"
        return Check(name, "suspect", _name_processes(foreign), remedy)
    if not strange.empty:
        return Check(name, "unknown", f"whose they are is not known here: {_name_processes(strange)}")
    return Check(name, "passed", f"{load['pid'].nunique()} processes, all of this trial")


def _name_processes(rows: pd.DataFrame) -> str:
    """``process 4711 (python3) holds 3.00 GiB on GPU-…`` for each, with the most memory that it held."""
    found = []
    for (device, pid), seen in rows.groupby(["device", "pid"], sort=True):
        names, most = seen["process"].dropna(), seen["mem_bytes"].max()
        name = names.iloc[0] if len(names) else "unknown name"
        held = "unknown memory" if pd.isna(most) else format_bytes(most)
        found.append(f"process {pid:.0f} ({name}) holds {held} on {device}")
    return "; ".join(found)


def _unseen(when: str, watched: Sequence[str], seen: "pd.Series[float]") -> str:
    return f"memory was not sampled {when} on {', '.join(device for device in watched if device not in seen.index)}"


def _kill(stages: Mapping[str, Any]) -> str:
    pids = [str(left["pid"]) for left in stages.get("leftovers") or () if "pid" in left]
    return f"kill {' '.join(pids) or 'PID'}"


def _check_foreign_cpu(frame: pd.DataFrame, devices: Sequence[Mapping[str, Any]], stages: Mapping[str, Any]) -> Check:
    """Busy time of the cores under load that is not ours, as a share of all sampled cores."""
    name = "host not used by others"
    if stages.get("instances") == []:  # a server that the user runs may be one of these others
        return Check(name, "unknown", "which processes belong to the server is not known")
    load = [each for each in devices if each["stage"] == "load" and each["point"] is None]
    cores = [each["util_mean"] for each in load if each["kind"] == "core"]
    ours = [each["util_mean"] for each in load if each["kind"] == "process"]
    at_start = (stages.get("environment") or {}).get("foreign_cpu_share")
    if not cores or None in cores or not ours or None in ours:
        if at_start is None:
            return Check(name, "unknown", "cores and processes were not both sampled under load")
        share, when = at_start, "before the launch"
    else:
        share, when = max(0.0, (sum(cores) - sum(ours)) / len(cores)), "under load"
    evidence = f"others took {share:.0%} of the cores {when}"
    if share > MAX_FOREIGN_CPU:
        return Check(name, "suspect", evidence, "end other work on this host and measure again")
    return Check(name, "passed", evidence)


def _check_bindings(bindings: Sequence[Mapping[str, Any]], points: Sequence[Mapping[str, Any]]) -> Check:
    """Threads that had to be moved back before a load level had been on other cores during the level before it."""
    name = "instances kept to their cores"
    started = min((point["start_s"] for point in points), default=None)
    if started is None:
        return Check(name, "unknown", "no load level was walked")
    strayed = [each for each in bindings if each["t_s"] > started and each["moved"]]
    if strayed:
        evidence = ", ".join(f"{each['moved']} threads of {each['instance']} {each['when']}" for each in strayed)
        return Check(name, "suspect", f"found on other cores: {evidence}", "leave thread binding to the study alone")
    return Check(name, "passed", f"threads looked at {len(bindings)} times")
