"""What intervals and verdicts are worth, by simulation: the tables of docs/statistics.md.

``python benchmarks/statistics_tables.py`` prints them, ``... docs/statistics.md`` puts them between the marks of that
file. The same seed gives the same tables; about two minutes on two cores.
"""

import sys
from collections.abc import Callable, Sequence
from itertools import combinations, product
from multiprocessing import Pool
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from simulated_launches import SHAPES, Setting, draw, interactions, of_launches, ratios_to_first, true_ratio

from pdkv.analysing.contests import Entrant, decide_contests, hold_contest
from pdkv.analysing.objective_races import Race, standings
from pdkv.analysing.verdicts import MARGIN, RatioEstimate, decide, holm, more_repeats

REPEATS = (3, 5, 10)
RATIO = 1.05
SEED = 20240611
START, END = "<!-- tables: made by benchmarks/statistics_tables.py -->", "<!-- end of tables -->"

Cells = Sequence[str]


def covered(setting: Setting, repeats: int, rng: np.random.Generator, studies: int = 2000) -> float:
    """The share of studies whose interval holds the true ratio."""
    truth = true_ratio(RATIO, setting.statistic)
    if setting.base_shape or setting.slow_launches != "none":  # no formula: the mean of very many launches
        many = np.log(of_launches(draw(rng, 500, 100, setting, (1.0, RATIO)), setting.statistic))
        truth = float(np.exp((many[:, 1] - many[:, 0]).mean()))
    latencies = draw(rng, studies, repeats, setting, (1.0, RATIO))
    estimates = [found[0] for found in ratios_to_first(latencies, setting.statistic)]
    return float(np.mean([each.low <= truth <= each.high for each in estimates]))


def interaction_covered(setting: Setting, repeats: int, rng: np.random.Generator, studies: int = 2000) -> float:
    """The same for the ratio of two ratios: +5% · +10% over +3%."""
    truth = true_ratio(1.1 / 1.03, setting.statistic)
    latencies = draw(rng, studies, repeats, setting, (1.05 * 1.1, 1.05, 1.03, 1.0))
    estimates = interactions(latencies, setting.statistic)
    return float(np.mean([each.low <= truth <= each.high for each in estimates]))


def verdicts(family: Sequence[RatioEstimate]) -> list[str]:
    """Of a family, by Holm's procedure."""
    rejected = holm([estimate.p for estimate in family])
    return [decide(estimate, rejected=each) for estimate, each in zip(family, rejected, strict=True)]


def wrong_families(setting: Setting, repeats: int, rng: np.random.Generator, studies: int = 2000) -> float:
    """The share of A/A families (five cells at two loads that all equal their base) with a "lower" or "higher"."""
    loads = [ratios_to_first(draw(rng, studies, repeats, setting, (1.0,) * 6), setting.statistic) for _ in range(2)]
    families = [one + other for one, other in zip(*loads, strict=True)]
    return float(np.mean([not {"lower", "higher"}.isdisjoint(verdicts(family)) for family in families]))


def recommendations(
    ratios: Sequence[float], setting: Setting, repeats: int, rng: np.random.Generator, studies: int
) -> list[list[str]]:
    """For each study where the cells stand, at two loads one after the other, in one objective: lower is better."""
    loads = [of_launches(draw(rng, studies, repeats, setting, ratios), setting.statistic) for _ in range(2)]
    found = []
    for study in range(studies):
        races = [race_of(launches[study]) for launches in loads]
        decide_contests([contest for race in races for contest in race.contests], MARGIN)
        found.append([standing.place for race in races for standing in standings(race)])
    return found


def race_of(launches: np.ndarray) -> Race:
    """Cells by launches -> all pairs of them."""
    cells = [Entrant({}, float(np.mean(values)), dict(enumerate(values.tolist()))) for values in launches]
    return Race(cells, False, [hold_contest(*pair, "mean", same=False) for pair in combinations(cells, 2)])


def wrongly_placed(setting: Setting, repeats: int, rng: np.random.Generator, studies: int = 1000) -> float:
    """The share of objectives (six equal cells at two loads) in which any cell is called best or worse."""
    found = recommendations((1.0,) * 6, setting, repeats, rng, studies)
    return float(np.mean([not {"best", "worse"}.isdisjoint(places) for places in found]))


