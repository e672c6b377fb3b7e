"""The stored results of a study as figures and reports read them: cells in its order and the effects between them."""

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pdkv.analysing.hardware_units import hardware_units
from pdkv.analysing.load_level import load_label
from pdkv.analysing.verdicts import is_no_larger
from pdkv.artifacts import read_csv, read_json
from pdkv.errors import UserError

LATENCIES = ("ttft", "tpot", "itl", "e2el")
THROUGHPUT = "output_throughput"
ENGINE_ROLES = ("single", "replica", "prefill", "decode")


@dataclass(frozen=True, eq=False)
class Cell:
    """One (workload, mode, dtype) and its cell.json; ``folder`` holds a folder ``r{repeat}`` per launch."""

    folder: Path
    content: dict[str, Any]

    @property
    def workload(self) -> str:
        """Id of the workload."""
        return str(self.content["workload"])

    @property
    def mode(self) -> str:
        """Id of the deployment mode."""
        return str(self.content["mode"])

    @property
    def dtype(self) -> str:
        """Id of the KV-cache precision."""
        return str(self.content["dtype"])

    @property
    def name(self) -> str:
        """``1p1d/fp8``, as it is called in text and figures."""
        return f"{self.mode}/{self.dtype}"

    @property
    def state(self) -> str:
        """``valid``, ``suspect``, ``invalid`` or ``failed``."""
        return str(self.content["state"])

    @property
    def usable(self) -> bool:
        """Whether its numbers may be compared with others'."""
        return self.state in ("valid", "suspect")

    @property
    def trials(self) -> list[dict[str, Any]]:
        """Its launches, whatever became of them."""
        return list(self.content.get("trials") or [])

    @property
    def suspect_checks(self) -> list[str]:
        """Names of the checks that raised doubt, or failed in a launch that is left out."""
        parts = [*self.trials, self.content]
        checks = [check for part in parts for check in part.get("checks") or []]
        return list(dict.fromkeys(check["name"] for check in checks if check["state"] in ("suspect", "failed")))

    @property
    def unknown_checks(self) -> list[str]:
        """Names of the checks for which the evidence was missing in a launch that is in the cell's numbers."""
        checks = [check for trial in self.used_trials for check in trial.get("checks") or []]
        return list(dict.fromkeys(check["name"] for check in checks if check["state"] == "unknown"))

    @property
    def used_trials(self) -> list[dict[str, Any]]:
        """The launches whose requests are in the cell's numbers."""
        return [trial for trial in self.trials if trial["state"] in ("valid", "suspect")]

    @property
    def config(self) -> dict[str, Any]:
        """The slice of the study that the cell was measured under."""
        return dict(self.content.get("config") or {})

    @property
    def disaggregated(self) -> bool:
        """Whether prefill and decode ran in different instances."""
        return bool((self.config.get("mode") or {}).get("prefill"))

    @property
    def identity(self) -> str | None:
        """What its servers resolved to, as a digest; None where unknown or where its launches differ."""
        identities = {(trial.get("launch") or {}).get("identity") for trial in self.used_trials}
        return str(identities.pop()) if len(identities) == 1 and None not in identities else None

    @property
    def instance_count(self) -> int | None:
        """Engine processes, the router not counted."""
        mode = self.config.get("mode") or {}
        return (mode.get("prefill", 0) + mode.get("decode", 0) or mode.get("replicas")) if mode else None

    @cached_property
    def hardware(self) -> tuple[int, str] | None:
        """How many ``GPU`` or ``core`` the cell had; None where that is not known."""
        return hardware_units(self.content)

    @property
    def drawn_trial(self) -> dict[str, Any] | None:
        """The launch whose device trace is shown: the first that counts and has one."""
        return next((trial for trial in self.used_trials if self.trace_file(trial).is_file()), None)

    def trace_file(self, trial: dict[str, Any]) -> Path:
        """Where the device trace of one of its launches lies."""
        return self.folder / f"r{trial['repeat']}" / "trace.parquet"

    def point(self, index: int) -> dict[str, Any] | None:
        """The load level ``index`` if it was measured."""
        return next((point for point in self.content.get("points") or [] if point["point"] == index), None)

    def point_state(self, index: int) -> str:
        """State of the cell at one load level; that of the cell where the level was not reached."""
        return str((self.point(index) or {}).get("state") or self.state)

    def request_files(self, index: int) -> list[Path]:
        """requests.parquet of each launch that is in the cell's numbers at one load level."""
        repeats = (self.point(index) or {}).get("repeats") or []
        return [self.folder / f"r{repeat}" / "requests.parquet" for repeat in repeats]

    def metric(self, index: int, metric: str) -> dict[str, Any]:
        """Summary of ``metric`` over the cell's pooled requests; empty where it was not measured."""
        point = self.point(index) or {}
        return dict((point.get("metrics") or {}).get(metric) or {})

    def value(self, index: int, metric: str, stat: str) -> float | None:
        """One number of :meth:`metric`; None where missing."""
        found = self.metric(index, metric).get(stat)
        return None if found is None else float(found)


