"""From the ratios of two cells, one for each repeat, to a ratio with its interval, and from that to a verdict.

The launch is the unit that was repeated, so it is the unit whose spread counts: requests of one launch share its luck.
Formulas and what they are worth: docs/statistics.md. Why not a bootstrap: docs/decisions/0008.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy  # its special functions are loaded when the first is called: reports call none, and start sooner

from pdkv.analysing.stats import FloatArray

MARGIN = 0.02
LEVEL = 0.95
MIN_LAUNCHES = 3
MIN_LAUNCHES_P99 = 5  # three launches can show the same rare stall by chance: see docs/decisions/0008
MIN_LAUNCHES_COUNT = 5  # counts of few requests often tie: three launches then show too little spread, or none
MAX_REPEATS = 50
LIKELY = 0.8
_LIKELY_TRUTHS = 9
_TOLERANCE = 1e-9  # a ratio of exactly the margin is inside it, however the division was rounded


@dataclass(frozen=True)
class RatioEstimate:
    """A ratio with its 95% interval, the p value of "the ratio is 1", and the standard error of its logarithm."""

    ratio: float
    low: float
    high: float
    p: float
    standard_error: float
    blocks: int


def estimate_ratio(ratios: Sequence[float]) -> RatioEstimate:
    """The geometric mean of at least two positive ratios, one for each block, with Student's interval of their logs.

    A block is the same repeat of the cells that are compared.
    """
    k = len(ratios)
    logs = [math.log(ratio) for ratio in ratios]
    centre = math.fsum(logs) / k
    error = math.sqrt(math.fsum((value - centre) ** 2 for value in logs) / (k - 1) / k)
    ratio = geometric_mean(ratios)
    if error < _TOLERANCE:  # no spread seen: the arithmetic's noise is none either
        return RatioEstimate(ratio, ratio, ratio, 1.0 if abs(centre) < _TOLERANCE else 0.0, 0.0, k)
    half = float(scipy.special.stdtrit(k - 1, (1 + LEVEL) / 2)) * error
    p = 2 * float(scipy.special.stdtr(k - 1, -abs(centre) / error))
    return RatioEstimate(ratio, math.exp(centre - half), math.exp(centre + half), p, error, k)


def geometric_mean(ratios: Sequence[float]) -> float:
    """Of at least one positive ratio; a single one comes out as it went in."""
    return math.prod(ratios) ** (1 / len(ratios))


def holm(p_values: Sequence[float]) -> list[bool]:
    """Which hypotheses of a family are rejected so that any wrong rejection has a chance of at most 5%."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    rejected = [False] * len(p_values)
    for rank, index in enumerate(order):
        if p_values[index] > (1 - LEVEL) / (len(p_values) - rank):
            break
        rejected[index] = True
    return rejected


def decide(estimate: RatioEstimate, *, rejected: bool, margin: float = MARGIN) -> str:
    """``equivalent``, ``lower``, ``higher`` or ``cannot tell``.

    Equivalent: the whole interval lies within 1/(1 + margin) … 1 + margin, its ends included; that goes first, for a
    difference that does not matter is none. Lower and higher: equality was rejected within its family.
    """
    limit = (1 + margin) * (1 + _TOLERANCE)
    if estimate.high <= limit and estimate.low >= 1 / limit:
        return "equivalent"
    if not rejected:
        return "cannot tell"
    return "lower" if estimate.ratio < 1 else "higher"


def widen(estimate: RatioEstimate, comparisons: int) -> tuple[float, float]:
    """The interval as wide as it must be for so many comparisons to hold theirs together (Bonferroni)."""
    quantile = float(scipy.special.stdtrit(estimate.blocks - 1, 1 - (1 - LEVEL) / 2 / comparisons))
    half = quantile * estimate.standard_error
    return estimate.ratio * math.exp(-half), estimate.ratio * math.exp(half)


def is_no_larger(ratio: float, yardstick: float | None) -> bool:
    """Whether a ratio is as near to 1 as cells that ran the same come; ``yardstick`` is what they differ by."""
    if yardstick is None or ratio <= 0:  # a goodput of 0 is near to nothing
        return False
    return max(ratio, 1 / ratio) - 1 <= yardstick * (1 + _TOLERANCE)


def within_yardstick(yardstick: float) -> str:
    """Why there is no verdict, for the note of a row."""
    return f"no larger than the {100 * yardstick:.3g}% that cells of the same configuration differ by"


def why_too_fine(verdict: str, ratio: float, yardstick: float | None, margin: float) -> str:
    """Why a verdict does not stand beside what cells that ran the same differ by; empty where it does.

    A lead must be larger than that, and to be equal within the margin says something only where they are.
    """
    if yardstick is None:
        return ""
    if verdict == "equivalent" and yardstick > margin * (1 + _TOLERANCE):
        return f"cells of the same configuration differ by {100 * yardstick:.3g}%, more than the margin of equivalence"
    return within_yardstick(yardstick) if verdict in ("lower", "higher") and is_no_larger(ratio, yardstick) else ""


def more_repeats(estimate: RatioEstimate, margin: float = MARGIN, undecided: int = 1) -> int | None:
    """How many repeats more would decide with a chance of 80%; ``None`` if more than 50 in all would be needed.

    The chance is an average over what the true ratio may be, as far as the launches tell; the spread is taken as seen.
    ``undecided`` is the number of comparisons of the family that are still open: Holm's procedure shares the 5% among
    them.
    """
    one_launch = estimate.standard_error * math.sqrt(estimate.blocks)
    deviations = scipy.special.stdtrit(estimate.blocks - 1, (np.arange(_LIKELY_TRUTHS) + 0.5) / _LIKELY_TRUTHS)
    effects = np.abs(math.log(estimate.ratio) + deviations * estimate.standard_error)

    def chance(repeats: int) -> float:
        unequal = _chance_to_exclude(effects, one_launch, repeats, (1 - LEVEL) / undecided)
        # Both ends of the interval within the margin: each fails with some chance, together with at most the sum.
        to_ends = [math.log1p(margin) + sign * effects for sign in (-1, 1)]
        inside = sum(_chance_to_exclude(each, one_launch, repeats, 1 - LEVEL) for each in to_ends) - 1
        return float(np.maximum(unequal, inside).mean())

    tried = range(estimate.blocks + 1, MAX_REPEATS + 1)
    # The most first: where cells differ by nothing but noise, as most do in a large study, it answers alone.
    if not tried or chance(MAX_REPEATS) < LIKELY:
        return None
    return bisect_left(tried, LIKELY, hi=len(tried) - 1, key=chance) + 1


def _chance_to_exclude(distances: FloatArray, spread: float, repeats: int, level: float) -> FloatArray:
    """The chances that an interval ends short of values that lie ``distances`` below the truth.

    ``spread`` is the standard deviation of one launch, ``level`` what the interval misses on both sides together.
    """
    quantile = scipy.special.stdtrit(repeats - 1, 1 - level / 2)
    missed = scipy.special.nctdtr(repeats - 1, distances * math.sqrt(repeats) / spread, quantile)
    return np.asarray(1 - missed, dtype=np.float64)
