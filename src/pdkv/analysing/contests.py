"""Two cells against each other in one number of an objective, and the verdicts of all that belong together."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from pdkv.analysing.compared_numbers import ByRepeat, launches_wanted, why_spread_is_unknown
from pdkv.analysing.hardware_units import KV_PER_DEVICE
from pdkv.analysing.objective_numbers import CellContent
from pdkv.analysing.verdicts import (
    MARGIN,
    MAX_REPEATS,
    RatioEstimate,
    decide,
    estimate_ratio,
    geometric_mean,
    holm,
    is_no_larger,
    more_repeats,
    why_too_fine,
)

SAME = "same resolved configuration"
NO_RATIO = "a value is 0"
STATED = "stated by the engine, in every launch on the same side"
MIN_LAUNCHES_STATED = 2
TOO_FEW_STATED = f"only 1 launch of one of the two, {MIN_LAUNCHES_STATED} of each are needed to put one aside"


@dataclass(frozen=True, eq=False)
class Entrant:
    """A cell with its number: over all launches, and of each launch; ``weakness`` says why it can have no interval."""

    cell: CellContent
    value: float
    by_repeat: ByRepeat
    weakness: str | None = None


@dataclass(eq=False)
class Contest:
    """Two entrants. ``verdict`` is that of the first against the second, as in comparisons.csv, empty while open.

    ``undecided`` contests of its family are still open. ``wanted``: repeats that are missing for any verdict.
    ``yardstick``: what cells that ran the same differ by in this number. ``stated``: the number is not measured, the
    engine says it. ``few``: too few launches of the same repeats for a test, whatever else may stand in its way; of a
    number that is stated too few launches, whichever their repeats.
    """

    first: Entrant
    second: Entrant
    same: bool = False
    ratio: float | None = None
    repeats: int = 0
    estimate: RatioEstimate | None = None
    verdict: str = ""
    undecided: int = 1
    margin: float = MARGIN
    wanted: str = ""
    why: str = ""
    yardstick: float | None = None
    stated: bool = False
    few: bool = False

    @cached_property
    def more(self) -> str:
        """How many repeats more would likely decide: ``4``, ``>47``; empty where that is not what is missing."""
        if self.estimate is None or self.verdict != "cannot tell" or self.why:
            return self.wanted
        more = more_repeats(self.estimate, self.margin, self.undecided)
        return f">{MAX_REPEATS - self.estimate.blocks}" if more is None else str(more)

    def has(self, entrant: Entrant) -> bool:
        """Whether the entrant is one of the two."""
        return entrant in (self.first, self.second)


def hold_contest(first: Entrant, second: Entrant, stat: str, *, same: bool, metric: str = "") -> Contest:
    """The ratio of two entrants, repeat by repeat, with its estimate or why there is none.

    ``same``: both ran one configuration, so nothing is to be tested between them.
    """
    common = sorted(set(first.by_repeat) & set(second.by_repeat))
    pairs = [(first.by_repeat[repeat], second.by_repeat[repeat]) for repeat in common]
    ratios = [one / other for one, other in pairs if _has_ratio(one) and _has_ratio(other)]
    contest = Contest(first, second, same=same, repeats=len(ratios), stated=metric == KV_PER_DEVICE)
    weak = NO_RATIO if _has_zero(first) or _has_zero(second) else first.weakness or second.weakness
    if weak == NO_RATIO:  # to leave out that launch would be to forget the worst: all that is left are the values
        contest.ratio = first.value / second.value if first.value and second.value else None
    else:
        contest.ratio = geometric_mean(ratios) if ratios else None
    wanted = launches_wanted(metric, stat)
    contest.few = _missing_to_be_stated(contest) > 0 if contest.stated else len(common) < wanted
    if same:
        contest.verdict, contest.why = "equivalent", SAME
    elif weak:
        contest.why = weak
    elif len(ratios) < wanted:
        contest.why = f"{len(ratios)} repeat{'' if len(ratios) == 1 else 's'} in common, {wanted} are needed"
        contest.wanted = str(wanted - len(ratios))
    else:
        estimate = estimate_ratio(ratios)
        contest.why = why_spread_is_unknown(metric, estimate) or ""
        contest.estimate = None if contest.why else estimate
    return contest


def _has_zero(entrant: Entrant) -> bool:
    return not all(_has_ratio(value) for value in entrant.by_repeat.values())


def _has_ratio(value: float) -> bool:
    """Not 0, and not the cost of what a launch sold nothing of."""
    return 0 < value < math.inf


def decide_contests(family: Sequence[Contest], margin: float) -> None:
    """Give the contests of one objective their verdicts, by Holm's procedure; none is finer than its yardstick."""
    tested = [(contest, contest.estimate) for contest in family if contest.estimate is not None]
    rejected = holm([estimate.p for _, estimate in tested])
    for (contest, estimate), reject in zip(tested, rejected, strict=True):
        contest.verdict = decide(estimate, rejected=reject, margin=margin)
        contest.undecided, contest.margin = rejected.count(False), margin
        if why := why_too_fine(contest.verdict, estimate.ratio, contest.yardstick, margin):
            contest.verdict, contest.why = "cannot tell", why
    for contest in family:
        if contest.stated and contest.wanted:
            _decide_what_is_stated(contest, margin)


def _decide_what_is_stated(contest: Contest, margin: float) -> None:
    """A lead in a number that engines state, although launches are too few for an interval of its ratio.

    What they say hardly varies, so two launches of each show it: all of one side above all of the other, by more than
    the margin and the yardstick. That two are equal takes an interval, and so the launches that are wanted anyway.
    """
    first, second = (sorted(each.by_repeat.values()) for each in (contest.first, contest.second))
    verdict, nearest = ("higher", first[0] / second[-1]) if first[0] > second[-1] else ("lower", second[0] / first[-1])
    if nearest <= 1 + margin or is_no_larger(nearest, contest.yardstick):
        return
    if missing := _missing_to_be_stated(contest):
        contest.why, contest.wanted = TOO_FEW_STATED, str(missing)
        return
    contest.verdict, contest.why, contest.wanted = verdict, STATED, ""
    if contest.ratio is None:
        contest.ratio = contest.first.value / contest.second.value


def _missing_to_be_stated(contest: Contest) -> int:
    fewest = min(len(each.by_repeat) for each in (contest.first, contest.second))
    return max(0, MIN_LAUNCHES_STATED - fewest)