def first_placed(
    lead: float, spread: float, repeats: int, rng: np.random.Generator, studies: int = 500
) -> tuple[float, float]:
    """One of six cells is better by ``lead``: how often it is called best, and how often it is among those left."""
    found = recommendations((1.0, *(1 + lead,) * 5), Setting("mean", 50, spread), repeats, rng, studies)
    first = [place for places in found for place in (places[0], places[6])]
    return first.count("best") / len(first), 1 - first.count("worse") / len(first)


def verdict_shares(
    effect: float, setting: Setting, others: int, repeats: int, rng: np.random.Generator, studies: int = 1000
) -> tuple[float, float]:
    """Shares of "higher" and of "equivalent" for one true effect beside ``others`` cells without one."""
    latencies = draw(rng, studies, repeats, setting, (1.0, 1 + effect, *(1.0,) * others))
    said = [verdicts(family)[0] for family in ratios_to_first(latencies, setting.statistic)]
    return said.count("higher") / studies, said.count("equivalent") / studies


def advice_holds(effect: float, spread: float, rng: np.random.Generator, studies: int = 1500) -> tuple[float, float]:
    """Of studies that three repeats did not decide: how many were told a number, and were decided by as many more."""
    setting = Setting("mean", 10, spread)
    latencies = draw(rng, studies, 50, setting, (1.0, 1 + effect))
    told = decided = undecided = 0
    for study in latencies:
        [[first]] = ratios_to_first(study[None, :, :3], "mean")
        if verdicts([first]) != ["cannot tell"]:
            continue
        undecided += 1
        more = more_repeats(first)
        if more is not None:
            told += 1
            [[later]] = ratios_to_first(study[None, :, : 3 + more], "mean")
            decided += verdicts([later]) != ["cannot tell"]
    return told / undecided, decided / told


def percent(share: float) -> str:
    return f"{100 * share:.1f}"


def by_repeats(label: Cells, measure: Callable[..., float], *arguments: object) -> Cells:
    """A row: its label, then the measure in percent for each number of repeats."""
    return [*label, *(percent(measure(*arguments, repeats, generator(label, repeats))) for repeats in REPEATS)]


def generator(label: Cells, repeats: int) -> np.random.Generator:
    """Random numbers of their own for each place of a table, whatever order they are made in."""
    return np.random.default_rng([SEED, repeats, *"/".join(label).encode()])


def coverage_row(shape: str, spread: float, statistic: str, requests: int) -> Cells:
    setting = Setting(statistic, requests, spread, shape)
    return by_repeats([shape, f"{spread:.0%}", statistic, str(requests)], covered, setting)


def special_row(name: str, setting: Setting, kind: str) -> Cells:
    measure = interaction_covered if kind == "interaction" else covered
    return by_repeats([name, setting.statistic, str(setting.requests)], measure, setting)


def aa_row(shape: str, spread: float, statistic: str, requests: int) -> Cells:
    setting = Setting(statistic, requests, spread, shape)
    return by_repeats([shape, f"{spread:.0%}", statistic], wrong_families, setting)


def placed_row(shape: str, spread: float, statistic: str, requests: int) -> Cells:
    setting = Setting(statistic, requests, spread, shape)
    return by_repeats([shape, f"{spread:.0%}", statistic], wrongly_placed, setting)


def best_row(spread: float, lead: float) -> Cells:
    label = [f"{spread:.1%}", f"{lead:.0%}"]
    shares = [first_placed(lead, spread, k, generator([*label, "best"], k)) for k in REPEATS]
    return [*label, *(f"{percent(best)} / {percent(left)}" for best, left in shares)]


def power_row(spread: float, effect: float, others: int) -> Cells:
    label = [f"{spread:.1%}", f"{effect:.1%}", str(others + 1)]
    setting = Setting("mean", 100, spread)
    shares = [verdict_shares(effect, setting, others, k, generator(label, k)) for k in REPEATS]
    return [*label, *(f"{percent(higher)} / {percent(equivalent)}" for higher, equivalent in shares)]


def advice_row(spread: float, effect: float) -> Cells:
    label = [f"{spread:.0%}", f"{effect:.0%}"]
    return [*label, *map(percent, advice_holds(effect, spread, generator(label, 0)))]


