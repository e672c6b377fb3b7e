"""Throughput against latency: a line per cell over its load levels, from the lowest to the highest.

Cells are told apart without colour too: the marker's shape is the mode, its filling and the line are the precision.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from pdkv.analysing.hardware_units import throughput_per_device
from pdkv.analysing.knees import find_knee
from pdkv.analysing.load_level import load_label, load_ladders
from pdkv.analysing.study_results import THROUGHPUT, Cell
from pdkv.reporting.figure_legend import add_legend
from pdkv.reporting.figure_metrics import mark_empty, plain_number
from pdkv.reporting.figure_style import INK, MARKERS, PAGE_WIDTH_INCHES, Style, empty_figure
from pdkv.reporting.wording import Wording

Spot = tuple[float, float]
Filling = Literal["full", "left", "right", "bottom", "top", "none"]

PANELS = ("e2el", "ttft", "tpot")
LOG_FROM_RATIO = 12.0
FILLINGS: tuple[Filling, ...] = ("full", "none", "left", "bottom")
MAIN_INCHES = (3.8, 2.1)  # about what the axes of the largest panel measure, to keep its labels apart
LABEL_OFFSETS = (
    (6, -10),
    (6, 5),
    (-6, 5),
    (-6, -10),
    (13, -3),
    (-13, -3),
)  # points from the marker; to the left they are set flush right
SAME_LABEL_INCHES, LABEL_INCHES = 0.2, (0.13, 0.1)


def draw_curves(cells: Sequence[Cell], points: Sequence[Mapping[str, Any]], style: Style, say: Wording) -> Figure:
    """One workload with its configured load levels ``points``; numbers of users and request rates in rows apart."""
    shown = [
        cell for cell in cells if any(_spot(cell, index, "e2el", per_device=False) for index in range(len(points)))
    ]
    if not shown:
        return empty_figure(say("figure.empty"))
    ladders = load_ladders(points)
    per_device = share_a_unit(shown)
    figure = Figure(figsize=(PAGE_WIDTH_INCHES, 0.4 + 2.75 * len(ladders)), layout="constrained")
    rows = range(len(ladders))
    mosaic: list[Any] = [[f"e2el {row}", f"{metric} {row}"] for row in rows for metric in ("ttft", "tpot")]
    panels = figure.subplot_mosaic(mosaic, width_ratios=[1.75, 1.0])
    for row, ladder in enumerate(ladders):
        kind = say("curves.closed" if points[ladder[0]]["arrival"] == "closed" else "curves.open")
        for metric in PANELS:
            axes = panels[f"{metric} {row}"]
            drawn = [each for cell in shown for each in _draw_cell(axes, cell, ladder, metric, style, per_device)]
            title = say("curves.panel", metric=say(f"metric.{metric}.short"), levels=kind if metric == "e2el" else "")
            axes.set_title(f"{title} {say('curves.one_level')}" if len(ladder) == 1 else title)
            _finish(axes, drawn, say)
            if metric == "e2el":
                _label_levels(axes, shown, ladder, points, per_device)
                _ring_knees(axes, shown, ladder, style, per_device)
        panels[f"e2el {row}"].set_ylabel(_axis_name(shown, say, per_device))
    handles = [_line([], cell, style, _name(cell, say)) for cell in shown]
    add_legend(figure, handles, most=3, handlelength=4)
    return figure


def share_a_unit(cells: Sequence[Cell]) -> bool:
    """Whether the throughput of all cells can be given for each device of the same kind."""
    return len({cell.hardware[1] if cell.hardware else None for cell in cells} - {None}) == 1 and all(
        cell.hardware for cell in cells
    )


def _draw_cell(
    axes: Axes, cell: Cell, ladder: Sequence[int], metric: str, style: Style, per_device: bool
) -> list[Spot]:
    """The line through the levels that have numbers, and how far single launches lie around each; what was drawn."""
    centres = [spot for index in ladder if (spot := _spot(cell, index, metric, per_device))]
    if not centres:
        return []
    colour = style.colour(cell.mode)
    drawn = list(centres)
    for index in ladder:
        launches = _launch_spots(cell, index, metric, per_device)
        centre = _spot(cell, index, metric, per_device)
        if centre and len(launches) > 1:
            (left, *_, right), (low, *_, high) = (sorted(values) for values in zip(*launches, strict=True))
            axes.hlines(centre[1], left, right, color=colour, linewidth=0.8)
            axes.vlines(centre[0], low, high, color=colour, linewidth=0.8)
            drawn += launches
    axes.add_line(_line(centres, cell, style))
    return drawn


def _ring_knees(axes: Axes, cells: Sequence[Cell], ladder: Sequence[int], style: Style, per_device: bool) -> None:
    for cell in cells:
        knee = find_knee(cell, ladder)
        if knee and knee.decided and knee.inside and (spot := _spot(cell, knee.low, "e2el", per_device)):
            axes.plot([spot[0]], [spot[1]], "o", markersize=11, markerfacecolor="none", color=style.colour(cell.mode))


def _line(spots: Sequence[Spot], cell: Cell, style: Style, label: str = "") -> Line2D:
    filling = FILLINGS[style.dtypes.index(cell.dtype) % len(FILLINGS)]
    return Line2D(
        [x for x, _ in spots], [y for _, y in spots], color=style.colour(cell.mode), linestyle=style.line(cell.dtype),
        linewidth=1.2, marker=MARKERS[style.modes.index(cell.mode) % len(MARKERS)], markersize=5, markeredgewidth=1.0,
        fillstyle=filling, markerfacecoloralt="white", zorder=4, label=label,
    )  # fmt: skip


def _spot(cell: Cell, index: int, metric: str, per_device: bool) -> Spot | None:
    """(median latency in ms over all requests, throughput as the mean of launches) of a level."""
    point = cell.point(index) or {}
    return _spot_of(cell, point.get("metrics") or {}, metric, per_device)


def _launch_spots(cell: Cell, index: int, metric: str, per_device: bool) -> list[Spot]:
    launches = (cell.point(index) or {}).get("per_launch") or []
    return [spot for each in launches if (spot := _spot_of(cell, each, metric, per_device))]


def _spot_of(cell: Cell, metrics: Mapping[str, Any], metric: str, per_device: bool) -> Spot | None:
    latency_s = (metrics.get(metric) or {}).get("median")
    throughput = (metrics.get(THROUGHPUT) or {}).get("value")
    if per_device:
        throughput = throughput_per_device(cell.content, throughput)
    return None if latency_s is None or throughput is None else (latency_s * 1e3, throughput)


def _finish(axes: Axes, drawn: Sequence[Spot], say: Wording) -> None:
    """Throughput from 0, so that a line from the origin is one; latency too, unless it spans too much."""
    axes.set_xlabel(say("unit.ms"))
    axes.grid(True)
    if not drawn:
        mark_empty(axes, say)
        axes.set_yticks([])
        return
    xs, ys = zip(*drawn, strict=True)
    axes.set_ylim(0, 1.15 * max(ys) or 1.0)
    if min(xs) > 0 and max(xs) / min(xs) > LOG_FROM_RATIO:
        axes.set_xscale("log")
        axes.set_xlim(min(xs) / 1.25, max(xs) * 1.25)
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_xlim(0, 1.1 * max(xs) or 1.0)
        axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: plain_number(value)))


def _label_levels(
    axes: Axes,
    cells: Sequence[Cell],
    ladder: Sequence[int],
    points: Sequence[Mapping[str, Any]],
    per_device: bool,
) -> None:
    """Each level by its number beside its marker; where markers of one level lie together, one of them is labelled."""
    named: list[tuple[str, Spot]] = []
    spots = (_spot(cell, index, "e2el", per_device) for cell in cells for index in ladder)
    taken = [_inches(axes, spot) for spot in spots if spot]
    for cell in cells:
        for index in ladder:
            spot = _spot(cell, index, "e2el", per_device)
            if spot is None:
                continue
            text, at = load_label(points[index]), _inches(axes, spot)
            if any(text == other and _near(at, there, SAME_LABEL_INCHES) for other, there in named):
                continue
            offset = next((each for each in LABEL_OFFSETS if _is_free(_moved(at, each), taken)), LABEL_OFFSETS[0])
            axes.annotate(
                text, spot, offset, textcoords="offset points", fontsize=6.5, color=INK, zorder=6,
                ha="left" if offset[0] > 0 else "right", path_effects=[withStroke(linewidth=2, foreground="white")],
            )  # fmt: skip
            named.append((text, at))
            taken.append(_moved(at, offset))


def _inches(axes: Axes, spot: Spot) -> Spot:
    x, y = axes.transLimits.transform(axes.transScale.transform(spot))
    return float(x) * MAIN_INCHES[0], float(y) * MAIN_INCHES[1]


def _moved(at: Spot, offset: Spot) -> Spot:
    """The middle of a label, in inches."""
    half = LABEL_INCHES[0] / 3 if offset[0] > 0 else -LABEL_INCHES[0] / 3
    return at[0] + offset[0] / 72 + half, at[1] + offset[1] / 72 + LABEL_INCHES[1] / 3


def _near(one: Spot, other: Spot, inches: float) -> bool:
    return (one[0] - other[0]) ** 2 + (one[1] - other[1]) ** 2 < inches**2


def _is_free(at: Spot, taken: Sequence[Spot]) -> bool:
    """Whether a label there is within the axes and beside all markers and other labels."""
    return at[1] > 0 and not any(
        abs(at[0] - there[0]) < LABEL_INCHES[0] and abs(at[1] - there[1]) < LABEL_INCHES[1] for there in taken
    )


def _axis_name(cells: Sequence[Cell], say: Wording, per_device: bool) -> str:
    unit = cells[0].hardware[1] if per_device and cells[0].hardware else "total"
    return say(f"curves.axis_{unit}")


def _name(cell: Cell, say: Wording) -> str:
    return (
        cell.name if cell.state == "valid" else say("word.only_in", value=cell.name, cells=say(f"state.{cell.state}"))
    )
