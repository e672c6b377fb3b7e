"""Was the host idle or busy with other work while a cell was measured? Cells of different classes are not compared."""

from collections.abc import Mapping
from typing import Any

from pdkv.analysing.checks import MAX_FOREIGN_CPU

CHECK = "host not used by others"
_RAN = ("valid", "suspect")
_CLASSES = {"passed": "idle", "suspect": "busy", "failed": "busy"}


def host_load(cell: Mapping[str, Any]) -> str | None:
    """``idle`` or ``busy``, ``busy in 1 of 3 launches``, or ``None`` where it was not recorded.

    A launch is busy if others took more than a tenth of the cores under its load. Where no trace tells, the look before
    the cell's launch does.
    """
    checks = [check for trial in cell["trials"] if trial["state"] in _RAN for check in trial["checks"]]
    classes = [_CLASSES[check["state"]] for check in checks if check["name"] == CHECK and check["state"] in _CLASSES]
    if not classes:
        share = cell["environment"].get("foreign_cpu_share")
        classes = [] if share is None else ["busy" if share > MAX_FOREIGN_CPU else "idle"]
    busy = classes.count("busy")
    if not classes or busy in (0, len(classes)):
        return classes[0] if classes else None
    return f"busy in {busy} of {len(classes)} launches"


def same_load(one: str | None, other: str | None) -> bool:
    """Whether two cells were measured under the same class of load: a cell with one busy launch counts as busy."""
    return _is_busy(one) == _is_busy(other)


def _is_busy(load: str | None) -> bool | None:
    return None if load is None else load.startswith("busy")