@dataclass(frozen=True)
class Effect:
    """One row of comparisons.csv: a cell against its base."""

    row: dict[str, str]

    @property
    def ratio(self) -> float | None:
        """Value over base value."""
        return _number(self.row.get("ratio"))

    @property
    def interval(self) -> tuple[float, float] | None:
        """Confidence interval of the ratio."""
        low, high = _number(self.row.get("ci_low")), _number(self.row.get("ci_high"))
        return None if low is None or high is None else (low, high)

    @property
    def family_interval(self) -> tuple[float, float] | None:
        """The interval, widened so that those of all comparisons of its family hold together."""
        low, high = _number(self.row.get("family_low")), _number(self.row.get("family_high"))
        return None if low is None or high is None else (low, high)

    @property
    def yardstick(self) -> float | None:
        """What cells that ran the same configuration differ by in this number, 0.1 for 10%."""
        return _number(self.row.get("yardstick"))

    @property
    def is_within_yardstick(self) -> bool:
        """Whether its difference is no larger than that between cells that ran the same configuration."""
        return self.ratio is not None and is_no_larger(self.ratio, self.yardstick)

    @property
    def verdict(self) -> str:
        """What the interval allows to say; empty where nothing."""
        return self.row.get("verdict") or ""


class StudyResults:
    """All cells of a study and the effects between them; ``workloads``, ``modes``, ``dtypes`` in the study's order."""

    def __init__(self, cells: Sequence[Cell], effects: Sequence[Effect]) -> None:
        self.cells = list(cells)
        self._cells = {(cell.workload, cell.mode, cell.dtype): cell for cell in cells}
        # Asked for again and again for each cell: looked up here, so that a large study does not take its square.
        self.workloads, self.modes, self.dtypes = (
            list(dict.fromkeys(getattr(cell, name) for cell in cells)) for name in ("workload", "mode", "dtype")
        )
        self._of_workload: dict[str, list[Cell]] = {}
        for cell in cells:
            self._of_workload.setdefault(cell.workload, []).append(cell)
        # A comparison of a cell that the report does not show has no place in it.
        self.effects = [effect for effect in effects if self._knows(effect)]
        key = ("workload", "concurrency", "metric", "stat", "factor", "mode", "dtype")
        self._by_key = {tuple(effect.row[name] for name in key): effect for effect in self.effects}

    def _knows(self, effect: Effect) -> bool:
        names = (effect.row["workload"], effect.row["mode"], effect.row["dtype"])
        bases = (effect.row["workload"], effect.row["base_mode"], effect.row["base_dtype"])
        return names in self._cells and bases in self._cells

    def cells_of(self, workload: str) -> list[Cell]:
        """The cells of one workload."""
        return list(self._of_workload.get(workload, ()))

    def points_of(self, workload: str) -> list[dict[str, Any]]:
        """Its load levels, ``{arrival, concurrency, rate, requests}``, as configured, whether measured or not."""
        for cell in self.cells_of(workload):
            configured = (cell.config.get("workload") or {}).get("points")
            if configured:
                return list(configured)
        return []

    def cell_of(self, effect: Effect) -> Cell:
        """The cell that an effect is about."""
        return self._cells[effect.row["workload"], effect.row["mode"], effect.row["dtype"]]

    def base_of(self, effect: Effect) -> Cell:
        """The cell that it is compared with."""
        return self._cells[effect.row["workload"], effect.row["base_mode"], effect.row["base_dtype"]]

    def capacity_effect(self, kind: str, cell: Cell, metric: str) -> Effect | None:
        """What ``cell`` holds (``kv_cache_tokens``, ``max_concurrency``, ``kv_cache_bytes``) against its base."""
        return self._by_key.get((cell.workload, "", metric, "value", kind, cell.mode, cell.dtype))

    def effect(self, kind: str, cell: Cell, index: int, metric: str, stat: str) -> Effect | None:
        """``cell`` against its base of this ``kind`` at one load level; None where they were not compared."""
        point = cell.point(index)
        if point is None:
            return None
        return self._by_key.get((cell.workload, load_label(point), metric, stat, kind, cell.mode, cell.dtype))


def read_study_results(cell_files: Sequence[Path], comparisons: Path) -> StudyResults:
    """Read the named cell.json files, in the study's order, and comparisons.csv."""
    if not cell_files:
        raise UserError("no cell was named for the report", remedy="name the cell.json files of the study")
    # What is read here lives as long as the process: of a large study millions of objects, and looking through them for
    # garbage while more come, and again for each figure, takes a third of the time.
    gc.set_threshold(100_000, 50, 100)
    cells = [Cell(path.parent, read_json(path, "cell/1")) for path in cell_files]
    results = StudyResults(cells, [Effect(row) for row in read_csv(comparisons)])
    gc.freeze()
    return results


def _number(text: str | None) -> float | None:
    return float(text) if text else None
