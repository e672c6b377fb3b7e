"""Cells made by hand for what is read off load levels: only what cell.json must hold for that."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pdkv.analysing.load_level import load_label
from pdkv.analysing.study_results import Cell, Effect, StudyResults

CLOSED = [{"arrival": "closed", "concurrency": c, "rate": None, "requests": 8} for c in (1, 4, 16, 64)]


def open_points(*rates: float) -> list[dict[str, Any]]:
    return [{"arrival": "poisson", "concurrency": None, "rate": rate, "requests": 8} for rate in rates]


def launch(
    *, share: float | None = None, throughput: float | None = None, e2el_s: float | None = None
) -> dict[str, Any]:
    return {
        "output_throughput": {"unit": "tok/s", "n": 8, "value": throughput},
        **{name: {"unit": "s", "n": 8, "median": e2el_s} for name in ("ttft", "tpot", "e2el")},
        "goodput": {"unit": "req/s", "n": 8, "value": share},
        "slo_share": {"unit": "share", "n": 8, "met": 0, "value": share},
    }


def cell_of(
    levels: Mapping[int, Sequence[dict[str, Any]]],
    *,
    mode: str = "default",
    dtype: str = "fp16",
    configured: Sequence[dict[str, Any]] = CLOSED,
    left_out: Mapping[int, int] | None = None,
    identity: str | None = None,
    **content: Any,
) -> Cell:
    """``levels``: the launches in the numbers of each level by position; ``left_out``: launches that are not."""
    points = [
        {
            **configured[index],
            "point": index,
            "state": "valid" if launches else "invalid",
            "launches": len(launches),
            "repeats": list(range(1, len(launches) + 1)),
            "excluded": [{"repeat": 90 + i, "reason": "failed"} for i in range((left_out or {}).get(index, 0))],
            "metrics": launches[0] if launches else launch(),
            "per_launch": list(launches),
        }
        for index, launches in levels.items()
    ]
    ran = {"state": "valid", "checks": [], "launch": {"identity": identity or f"{mode}-{dtype}"}}
    trials = [{**ran, "repeat": repeat} for repeat in range(1, 1 + max(map(len, levels.values()), default=0))]
    return Cell(
        Path(mode, dtype),
        {
            "workload": "w",
            "mode": mode,
            "dtype": dtype,
            "state": "valid",
            "gpus": 1,
            "instances": 1,
            "trials": trials,
            "points": points,
            "checks": [],
            "environment": {},
            "config": {"workload": {"id": "w", "points": list(configured)}, "mode": {"replicas": 1}},
            "slo": None,
            **content,
        },
    )


def effect(
    factor: str,
    cell: Cell,
    base: Cell,
    index: int,
    verdict: str,
    ratio: float,
    metric: str = "ttft",
    stat: str = "mean",
    configured: Sequence[dict[str, Any]] = CLOSED,
) -> Effect:
    return Effect(
        {
            "workload": "w",
            "concurrency": load_label(configured[index]),
            "metric": metric,
            "stat": stat,
            "factor": factor,
            "mode": cell.mode,
            "dtype": cell.dtype,
            "base_mode": base.mode,
            "base_dtype": base.dtype,
            "ratio": str(ratio),
            "ci_low": "",
            "ci_high": "",
            "verdict": verdict,
        }
    )


def results_of(cells: Sequence[Cell], effects: Sequence[Effect] = ()) -> StudyResults:
    return StudyResults(cells, effects)
