"""Five ways to the interval of a ratio, by simulation with known truth: the tables of docs/decisions/0008.

``python benchmarks/interval_methods.py`` prints them; one to two minutes on one core. All but the first and the last
rest on the statistic of each launch.
"""

import sys
from pathlib import Path

import numpy as np
from scipy.special import stdtr, stdtrit

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from simulated_launches import Array, Setting, draw, of_launches, ratios_to_first

STUDIES, RESAMPLES, RATIO = 400, 300, 1.05
SETTINGS = [
    Setting("mean", 50, 0.02),
    Setting("mean", 50, 0.0),
    Setting("mean", 50, 0.02, "heavy tail"),
    Setting("median", 50, 0.02),
    Setting("p99", 100, 0.02),
    Setting("p99", 100, 0.05),
]
Interval = tuple[float, float]


def resampled(rng: np.random.Generator, study: Array, statistic: str) -> tuple[Array, Array]:
    """Log ratios of resamples, by launch and pooled: launches drawn first, prompts within them alike in both cells."""
    _, repeats, requests = study.shape
    launch = rng.integers(0, repeats, (RESAMPLES, repeats, 1))
    prompt = rng.integers(0, requests, (RESAMPLES, repeats, requests))
    base, cell = study[0][launch, prompt], study[1][launch, prompt]
    by_launch = np.log(of_launches(cell, statistic) / of_launches(base, statistic))
    return by_launch, np.log(pooled(cell, statistic) / pooled(base, statistic))


def pooled(latencies: Array, statistic: str) -> Array:
    return of_launches(latencies.reshape(*latencies.shape[:-2], -1), statistic)


def bootstrap_intervals(rng: np.random.Generator, study: Array, statistic: str) -> dict[str, Interval]:
    repeats = study.shape[1]
    logs = np.log(of_launches(study[1], statistic) / of_launches(study[0], statistic))
    centre, error = logs.mean(), logs.std(ddof=1) / np.sqrt(repeats)
    by_launch, whole = resampled(rng, study, statistic)
    means, errors = by_launch.mean(axis=1), by_launch.std(axis=1, ddof=1) / np.sqrt(repeats)
    with np.errstate(divide="ignore"):  # a launch drawn three times over may have no spread at all
        t_low, t_high = np.quantile((means - centre) / errors, (0.025, 0.975))
    half = stdtrit(repeats - 1, 0.975) * means.std(ddof=1) * np.sqrt(repeats / (repeats - 1))
    return {
        "percentiles": tuple(np.quantile(whole, (0.025, 0.975))),
        "studentized": (centre - t_high * error, centre - t_low * error),
        "bootstrap error and t": (centre - half, centre + half),
    }


def jackknife(study: Array, statistic: str) -> tuple[float, float]:
    """Log ratio of the pooled requests and its standard error, from leaving out one launch at a time."""
    repeats = study.shape[1]
    left_out = [pooled(np.delete(study, launch, axis=1), statistic) for launch in range(repeats)]
    logs = np.log([cell / base for base, cell in left_out])
    base, cell = pooled(study, statistic)
    return float(np.log(cell / base)), float(np.sqrt((repeats - 1) / repeats * np.square(logs - logs.mean()).sum()))


def jackknife_interval(study: Array, statistic: str) -> Interval:
    centre, error = jackknife(study, statistic)
    half = stdtrit(study.shape[1] - 1, 0.975) * error
    return centre - half, centre + half


def jackknife_t(study: Array, statistic: str) -> float:
    centre, error = jackknife(study, statistic)
    return centre / error


def wrong_families(statistic: str, spread: float, repeats: int) -> list[str]:
    """Of families of ten cells that all equal their base, how many have one that is called different, in percent."""
    rng = np.random.default_rng([repeats, *f"{statistic}/{spread}".encode()])
    latencies = draw(rng, 1000, repeats, Setting(statistic, 100, spread), (1.0,) * 11)
    jackknife = [[jackknife_t(np.stack((study[0], cell)), statistic) for cell in study[1:]] for study in latencies]
    launches = np.log(of_launches(latencies, statistic))
    logs = launches[:, 1:] - launches[:, :1]
    paired = logs.mean(axis=-1) / logs.std(axis=-1, ddof=1) * np.sqrt(repeats)
    # The smallest p value decides whether Holm's procedure rejects anything.
    wrong = [
        (2 * stdtr(repeats - 1, -np.abs(t)).min(axis=1) <= 0.05 / 10).mean() for t in (np.array(jackknife), paired)
    ]
    return [statistic, f"{spread:.0%}", str(repeats), *(f"{100 * share:.1f}" for share in wrong)]


def row(setting: Setting, repeats: int) -> list[str]:
    """Coverage in percent and, in brackets, the median of half the width in percent."""
    rng = np.random.default_rng([repeats, SETTINGS.index(setting)])
    latencies = draw(rng, STUDIES, repeats, setting, (1.0, RATIO))
    found: dict[str, list[Interval]] = {}
    for study, [estimate] in zip(latencies, ratios_to_first(latencies, setting.statistic), strict=True):
        intervals = {
            **bootstrap_intervals(rng, study, setting.statistic),
            "jackknife and t": jackknife_interval(study, setting.statistic),
            "launches and t": (np.log(estimate.low), np.log(estimate.high)),
        }
        for method, interval in intervals.items():
            found.setdefault(method, []).append(interval)
    truth = np.log(RATIO)
    cells = []
    for intervals_of in found.values():
        low, high = np.array(intervals_of).T
        cells.append(f"{100 * np.mean((low <= truth) & (truth <= high)):.0f} ({50 * np.median(high - low):.1f})")
    head = [setting.statistic, setting.shape, f"{setting.launch_spread:.0%}", str(repeats)]
    return [*head, *cells]


def show(head: list[str], rows: list[list[str]]) -> None:
    print("\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *rows)), end="\n\n")


def main() -> None:
    methods = ["percentiles", "studentized", "bootstrap error and t", "jackknife and t", "launches and t"]
    head = ["statistic", "requests", "launch spread", "launches", *methods]
    show(head, [row(setting, repeats) for setting in SETTINGS for repeats in (3, 5, 10)])
    places = [(*place, repeats) for place in (("mean", 0.02), ("p99", 0.02), ("p99", 0.05)) for repeats in (3, 5, 10)]
    show(["statistic", "launch spread", "launches", *methods[3:]], [wrong_families(*place) for place in places])


if __name__ == "__main__":
    main()
