"""Which cells of a race may be the best, told from all pairs of them.

To pick the best-looking cell and then test its lead would find leads where there are none: among equal cells one always
looks best. So all pairs are tested, and a cell is only ever put aside, namely where another one is shown to be better.
What is not put aside may be the best. Who has too few launches to be tested against anyone stands apart.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pdkv.analysing.contests import Contest, Entrant
from pdkv.analysing.verdicts import MIN_LAUNCHES

Place = Literal["best", "equally good", "cannot tell", "worse", "not tested", "not decided", "not compared", "out"]
CYCLE = "shown worse by one that is itself shown worse, in a circle: their launches are of different repeats"
OUTSIDE = "not shown better than those that are shown worse in a circle only"
OTHER_WAY = "over all launches of each the values point the other way"
_TOLERANCE = 1e-9
_SHOWN = 5e-4  # what a table shows as 0.0% points no way


@dataclass(eq=False)
class Race:
    """Entrants that may be set against each other in one number, and all pairs of them."""

    entrants: Sequence[Entrant]
    higher: bool
    contests: list[Contest] = field(default_factory=list)


@dataclass(frozen=True)
class Standing:
    """Where an entrant stands, and the contest that shows it best; ``ratio`` of the entrant over ``against``."""

    entrant: Entrant
    place: Place
    against: Entrant | None = None
    ratio: float | None = None
    interval: tuple[float, float] | None = None
    repeats: int | None = None
    more: str = ""
    note: str = ""


def standings(race: Race) -> list[Standing]:
    """Where each entrant of a race with two or more stands, in their order."""
    if not _can_be_decided(race):
        leader = _leader(race, race.entrants)
        return [_observed(race, entrant, leader) for entrant in race.entrants]
    tested = [entrant for entrant in race.entrants if not _is_untested(race, entrant)]
    contests = [each for each in race.contests if each.first in tested and each.second in tested]
    placed = {each.entrant: each for each in _of_tested(Race(tested, race.higher, contests))}
    return [placed.get(entrant) or _untested(race, entrant) for entrant in race.entrants]


def _is_untested(race: Race, entrant: Entrant) -> bool:
    """Whether it has too few launches for a verdict against anyone but those that ran the same: it may be anything."""
    own = [each for each in race.contests if each.has(entrant) and not each.same]
    return bool(own) and all(each.few and not each.verdict for each in own)


def _of_tested(race: Race) -> list[Standing]:
    beaten = {entrant for entrant in race.entrants if _is_worse(race, entrant)}
    worse = _reached(race, [entrant for entrant in race.entrants if entrant not in beaten]) & beaten
    left = [entrant for entrant in race.entrants if entrant not in worse]
    leader = _leader(race, left)
    between = [each for each in race.contests if each.first in left and each.second in left]
    place: Place = "cannot tell"
    if all(contest.verdict == "equivalent" for contest in between):
        place = "best" if len(left) == 1 else "equally good"
    return [
        _put_aside(race, entrant, leader)
        if entrant in worse
        else _left(race, entrant, place, leader, left)
        if worse == beaten
        else Standing(entrant, "cannot tell", note=CYCLE if entrant in beaten else OUTSIDE)
        for entrant in race.entrants
    ]


def _leader(race: Race, left: Sequence[Entrant]) -> Entrant:
    """Whom no other one is ahead of, repeat by repeat; by the values only where that is so of several or of none.

    Values are over all launches of each cell, so that one which ran once more, in a bad hour, would look behind.
    """
    followers = {_follower(race, each) for each in race.contests if each.first in left and each.second in left}
    ahead = [entrant for entrant in left if entrant not in followers]
    return (max if race.higher else min)(ahead or left, key=lambda entrant: entrant.value)


def _follower(race: Race, contest: Contest) -> Entrant | None:
    """Who is behind by the ratio of the two, sure or not; None where neither is."""
    if contest.ratio is None or math.isclose(contest.ratio, 1, rel_tol=_TOLERANCE):
        return None
    return contest.second if (contest.ratio > 1) == race.higher else contest.first


def _reached(race: Race, unbeaten: Sequence[Entrant]) -> set[Entrant]:
    """Whom the unbeaten are shown better than, by a contest or a chain of them. Who is beaten in a cycle only is not
    among them: nothing says that an unbeaten one, which may have met none of the cycle, is better."""
    reached: set[Entrant] = set()
    winners = list(unbeaten)
    while winners:
        winner = winners.pop()
        won = {_other(each, winner) for each in race.contests if winner_of(race, each) is winner} - reached
        reached |= won
        winners += won
    return reached


def winner_of(race: Race, contest: Contest) -> Entrant | None:
    """Who is shown better, if anyone."""
    if contest.verdict not in ("lower", "higher"):
        return None
    return contest.first if (contest.verdict == "higher") == race.higher else contest.second


def _can_be_decided(race: Race) -> bool:
    """Some pair has an estimate or is decided; or all are of one configuration, and launches enough have shown it."""
    tested = any(contest.estimate or winner_of(race, contest) for contest in race.contests)
    return tested or all(contest.same and contest.repeats >= MIN_LAUNCHES for contest in race.contests)


def _is_worse(race: Race, entrant: Entrant) -> bool:
    """Whether another one is shown better. Cells that ran the same configuration stand or fall together."""
    alike = {entrant, *(_other(each, entrant) for each in race.contests if each.same and each.has(entrant))}
    return all(_losses(race, each) for each in alike)


def _losses(race: Race, entrant: Entrant) -> list[Contest]:
    return [each for each in race.contests if each.has(entrant) and winner_of(race, each) not in (None, entrant)]


def _put_aside(race: Race, entrant: Entrant, leader: Entrant) -> Standing:
    """Shown by the contest with the leader if that was lost, else by the clearest loss."""
    losses = _losses(race, entrant)
    shown = next((each for each in losses if each.has(leader)), None) or max(losses, key=_distance)
    return _told(entrant, "worse", shown)


def _left(race: Race, entrant: Entrant, place: Place, leader: Entrant, left: Sequence[Entrant]) -> Standing:
    """The best is shown by its nearest rival, the others by their contest with the leader of those that are left."""
    own = [each for each in race.contests if each.has(entrant)]
    if place == "best":
        won = [each for each in own if winner_of(race, each) is entrant]
        return _told(entrant, place, min(won, key=_distance, default=None))
    rivals = [each for each in own if _other(each, entrant) in left]
    if entrant is leader:
        rivals = [each for each in rivals if each.verdict != "equivalent"] or rivals
        rivals = [each for each in rivals if _follower(race, each) is not entrant] or rivals
        return _told(entrant, place, min(rivals, key=_distance, default=None))
    return _told(entrant, place, next(each for each in rivals if each.has(leader)))


def _told(entrant: Entrant, place: Place, contest: Contest | None) -> Standing:
    if contest is None:
        return Standing(entrant, place)
    turned = entrant is contest.second
    low_high = (contest.estimate.low, contest.estimate.high) if contest.estimate else None
    if low_high and turned:
        low_high = 1 / low_high[1], 1 / low_high[0]
    ratio = contest.ratio if contest.ratio is None or not turned else 1 / contest.ratio
    notes = [contest.why, OTHER_WAY if _values_point_the_other_way(contest) else ""]
    note = "; ".join(note for note in notes if note)
    return Standing(entrant, place, _other(contest, entrant), ratio, low_high, contest.repeats, contest.more, note)


def _values_point_the_other_way(contest: Contest) -> bool:
    first, second, ratio = contest.first.value, contest.second.value, contest.ratio
    if ratio is None or math.isclose(first, second, rel_tol=_SHOWN) or math.isclose(ratio, 1, rel_tol=_SHOWN):
        return False
    return (ratio > 1) != (first > second)


def _observed(race: Race, entrant: Entrant, leader: Entrant) -> Standing:
    """Without a verdict what was seen: each against the leader, and that one against its nearest rival."""
    own = [each for each in race.contests if each.has(entrant)]
    if entrant is leader:
        shown = min([each for each in own if _follower(race, each) is not entrant] or own, key=_distance)
    else:
        shown = next(each for each in own if each.has(leader))
    return _told(entrant, "not decided", shown)


def _untested(race: Race, entrant: Entrant) -> Standing:
    """What it lacks until it is tested against anyone: of its contests the one that the fewest launches are missing to.

    Of those alike the one with the most repeats in common.
    """
    own = [contest for contest in race.contests if contest.has(entrant) and not contest.same]
    nearest = min(own, key=lambda contest: (int(contest.wanted) if contest.wanted else math.inf, -contest.repeats))
    return Standing(entrant, "not tested", repeats=nearest.repeats, more=nearest.more, note=nearest.why)


def _other(contest: Contest, entrant: Entrant) -> Entrant:
    return contest.second if entrant is contest.first else contest.first


def _distance(contest: Contest) -> float:
    return max(contest.ratio, 1 / contest.ratio) if contest.ratio else math.inf


def as_row(standing: Standing) -> dict[str, Any]:
    """The columns of objectives.csv that come from the race."""
    low, high = standing.interval or (None, None)
    against = standing.against.cell if standing.against else {}
    return {
        "place": standing.place,
        "against_mode": against.get("mode"),
        "against_dtype": against.get("dtype"),
        "ratio": standing.ratio,
        "ci_low": low,
        "ci_high": high,
        "launches": standing.repeats,
        "more_repeats": standing.more or None,
        "note": standing.note,
    }
