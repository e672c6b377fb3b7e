"""The summary of a report: what the numbers carry, and what they can't tell.

Nothing is said here that the stored numbers do not hold: with one launch per cell there are observations only.
"""

from collections import Counter

from pdkv.analysing.identical_cells import identical_groups, noise
from pdkv.analysing.stats import supports_quantile
from pdkv.analysing.study_results import LATENCIES, THROUGHPUT, Cell, Effect, StudyResults
from pdkv.analysing.verdicts import MIN_LAUNCHES
from pdkv.reporting.report_conditions import gpu_counts, model_name, uses_random_weights
from pdkv.reporting.report_effects import verdict
from pdkv.reporting.report_phrases import (
    counted,
    format_change,
    hardware,
    hardware_of,
    is_launched,
    is_suspect,
    listed,
    load_level,
)
from pdkv.reporting.wording import Wording
from pdkv.units import DASH, format_ms, format_percent, format_quantity

OBSERVED = (("ttft", "mean"), ("tpot", "mean"), ("e2el", "mean"), (THROUGHPUT, "value"))
STATES = ("valid", "suspect", "invalid", "failed")
MOST_VERDICTS = 8
DECIDED = ("lower", "higher", "equivalent")


def subtitle(results: StudyResults, say: Wording) -> str:
    """Engine, model and hardware in one line."""
    parts = (_engine(results, say), _model(results, say), _machine(results, say))
    return " · ".join(dict.fromkeys(part for part in parts if part))


def say_what_is_known(results: StudyResults, say: Wording) -> tuple[str, ...]:
    """The strongest statements that the results support, plainest first."""
    modes, dtypes = results.modes, results.dtypes
    compared = say(
        "summary.compared",
        modes=listed(modes, say),
        dtypes=listed(dtypes, say),
        workloads=counted(len(results.workloads), "summary.workloads", say),
    )
    states = Counter(cell.state for cell in results.cells)
    outcome = say(
        "summary.states",
        total=counted(len(results.cells), "summary.cells", say),
        states=listed([f"{states[state]} {say(f'state.{state}')}" for state in STATES if states[state]], say),
    )
    usable = [cell for cell in results.cells if cell.usable]
    if not usable:
        return compared, outcome, say("summary.no_numbers")
    same = [] if (sentence := _same_modes(results, say)) is None else [sentence]
    verdicts = _verdicts(results, say)
    observations = [] if verdicts else _observations(results, say)
    hardware_said = _unequal_hardware(results, say)
    return (compared, *same, outcome, *verdicts, *observations, *_yardsticks(results, say), *hardware_said)


def say_what_is_untold(results: StudyResults, say: Wording) -> tuple[str, ...]:
    """What a reader might look for and the results do not carry."""
    usable = [cell for cell in results.cells if cell.usable]
    launches = {cell: _fewest_launches(cell) for cell in usable}
    untold = []
    few = [cell.name for cell, count in launches.items() if count < MIN_LAUNCHES]
    if launches and max(launches.values()) == 1:
        untold.append(say("untold.one_launch"))
    elif few and len(few) == len(usable):
        untold.append(say("untold.few_launches"))
    elif few:
        untold.append(say("untold.some_few_launches", cells=listed(dict.fromkeys(few), say)))
    if uses_random_weights(results):
        untold.append(say("untold.random_weights"))
    else:
        untold.append(say("untold.accuracy"))
    weak = [name for name in LATENCIES if _weak_p99(usable, name)]
    if weak:
        untold.append(say("untold.p99", metrics=listed([say(f"metric.{name}.short") for name in weak], say)))
    same = [listed([cell.name for cell in group], say) for group in identical_groups(results.cells)]
    if same:
        untold.append(say("untold.identical", groups="; ".join(dict.fromkeys(same))))
    suspect = [cell for cell in results.cells if cell.state == "suspect"]
    if suspect:
        checks = listed(dict.fromkeys(name for cell in suspect for name in cell.suspect_checks), say)
        untold.append(say("untold.suspect", cells=listed([cell.name for cell in suspect], say), checks=checks))
    gone = [cell.name for cell in results.cells if not cell.usable]
    if gone:
        untold.append(say("untold.gone", cells=listed(gone, say)))
    if _lacks_fair_rival(results):
        untold.append(say("untold.no_replicas"))
    if {cell.hardware[1] for cell in usable if cell.hardware and is_launched(cell)} == {"core"}:
        untold.append(say("untold.cpu"))
    return tuple(untold)


def _fewest_launches(cell: Cell) -> int:
    """At the load level that the fewest launches of the cell count in."""
    counts = [point["launches"] for point in cell.content.get("points") or [] if point["launches"]]
    return min(counts, default=len(cell.used_trials))


def _named(cell: Cell, index: int, say: Wording) -> str:
    """The cell's name, with a word where its numbers are in doubt."""
    return say("summary.suspect", cell=cell.name) if is_suspect(cell, index) else cell.name


def _engine(results: StudyResults, say: Wording) -> str:
    found = {((cell.content.get("environment") or {}).get("engine") or {}).get("vllm") for cell in results.cells} - {
        None
    }
    return say("summary.engine", versions=", ".join(sorted(str(each) for each in found))) if found else ""


