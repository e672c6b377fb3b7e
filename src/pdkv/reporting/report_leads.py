"""Leads that are no verdict: within what identical cells differ by, or of a cell that was not tested."""

from functools import lru_cache

from pdkv.analysing.hardware_units import GOODPUT_PER_DEVICE, PER_DEVICE
from pdkv.analysing.identical_cells import noise, yardstick_groups
from pdkv.analysing.load_level import load_label
from pdkv.analysing.objective_numbers import goal_of
from pdkv.analysing.objective_places import Outcome, PlacedCell
from pdkv.analysing.study_results import StudyResults
from pdkv.analysing.token_cost import COST, GOOD_COST
from pdkv.analysing.verdicts import is_no_larger
from pdkv.reporting.report_outcomes import value_with_unit
from pdkv.reporting.wording import Wording

# A cost is a price over what is sold: cells on the same hardware differ in it by the same ratio.
_SOLD = {COST: PER_DEVICE, GOOD_COST: GOODPUT_PER_DEVICE}


def is_within_noise(results: StudyResults, outcome: Outcome, ratio: float | None) -> bool:
    """Whether two cells differ by no more than identical ones do in this number at this load."""
    return ratio is not None and is_no_larger(ratio, _yardstick(results, outcome))


@lru_cache(maxsize=16)  # a row of the table asks for the same one several times
def _yardstick(results: StudyResults, outcome: Outcome) -> float | None:
    """None too of what has no load level: the engines state it."""
    points = results.points_of(outcome.workload)
    index = next((i for i, point in enumerate(points) if load_label(point) == outcome.concurrency), None)
    groups = yardstick_groups(results.cells_of(outcome.workload))
    if index is None or not groups:
        return None
    return noise(groups, index, _SOLD.get(outcome.metric, outcome.metric), outcome.stat)


def ahead_untested(results: StudyResults, outcome: Outcome, margin: float, say: Wording) -> list[PlacedCell]:
    """The cells with too few launches for a test whose value is better than that of all that were tested.

    Several where a table shows them alike; none where the lead does not matter or is that of noise.
    """
    leader = outcome.leaders[0].value
    known = [cell for cell in outcome.untested if cell.value is not None]
    if not known or not leader:
        return []
    higher = goal_of(outcome.metric, outcome.stat).higher
    best = (max if higher else min)(known, key=lambda cell: cell.value or 0.0)
    ratio = (best.value or 0.0) / leader
    lead = ratio if higher else 1 / ratio if ratio else 0.0
    if lead <= 1 + margin or is_within_noise(results, outcome, ratio):
        return []
    shown = value_with_unit(best, say)
    return [cell for cell in known if value_with_unit(cell, say) == shown]
