"""The rows of one load level in the tables of a metric: values, differences to the base, what is best or in doubt."""

from collections.abc import Sequence
from typing import Any

from pdkv.analysing.hardware_units import PER_DEVICE
from pdkv.analysing.identical_cells import best_cells
from pdkv.analysing.stats import supports_quantile
from pdkv.analysing.study_results import THROUGHPUT, Cell, StudyResults
from pdkv.reporting.report_blocks import Value, row
from pdkv.reporting.report_phrases import format_change, hardware, is_suspect, short_level
from pdkv.reporting.wording import Wording
from pdkv.units import DASH, format_ms, format_quantity

LATENCY_STATS = ("mean", "median", "p90", "p99")
QUANTILES = {"p90": 0.9, "p99": 0.99}
WEAK, SUSPECT, GONE = "*", "†", "‡"


class LevelRows:
    """The cells of a workload at one load level; ``point`` is its configuration."""

    def __init__(
        self,
        results: StudyResults,
        workload: str,
        index: int,
        point: dict[str, Any],
        baseline: tuple[str, str],
        say: Wording,
    ) -> None:
        self.results, self.index, self.point, self.say = results, index, point, say
        self.cells = results.cells_of(workload)
        self.label = short_level(workload, point, results, say)
        base = [cell for cell in self.cells if (cell.mode, cell.dtype) == baseline and cell.usable]
        self.base = base[0] if base else None
        self.compared = [cell for cell in self.cells if cell.usable and self._comparable(cell)]

    @property
    def measured(self) -> bool:
        """Whether any cell was measured at this load level."""
        return any(cell.point(self.index) for cell in self.cells)

    def latency_rows(self, metric: str) -> list[tuple[Value, ...]]:
        """Mean, median, p90, p99 and the number of values, a cell a row."""
        best = {stat: self._best_latency(metric, stat) for stat in LATENCY_STATS}
        rows = []
        for cell in self.cells:
            values = []
            for stat in LATENCY_STATS:
                text = format_ms(cell.value(self.index, metric, stat))
                weak = text != DASH and self._is_weak(cell, metric, stat)
                values.append(self._number(cell, metric, stat, text, best[stat], weak=weak))
            n = cell.metric(self.index, metric).get("n")
            rows.append(row(*self._labels(cell), *values, f"{n:,}" if n else DASH))
        return rows

    def throughput_rows(self) -> list[tuple[Value, ...]]:
        """Throughput, also per GPU or core, and how well the load was kept up."""
        index, best = self.index, self._best(THROUGHPUT, "value", higher=True)
        rows = []
        for cell in self.cells:
            point = cell.point(index) or {}
            output = cell.value(index, THROUGHPUT, "value")
            per_unit = output / cell.hardware[0] if output is not None and cell.hardware else None
            requests = point.get("requests") or {}
            rows.append(
                row(
                    *self._labels(cell),
                    self._number(cell, THROUGHPUT, "value", format_quantity(output), best),
                    self._number(cell, PER_DEVICE, "value", format_quantity(per_unit), set()),
                    format_quantity(cell.value(index, "total_throughput", "value")),
                    format_quantity(cell.value(index, "request_throughput", "value")),
                    format_quantity(point.get("achieved_concurrency")),
                    f"{requests.get('ok', 0):,} / {requests.get('failed', 0):,}" if requests else DASH,
                    f"{cell.metric(index, THROUGHPUT).get('n') or 0:,}" if point else DASH,
                    str(point["launches"]) if point else DASH,
                )
            )
        return rows

    def notes(self, rows: Sequence[tuple[Value, ...]]) -> tuple[str, ...]:
        """What the marks of the table's rows mean, and what a difference is."""
        marks = {mark for each in rows for value in each for mark in value.mark}
        notes = []
        if any((cell.point(self.index) or {}).get("launches", 0) > 1 for cell in self.cells):
            notes.append(self.say("note.several_launches"))
        for mark, key in ((WEAK, "weak"), (SUSPECT, "suspect"), (GONE, "gone")):
            if mark in marks:
                notes.append(f"{mark} {self.say(f'note.{key}')}")
        return tuple(notes)

    def _comparable(self, cell: Cell) -> bool:
        """Whether the comparison took the cell and the baseline as measured alike; without a baseline all are."""
        return self.base is None or cell is self.base or self._ratio(cell, THROUGHPUT, "value") is not None

    def _ratio(self, cell: Cell, metric: str, stat: str) -> float | None:
        effect = self.results.effect("baseline", cell, self.index, metric, stat)
        return effect.ratio if effect else None

    def _labels(self, cell: Cell) -> tuple[Value, ...]:
        mark = {"valid": "", "suspect": SUSPECT}.get(cell.point_state(self.index), GONE)
        return Value(self.label), Value(cell.mode), Value(cell.dtype, mark=mark), Value(hardware(cell, self.say))

    def _number(self, cell: Cell, metric: str, stat: str, text: str, best: set[Cell], *, weak: bool = False) -> Value:
        if text == DASH:
            return Value(DASH)
        under = self.say("word.base") if cell is self.base else format_change(self._ratio(cell, metric, stat))
        return Value(text, under="" if under == DASH else under, best=cell in best, mark=WEAK if weak else "")

    def _is_weak(self, cell: Cell, metric: str, stat: str) -> bool:
        """Whether the cell has too few values for this percentile."""
        n = cell.metric(self.index, metric).get("n") or 0
        return stat in QUANTILES and not supports_quantile(QUANTILES[stat], n)

    def _best_latency(self, metric: str, stat: str) -> set[Cell]:
        """None is best in a percentile that one of the samples cannot carry."""
        if any(self._is_weak(cell, metric, stat) for cell in self.compared):
            return set()
        return self._best(metric, stat, higher=False)

    def _best(self, metric: str, stat: str, *, higher: bool) -> set[Cell]:
        """The best on each amount of hardware; none where a reader could not rely on it.

        That is where the ratios, taken repeat by repeat, put another cell ahead of the best value; where a cell that is
        in doubt stands in the column; and where one shows a number but could not be compared.
        """
        shown = [cell for cell in self.cells if cell.value(self.index, metric, stat) is not None]
        if set(shown) - set(self.compared) or any(is_suspect(cell, self.index) for cell in shown):
            return set()
        amounts = dict.fromkeys(cell.hardware for cell in self.compared if cell.hardware)
        groups = [[cell for cell in self.compared if cell.hardware == amount] for amount in amounts]
        return {cell for group in groups for cell in self._best_of(group, metric, stat, higher=higher)}

    def _best_of(self, group: Sequence[Cell], metric: str, stat: str, *, higher: bool) -> set[Cell]:
        """The best of cells on equal hardware."""
        best = best_cells(group, self.index, metric, stat, higher=higher, measured=self.cells)
        ratios = {cell: 1.0 if cell is self.base else self._ratio(cell, metric, stat) for cell in group}
        ahead = [ratio if higher else -ratio for cell in best if (ratio := ratios[cell]) is not None]
        behind = [ratio if higher else -ratio for cell in set(ratios) - best if (ratio := ratios[cell]) is not None]
        return set() if ahead and behind and min(ahead) < max(behind) else best