def _model(results: StudyResults, say: Wording) -> str:
    text = ", ".join(dict.fromkeys(name for cell in results.cells if (name := model_name(cell, say))))
    return say("summary.random_weights", model=text) if text and uses_random_weights(results) else text


def _machine(results: StudyResults, say: Wording) -> str:
    """The GPUs that the study used, the most of each kind that a cell had; without GPUs the CPU of the host."""
    environments = [environment for cell in results.cells if (environment := cell.content.get("environment"))]
    if not any(cell.content.get("gpus") for cell in results.cells):
        return ", ".join(dict.fromkeys(str(cpu) for each in environments if (cpu := each.get("host_cpu"))))
    counts: dict[str, set[int]] = {}
    for environment in environments:
        for kind, count in gpu_counts(environment).items():
            counts.setdefault(kind, set()).add(count)
    texts = [
        (f"{max(found)} × {kind}" if len(found) == 1 else say("summary.up_to", count=max(found), kind=kind))
        for kind, found in counts.items()
    ]
    return ", ".join(texts)


def _verdicts(results: StudyResults, say: Wording) -> list[str]:
    """Decided effects against the baseline: a sentence per number and load level, most telling numbers first."""
    sentences = []
    for metric, stat in (*OBSERVED, ("ttft", "p99")):
        for workload in results.workloads:
            for index, point in enumerate(results.points_of(workload)):
                effects = [
                    (cell, results.effect("baseline", cell, index, metric, stat)) for cell in results.cells_of(workload)
                ]
                found = [(cell, effect) for cell, effect in effects if effect and _is_decided(effect)]
                if found:
                    place = say("summary.place", level=load_level(point, say), workload=workload)
                    number = _phrase(metric, stat, say)
                    cells = "; ".join(_verdict(cell, index, effect, say) for cell, effect in found)
                    base = _named(results.base_of(found[0][1]), index, say)
                    sentences.append(say("summary.verdicts", number=number, place=place, base=base, cells=cells))
    rest = len(sentences) - MOST_VERDICTS
    return sentences[:MOST_VERDICTS] + ([say("summary.more_verdicts", count=rest)] if rest > 0 else [])


def _is_decided(effect: Effect) -> bool:
    return effect.interval is not None and effect.verdict in DECIDED


def _verdict(cell: Cell, index: int, effect: Effect, say: Wording) -> str:
    low, high = (format_change(end) for end in effect.interval or (None, None))
    change = format_change(effect.ratio)
    return say(
        "summary.verdict",
        cell=_named(cell, index, say),
        verdict=verdict(effect, say),
        change=change,
        low=low,
        high=high,
    )


def _phrase(metric: str, stat: str, say: Wording) -> str:
    """``mean TTFT``, ``output throughput``: the number within a sentence."""
    name = say(f"metric.{metric}.name")
    return name if stat == "value" else say("summary.number", metric=name, stat=say(f"stat.{stat}"))


def _observations(results: StudyResults, say: Wording) -> list[str]:
    """Per load level, from where to where each number went."""
    sentences = []
    for workload in results.workloads:
        for index, point in enumerate(results.points_of(workload)):
            cells = [cell for cell in results.cells_of(workload) if cell.usable]
            ranges = [text for metric, stat in OBSERVED if (text := _range(cells, index, metric, stat, say))]
            if ranges:
                sentences.append(
                    say("summary.observed", workload=workload, level=load_level(point, say), ranges="; ".join(ranges))
                )
    return sentences


def _range(cells: list[Cell], index: int, metric: str, stat: str, say: Wording) -> str:
    values = sorted(
        ((value, _named(cell, index, say)) for cell in cells if (value := cell.value(index, metric, stat)) is not None),
        key=lambda pair: pair[0],
    )
    if not values:
        return ""
    texts = [format_quantity(value) if metric == THROUGHPUT else format_ms(value) for value, _ in values]
    unit = say("unit.tok_s" if metric == THROUGHPUT else "unit.ms")
    number = _phrase(metric, stat, say)
    if len(values) == 1 or texts[0] == texts[-1]:
        return say("summary.one_value", number=number, low=texts[0], unit=unit, cell=values[0][1])
    return say(
        "summary.range",
        number=number,
        low=texts[0],
        high=texts[-1],
        unit=unit,
        low_cell=values[0][1],
        high_cell=values[-1][1],
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
    sentence = "; ".join(listed(modes, say) for modes in sorted(sets, key=lambda names: results.modes.index(names[0])))
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
        groups = identical_groups(results.cells_of(workload))
        levels = range(len(results.points_of(workload)))
        parts = []
        for metric, stat in OBSERVED:
            differences = [value for index in levels if (value := noise(groups, index, metric, stat)) is not None]
            if differences:
                change = format_percent(1 + max(differences), sign=False)
                parts.append(f"{_phrase(metric, stat, say)} {change}")
        if parts:
            names = "; ".join(listed([cell.name for cell in group], say) for group in groups)
            sentences.append(say("summary.yardstick", groups=names, parts=", ".join(parts), workload=workload))
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
    parts = [f"{listed(modes, say)}: {hardware_of(amount, say)}" for amount, modes in sorted(used.items())]
    return [say("summary.unequal_hardware", parts="; ".join(parts))]


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
