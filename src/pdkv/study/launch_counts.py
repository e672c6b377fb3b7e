"""Cells that get too few launches for a verdict, told before anything is measured."""

from collections.abc import Iterable

from pdkv.study.config import Study

MOST_NAMED = 6


def find_few_launches(study: Study, wanted: int) -> list[str]:
    """Warnings on cells that ``launches`` leaves with fewer than ``wanted``, the least that a verdict needs.

    The cell that the others are held against has a sentence of its own: without it no cell has a verdict against it.
    """
    if not study.launches:
        return []
    counts = {cell: study.launch_count(*cell) for cell in study.cells()}
    few = {cell: count for cell, count in counts.items() if count < wanted}
    base = (study.baseline_mode, study.baseline_dtype)
    bases = [_named(cell, count) for cell, count in few.items() if cell[1:] == base]
    others = [_named(cell, count) for cell, count in few.items() if cell[1:] != base]
    effect = f"fewer than {wanted} launches show an effect and no verdict"
    warnings = [f"launches: {_listed(others)}: {effect}"] if others else []
    if bases:
        warnings.insert(0, f"launches: the baseline {_listed(bases)}: {effect}, in any comparison with it")
    return warnings


def describe_repeats(study: Study, wanted: int) -> str | None:
    """What a report of a study will lack that launches every cell fewer than ``wanted`` times; ``None`` for others."""
    if study.launches or study.repeats >= wanted or len(study.cells()) < 2:
        return None
    return (
        f"repeats: {study.repeats}: the report will show effects and no verdicts; "
        f"these need {wanted} launches of each cell"
    )


def _named(cell: tuple[str, str, str], count: int) -> str:
    return f"{'/'.join(cell)} ({count})"


def _listed(names: Iterable[str]) -> str:
    found = list(names)
    rest = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    return ", ".join(found[:MOST_NAMED]) + rest
