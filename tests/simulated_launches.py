"""Studies whose truth is known: latencies of requests, with a spread between launches and one between requests.

A latency is the product of what a block shares (drift of the machine over the hours), what the launch adds, what the
prompt adds (the same in every cell and launch), and what the request adds. Its shape is one of SHAPES.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pdkv.analysing.verdicts import RatioEstimate, estimate_ratio

Array = npt.NDArray[np.float64]

BLOCK_SPREAD, PROMPT_SPREAD = 0.05, 0.05
SHAPES = ("narrow", "wide", "heavy tail", "stalls")
QUANTILES = {"median": 0.5, "p90": 0.9, "p99": 0.99}


@dataclass(frozen=True)
class Setting:
    """One kind of study. ``launch_spread`` is the standard deviation that a launch adds, 0.02: 2%.

    Shapes of what a request adds: ``narrow`` and ``wide`` are lognormal with 10% and 50%, ``heavy tail`` is 1 plus a
    Pareto of index 2.5, ``stalls`` is 5% with one request in 50 taking five times as long. The first cell may have
    another one, ``base_shape``. Slow launches are one in five, by 8%: in all cells, or in all but the first.
    """

    statistic: str
    requests: int = 100
    launch_spread: float = 0.02
    shape: str = "narrow"
    base_shape: str | None = None
    slow_launches: str = "none"


def draw(rng: np.random.Generator, studies: int, repeats: int, setting: Setting, ratios: Sequence[float]) -> Array:
    """Latencies in seconds, shape (studies, cells, repeats, requests); ``ratios`` are the true ones of the cells."""
    size = (studies, len(ratios), repeats, setting.requests)
    spread = rng.normal(0, BLOCK_SPREAD, (studies, 1, repeats, 1))
    spread = spread + rng.normal(0, setting.launch_spread, (*size[:3], 1))
    spread = spread + rng.normal(0, PROMPT_SPREAD, (studies, 1, 1, size[3]))
    if setting.slow_launches != "none":
        slow = rng.random((*size[:3], 1)) < 0.2
        slow[:, 0] &= setting.slow_launches == "all"
        spread = spread + np.log(1.08) * slow
    requests = _requests(rng, size, setting.shape)
    if setting.base_shape:
        requests[:, :1] = _requests(rng, (studies, 1, *size[2:]), setting.base_shape)
    return np.exp(spread) * requests * np.asarray(ratios)[:, None, None]


def _requests(rng: np.random.Generator, size: tuple[int, ...], shape: str) -> Array:
    if shape == "heavy tail":
        return 1 + rng.pareto(2.5, size)
    noise = np.exp(rng.normal(0, {"narrow": 0.1, "wide": 0.5, "stalls": 0.05}[shape], size))
    return noise * np.where(rng.random(size) < 0.02, 5, 1) if shape == "stalls" else noise


def of_launches(latencies: Array, statistic: str) -> Array:
    """The statistic of each launch: over the requests, the last axis."""
    if statistic == "throughput":
        return 1 / latencies.mean(axis=-1)
    return latencies.mean(axis=-1) if statistic == "mean" else np.quantile(latencies, QUANTILES[statistic], axis=-1)


def true_ratio(ratio: float, statistic: str) -> float:
    """Throughput falls as latency rises."""
    return 1 / ratio if statistic == "throughput" else ratio


def ratios_to_first(latencies: Array, statistic: str) -> list[list[RatioEstimate]]:
    """For each study the estimates of all cells but the first against the first."""
    launches = of_launches(latencies, statistic)
    ratios = (launches[:, 1:] / launches[:, :1]).tolist()
    return [[estimate_ratio(cell) for cell in study] for study in ratios]


def interactions(latencies: Array, statistic: str) -> list[RatioEstimate]:
    """For each study of four cells (mode and dtype, base mode and dtype last) the ratio of ratios."""
    cell, over, base, corner = np.moveaxis(of_launches(latencies, statistic), 1, 0)
    return [estimate_ratio(ratios) for ratios in (cell / over / (base / corner)).tolist()]
