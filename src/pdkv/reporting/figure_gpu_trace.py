"""What each GPU of one deployment mode did: a row of panels for each GPU and dtype, the whole launch and a close-up."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from pdkv.analysing.study_results import ENGINE_ROLES
from pdkv.reporting.figure_legend import add_legend
from pdkv.reporting.figure_style import COLOURS, GREY, INK, PAGE_WIDTH_INCHES
from pdkv.reporting.wording import Wording

ROLE_COLOURS = {"single": COLOURS[0], "replica": COLOURS[0], "prefill": COLOURS[1], "decode": COLOURS[2]}
SHADES = {"launch": "#F1F1F1", "warmup": "#FBEBC8", "shutdown": "#F1F1F1"}
LEVEL_SHADES = ("#E3EEF7", "#C9DDEE")  # load levels by turns
CLOSE_UP_S = 20.0
MOST_STEPS = 400
ROW_INCHES, MOST_INCHES, AROUND_INCHES = 0.72, 8.6, 0.95  # of a row; of a figure, so that it fits on a page


@dataclass(frozen=True)
class _Row:
    title: str
    role: str
    samples: pd.DataFrame
    trace: pd.DataFrame


def shows_gpus(trace: pd.DataFrame) -> bool:
    """Whether a trace.parquet holds GPUs that served."""
    return bool(((trace["kind"] == "gpu") & trace["role"].isin(ENGINE_ROLES)).any())


def draw_gpu_trace(traces: Mapping[str, pd.DataFrame], levels: Sequence[str], say: Wording) -> Figure:
    """``traces``: the trace.parquet of one launch for each dtype. ``levels``: what each load level is called."""
    rows = [row for dtype, trace in traces.items() for row in _rows(dtype, trace)]
    height = min(AROUND_INCHES + ROW_INCHES * len(rows), MOST_INCHES)
    figure = Figure(figsize=(PAGE_WIDTH_INCHES, height), layout="constrained")
    panels = figure.subplots(len(rows), 2, squeeze=False, gridspec_kw={"width_ratios": (1.5, 1)}, sharey=True)
    for number, (row, (whole, close_up)) in enumerate(zip(rows, panels, strict=True)):
        _draw_whole(whole, row, levels if number == 0 else (), say)
        _draw_close_up(close_up, row, levels, say)
        for axes in (whole, close_up):
            axes.set_ylim(0, 1.04)
            axes.set_yticks((0, 0.5, 1))
            axes.margins(x=0)
    panels[-1][0].set_xlabel(say("figure.time"))
    panels[-1][1].set_xlabel(say("figure.time_of_level"))
    _add_legend(figure, rows, say)
    return figure


def _rows(dtype: str, trace: pd.DataFrame) -> list[_Row]:
    """A row for each GPU, by role; several GPUs of an instance are numbered."""
    gpus = trace[(trace["kind"] == "gpu") & trace["role"].isin(ENGINE_ROLES)]
    rows = []
    for role in ENGINE_ROLES:
        for instance, members in gpus[gpus["role"] == role].groupby("instance", sort=True):
            devices = list(members.groupby("device", sort=True))
            for number, (_, samples) in enumerate(devices):
                name = str(instance) if len(devices) == 1 else f"{instance} · {number}"
                rows.append(_Row(f"{dtype} · {name}", role, samples.sort_values("t_s"), trace))
    return rows


def _draw_whole(axes: Axes, row: _Row, levels: Sequence[str], say: Wording) -> None:
    start_s = float(row.trace["t_s"].min())
    _shade(axes, row.trace, start_s, levels, say)
    bins = np.minimum(np.arange(len(row.samples)) * MOST_STEPS // max(len(row.samples), MOST_STEPS), MOST_STEPS - 1)
    means = row.samples.assign(bin=bins).groupby("bin")[["t_s", "util", "mem_util"]].mean()
    _draw(axes, means, start_s, row.role)
    axes.set_title(row.title)
    if (span := _close_up_span(row.trace)) is not None:
        axes.axvspan(span[0] - start_s, span[1] - start_s, facecolor="none", edgecolor=INK, linewidth=0.6, zorder=3)


def _draw_close_up(axes: Axes, row: _Row, levels: Sequence[str], say: Wording) -> None:
    """Samples as they were taken, in the middle of the first load level."""
    span = _close_up_span(row.trace)
    if span is None:
        axes.set_axis_off()
        return
    inside = row.samples[(row.samples["t_s"] >= span[0]) & (row.samples["t_s"] < span[1])]
    start_s = float(row.trace.loc[row.trace["point"].notna(), "t_s"].min())
    axes.set_facecolor(LEVEL_SHADES[0])
    _draw(axes, inside, start_s, row.role)
    axes.set_title(levels[0] if levels else "")


def _close_up_span(trace: pd.DataFrame) -> tuple[float, float] | None:
    """A stretch about the middle of the first load level."""
    measured = trace[trace["point"].notna()]
    if measured.empty:
        return None
    times = measured.loc[measured["point"] == measured["point"].min(), "t_s"]
    middle, half = (times.min() + times.max()) / 2, min(CLOSE_UP_S, times.max() - times.min()) / 2
    return float(middle - half), float(middle + half)


def _draw(axes: Axes, frame: pd.DataFrame, start_s: float, role: str) -> None:
    """Busy time as an area, memory being read or written as a line over it."""
    times = frame["t_s"] - start_s
    axes.fill_between(times, 0, frame["util"], step="post", color=ROLE_COLOURS.get(role, GREY), alpha=0.75, linewidth=0)
    axes.plot(times, frame["mem_util"], color=INK, linewidth=0.6, drawstyle="steps-post")


def _shade(axes: Axes, trace: pd.DataFrame, start_s: float, levels: Sequence[str], say: Wording) -> None:
    for stage, times in trace.groupby("stage")["t_s"]:
        if stage in SHADES:
            _span(axes, times, start_s, SHADES[str(stage)])
    for number, (_, times) in enumerate(trace[trace["point"].notna()].groupby("point")["t_s"]):
        _span(axes, times, start_s, LEVEL_SHADES[number % 2])
        if number < len(levels):
            middle = (times.min() + times.max()) / 2 - start_s
            axes.annotate(
                levels[number], (middle, 1.0), (0, 2), xycoords=("data", "axes fraction"), textcoords="offset points",
                ha="center", va="bottom", fontsize=6.5, color=GREY,
            )  # fmt: skip


def _span(axes: Axes, times: Any, start_s: float, colour: str) -> None:
    axes.axvspan(times.min() - start_s, times.max() - start_s, color=colour, linewidth=0, zorder=0)


def _add_legend(figure: Figure, rows: Sequence[_Row], say: Wording) -> None:
    roles = dict.fromkeys(row.role for row in rows)
    handles: list[Any] = [
        Patch(facecolor=ROLE_COLOURS.get(role, GREY), alpha=0.75, label=say("figure.role_busy", role=role))
        for role in roles
    ]
    handles.append(Line2D([], [], color=INK, linewidth=0.6, label=say("figure.gpu_mem_util")))
    shades = {say("stage.launch"): SHADES["launch"], say("stage.warmup"): SHADES["warmup"]}
    shades[say("figure.load_levels")] = LEVEL_SHADES[0]
    handles += [
        Patch(facecolor=colour, edgecolor="#BBBBBB", linewidth=0.4, label=label) for label, colour in shades.items()
    ]
    add_legend(figure, handles, most=7, handlelength=2.0)
