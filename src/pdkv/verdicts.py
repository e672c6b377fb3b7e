"""From the launches of two cells to a ratio with its interval, and from that to a verdict.

The launch is the unit that was repeated, so it is the unit whose spread counts: requests of one launch share its luck.
The spread of a ratio is found by leaving out one block (the same repeat of both cells) at a time; the interval is
Student's with one degree of freedom fewer than blocks. Why not the percentiles of a bootstrap: see docs/decisions/0008.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtr, stdtrit

MARGIN = 1.02
LEVEL = 0.95
MIN_LAUNCHES = 3
MAX_REPEATS = 50
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


def estimate_ratio(ratio: float, without_block: Sequence[float]) -> RatioEstimate:
    """``ratio`` over all blocks and the same ratio with each of at least two blocks left out; all positive."""
    k = len(without_block)
    left_out = np.log(without_block)
    error = math.sqrt((k - 1) / k * float(np.square(left_out - left_out.mean()).sum()))
    centre = math.log(ratio)
    if error < _TOLERANCE:  # no spread seen: the arithmetic's noise is none either
        return RatioEstimate(ratio, ratio, ratio, 1.0 if abs(centre) < _TOLERANCE else 0.0, 0.0, k)
    half = _student_quantile(k - 1) * error
    p = 2 * float(stdtr(k - 1, -abs(centre) / error))
    return RatioEstimate(ratio, math.exp(centre - half), math.exp(centre + half), p, error, k)


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

    Equivalent: the whole interval lies within the margin, its ends included; that goes first, for a difference that
    does not matter is none. Lower and higher: equality was rejected within its family.
    """
    if estimate.high <= margin * (1 + _TOLERANCE) and estimate.low >= 1 / margin * (1 - _TOLERANCE):
        return "equivalent"
    if not rejected:
        return "cannot tell"
    return "lower" if estimate.ratio < 1 else "higher"


def repeats_to_decide(estimate: RatioEstimate, margin: float = MARGIN) -> int | None:
    """How many repeats would likely decide if ratio and spread stay as seen; ``None`` if more than 50."""
    effect = abs(math.log(estimate.ratio))
    needed = max(effect, math.log(margin) - effect)
    spread = estimate.standard_error * math.sqrt(estimate.blocks)
    for repeats in range(estimate.blocks + 1, MAX_REPEATS + 1):
        if _student_quantile(repeats - 1) * spread / math.sqrt(repeats) < needed:
            return repeats
    return None


def _student_quantile(degrees_of_freedom: int) -> float:
    return float(stdtrit(degrees_of_freedom, (1 + LEVEL) / 2))