STATISTICS = (("mean", 100), ("median", 100), ("p90", 100), ("p99", 100), ("throughput", 100))
MIXED = ("mean", "median", "p99")
LAUNCHES = [f"{repeats} launches" for repeats in REPEATS]
TABLES: list[tuple[str, Cells, Callable[..., Cells], list[tuple[object, ...]]]] = [
    (
        "Coverage of the 95% interval, in percent (true ratio 1.05)",
        ["requests", "launch spread", "statistic", "values a launch", *LAUNCHES],
        coverage_row,
        [(*place, *statistic) for place in product(SHAPES, (0.0, 0.02)) for statistic in STATISTICS],
    ),
    (
        "Coverage in special cases, in percent",
        ["case", "statistic", "values a launch", *LAUNCHES],
        special_row,
        [
            *(("interaction of four cells", Setting(s), "interaction") for s in ("mean", "median", "throughput")),
            ("few requests", Setting("mean", 4), ""),
            ("few requests", Setting("median", 4), ""),
            ("few requests", Setting("p90", 10), ""),
            *(("heavy tail against narrow", Setting(s, 100, 0.02, "heavy tail", "narrow"), "") for s in MIXED),
            *(("stalls against narrow", Setting(s, 100, 0.02, "stalls", "narrow"), "") for s in MIXED),
            ("slow launches in both cells", Setting("mean", 100, 0.01, slow_launches="all"), ""),
            ("slow launches in one cell only", Setting("mean", 100, 0.01, slow_launches="one"), ""),
        ],
    ),
    (
        "Equal cells: families of ten comparisons with a wrong “lower” or “higher”, in percent",
        ["requests", "launch spread", "statistic", *LAUNCHES],
        aa_row,
        [
            (*place, *statistic)
            for place in (("narrow", 0.05), ("wide", 0.0), ("heavy tail", 0.02), ("stalls", 0.02))
            for statistic in (("mean", 50), ("median", 50), ("p99", 100), ("throughput", 50))
        ],
    ),
    (
        "Verdicts “higher” / “equivalent”, in percent, for the mean of 100 requests",
        ["launch spread", "true effect", "family of", *LAUNCHES],
        power_row,
        list(product((0.005, 0.01, 0.03), (0.0, 0.02, 0.021, 0.05, 0.1), (0, 9))),
    ),
    (
        "Six equal cells at two loads: objectives in which a cell is wrongly called best or worse, in percent",
        ["requests", "launch spread", "statistic", *LAUNCHES],
        placed_row,
        [
            (*place, *statistic)
            for place in (("narrow", 0.05), ("wide", 0.0), ("heavy tail", 0.02))
            for statistic in (("mean", 50), ("throughput", 50))
        ],
    ),
    (
        "One of six cells is better than the others, which are equal, at both of two loads: called best / among those "
        "left, in percent",
        ["launch spread", "lead", *LAUNCHES],
        best_row,
        list(product((0.005, 0.02), (0.02, 0.05, 0.1, 0.3))),
    ),
    (
        "Studies that three launches did not decide, in percent: how many were told a number of repeats, and how many "
        "of these had a verdict after so many more",
        ["launch spread", "true effect", "told a number", "decided by then"],
        advice_row,
        list(product((0.01, 0.03), (0.0, 0.02, 0.05, 0.1))),
    ),
]


def make_row(place: tuple[int, int]) -> Cells:
    table, row = place
    _, _, make, arguments = TABLES[table]
    return make(*arguments[row])


def make_tables() -> str:
    places = [(table, row) for table, (*_, arguments) in enumerate(TABLES) for row in range(len(arguments))]
    with Pool(2) as pool:
        rows = dict(zip(places, pool.map(make_row, places, chunksize=1), strict=True))
    parts = []
    for table, (title, head, _, arguments) in enumerate(TABLES):
        lines = [head, ["---"] * len(head), *(rows[table, row] for row in range(len(arguments)))]
        parts.append(f"### {title}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines))
    return "\n\n".join(parts)


def main() -> None:
    tables = make_tables()
    if len(sys.argv) == 1:
        print(tables)
        return
    path = Path(sys.argv[1])
    before, _, rest = path.read_text(encoding="utf-8").partition(START)
    path.write_text(f"{before}{START}\n\n{tables}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()
