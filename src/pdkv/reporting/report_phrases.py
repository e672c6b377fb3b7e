"""Small phrases that several sections of the report share: hardware, load levels, topologies, lists."""

from collections.abc import Iterable, Sequence
from typing import Any

from pdkv.analysing.load_level import load_label
from pdkv.analysing.study_results import Cell, Effect, StudyResults
from pdkv.reporting.wording import Wording
from pdkv.units import DASH

MOST_NAMED = 6  # more names of one verdict are told by their number and range
MOST_LISTED = 24  # more load levels, workloads or launches are told by the first of them and their number
_NAMED_OF_MANY = 3
_MOST_DIGITS = 8

# The numbers that an effect is shown in: few enough for one row, each with its own column.
HEADLINES = (
    ("ttft", "mean"), ("ttft", "median"), ("ttft", "p99"), ("tpot", "mean"), ("itl", "p99"), ("e2el", "mean"),
    ("output_throughput", "value"),
)  # fmt: skip


def hardware(cell: Cell, say: Wording) -> str:
    """``2 GPUs``, ``1 core``, or a dash where it is not known."""
    return hardware_of(cell.hardware, say)


def hardware_of(known: tuple[int, str] | None, say: Wording) -> str:
    """:func:`hardware` of a count and its kind."""
    if known is None:
        return DASH
    count, kind = known
    return say(f"hardware.{kind}.{'one' if count == 1 else 'many'}", count=count)


def load_level(point: dict[str, Any], say: Wording) -> str:
    """``concurrency 2`` or ``2 requests/s (poisson)``."""
    if point["arrival"] == "closed":
        return say("load.closed", concurrency=point["concurrency"])
    return say("load.open", rate=f"{point['rate']:g}", arrival=point["arrival"])


def short_level(workload: str, point: dict[str, Any], results: StudyResults, say: Wording) -> str:
    """``c = 2`` or ``2/s``; ``c = 2 in short`` where a study has several workloads. It holds no comma: it is listed."""
    level = (
        say("load.closed_short", concurrency=load_label(point)) if point["arrival"] == "closed" else load_label(point)
    )
    return level if len(results.workloads) == 1 else say("load.of_workload", level=level, workload=workload)


def level_of_label(workload: str, label: str, results: StudyResults, say: Wording) -> str:
    """:func:`short_level` of a load level by its name in tables, ``2`` or ``0.5/s``; empty where there is none."""
    points = (point for point in results.points_of(workload) if load_label(point) == label)
    return next((short_level(workload, point, results, say) for point in points), "")


def levels_phrase(levels: Iterable[str], results: StudyResults, say: Wording) -> str:
    """``c = 2 and c = 64``; ``every load`` where these are all of the study."""
    names = list(dict.fromkeys(levels))
    if len(names) < 2:
        return listed(names, say)
    every = {short_level(each, point, results, say) for each in results.workloads for point in results.points_of(each)}
    return say("load.every") if len(every) > 1 and set(names) == every else listed_some(names, say)


def cell_label(cell: Cell, results: StudyResults) -> str:
    """The cell's name, with the workload in front where a study has several."""
    return cell.name if len(results.workloads) == 1 else f"{cell.workload}/{cell.name}"


def hardware_pair(here: Cell, there: Cell, say: Wording) -> str:
    """``2 GPUs against 1 GPU``, ``2 cores each``."""
    if here.hardware == there.hardware:
        return say("hardware.each", amount=hardware(here, say)) if here.hardware else DASH
    return say("hardware.against", here=hardware(here, say), there=hardware(there, say))


def format_change(ratio: float | None, digits: int = 1) -> str:
    """A ratio as a change with a true minus sign, ``−2.0%``, ``+99,900.0%``; what rounds to nothing has no sign."""
    if ratio is None:
        return DASH
    change = round((ratio - 1) * 100, digits)
    return f"{change:+,.{digits}f}%".replace("-", "−") if change else f"{0:.{digits}f}%"


def format_both_ways(difference: float | None) -> str:
    """What identical cells differ by, ``+58.0% / −36.7%``: the same ratio seen from either of the two."""
    if difference is None:
        return DASH
    return f"{format_change(1 + difference)} / {format_change(1 / (1 + difference))}"


def change_digits(effect: Effect) -> int:
    """Decimals that show the change and its interval: one, and more where a difference was found below that."""
    if effect.verdict not in ("lower", "higher") or effect.ratio is None:
        return 1
    return digits_of_changes((effect.ratio, *(effect.interval or ())))


def digits_of_changes(ratios: Iterable[float]) -> int:
    """Decimals that show all of these changes as more than nothing."""
    smallest = min((abs(ratio - 1) * 100 for ratio in ratios if ratio != 1), default=1.0)
    return next((digits for digits in range(1, _MOST_DIGITS) if smallest >= 0.5 * 10**-digits), _MOST_DIGITS)


