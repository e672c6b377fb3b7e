"""How a device works over time: its duty cycle, its bursts and the pauses between them, its plateau.

NVML's utilisation is the share of the driver's own period (a sixth of a second to a second) with a kernel running. So a
device counts as busy where more than half of a period was: a burst then looks as long as it is, give or take a period,
while a lower threshold would draw out each burst to whole periods. A burst much shorter than a period never crosses the
threshold, and one of about a period cannot be told from two: lengths below ``seen_from_s`` are ``None``, not a number.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pdkv.analysing.stats import FloatArray

BUSY = 0.5  # of the counter's period with work
IDLE = 0.005  # NVML gives whole percent
PLATEAU = 0.10  # a plateau is what lies within ten points of the median
SEEN_FROM_PERIODS = 2  # a burst shorter than two periods of the counter may be another number of bursts
MIN_PERIODS = 10  # a shorter stretch says nothing of a course over time
MIN_RUNS = 3  # fewer bursts that are seen from end to end have no typical length
WORKS = 0.01  # a mean utilisation above this means that there is work, whether or not a burst can be seen
_BREAK = 5  # samples that are missing for longer than so many steps break a run


@dataclass(frozen=True)
class DutyCycle:
    """One device, or the devices of a role, over a stretch of time; ``None`` is what the samples cannot tell.

    ``duty_cycle`` is the mean utilisation, ``plateau_level`` the median, shares are of the time. ``bursts``
    counts the starts of busy runs; lengths in seconds are of runs that begin and end within the stretch, the shortest
    that can be seen being ``seen_from_s``.
    """

    duty_cycle: float | None = None
    busy_share: float | None = None
    idle_share: float | None = None
    plateau_level: float | None = None
    plateau_share: float | None = None
    bursts: int | None = None
    seen_from_s: float | None = None
    burst_lengths_s: tuple[float, ...] = field(default=())
    gap_lengths_s: tuple[float, ...] = field(default=())

    def as_json(self) -> dict[str, Any]:
        """The numbers of trace.json."""
        shares = {key: getattr(self, key) for key in (*SHARES, "seen_from_s")}
        told = self.bursts is not None
        burst = [_quantile(self.burst_lengths_s, q) if told else None for q in (0.5, 0.9)]
        gap = [_quantile(self.gap_lengths_s, q) if told else None for q in (0.5, 0.9)]
        lengths = dict(zip(("burst_median_s", "burst_p90_s", "gap_median_s", "gap_p90_s"), burst + gap, strict=True))
        return {**shares, "bursts": self.bursts, **lengths}


SHARES = ("duty_cycle", "busy_share", "idle_share", "plateau_level", "plateau_share")


def measure_duty_cycle(times: FloatArray, util: FloatArray, resolution_s: float | None) -> DutyCycle:
    """``util`` (0–1) at ``times`` (s, ascending), both of shape (samples,).

    ``resolution_s`` is the period of the utilisation counter or of the sampler, whichever is longer.
    """
    if len(util) < 2 or resolution_s is None or times[-1] - times[0] < MIN_PERIODS * resolution_s:
        return DutyCycle()
    seen_from_s = SEEN_FROM_PERIODS * resolution_s
    starts, bursts, gaps = _runs(times, util > BUSY)
    mean, median = float(util.mean()), float(np.median(util))
    return DutyCycle(
        duty_cycle=mean,
        busy_share=float((util > BUSY).mean()),
        idle_share=float((util < IDLE).mean()),
        plateau_level=median,
        plateau_share=float((np.abs(util - median) <= PLATEAU + 1e-9).mean()),
        bursts=starts if _can_be_told(starts, bursts, gaps, mean, float(util.max()), seen_from_s) else None,
        seen_from_s=seen_from_s,
        burst_lengths_s=tuple(bursts),
        gap_lengths_s=tuple(gaps),
    )


def join_duty_cycles(devices: Sequence[DutyCycle]) -> DutyCycle:
    """The devices of a role together: means of their shares, all their bursts; ``None`` where one cannot tell."""
    shares = {key: [getattr(device, key) for device in devices] for key in SHARES}
    counts = [device.bursts for device in devices]
    seen_from = [device.seen_from_s for device in devices]
    return DutyCycle(
        **{key: None if None in values or not values else float(np.mean(values)) for key, values in shares.items()},
        bursts=None if None in counts else sum(count for count in counts if count is not None),
        seen_from_s=None if None in seen_from else max((s for s in seen_from if s is not None), default=None),
        burst_lengths_s=tuple(length for device in devices for length in device.burst_lengths_s),
        gap_lengths_s=tuple(length for device in devices for length in device.gap_lengths_s),
    )


def imbalance(values: Sequence[float | None]) -> float | None:
    """(max − min) / mean over the devices of a role; ``None`` for one device, a missing value, or a mean of 0."""
    known = [value for value in values if value is not None]
    if len(known) < max(2, len(values)) or not sum(known):
        return None
    return float((max(known) - min(known)) / np.mean(known))


def _can_be_told(
    starts: int, bursts: Sequence[float], gaps: Sequence[float], mean: float, highest: float, seen_from_s: float
) -> bool:
    """Whether the bursts that are seen are those that there were."""
    hidden = highest <= BUSY and mean > WORKS  # it worked, in no period for more than half of it
    short = any(len(lengths) and np.median(lengths) < seen_from_s for lengths in (bursts, gaps))
    return not hidden and not short


def _runs(times: FloatArray, busy: Any) -> tuple[int, list[float], list[float]]:
    """(busy runs that begin, lengths of the busy runs, of the pauses), of runs that are seen from end to end."""
    step_s = float(np.median(np.diff(times)))
    lengths: dict[bool, list[float]] = {True: [], False: []}
    starts = 0
    for piece in np.split(np.arange(len(times)), np.flatnonzero(np.diff(times) > _BREAK * step_s) + 1):
        changes = np.flatnonzero(np.diff(busy[piece].astype(np.int8))) + 1
        starts += int(busy[piece][changes].sum())
        edges = times[piece][changes]
        for begin, length in zip(changes[:-1], np.diff(edges), strict=False):
            lengths[bool(busy[piece][begin])].append(float(length))
    return starts, lengths[True], lengths[False]


def _quantile(lengths: Sequence[float], share: float) -> float | None:
    return float(np.quantile(lengths, share)) if len(lengths) >= MIN_RUNS else None
