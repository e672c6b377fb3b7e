"""Where the first token's time goes: a stacked bar per cell, a panel per load level."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from pdkv.analysing.study_results import Cell
from pdkv.analysing.ttft_parts import PARTS
from pdkv.reporting.figure_legend import add_legend
from pdkv.reporting.figure_metrics import mark_empty, plain_number
from pdkv.reporting.figure_style import COLOURS, INK, PAGE_WIDTH_INCHES, empty_figure
from pdkv.reporting.report_phrases import load_level
from pdkv.reporting.wording import Wording
from pdkv.units import format_ms

ROW_INCHES = 0.23
ROOM_FOR_LABEL = 1.2  # of the longest bar
NAVY, ORANGE, TEAL = COLOURS[:3]
# Prefill is orange and decode teal, computing full and waiting pale. In grey, neighbours differ in lightness or hatch.
LOOKS: Mapping[str, tuple[str, str]] = {
    "router": ("#D8D8D8", "----"),
    "prefill_intake": ("#FBE3CC", "...."),
    "prefill_queue": ("#F3C08F", "////"),
    "prefill": (ORANGE, ""),
    "decode_intake": ("#DDF2EF", "...."),
    "decode_queue": ("#A3DAD3", "\\\\\\\\"),
    "kv_transfer": (NAVY, ""),
    "first_decode_step": (TEAL, "||"),
    "unexplained": ("white", "xxxx"),
}


def draw_ttft_parts(cells: Sequence[Cell], points: Sequence[dict[str, Any]], say: Wording) -> Figure:
    """One workload; ``points`` are its load levels.

    A level without any breakdown has an empty panel; a cell whose servers and client did not count the same requests
    has no bar.
    """
    shown = [cell for cell in cells if any(_split(cell, index) for index in range(len(points)))]
    if not shown:
        return empty_figure(say("figure.no_ttft_parts"))
    columns = min(2, len(points))
    lines = -(-len(points) // columns)
    size = (PAGE_WIDTH_INCHES, 0.45 + lines * (0.5 + ROW_INCHES * len(shown)))
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(lines, columns, sharey=True, squeeze=False).flatten()
    for index, (axes, point) in enumerate(zip(panels, points, strict=False)):
        _draw_level(axes, shown, index, say)
        axes.set_title(load_level(point, say))
        axes.set_xlabel(say("figure.ttft_mean"))
    for axes in panels[len(points) :]:
        axes.set_axis_off()
    panels[0].set_yticks(range(len(shown)), [cell.name for cell in shown])
    panels[0].set_ylim(len(shown) - 0.5, -0.5)
    _add_legend(figure, shown, len(points), say)
    return figure


def _split(cell: Cell, index: int) -> dict[str, Any] | None:
    """A cell's breakdown at one load level, if it is one of the same requests."""
    split = (cell.point(index) or {}).get("ttft_parts")
    return split if split and split["unexplained_s"] is not None else None


def _draw_level(axes: Axes, cells: Sequence[Cell], index: int, say: Wording) -> None:
    longest = 0.0
    for row, cell in enumerate(cells):
        if split := _split(cell, index):
            ends_at_ms = _draw_bar(axes, row, split)
            axes.text(ends_at_ms, row, f" {format_ms(split['ttft_mean_s'])}", va="center", fontsize=6.5)
            longest = max(longest, ends_at_ms)
    axes.tick_params(axis="y", length=0)
    if not longest:
        mark_empty(axes, say)
        return
    axes.set_xlim(0, ROOM_FOR_LABEL * longest)
    axes.grid(axis="x")
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: plain_number(value)))


def _draw_bar(axes: Axes, row: int, split: Mapping[str, Any]) -> float:
    """Stack the parts of one cell and mark the TTFT that the client saw; where the drawing ends, in ms.

    Parts that come to more than that run past its mark: their surplus is the unexplained, which is negative.
    """
    left_ms = 0.0
    for part, seconds in {**split["parts"], "unexplained": split["unexplained_s"]}.items():
        if seconds is None or seconds <= 0:
            continue
        colour, hatch = LOOKS[part]
        axes.barh(
            row, seconds * 1e3, left=left_ms, height=0.62, facecolor=colour, edgecolor=INK, hatch=hatch, linewidth=0.3
        )
        left_ms += seconds * 1e3
    ttft_ms: float = split["ttft_mean_s"] * 1e3
    axes.vlines(ttft_ms, row - 0.42, row + 0.42, color=INK, linewidth=1.0)
    return max(left_ms, ttft_ms)


def _add_legend(figure: Figure, cells: Sequence[Cell], levels: int, say: Wording) -> None:
    """The parts that some bar has, in the order of time."""
    splits = [split for cell in cells for index in range(levels) if (split := _split(cell, index))]
    drawn = {part for split in splits for part, seconds in split["parts"].items() if seconds}
    handles = [
        Patch(
            facecolor=LOOKS[part][0], hatch=LOOKS[part][1], edgecolor=INK, linewidth=0.3, label=say(f"ttft_part.{part}")
        )
        for part in (*PARTS, "unexplained")
        if part in drawn | {"unexplained"}
    ]
    add_legend(figure, handles, most=5, handlelength=2.0, handleheight=1.1)
