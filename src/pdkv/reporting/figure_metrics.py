"""The metrics of each cell with their spread: a panel per metric, a row per cell."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from pdkv.analysing.stats import FloatArray
from pdkv.analysing.study_results import LATENCIES, THROUGHPUT, Cell
from pdkv.reporting.figure_style import GREY, PAGE_WIDTH_INCHES, Style, empty_figure
from pdkv.reporting.wording import Wording
from pdkv.units import format_quantity

MOST_POINTS = 150  # beyond, single requests would hide each other: the box alone is drawn
ROW_INCHES = 0.23
LOG_FROM_RATIO = 20.0

Values = Mapping[Cell, Mapping[str, FloatArray]]


def draw_metrics(cells: Sequence[Cell], index: int, values: Values, style: Style, say: Wording) -> Figure:
    """One load level. ``values`` holds each cell's pooled latencies by metric, in seconds."""
    shown = [cell for cell in cells if cell.point(index)]
    if not shown:
        return empty_figure(say("figure.empty"))
    height = 0.85 + ROW_INCHES * len(shown)
    figure = Figure(figsize=(PAGE_WIDTH_INCHES, height), layout="constrained")
    panels = figure.subplots(1, len(LATENCIES) + 1, sharey=True)
    for axes, metric in zip(panels, LATENCIES, strict=False):
        axes.margins(x=0.12)
        for row, cell in enumerate(shown):
            _draw_spread(axes, row, values[cell][metric] * 1e3, style, cell)
        _finish(axes, say(f"metric.{metric}.short"), say("unit.ms"))
        if not any(values[cell][metric].size for cell in shown):
            mark_empty(axes, say)
    for row, cell in enumerate(shown):
        _draw_launches(panels[-1], row, cell, index, style)
    _finish(panels[-1], say("metric.output_throughput.short"), say("unit.tok_s"))
    # Without a spread to judge it by, a difference must not look larger than it is: the axis begins at 0.
    highest = max((cell.value(index, THROUGHPUT, "value") or 0.0 for cell in shown), default=0.0)
    if highest > 0:
        panels[-1].set_xlim(0, 1.15 * max(highest, panels[-1].dataLim.x1))
    else:
        mark_empty(panels[-1], say)
    first = panels[0]
    first.set_yticks(
        range(len(shown)),
        [_label(cell, cell.point_state(index), say) for cell in shown],
    )
    first.set_ylim(len(shown) - 0.5, -0.5)
    return figure


def _label(cell: Cell, state: str, say: Wording) -> str:
    return cell.name if state == "valid" else say("word.only_in", value=cell.name, cells=say(f"state.{state}"))


def _draw_spread(axes: Axes, row: int, values: FloatArray, style: Style, cell: Cell) -> None:
    """Quartiles as a box, the median as a line in it, the mean as the dtype's marker, requests as dots if few."""
    if not values.size:
        return
    colour = style.colour(cell.mode)
    low, first, median, third, high = np.quantile(values, (0.01, 0.25, 0.5, 0.75, 0.99))
    if values.size <= MOST_POINTS:
        jitter = 0.28 * np.sin(np.arange(values.size) * 2.4)  # spread evenly, and the same each time
        axes.plot(values, row + jitter, ".", color=colour, alpha=0.35, markersize=2.2, markeredgewidth=0)
        low, high = values.min(), values.max()
    axes.hlines(row, low, high, color=colour, linewidth=0.7)
    axes.barh(row, third - first, left=first, height=0.5, facecolor="none", edgecolor=colour, linewidth=0.8)
    axes.vlines(median, row - 0.25, row + 0.25, color=colour, linewidth=1.6)
    _draw_mean(axes, float(values.mean()), row, style, cell)


def _draw_launches(axes: Axes, row: int, cell: Cell, index: int, style: Style) -> None:
    """The mean over launches as the dtype's marker, each launch as a short line."""
    mean = cell.value(index, THROUGHPUT, "value")
    launches = [
        (launch.get(THROUGHPUT) or {}).get("value") for launch in (cell.point(index) or {}).get("per_launch") or []
    ]
    for value in launches if len(launches) > 1 else []:
        if value is not None:
            axes.vlines(value, row - 0.25, row + 0.25, color=style.colour(cell.mode), linewidth=0.8)
    if mean is not None:
        _draw_mean(axes, mean, row, style, cell)


def _draw_mean(axes: Axes, value: float, row: int, style: Style, cell: Cell) -> None:
    axes.plot(
        [value], [row], style.marker(cell.dtype), color=style.colour(cell.mode), markersize=5,
        markeredgecolor="white", markeredgewidth=0.6, zorder=5,
    )  # fmt: skip


def _finish(axes: Axes, title: str, unit: str) -> None:
    axes.set_title(title)
    axes.set_xlabel(unit)
    axes.grid(axis="x")
    axes.tick_params(axis="y", length=0)
    low, high = axes.dataLim.intervalx
    if 0 < low < high < float("inf") and high / low > LOG_FROM_RATIO:
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.xaxis.set_major_locator(MaxNLocator(3))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: plain_number(value)))


def mark_empty(axes: Axes, say: Wording) -> None:
    """Say that a panel has no values, where an empty axis would look like zero."""
    axes.set_xticks([])
    axes.text(0.5, 0.5, say("figure.no_values"), transform=axes.transAxes, ha="center", va="center", color=GREY)


def plain_number(value: float) -> str:
    """A tick label: 0, 0.5, 25, 1,200, 8.4 M."""
    if value == 0:
        return "0"
    text = format_quantity(value, 4)
    number, _, suffix = text.partition(" ")
    number = number.rstrip("0").rstrip(".") if "." in number else number
    return f"{number} {suffix}".strip()
