"""How fine a device trace really is, and what it lacks.

A counter that is refreshed once a second repeats its value in a 20 Hz trace: the trace is then no finer than a second,
and no burst shorter than that may be read from it.
"""

import json
from typing import Any

import numpy as np
import pandas as pd

from pdkv.analysing.stats import FloatArray

# What is a device, rather than work that runs on one.
HARDWARE = ("gpu", "core")
FIELDS = ("util", "mem_util", "mem_bytes", "power_w", "energy_j", "sm_clock_mhz", "temp_c", "throttle")
POWER_LIMIT = 0x04  # in NVML's clocks event reasons: the clock is held down to keep to the power limit
# Fewer changes than this do not show how often a counter is refreshed.
_MIN_CHANGES = 4
# A value is said to repeat when it changes less often than every second sample.
_REPEATS = 1.5

_NOT_ON_HOST = "the host's own counters hold no such figure for a core or process"
_NOT_ON_DEVICE = "not available on this device: NVML gave no value"


def sampler_resolution(frame: pd.DataFrame) -> float | None:
    """Median time between two samples of the same device, in seconds: what the sampler really kept."""
    gaps = frame.sort_values("t_s", kind="stable").groupby(["device", "kind"])["t_s"].diff().dropna()
    return float(gaps.median()) if len(gaps) else None


def resolution_by_kind(frame: pd.DataFrame) -> dict[str, float]:
    """:func:`sampler_resolution` of each kind of device: GPUs are asked more often than cores and processes."""
    shown = frame[frame["kind"].isin((*HARDWARE, "process"))]
    found = {str(kind): sampler_resolution(rows) for kind, rows in shown.groupby("kind", sort=True)}
    return {kind: period for kind, period in found.items() if period is not None}


def counter_resolution(frame: pd.DataFrame) -> float | None:
    """Time in seconds after which the devices' utilisation takes a new value, where that is longer than a sample.

    The coarsest device counts. ``None`` where values change from sample to sample, or too seldom to tell.
    """
    sampler = sampler_resolution(frame)
    found = []
    for _, samples in frame[frame["kind"].isin(HARDWARE)].groupby("device"):
        known = samples[samples["util"].notna()].sort_values("t_s", kind="stable")
        period = update_period(known["t_s"].to_numpy(), known["util"].to_numpy(dtype=float))
        if sampler is not None and period is not None and period > _REPEATS * sampler:
            found.append(period)
    return max(found, default=None)


def update_period(times: FloatArray, values: FloatArray) -> float | None:
    """Seconds after which a device's counter takes a new value; ``None`` where it changes too seldom to tell.

    Neighbouring periods may hold the same value, so that typical gaps are multiples: the short ones tell.
    """
    changes = times[1:][np.diff(values) != 0]
    return float(np.quantile(np.diff(changes), 0.2)) if len(changes) >= _MIN_CHANGES else None


def missing_fields(frame: pd.DataFrame, reasons: bytes | str | None = None) -> list[dict[str, Any]]:
    """``{devices, fields, reason}`` for what devices never gave; processes are not asked for what a device has."""
    stated: dict[str, dict[str, str]] = json.loads(reasons) if reasons else {}
    absent: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for device, samples in frame[frame["kind"].isin(HARDWARE)].groupby("device", sort=True):
        usual = _NOT_ON_DEVICE if samples["source"].iloc[0] == "nvml" else _NOT_ON_HOST
        by_reason: dict[str, list[str]] = {}
        for name in FIELDS:
            if samples[name].isna().all():
                by_reason.setdefault(stated.get(str(device), {}).get(name, usual), []).append(name)
        for reason, fields in by_reason.items():
            absent.setdefault((reason, tuple(fields)), []).append(str(device))
    return [
        {"devices": devices, "fields": list(fields), "reason": reason} for (reason, fields), devices in absent.items()
    ]