def headline(metric: str, stat: str, say: Wording) -> str:
    """``TTFT mean``, ``output tok/s``: the heading of a column."""
    name = say(f"metric.{metric}.short")
    return name if stat == "value" else say("effects.headline", metric=name, stat=say(f"stat.{stat}"))


def verdict(effect: Effect, say: Wording) -> str:
    """The verdict in the report's language."""
    key = f"verdict.{effect.verdict.replace(' ', '_')}"
    return say(key) if say.has(key) else effect.verdict


def number_phrase(metric: str, stat: str, say: Wording) -> str:
    """``mean TTFT``, ``output throughput``: a number within a sentence."""
    name = say(f"metric.{metric}.name")
    return name if stat == "value" else say("summary.number", metric=name, stat=say(f"stat.{stat}"))


def stage_name(stage: str, say: Wording) -> str:
    """A stage of a trial within a sentence."""
    key = f"failures.stage.{stage}"
    return say(key) if say.has(key) else stage


def is_suspect(cell: Cell, index: int) -> bool:
    """Whether the numbers of a cell at one load level rest on launches that a check raised doubt about."""
    return "suspect" in (cell.state, cell.point_state(index))


def all_are_suspect(results: StudyResults) -> bool:
    """Whether there is no number without doubt: then one sentence says so, and marking each name says nothing."""
    usable = [cell for cell in results.cells if cell.usable]
    return len(usable) > 1 and all(cell.state == "suspect" for cell in usable)


def is_launched(cell: Cell) -> bool:
    """Whether the study starts the cell's servers; a mode with an endpoint is a server that its user runs."""
    return not (cell.config.get("mode") or {}).get("endpoint")


def topology(cell: Cell, say: Wording) -> str:
    """What a cell's mode consists of."""
    mode = cell.config.get("mode") or {}
    if not mode:
        return DASH
    if mode.get("endpoint"):
        return say("topology.endpoint", url=mode["endpoint"])
    if mode.get("prefill"):
        return say("topology.disaggregated", prefill=mode["prefill"], decode=mode["decode"])
    if mode.get("replicas", 1) > 1:
        return say("topology.replicas", count=mode["replicas"])
    return say("topology.single")


def listed(names: Iterable[str], say: Wording) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    items = list(names)
    if len(items) < 2:
        return "".join(items)
    return say("list.last", others=say("list.comma").join(items[:-1]), last=items[-1])


def listed_few(names: Iterable[str], say: Wording) -> str:
    """:func:`listed`; of many the first few and how many others: a sentence of fifty names is read by nobody."""
    items = list(names)
    if len(items) <= MOST_NAMED:
        return listed(items, say)
    return _first_of(items, say)


def listed_some(names: Iterable[str], say: Wording) -> str:
    """:func:`listed`, of names that are told one by one while a page has room for them."""
    items = list(names)
    return listed(items, say) if len(items) <= MOST_LISTED else _first_of(items, say)


def separated(names: Iterable[str], mark: str, say: Wording) -> str:
    """``a, b, c`` with the mark ``list.comma``, of as many as :func:`listed_some` tells."""
    items = list(names)
    return say(mark).join(items) if len(items) <= MOST_LISTED else _first_of(items, say)


def _first_of(items: Sequence[str], say: Wording) -> str:
    some = say("list.comma").join(items[:_NAMED_OF_MANY])
    return say("list.few", some=some, count=len(items) - _NAMED_OF_MANY)


def counted(number: int, key: str, say: Wording) -> str:
    """A number with its noun: key.one or key.many."""
    return say(f"{key}.one" if number == 1 else f"{key}.many", count=number)


def known_or_dash(value: object, say: Wording) -> str:
    """A recorded value as a reader expects it: yes and no for truth values, a dash for what is not known."""
    if value is None or value == "":
        return DASH
    if isinstance(value, bool):
        return say("word.yes" if value else "word.no")
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list | tuple):
        return say("list.comma").join(known_or_dash(item, say) for item in value)
    if isinstance(value, dict):
        return say("list.comma").join(f"{key}={item}" for key, item in value.items()) or DASH
    return str(value)


def same_or_split(values: Sequence[tuple[Cell, str]], results: StudyResults, say: Wording) -> str:
    """One text where all cells agree, else each text with the cells that it holds for."""
    holders: dict[str, list[Cell]] = {}
    for cell, text in values:
        holders.setdefault(text, []).append(cell)
    if len(holders) < 2:
        return next(iter(holders), DASH)
    parts = [
        say("word.only_in", value=text, cells=separated(_named(cells, results), "list.comma", say))
        for text, cells in holders.items()
    ]
    return separated(parts, "list.semicolon", say)


def _named(cells: Sequence[Cell], results: StudyResults) -> list[str]:
    """Cells by name; where all of a mode are among them, the mode instead."""
    names = []
    for mode in dict.fromkeys(cell.mode for cell in cells):
        members = [cell for cell in cells if cell.mode == mode]
        whole = len(members) == sum(cell.mode == mode for cell in results.cells)
        names += [mode] if whole else [cell_label(cell, results) for cell in members]
    return names
