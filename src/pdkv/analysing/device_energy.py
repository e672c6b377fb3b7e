"""Energy of a device over a stretch of time: from its counter where it has one, and from integrated power besides.

The counter is exact and read seldom, power is read often but may be a mean over the second before. So a stretch takes
the counter's joules between two readings around it, and of these the share that power says (docs/decisions/0009).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from pdkv.analysing.stats import FloatArray

# A stretch is integrated when samples cover this share of it.
_COVERED = 0.9
# Readings of the counter that lie so far apart, if there are any: what is unknown of their own times is little then.
_COUNTED_S = 60.0
# Power is of this moment, or a mean over the second before: then it is that of half a second ago.
_DELAYS_S = (0.0, 0.5)


def within(times: FloatArray, span: Mapping[str, Any]) -> Any:
    """Which of ``times`` (s) lie in ``span`` ``{start_s, end_s}``, its end left out; an open span has no end."""
    end = np.inf if span["end_s"] is None else span["end_s"]
    return (times >= span["start_s"]) & (times < end)


def counted_energy(samples: pd.DataFrame, span: Mapping[str, Any]) -> float | None:
    """Joules by the energy counter; null if it ever went back, or stood still: there is no device that takes nothing.

    Between its readings power says how they are shared out, and without power they are spread evenly.
    """
    times, values = known_values(samples, "energy_j")
    if not covers(times, span):
        return None
    ends = np.array([span["start_s"], span["end_s"]])
    first, last = _readings_around(times, values, span)
    if (np.diff(values[first : last + 1]) < 0).any() or values[last] == values[first]:
        return None
    power_times, power = known_values(samples, "power_w")
    if covers(power_times, span):
        delay_s = power_delay(samples)
        whole = _joules(power_times, power, times[[first, last]] + delay_s)
        if whole > 0:
            return float((values[last] - values[first]) * _joules(power_times, power, ends + delay_s) / whole)
    return float(np.diff(np.interp(ends, times, values))[0])


def integrated_energy(samples: pd.DataFrame, span: Mapping[str, Any]) -> float | None:
    """Joules: power integrated over the span by the trapezoidal rule, each value moved back by its delay."""
    times, power = known_values(samples, "power_w")
    if not covers(times, span):
        return None
    return _joules(times, power, np.array([span["start_s"], span["end_s"]]) + power_delay(samples))


def power_delay(samples: pd.DataFrame) -> float:
    """Seconds by which a device's power comes after its energy counter: 0.5 where it is a mean over the second before.

    The delay with which power explains better how the counter rose from second to second; 0 where nothing tells.
    """
    times, values = known_values(samples, "energy_j")
    power_times, power = known_values(samples, "power_w")
    _, seconds = np.unique(np.floor(times), return_index=True)
    if len(seconds) < _MIN_RISES or len(power_times) < 2:
        return 0.0
    # A last second of which power does not yet tell is left out.
    seconds = seconds[times[seconds] + _DELAYS_S[-1] <= power_times[-1]]
    rises = np.diff(values[seconds])
    errors = []
    for delay_s in _DELAYS_S:
        told = np.diff(_joules_until(power_times, power, times[seconds] + delay_s))
        scale = rises.sum() / told.sum() if told.sum() > 0 else 1.0
        errors.append(float(np.square(rises - scale * told).sum()))
    return _DELAYS_S[int(np.argmin(errors))]


_MIN_RISES = 5


def known_values(samples: pd.DataFrame, column: str) -> tuple[FloatArray, FloatArray]:
    """(times, values) of the samples of one device that have ``column``."""
    known = samples[samples[column].notna()]
    return known["t_s"].to_numpy(), known[column].to_numpy(dtype=float)


def covers(times: FloatArray, span: Mapping[str, Any]) -> bool:
    """Whether samples reach from near the start of the span to near its end."""
    length = span["end_s"] - span["start_s"]
    if len(times) < 2 or length <= 0:
        return False
    return bool(min(times[-1], span["end_s"]) - max(times[0], span["start_s"]) >= _COVERED * length)


def _readings_around(times: FloatArray, values: FloatArray, span: Mapping[str, Any]) -> tuple[int, int]:
    """(first, last) reading of the counter around a span: far apart, or the next ones if it went back further out."""
    length = span["end_s"] - span["start_s"]
    first, last = 0, len(times) - 1
    for margin_s in (max(0.0, (_COUNTED_S - length) / 2), 0.0):
        before = np.searchsorted(times, span["start_s"] - margin_s, side="right") - 1
        after = np.searchsorted(times, span["end_s"] + margin_s, side="left")
        first, last = max(0, int(before)), min(len(times) - 1, int(after))
        if not (np.diff(values[first : last + 1]) < 0).any():
            break
    return first, last


def _joules(times: FloatArray, power: FloatArray, ends: FloatArray) -> float:
    return float(np.diff(_joules_until(times, power, ends))[0])


def _joules_until(times: FloatArray, power: FloatArray, at: FloatArray) -> Any:
    """Integral of power from the first sample to each of ``at``; before the first and after the last it stays."""
    total = np.concatenate([[0.0], np.cumsum((power[1:] + power[:-1]) / 2 * np.diff(times))])
    beyond = np.maximum(at - times[-1], 0.0) * power[-1] - np.maximum(times[0] - at, 0.0) * power[0]
    return np.interp(at, times, total) + beyond
