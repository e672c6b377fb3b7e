"""The one line at the end of a run: in which states the study's cells are, and where the report is."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from pdkv.artifacts import read_json
from pdkv.errors import UserError

STATES = ("valid", "suspect", "invalid", "failed")


def outcome_line(cells: Iterable[Path], reports: Iterable[Path]) -> str:
    """``pdkv: cells: 4 valid, 1 suspect, 1 failed (the report says why); report: reports/summary.pdf``.

    ``cells`` are the cell.json files that a run brought up to date, ``reports`` its PDFs. Empty without either: a run
    for something else has nothing to say here. Cells that do not lie on this machine are not counted.
    """
    counts = Counter(state for path in cells if (state := _state(path)))
    written = ", ".join(str(path) for path in reports)
    parts = []
    if counts:
        told = ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])
        parts.append(f"cells: {told}{' (the report says why)' if written and set(counts) != {'valid'} else ''}")
    if written:
        parts.append(f"report: {written}")
    return f"pdkv: {'; '.join(parts)}" if parts else ""


def _state(path: Path) -> str | None:
    try:
        return str(read_json(path, "cell/1")["state"])
    except UserError:
        return None
