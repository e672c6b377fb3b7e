"""The first lines of a report: what was compared, what may be recommended, and what the numbers' noise is.

Nothing is said here that the stored numbers do not hold: with one launch per cell there are observations only.
"""

from collections import Counter
from collections.abc import Sequence

from pdkv.analysing.identical_cells import identical_groups, noise, yardstick_groups
from pdkv.analysing.objective_places import Outcome
from pdkv.analysing.study_results import THROUGHPUT, StudyResults
from pdkv.reporting.report_bounds import few_of
from pdkv.reporting.report_findings import named
from pdkv.reporting.report_headlines import tell_headlines, tell_rivals_without_verdict
from pdkv.reporting.report_observations import observe
from pdkv.reporting.report_phrases import (
    counted,
    format_both_ways,
    hardware,
    hardware_of,
    listed,
    listed_few,
    number_phrase,
)
from pdkv.reporting.report_recommendations import has_verdicts, say_what_is_recommended
from pdkv.reporting.report_refusals import say_what_is_refused, say_where_base_is_missing
from pdkv.reporting.wording import Wording
from pdkv.units import DASH

OBSERVED = (("ttft", "mean"), ("tpot", "mean"), ("e2el", "mean"), (THROUGHPUT, "value"))
STATES = ("valid", "suspect", "invalid", "failed")


def say_what_is_known(
    results: StudyResults, outcomes: Sequence[Outcome], baseline: tuple[str, str], margin: float, say: Wording
) -> tuple[str, ...]:
    """The strongest statements that the results support, plainest first."""
    combinations = len(results.modes) * len(results.dtypes) * len(results.workloads)
    compared = say(
        "summary.compared" if len(results.cells) == combinations else "summary.compared_some",
        modes=listed_few(results.modes, say),
        dtypes=listed(results.dtypes, say),
        workloads=counted(len(results.workloads), "summary.workloads", say),
        count=len(results.cells),
        all=combinations,
    )
    states = Counter(cell.state for cell in results.cells)
    outcome = say(
        "summary.states",
        total=counted(len(results.cells), "summary.cells", say),
        states=listed(
            [say("summary.state", count=states[each], state=say(f"state.{each}")) for each in STATES if states[each]],
            say,
        ),
    )
    if not any(cell.usable for cell in results.cells):
        return compared, outcome, say("summary.no_numbers")
    same = [] if (sentence := _same_modes(results, say)) is None else [sentence]
    recommended = say_what_is_recommended(results, outcomes, margin, say)
    observations = [] if has_verdicts(results, outcomes) else few_of(observe(results, baseline, OBSERVED, say), say)
    return (
        compared,
        *same,
        outcome,
        *observations,
        *tell_headlines(results, margin, say),
        *tell_rivals_without_verdict(results, say),
        *recommended,
        *say_where_base_is_missing(results, baseline, say),
        *say_what_is_refused(results, say),
        *few_of(_yardsticks(results, say), say),
        *_unequal_hardware(results, say),
    )


def _same_modes(results: StudyResults, say: Wording) -> str | None:
    """Modes that are one and the same thing in every precision; with the reason, where vLLM's own default is it."""
    groups = identical_groups(results.cells)
    sets = {
        modes
        for group in groups
        if len(modes := tuple(dict.fromkeys(cell.mode for cell in group))) > 1
        and all(
            any(cell in other and set(modes) <= {each.mode for each in other} for other in groups)
            for cell in results.cells
            if cell.mode in modes and cell.usable
        )
    }
    if not sets:
        return None
    sentence = say("list.semicolon").join(
        listed_few(modes, say) for modes in sorted(sets, key=lambda names: results.modes.index(names[0]))
    )
    chunked = all(_differ_in_asked_chunking(results, modes) for modes in sets)
    return say("summary.same_modes_chunked" if chunked else "summary.same_modes", modes=sentence)


def _differ_in_asked_chunking(results: StudyResults, modes: tuple[str, ...]) -> bool:
    """Whether some of these modes ask for chunked prefill, others ask for nothing, and all of them got it."""
    cells = [cell for cell in results.cells if cell.mode in modes and cell.usable]
    asked = {(cell.config.get("mode") or {}).get("chunked_prefill") for cell in cells}
    resolved = {
        part.get("chunked_prefill")
        for cell in cells
        for trial in cell.used_trials
        for part in ((trial.get("launch") or {}).get("resolved") or {}).values()
    }
    return asked == {None, True} and resolved == {True}


def _yardsticks(results: StudyResults, say: Wording) -> list[str]:
    """What identical cells differed by, at most, in the numbers of the summary: one sentence per workload."""
    sentences = []
    for workload in results.workloads:
        groups = yardstick_groups(results.cells_of(workload))
        levels = range(len(results.points_of(workload)))
        parts = []
        for metric, stat in OBSERVED:
            differences = [value for index in levels if (value := noise(groups, index, metric, stat)) is not None]
            if differences:
                parts.append(f"{number_phrase(metric, stat, say)} {format_both_ways(max(differences))}")
        if parts:
            names = say("list.semicolon").join(
                listed_few([named(cell, levels, say) for cell in group], say) for group in groups
            )
            sentences.append(
                say("summary.yardstick", groups=names, parts=say("list.comma").join(parts), workload=workload)
            )
    return sentences


def _unequal_hardware(results: StudyResults, say: Wording) -> list[str]:
    """Stated wherever modes had different amounts of it."""
    used: dict[tuple[int, str], list[str]] = {}
    for cell in results.cells:
        if cell.hardware and cell.mode not in used.setdefault(cell.hardware, []):
            used[cell.hardware].append(cell.mode)
    if len(used) < 2:
        texts = [hardware(cell, say) for cell in results.cells if cell.usable]
        known = [text for text in texts if text != DASH]
        return [say("summary.equal_hardware", hardware=known[0])] if known and len(known) == len(texts) else []
    parts = [
        say("word.colon", name=listed_few(modes, say), value=hardware_of(amount, say))
        for amount, modes in sorted(used.items())
    ]
    return [say("summary.unequal_hardware", parts=say("list.semicolon").join(parts))]
