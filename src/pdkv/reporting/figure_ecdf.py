"""How TTFT and ITL are distributed in each cell: the share of values that are no larger."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from pdkv.analysing.stats import FloatArray
from pdkv.analysing.study_results import Cell
from pdkv.reporting.figure_legend import add_legend
from pdkv.reporting.figure_metrics import Values, mark_empty, plain_number
from pdkv.reporting.figure_style import GREY, PAGE_WIDTH_INCHES, Style, empty_figure
from pdkv.reporting.wording import Wording

METRICS = ("ttft", "itl")
MOST_LINES = 8  # more lines in one panel cannot be told apart: then one row of panels per dtype
MOST_STEPS = 400  # beyond, a curve is drawn through its quantiles


def draw_ecdf(cells: Sequence[Cell], index: int, values: Values, style: Style, say: Wording) -> Figure:
    """One load level; a column for TTFT and one for ITL."""
    shown = [cell for cell in cells if any(values[cell][metric].size for metric in METRICS)]
    if not shown:
        return empty_figure(say("figure.empty"))
    dtypes = [dtype for dtype in style.dtypes if any(cell.dtype == dtype for cell in shown)]
    groups = [shown] if len(shown) <= MOST_LINES else [[c for c in shown if c.dtype == dtype] for dtype in dtypes]
    figure = Figure(
        figsize=(PAGE_WIDTH_INCHES, 0.7 + (1.65 if len(groups) == 1 else 1.3) * len(groups)), layout="constrained"
    )
    panels = figure.subplots(len(groups), len(METRICS), squeeze=False, sharex="col", sharey=True)
    for row, group in enumerate(groups):
        for axes, metric in zip(panels[row], METRICS, strict=True):
            for cell in group:
                _draw_curve(axes, values[cell][metric] * 1e3, style, cell)
            name = say(f"metric.{metric}.short")
            axes.set_title(name if len(groups) == 1 else f"{name}, {group[0].dtype}")
            axes.grid(True)
        panels[row][0].set_ylabel(say("figure.share"))
    for axes, metric in zip(panels[-1], METRICS, strict=True):
        _scale(axes, [values[cell][metric] * 1e3 for cell in shown])
        axes.set_xlabel(say("unit.ms"))
        if not any(values[cell][metric].size for cell in shown):
            mark_empty(axes, say)
    _add_legend(figure, shown, dtypes, style)
    return figure


def _draw_curve(axes: Axes, values: FloatArray, style: Style, cell: Cell) -> None:
    if not values.size:
        return
    count = min(values.size, MOST_STEPS)
    shares = np.linspace(1 / values.size, 1, count)
    positions = np.quantile(values, shares, method="inverted_cdf")
    axes.step(
        np.concatenate(([positions[0]], positions)),
        np.concatenate(([0.0], shares)),
        where="post",
        color=style.colour(cell.mode),
        linestyle=style.line(cell.dtype),
        linewidth=1.2,
    )


def _scale(axes: Axes, samples: Sequence[FloatArray]) -> None:
    """A logarithmic axis where the values span it; few values far out must not squeeze the rest."""
    pooled = np.concatenate(list(samples))
    low, high = (float(pooled.min()), float(pooled.max())) if pooled.size else (0.0, 0.0)
    axes.set_ylim(0, 1.02)
    if low > 0 and high / low > 5:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: plain_number(value)))


def _add_legend(figure: Figure, shown: Sequence[Cell], dtypes: Sequence[str], style: Style) -> None:
    """Few cells are named one by one; of many, colour and line are explained apart."""
    if len(shown) <= MOST_LINES:
        handles = [
            Line2D([], [], color=style.colour(cell.mode), linestyle=style.line(cell.dtype), label=cell.name)
            for cell in shown
        ]
    else:
        modes = [mode for mode in style.modes if any(cell.mode == mode for cell in shown)]
        handles = [Line2D([], [], color=style.colour(mode), label=mode) for mode in modes]
        handles += [Line2D([], [], color=GREY, linestyle=style.line(dtype), label=dtype) for dtype in dtypes]
    add_legend(figure, handles, most=6, handlelength=3)
