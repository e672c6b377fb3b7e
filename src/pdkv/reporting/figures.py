"""The figures of a study's report, from its stored results."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from pdkv.analysing.metrics import LATENCIES, pooled_latency
from pdkv.analysing.point_requests import REQUEST_COLUMNS, requests_of_point
from pdkv.analysing.stats import FloatArray
from pdkv.analysing.study_results import Cell, StudyResults, read_study_results
from pdkv.artifacts import read_parquet
from pdkv.reporting.figure_curves import draw_curves
from pdkv.reporting.figure_ecdf import draw_ecdf
from pdkv.reporting.figure_gpu_trace import draw_gpu_trace, shows_gpus
from pdkv.reporting.figure_metrics import draw_metrics
from pdkv.reporting.figure_names import curves_figure, ecdf_figure, metrics_figure, trace_figure, ttft_parts_figure
from pdkv.reporting.figure_style import Style, figure_settings, save_figure
from pdkv.reporting.figure_trace import draw_trace
from pdkv.reporting.figure_ttft_parts import draw_ttft_parts
from pdkv.reporting.illustrated_workloads import illustrated_workloads
from pdkv.reporting.report_phrases import short_level
from pdkv.reporting.typefaces import choose_typefaces
from pdkv.reporting.wording import Wording

TRACE_COLUMNS = ["t_s", "device", "kind", "instance", "role", "util", "mem_util", "stage", "point"]


def draw_figures(
    cell_files: Sequence[Path], comparisons: Path, folder: Path, language: str = "en", processes: int = 1
) -> list[Path]:
    """Draw the figures of the report below ``folder`` under the names of :mod:`figure_names`; returns their paths.

    Workloads are drawn beside each other in as many ``processes``. A figure without data is drawn too, and says so: the
    set of files depends on the study alone. Raises :class:`UserError` where a name holds characters that no installed
    font has.
    """
    results = read_study_results(cell_files, comparisons)
    say = Wording(language)
    drawing = _Drawing(results, folder, Style(results.modes, results.dtypes), say)
    with figure_settings(choose_typefaces([*results.modes, *results.dtypes, *say.all_texts()])):
        drawn = _draw_beside(drawing, illustrated_workloads(results), processes)
        return [path for paths in drawn for path in paths]


@dataclass(frozen=True)
class _Drawing:
    results: StudyResults
    folder: Path
    style: Style
    say: Wording

    def draw(self, workload: str) -> list[Path]:
        return list(_draw_workload(self.results, workload, self.folder, self.style, self.say))


def _draw_beside(drawing: _Drawing, workloads: Sequence[str], processes: int) -> list[list[Path]]:
    workers = min(processes, len(workloads))
    if workers == 1:
        return [drawing.draw(workload) for workload in workloads]
    # Forked, so that each has what was read and set here: to send it would take longer than to draw.
    with ProcessPoolExecutor(workers, get_context("fork"), _inherit, (drawing,)) as pool:
        return list(pool.map(_draw_inherited, workloads))


_inherited: list[_Drawing] = []


def _inherit(drawing: _Drawing) -> None:
    _inherited[:] = [drawing]


def _draw_inherited(workload: str) -> list[Path]:
    return _inherited[0].draw(workload)


def _draw_workload(results: StudyResults, workload: str, folder: Path, style: Style, say: Wording) -> Iterable[Path]:
    cells = results.cells_of(workload)
    for index in range(len(results.points_of(workload))):
        values = {cell: _latencies(cell, index) for cell in cells}
        yield save_figure(draw_metrics(cells, index, values, style, say), folder / metrics_figure(workload, index))
        yield save_figure(draw_ecdf(cells, index, values, style, say), folder / ecdf_figure(workload, index))
    yield save_figure(draw_curves(cells, results.points_of(workload), style, say), folder / curves_figure(workload))
    split = draw_ttft_parts(cells, results.points_of(workload), say)
    yield save_figure(split, folder / ttft_parts_figure(workload))
    for mode in results.modes:
        traces = {cell.dtype: frame for cell in cells if cell.mode == mode and (frame := _trace(cell)) is not None}
        yield save_figure(_draw_traces(traces, results, workload, say), folder / trace_figure(workload, mode))


def _latencies(cell: Cell, index: int) -> dict[str, FloatArray]:
    """The pooled values behind a cell's latencies at one load level, in seconds."""
    launches = [requests_of_point(read_parquet(path, REQUEST_COLUMNS), index) for path in cell.request_files(index)]
    return {metric: pooled_latency(launches, metric) for metric in LATENCIES}


def _draw_traces(traces: dict[str, pd.DataFrame], results: StudyResults, workload: str, say: Wording) -> Figure:
    """Each GPU by itself where GPUs served, else what the host's cores did by instance."""
    gpus = {dtype: trace for dtype, trace in traces.items() if shows_gpus(trace)}
    if not gpus:
        return draw_trace(traces, say)
    levels = [short_level(workload, point, results, say) for point in results.points_of(workload)]
    return draw_gpu_trace(gpus, levels, say)


def _trace(cell: Cell) -> pd.DataFrame | None:
    trial = cell.drawn_trial
    if trial is None:
        return None
    frame: pd.DataFrame = read_parquet(cell.trace_file(trial), TRACE_COLUMNS).to_pandas()
    return frame if len(frame) else None
