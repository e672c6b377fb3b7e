"""Long tables as CSV text: the same bytes under every locale."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any


def to_csv(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    """CSV with ``\\n`` line ends and a dot as decimal sign; ``None`` is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_format(row[column]) for column in columns])
    return text.getvalue()


def tidy(value: float) -> float:
    """The value without the noise that a change of units leaves in its last digit: 74.4, not 74.39999999999999."""
    return float(f"{value:.15g}")


def _format(value: Any) -> Any:
    return repr(value) if isinstance(value, float) else "" if value is None else value
