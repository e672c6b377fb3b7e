"""What a reader might look for and the results do not carry."""

from collections.abc import Sequence

from pdkv.analysing.identical_cells import identical_groups
from pdkv.analysing.stats import supports_quantile
from pdkv.analysing.study_results import LATENCIES, Cell, StudyResults
from pdkv.analysing.verdicts import MIN_LAUNCHES
from pdkv.reporting.report_phrases import MOST_NAMED, all_are_suspect, cell_label, is_launched, listed, listed_few
from pdkv.reporting.report_setup import uses_random_weights
from pdkv.reporting.stored_texts import retell
from pdkv.reporting.wording import Wording

POWER_LIMITED = 0.5  # share of the load at the power limit from which it is told


def say_what_is_untold(results: StudyResults, say: Wording) -> tuple[str, ...]:
    """What a reader might look for and the results do not carry."""
    usable = [cell for cell in results.cells if cell.usable]
    launches = {cell: _fewest_launches(cell) for cell in usable}
    untold = []
    few = [cell_label(cell, results) for cell, count in launches.items() if count < MIN_LAUNCHES]
    if launches and max(launches.values()) == 1:
        untold.append(say("untold.one_launch"))
    elif few and len(few) == len(usable):
        untold.append(say("untold.few_launches"))
    elif few:
        untold.append(say("untold.some_few_launches", cells=listed_few(dict.fromkeys(few), say)))
    if uses_random_weights(results):
        untold.append(say("untold.random_weights"))
    else:
        untold.append(say("untold.accuracy"))
    weak = [name for name in LATENCIES if _weak_p99(usable, name)]
    if weak:
        untold.append(say("untold.p99", metrics=listed([say(f"metric.{name}.short") for name in weak], say)))
    same = [listed_few([cell.name for cell in group], say) for group in identical_groups(results.cells)]
    if same:
        untold.append(say("untold.identical", groups=say("list.semicolon").join(dict.fromkeys(same))))
    suspect = [cell for cell in results.cells if cell.state == "suspect"]
    if suspect:
        key = "untold.all_suspect" if all_are_suspect(results) else "untold.suspect"
        untold.append(say(key, doubts=_doubts(suspect, results, say)))
    if capped := [cell_label(cell, results) for cell in usable if _is_power_limited(cell)]:
        untold.append(say("untold.power_limit", cells=listed_few(capped, say)))
    gone = [cell_label(cell, results) for cell in results.cells if not cell.usable]
    if gone:
        untold.append(say("untold.gone", cells=listed_few(gone, say)))
    crowded = {cell: any(trial.get("beside") for trial in cell.used_trials) for cell in usable}
    beside, alone = (
        [cell_label(cell, results) for cell in usable if crowded[cell] is is_so] for is_so in (True, False)
    )
    if beside:
        key = "untold.some_beside" if alone else "untold.all_beside"
        untold.append(say(key, beside=listed_few(beside, say), alone=listed_few(alone, say)))
    if _lacks_fair_rival(results):
        untold.append(say("untold.no_replicas"))
    if _load_differs_per_device(usable):
        untold.append(say("untold.load_per_device"))
    if _users_go_in_step(usable):
        untold.append(say("untold.in_step"))
    if unknown := dict.fromkeys(retell(name, say) for cell in usable for name in cell.unknown_checks):
        untold.append(say("untold.unknown", checks=listed(unknown, say)))
    if {cell.hardware[1] for cell in usable if cell.hardware and is_launched(cell)} == {"core"}:
        untold.append(say("untold.cpu"))
    return tuple(untold)


def _is_power_limited(cell: Cell) -> bool:
    """Whether the GPUs of a role kept to their power limit for half of the load or more, in any launch."""
    phases = [phase for trial in cell.used_trials for phase in (trial.get("trace") or {}).get("phases") or []]
    loads = [phase for phase in phases if phase["stage"] == "load" and phase["point"] is None]
    return any((phase.get("power_limited_share") or 0.0) >= POWER_LIMITED for phase in loads)


def _load_differs_per_device(cells: list[Cell]) -> bool:
    """Whether cells of one workload, and so of the same load, have unlike numbers of GPUs or cores."""
    found: dict[str, set[int]] = {}
    for cell in cells:
        if cell.hardware:
            found.setdefault(cell.workload, set()).add(cell.hardware[0])
    return any(len(counts) > 1 for counts in found.values())


def _users_go_in_step(cells: list[Cell]) -> bool:
    """Whether several users each waited for an answer of the one length before they asked again."""
    points = [point for cell in cells for point in cell.content.get("points") or []]
    return any(point["arrival"] == "closed" and point["concurrency"] > 1 for point in points)


def _doubts(cells: Sequence[Cell], results: StudyResults, say: Wording) -> str:
    """``a, b (not passed: “steady state”)``: the cells that the same checks found fault with together.

    Where these groups are too many for a sentence, all cells and all checks together.
    """
    groups: dict[tuple[str, ...], list[str]] = {}
    for cell in cells:
        groups.setdefault(tuple(_faults(cell, say)), []).append(cell_label(cell, results))
    if len(groups) <= MOST_NAMED:
        told = [
            say("untold.doubt", cells=listed_few(names, say), checks=say("list.comma").join(faults))
            for faults, names in groups.items()
        ]
        return say("list.semicolon").join(told)
    names = listed_few([cell_label(cell, results) for cell in cells], say)
    faults = say("list.comma").join(dict.fromkeys(fault for each in groups for fault in each))
    return say("untold.doubt_of_some", cells=names, checks=faults)


def _faults(cell: Cell, say: Wording) -> list[str]:
    faults = [say("untold.check", name=retell(name, say)) for name in cell.suspect_checks]
    failed = any(trial["state"] == "failed" for trial in cell.trials)
    not_passed = [say("untold.not_passed", checks=say("list.comma").join(faults))] if faults else []
    return [*not_passed, *([say("untold.launch_failed")] if failed else [])]


def _fewest_launches(cell: Cell) -> int:
    """At the load level that the fewest launches of the cell count in."""
    counts = [point["launches"] for point in cell.content.get("points") or [] if point["launches"]]
    return min(counts, default=len(cell.used_trials))


def _weak_p99(cells: list[Cell], metric: str) -> bool:
    for cell in cells:
        for point in cell.content.get("points") or []:
            n = cell.metric(point["point"], metric).get("n") or 0
            if n and not supports_quantile(0.99, n):
                return True
    return False


def _lacks_fair_rival(results: StudyResults) -> bool:
    """Whether a disaggregated cell has more hardware than every undivided one it is compared with."""
    split = [cell.hardware[0] for cell in results.cells if cell.disaggregated and cell.hardware]
    single = [cell.hardware[0] for cell in results.cells if not cell.disaggregated and cell.hardware]
    return bool(split and single and max(single) < min(split))
