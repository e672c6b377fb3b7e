"""Energy of a device over a stretch of time: from its counter where it has one, and from integrated power besides."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from pdkv.analysing.stats import FloatArray

# A stretch is integrated when samples cover this share of it.
_COVERED = 0.9


def within(times: FloatArray, span: Mapping[str, Any]) -> Any:
    """Which of ``times`` (s) lie in ``span`` ``{start_s, end_s}``, its end left out; an open span has no end."""
    end = np.inf if span["end_s"] is None else span["end_s"]
    return (times >= span["start_s"]) & (times < end)


def counted_energy(samples: pd.DataFrame, span: Mapping[str, Any]) -> float | None:
    """Joules by which the energy counter grew over the span, read between samples; null if it ever went back."""
    times, values = known_values(samples, "energy_j")
    if not covers(times, span):
        return None
    inside = values[within(times, span)]
    start, end = np.interp([span["start_s"], span["end_s"]], times, values)
    return None if (np.diff(inside) < 0).any() or end < start else float(end - start)


def integrated_energy(samples: pd.DataFrame, span: Mapping[str, Any]) -> float | None:
    """Joules: power integrated over the span by the trapezoidal rule."""
    times, power = known_values(samples, "power_w")
    if not covers(times, span):
        return None
    inside = within(times, span)
    ends = np.interp([span["start_s"], span["end_s"]], times, power)
    return float(
        np.trapezoid(
            np.concatenate([ends[:1], power[inside], ends[1:]]),
            np.concatenate([[span["start_s"]], times[inside], [span["end_s"]]]),
        )
    )


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
