"""Which cells of a study are compared with which, and when that is refused."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pdkv.comparability import config_facts, differing_facts, environment_facts

Effect = Literal["baseline", "dtype", "mode", "hardware"]
CellContent = Mapping[str, Any]


@dataclass(frozen=True)
class Pair:
    """A cell against its base; both are contents of cell.json."""

    effect: Effect
    cell: CellContent
    base: CellContent


def pair_cells(cells: Sequence[CellContent], baseline_mode: str, baseline_dtype: str) -> Iterator[Pair]:
    """All comparisons of a study, in the order of its cells.

    ``baseline``: against the baseline's mode and dtype. ``dtype``: against the baseline's dtype within the mode.
    ``mode``: against the baseline's mode within the dtype. ``hardware``: a disaggregated mode against replicas of the
    same dtype with as many GPUs (without GPUs: as many instances). A cell without its base is compared with nothing.
    """
    by_name = {(cell["workload"], cell["mode"], cell["dtype"]): cell for cell in cells}
    for cell in cells:
        workload, mode, dtype = cell["workload"], cell["mode"], cell["dtype"]
        bases: list[tuple[Effect, CellContent | None]] = [
            ("baseline", by_name.get((workload, baseline_mode, baseline_dtype))),
            ("dtype", by_name.get((workload, mode, baseline_dtype))),
            ("mode", by_name.get((workload, baseline_mode, dtype))),
            ("hardware", _rival_on_equal_hardware(cell, cells)),
        ]
        for effect, base in bases:
            if base is not None and base is not cell:
                yield Pair(effect, cell, base)


def refusal_of(pair: Pair) -> str | None:
    """Why the numbers of a pair may not be set against each other; ``None`` if they may."""
    for cell in (pair.cell, pair.base):
        if cell["state"] in ("failed", "invalid"):
            return f"{cell['label']}: {reason_of(cell)}"
        broken = [check for check in cell["checks"] if check["state"] != "passed"]
        if broken:
            return f"{cell['label']}: not the {broken[0]['name']} ({broken[0]['evidence']})"
    differing = [
        *differing_facts(environment_facts(pair.cell["environment"]), environment_facts(pair.base["environment"])),
        *differing_facts(config_facts(pair.cell["config"]), config_facts(pair.base["config"])),
    ]
    return f"not comparable: {'; '.join(differing)}" if differing else None


def reason_of(cell: CellContent) -> str:
    """Why a cell failed or is invalid, in a few words."""
    for trial in cell["trials"]:
        if trial["failure"]:
            return f"failed at {trial['failure']['stage']}: {trial['failure']['reason']}"
    bad = [check for trial in cell["trials"] for check in trial["checks"] if check["state"] == "failed"]
    return f"invalid: {bad[0]['name']}: {bad[0]['evidence']}" if bad else str(cell["state"])


def same_configuration(pair: Pair) -> bool:
    """Whether the servers of both cells resolved to the same thing, whatever they are called."""
    one, other = _identities(pair.cell), _identities(pair.base)
    return len(one) == 1 and None not in one and one == other


def _identities(cell: CellContent) -> set[str | None]:
    return {
        (trial["launch"] or {}).get("identity") for trial in cell["trials"] if trial["state"] in ("valid", "suspect")
    }


def _rival_on_equal_hardware(cell: CellContent, cells: Sequence[CellContent]) -> CellContent | None:
    if not cell["config"]["mode"].get("prefill"):
        return None
    for other in cells:
        mode = other["config"]["mode"]
        same_setting = (other["workload"], other["dtype"]) == (cell["workload"], cell["dtype"])
        if (
            same_setting
            and not mode.get("prefill")
            and (mode.get("replicas") or 0) > 1
            and _hardware(other) == _hardware(cell)
        ):
            return other
    return None


def _hardware(cell: CellContent) -> tuple[str, int]:
    return ("GPUs", cell["gpus"]) if cell["gpus"] else ("instances", cell["instances"])
