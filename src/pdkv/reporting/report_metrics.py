"""Latency and throughput of every cell: the study's main tables and figures."""

from collections.abc import Sequence
from typing import Any

from pdkv.analysing.identical_cells import best_cells
from pdkv.analysing.stats import supports_quantile
from pdkv.analysing.study_results import THROUGHPUT, Cell, StudyResults
from pdkv.reporting.figure_names import ecdf_figure, metrics_figure
from pdkv.reporting.report_blocks import Block, Column, Figure, Paragraph, Section, Table, Value, left, row, ruled_by
from pdkv.reporting.report_phrases import format_change, hardware, is_suspect, load_level
from pdkv.reporting.wording import Wording
from pdkv.units import DASH, format_ms, format_quantity

STATS = ("mean", "median", "p90", "p99")
QUANTILES = {"p90": 0.9, "p99": 0.99}
PAIRS = (("ttft", "tpot"), ("itl", "e2el"))
WEAK, SUSPECT, GONE = "*", "†", "‡"


def describe_metrics(results: StudyResults, baseline: tuple[str, str], say: Wording) -> list[Section]:
    """A subsection per workload and load level with its tables and figures."""
    introduction = Paragraph(say("metrics.introduction", baseline="/".join(baseline)))
    sections = [Section(say("metrics.title"), (introduction,))]
    for workload in results.workloads:
        for index, point in enumerate(results.points_of(workload)):
            title = say("metrics.level", workload=workload, level=load_level(point, say))
            sections.append(
                Section(title, tuple(_level_blocks(results, workload, index, point, baseline, say)), level=2)
            )
    return sections


def _level_blocks(
    results: StudyResults, workload: str, index: int, point: dict[str, Any], baseline: tuple[str, str], say: Wording
) -> list[Block]:
    cells = results.cells_of(workload)
    if not any(cell.point(index) for cell in cells):
        return [Paragraph(say("metrics.nothing"))]
    level = {"workload": workload, "level": load_level(point, say)}
    level_of = _Level(results, cells, index, baseline, say)
    return [
        *(level_of.latency_table(pair, level) for pair in PAIRS),
        level_of.throughput_table(level),
        Figure(metrics_figure(workload, index), say("caption.metrics", **level)),
        Figure(ecdf_figure(workload, index), say("caption.ecdf", **level)),
    ]


