"""A change in a table: percent, below it interval and verdict where launches allow them, beside it a mark of doubt."""

from collections.abc import Iterable, Sequence
from math import log

from pdkv.analysing.contests import SAME
from pdkv.analysing.stats import supports_quantile
from pdkv.analysing.study_results import Cell, Effect
from pdkv.analysing.verdicts import is_no_larger
from pdkv.reporting.report_blocks import Foremost, Value
from pdkv.reporting.report_phrases import change_digits, format_change, is_suspect, verdict
from pdkv.reporting.wording import Wording
from pdkv.units import DASH

WEAK, WITHIN_NOISE, SUSPECT = "*", "≈", "†"
NOTES = {WEAK: "weak", WITHIN_NOISE: "within_noise", SUSPECT: "suspect_pair"}


def change_value(
    effect: Effect | None,
    yardstick: float | None,
    cells: Iterable[Cell],
    index: int,
    number: tuple[str, str],
    say: Wording,
) -> Value:
    """One effect at one load level; ``cells`` are all that it rests on, ``yardstick`` what identical ones differ by."""
    if effect is None or effect.ratio is None or effect.ratio <= 0:
        return Value(DASH)
    metric, stat = number
    involved = list(cells)
    weak = stat == "p99" and any(
        not supports_quantile(0.99, cell.metric(index, metric).get("n") or 0) for cell in involved
    )
    small = is_no_larger(effect.ratio, yardstick) or SAME in (effect.row.get("note") or "")
    under, digits = "", change_digits(effect)
    if effect.interval:
        low, high = (format_change(end, digits) for end in effect.interval)
        under = say("effects.interval", low=low, high=high).replace("%", "") + "\n" + verdict(effect, say)
    doubtful = any(is_suspect(cell, index) for cell in involved)
    mark = (WEAK if weak else "") + (WITHIN_NOISE if small else "") + (SUSPECT if doubtful else "")
    return Value(format_change(effect.ratio, digits), under=under, mark=mark)


def largest_change(effects: Iterable[Effect]) -> float:
    """By how much the number that differs most does, of those with a verdict that it does; 0 where none has."""
    return max(
        (abs(log(effect.ratio)) for effect in effects if effect.verdict in ("lower", "higher") and effect.ratio),
        default=0.0,
    )


def largest_first(changes: Sequence[float], say: Wording) -> Foremost:
    """The rows of a table in which a difference was found; ``changes`` are those of all rows."""
    found = [number for number, change in enumerate(changes) if change]
    return Foremost(tuple(sorted(found, key=lambda number: -changes[number])), say("bounds.name.different"))


def notes_of(rows: Iterable[tuple[Value, ...]], margin: float, say: Wording) -> list[str]:
    """What verdicts and marks of a table of changes mean, as far as they stand in it."""
    values = [value for each in rows for value in each]
    notes = [say("note.verdicts", limit=f"{1 + margin:.10g}")] if any(value.under for value in values) else []
    marks = {mark for value in values for mark in value.mark}
    return [*notes, *(f"{mark} {say(f'note.{name}')}" for mark, name in NOTES.items() if mark in marks)]
