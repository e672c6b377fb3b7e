"""All figures of a study, from its stored results."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from pdkv.analysing.metrics import LATENCIES, pooled_latency
from pdkv.analysing.point_requests import requests_of_point
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
from pdkv.reporting.report_phrases import short_level
from pdkv.reporting.typefaces import choose_typefaces
from pdkv.reporting.wording import Wording

TRACE_COLUMNS = ["t_s", "device", "kind", "instance", "role", "util", "mem_util", "stage", "point"]


def draw_figures(cell_files: Sequence[Path], comparisons: Path, folder: Path, language: str = "en") -> list[Path]:
    """Draw every figure of the study below ``folder`` under the names of :mod:`figure_names`; returns their paths.

    A figure without data is drawn too, and says so: the set of files depends on the study alone. Raises
    :class:`UserError` where a name holds characters that no installed font has.
    """
    results = read_study_results(cell_files, comparisons)
    style = Style(results.modes, results.dtypes)
    say = Wording(language)
    with figure_settings(choose_typefaces([*results.modes, *results.dtypes, *say.all_texts()])):
        return [
            path for workload in results.workloads for path in _draw_workload(results, workload, folder, style, say)
        ]


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
    launches = [requests_of_point(read_parquet(path), index) for path in cell.request_files(index)]
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
