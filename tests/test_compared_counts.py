"""Counts of few requests tie easily, and ties look certain: they want more launches, and some spread."""

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sample_results import Sample, write_sample

from pdkv.analysing.comparison import comparison_rows
from pdkv.analysing.contests import Entrant, decide_contests, hold_contest
from pdkv.analysing.objective_races import Race, standings
from pdkv.artifacts import read_json

MET_HALF_THE_TIME = [1.01, 0.99, 1.0, 1.02, 0.98]


def row(tmp_path: Path, goodput: list[float]) -> dict[str, Any]:
    """That of an 8-bit cell with these values a launch, against one of 2 requests a second."""
    none: frozenset[tuple[str, str]] = frozenset()
    sample = Sample(modes=("default",), launches=len(goodput), ttft_limit_ms=150.0, failed=none, suspect=none)
    cells = [read_json(path, "cell/1") for path in write_sample(tmp_path, sample)]
    for cell in cells:
        values = [2.0] * len(goodput) if cell["dtype"] == "fp16" else goodput
        for point in cell["points"]:
            for metrics, value in zip(point["per_launch"], values, strict=True):
                metrics["goodput"]["value"] = value
    rows = comparison_rows(cells, "default", "fp16")
    return next(each for each in rows if (each["metric"], each["factor"]) == ("goodput", "dtype"))


def test_three_launches_are_too_few(tmp_path: Path) -> None:
    found = row(tmp_path, MET_HALF_THE_TIME[:3])
    assert (found["verdict"], found["ci_low"], found["more_repeats"]) == ("cannot tell", None, "2")
    assert "3 launches cannot carry the interval of a count of requests: 5 can" in found["note"]


def test_five_that_differ_decide(tmp_path: Path) -> None:
    assert row(tmp_path, MET_HALF_THE_TIME)["verdict"] == "lower"


def test_five_that_tie_do_not(tmp_path: Path) -> None:
    """97 of 100 in each launch against 100 of 100: nothing says how much a count varies."""
    found = row(tmp_path, [1.94] * 5)
    assert (found["ratio"], found["verdict"]) == (pytest.approx(0.97), "cannot tell")
    assert (found["ci_low"], found["more_repeats"]) == (None, None)
    assert "the counts of 5 launches show no spread: no interval" in found["note"]


def wrong_objectives(requests: int, share: float, launches: int, metric: str, studies: int = 150) -> float:
    """Of studies with six equal cells at two loads, the part in which a cell is called best or worse."""
    rng = np.random.default_rng(requests + launches)
    wrong = 0
    for _ in range(studies):
        races = []
        for _ in range(2):
            met = rng.binomial(requests, share, (6, launches)) / requests
            cells = [
                Entrant({"mode": str(i), "dtype": "x"}, 1.0, dict(enumerate(each)))
                for i, each in enumerate(met.tolist())
            ]
            pairs = combinations(cells, 2)
            races.append(Race(cells, True, [hold_contest(*pair, "value", same=False, metric=metric) for pair in pairs]))
        decide_contests([contest for race in races for contest in race.contests], 0.02)
        wrong += any(standing.place in ("best", "worse") for race in races for standing in standings(race))
    return wrong / studies


@pytest.mark.parametrize(("requests", "share"), [(20, 0.97), (40, 0.98), (100, 0.97)])
def test_equal_cells_are_rarely_put_aside_by_their_counts(requests: int, share: float) -> None:
    assert wrong_objectives(requests, share, 3, "goodput_per_device") == 0, "three launches decide nothing"
    assert wrong_objectives(requests, share, 5, "goodput_per_device") < 0.1


def test_three_launches_would_not_have_held_it() -> None:
    """What the rule is for: as any other number, such counts are called different far too often."""
    assert wrong_objectives(40, 0.98, 3, "request_throughput") > 0.2
