"""Which cells of a study are compared with which, and when that is refused."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pdkv.analysing.comparability import config_facts, differing_environments, differing_facts
from pdkv.analysing.host_load import host_load, same_load
from pdkv.study.config_promises import EIGHT_BIT

Factor = Literal["baseline", "dtype", "mode", "hardware", "interaction"]
CellContent = Mapping[str, Any]

FACTORS: dict[Factor, tuple[str, ...]] = {
    "baseline": ("mode", "dtype"),
    "dtype": ("dtype",),
    "mode": ("mode",),
    "hardware": ("mode",),
}


@dataclass(frozen=True)
class Side:
    """One side of a comparison: a cell, or in an interaction a cell divided by another one of its mode."""

    cell: CellContent
    over: CellContent | None = None

    @property
    def cells(self) -> tuple[CellContent, ...]:
        """The cells whose numbers are in it."""
        return (self.cell,) if self.over is None else (self.cell, self.over)


@dataclass(frozen=True)
class Pair:
    """What is compared with what; cells are contents of cell.json."""

    factor: Factor
    side: Side
    base: Side

    @property
    def cells(self) -> tuple[CellContent, ...]:
        """Two cells, four of an interaction."""
        return (*self.side.cells, *self.base.cells)

    @property
    def levels(self) -> tuple[str, str, str]:
        """What the factor is on this side, what on the other, and what both have in common."""
        here, there = self.side.cell, self.base.cell
        match self.factor:
            case "dtype":
                return here["dtype"], there["dtype"], f"mode={here['mode']}"
            case "mode" | "hardware":
                return here["mode"], there["mode"], f"dtype={here['dtype']}"
            case "baseline":
                return f"{here['mode']}/{here['dtype']}", f"{there['mode']}/{there['dtype']}", ""
            case "interaction":
                return here["mode"], there["mode"], f"effect of {here['dtype']} against {self.base_dtype}"

    @property
    def base_dtype(self) -> str:
        """The dtype that the cell is set against; in an interaction that in which both sides are divided."""
        return str((self.base.over or self.base.cell)["dtype"])


def pair_cells(cells: Sequence[CellContent], baseline_mode: str, baseline_dtype: str) -> Iterator[Pair]:
    """All comparisons of a study, in the order of its cells.

    ``baseline``: against the baseline's mode and dtype. ``dtype``: against the baseline's dtype within the mode.
    ``mode``: against the baseline's mode within the dtype. ``hardware``: a disaggregated mode against replicas of the
    same dtype with as many GPUs (without GPUs: as many instances) on as many nodes. ``interaction``: the effect of an
    8-bit dtype within a mode against its effect within the baseline's mode. A cell without its base is compared with
    nothing.
    """
    by_name = {(cell["workload"], cell["mode"], cell["dtype"]): cell for cell in cells}
    for cell in cells:
        workload, mode, dtype = cell["workload"], cell["mode"], cell["dtype"]
        corner = by_name.get((workload, baseline_mode, baseline_dtype))
        other_dtype = by_name.get((workload, mode, baseline_dtype))
        other_mode = by_name.get((workload, baseline_mode, dtype))
        bases: list[tuple[Factor, CellContent | None]] = [
            ("baseline", corner),
            ("dtype", other_dtype),
            ("mode", other_mode),
            ("hardware", _rival_on_equal_hardware(cell, cells)),
        ]
        for factor, base in bases:
            if base is not None and base is not cell:
                yield Pair(factor, Side(cell), Side(base))
        differs_in_both = mode != baseline_mode and dtype != baseline_dtype
        if differs_in_both and _is_8_bit(cell) and corner and other_dtype and other_mode:
            yield Pair("interaction", Side(cell, other_dtype), Side(other_mode, corner))


def refusal_of(pair: Pair) -> str | None:
    """Why the numbers of a pair may not be set against each other; ``None`` if they may."""
    for cell in pair.cells:
        if cell["state"] in ("failed", "invalid"):
            return f"{cell['label']}: {reason_of(cell)}"
        broken = [check for check in cell["checks"] if check["state"] != "passed"]
        if broken:
            return f"{cell['label']}: not the {broken[0]['name']} ({broken[0]['evidence']})"
    differing = [text for one, other, factors in _aligned(pair) for text in _differences(one, other, factors)]
    return f"not comparable: {'; '.join(dict.fromkeys(differing))}" if differing else None


def reason_of(cell: CellContent) -> str:
    """Why a cell failed or is invalid, in a few words."""
    for trial in cell["trials"]:
        if trial["failure"]:
            return f"failed at {trial['failure']['stage']}: {trial['failure']['reason']}"
    bad = [check for trial in cell["trials"] for check in trial["checks"] if check["state"] == "failed"]
    return f"invalid: {bad[0]['name']}: {bad[0]['evidence']}" if bad else str(cell["state"])


def same_configuration(pair: Pair) -> bool:
    """Whether the servers of both sides resolved to the same thing, whatever they are called."""
    return all(
        len(one) == 1 and None not in one and one == other
        for one, other in zip(map(_identities, pair.side.cells), map(_identities, pair.base.cells), strict=True)
    )


def _aligned(pair: Pair) -> Iterator[tuple[CellContent, CellContent, tuple[str, ...]]]:
    """Two cells at a time and the factors in which they may differ."""
    if pair.side.over is None or pair.base.over is None:
        yield pair.side.cell, pair.base.cell, FACTORS[pair.factor]
        return
    yield pair.side.cell, pair.base.cell, FACTORS["mode"]
    yield pair.side.over, pair.base.over, FACTORS["mode"]
    yield pair.side.cell, pair.side.over, FACTORS["dtype"]
    yield pair.base.cell, pair.base.over, FACTORS["dtype"]


def _differences(one: CellContent, other: CellContent, factors: tuple[str, ...]) -> list[str]:
    loads = host_load(one), host_load(other)
    return [
        *differing_environments(one["environment"], other["environment"]),
        *([] if same_load(*loads) else differing_facts({"host load": loads[0]}, {"host load": loads[1]})),
        *differing_facts(config_facts(one["config"], factors), config_facts(other["config"], factors)),
    ]


def _identities(cell: CellContent) -> set[str | None]:
    return {
        (trial["launch"] or {}).get("identity") for trial in cell["trials"] if trial["state"] in ("valid", "suspect")
    }


def _is_8_bit(cell: CellContent) -> bool:
    return cell["config"]["dtype"].get("kv_cache_dtype") in EIGHT_BIT


def _rival_on_equal_hardware(cell: CellContent, cells: Sequence[CellContent]) -> CellContent | None:
    """The replicas that a disaggregated cell is set against: of several, those with as many instances, and ranks."""
    if not cell["config"]["mode"].get("prefill"):
        return None
    rivals = [other for other in cells if _are_replicas_of_same_setting(other, cell)]

    def distance(other: CellContent) -> tuple[int, int]:
        return abs(other["instances"] - cell["instances"]), abs(_ranks(other) - _ranks(cell))

    return min(rivals, key=distance, default=None)


def _ranks(cell: CellContent) -> int:
    return int(cell["config"]["mode"].get("tensor_parallel_size") or 1)


def _are_replicas_of_same_setting(other: CellContent, cell: CellContent) -> bool:
    mode = other["config"]["mode"]
    return (
        (other["workload"], other["dtype"]) == (cell["workload"], cell["dtype"])
        and not mode.get("prefill")
        and (mode.get("replicas") or 0) > 1
        and _hardware(other) == _hardware(cell)
    )


def _hardware(cell: CellContent) -> tuple[str, int, int]:
    nodes = cell["config"]["mode"].get("nodes") or 1
    return ("GPUs", cell["gpus"], nodes) if cell["gpus"] else ("instances", cell["instances"], nodes)
