"""Summary statistics of a sample: one definition for JSON, CSV, Markdown and PDF."""

from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

STATS = ("mean", "std", "median", "p90", "p99", "min", "max")


def summarize(values: FloatArray) -> dict[str, Any]:
    """``n`` and the :data:`STATS` of a sample without NaN, each in the unit of ``values``; null where not defined.

    Quantiles interpolate linearly between order statistics (numpy's default, Hyndman and Fan's type 7). ``std`` is the
    sample's (divisor n − 1), null for one value. ``p99_supported`` says whether the sample is large enough for the
    p99 to be more than its maximum in disguise.
    """
    n = int(values.size)
    if n == 0:
        return {"n": 0, **dict.fromkeys(STATS), "p99_supported": False}
    low, high = float(values.min()), float(values.max())
    median, p90, p99 = (float(np.clip(value, low, high)) for value in np.quantile(values, (0.5, 0.9, 0.99)))
    # Rounding can put the mean of equal values a bit outside them, and their spread a bit above zero.
    mean = min(max(float(values.mean()), low), high)
    return {
        "n": n,
        "mean": mean,
        "std": _sample_std(values, mean),
        "median": median,
        "p90": p90,
        "p99": p99,
        "min": low,
        "max": high,
        "p99_supported": supports_quantile(0.99, n),
    }


def supports_quantile(q: float, n: int) -> bool:
    """Whether at least one of ``n`` values is expected beyond quantile ``q``: 100 values carry a p99, 10 a p90."""
    return n * (1 - q) >= 1 - 1e-9


def known(values: FloatArray) -> FloatArray:
    """The values that are known: NaN stands for null in float arrays read from Parquet."""
    return values[~np.isnan(values)]


def median_or_none(values: FloatArray) -> float | None:
    """The median of the known values, ``None`` if there are none."""
    kept = known(values)
    return float(np.median(kept)) if kept.size else None


def _sample_std(values: FloatArray, mean: float) -> float | None:
    if values.size < 2:
        return None
    deviations = values - mean
    return float(np.sqrt(np.dot(deviations, deviations) / (values.size - 1)))