class _Level:
    """The tables of one load level of one workload."""

    def __init__(
        self, results: StudyResults, cells: Sequence[Cell], index: int, baseline: tuple[str, str], say: Wording
    ) -> None:
        self.results, self.cells, self.index, self.say = results, cells, index, say
        base = [cell for cell in cells if (cell.mode, cell.dtype) == baseline and cell.usable]
        self.base = base[0] if base else None
        self.compared = [cell for cell in cells if cell.usable and self._comparable(cell)]

    def _comparable(self, cell: Cell) -> bool:
        """Whether the comparison took the cell and the baseline as measured alike; without a baseline all are."""
        return self.base is None or cell is self.base or self._ratio(cell, THROUGHPUT, "value") is not None

    def _ratio(self, cell: Cell, metric: str, stat: str) -> float | None:
        effect = self.results.effect("baseline", cell, self.index, metric, stat)
        return effect.ratio if effect else None

    def _labels(self, cell: Cell) -> tuple[Value, ...]:
        mark = {"valid": "", "suspect": SUSPECT}.get(cell.point_state(self.index), GONE)
        return Value(cell.mode), Value(cell.dtype, mark=mark), Value(hardware(cell, self.say))

    def _notes(self, *, weak: bool) -> tuple[str, ...]:
        states = {cell.point_state(self.index) for cell in self.cells}
        notes = []
        if any((cell.point(self.index) or {}).get("launches", 0) > 1 for cell in self.cells):
            notes.append(self.say("note.several_launches"))
        if weak:
            notes.append(f"{WEAK} {self.say('note.weak')}")
        if "suspect" in states:
            notes.append(f"{SUSPECT} {self.say('note.suspect')}")
        if states & {"failed", "invalid"}:
            notes.append(f"{GONE} {self.say('note.gone')}")
        return tuple(notes)

    def _number(self, cell: Cell, metric: str, stat: str, text: str, best: set[Cell], *, weak: bool = False) -> Value:
        if text == DASH:
            return Value(DASH)
        under = self.say("word.base") if cell is self.base else format_change(self._ratio(cell, metric, stat))
        return Value(text, under="" if under == DASH else under, best=cell in best, mark=WEAK if weak else "")

    def _is_weak(self, cell: Cell, metric: str, stat: str) -> bool:
        """Whether the cell has too few values for this percentile."""
        return stat in QUANTILES and not supports_quantile(
            QUANTILES[stat], cell.metric(self.index, metric).get("n") or 0
        )

    def _best_latency(self, metric: str, stat: str) -> set[Cell]:
        """None is best in a percentile that one of the samples cannot carry."""
        if any(self._is_weak(cell, metric, stat) for cell in self.compared):
            return set()
        return self._best(metric, stat, higher=False)

    def _best(self, metric: str, stat: str, *, higher: bool) -> set[Cell]:
        """None is best where a reader could not rely on it.

        That is where the ratios, taken repeat by repeat, put another cell ahead of the best value; where a cell that is
        in doubt stands in the column; and where one shows a number but could not be compared.
        """
        shown = [cell for cell in self.cells if cell.value(self.index, metric, stat) is not None]
        if set(shown) - set(self.compared) or any(is_suspect(cell, self.index) for cell in shown):
            return set()
        best = best_cells(self.compared, self.index, metric, stat, higher=higher, measured=self.cells)
        ratios = {cell: 1.0 if cell is self.base else self._ratio(cell, metric, stat) for cell in self.compared}
        ahead = [ratio if higher else -ratio for cell in best if (ratio := ratios[cell]) is not None]
        behind = [ratio if higher else -ratio for cell in set(ratios) - best if (ratio := ratios[cell]) is not None]
        return set() if ahead and behind and min(ahead) < max(behind) else best

    def latency_table(self, metrics: Sequence[str], level: dict[str, str]) -> Table:
        """Two latencies side by side: mean, median, p90, p99 and the number of values of each."""
        say = self.say
        best = {(m, s): self._best_latency(m, s) for m in metrics for s in STATS}
        rows = []
        any_weak = False
        for cell in self.cells:
            values: list[Value] = []
            for metric in metrics:
                n = cell.metric(self.index, metric).get("n")
                for stat in STATS:
                    text = format_ms(cell.value(self.index, metric, stat))
                    weak = text != DASH and self._is_weak(cell, metric, stat)
                    any_weak |= weak
                    values.append(self._number(cell, metric, stat, text, best[metric, stat], weak=weak))
                values.append(Value(f"{n:,}" if n else DASH))
            rows.append(row(*self._labels(cell), *values))
        columns = [left(say("mode.name")), left(say("dtype.name")), left(say("mode.hardware"))]
        for metric in metrics:
            columns += [Column(say(f"stat.{stat}"), group=say(f"metric.{metric}.short")) for stat in (*STATS, "n")]
        names = [say(f"metric.{metric}.short") for metric in metrics]
        caption = say("caption.latency", first=names[0], second=names[1], **level)
        return Table(
            caption, tuple(columns), tuple(rows), self._notes(weak=any_weak), ruled_by(c.mode for c in self.cells)
        )

    def throughput_table(self, level: dict[str, str]) -> Table:
        """Throughput, also per GPU or core, and how well the load was kept up."""
        say, index = self.say, self.index
        best = self._best(THROUGHPUT, "value", higher=True)
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
                    format_quantity(per_unit),
                    format_quantity(cell.value(index, "total_throughput", "value")),
                    format_quantity(cell.value(index, "request_throughput", "value")),
                    format_quantity(point.get("achieved_concurrency")),
                    f"{requests.get('ok', 0):,} / {requests.get('failed', 0):,}" if requests else DASH,
                    f"{cell.metric(index, THROUGHPUT).get('n') or 0:,}" if point else DASH,
                    str(point["launches"]) if point else DASH,
                )
            )
        labels = (left(say("mode.name")), left(say("dtype.name")), left(say("mode.hardware")))
        numbers = tuple(Column(say(f"throughput.{key}")) for key in _THROUGHPUT_COLUMNS)
        caption = say("caption.throughput", **level)
        return Table(
            caption, labels + numbers, tuple(rows), self._notes(weak=False), ruled_by(c.mode for c in self.cells)
        )


_THROUGHPUT_COLUMNS = ("output", "per_unit", "total", "requests", "achieved", "ok_failed", "n", "launches")
