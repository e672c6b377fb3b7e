"""What the cores of one deployment mode did over time, by instance: a panel for each dtype. GPUs: figure_gpu_trace."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from pdkv.reporting.figure_legend import add_legend
from pdkv.reporting.figure_style import COLOURS, GREY, PAGE_WIDTH_INCHES, empty_figure
from pdkv.reporting.wording import Wording

STAGES = ("launch", "warmup", "load", "shutdown")
SHADES = {"launch": "#F1F1F1", "warmup": "#FBEBC8", "load": "#E3EEF7", "shutdown": "#F1F1F1"}
ROLE_COLOURS = {"single": COLOURS[0], "replica": COLOURS[0], "prefill": COLOURS[1], "decode": COLOURS[2]}
# In the order of the legend. What serves no tokens is grey.
ROLES = (*ROLE_COLOURS, "router", "client", "sampler")
HELPER_LINES: dict[str, Any] = {
    "router": (0, (5, 1.5, 1, 1.5)),
    "client": (0, (1, 1.2)),
    "sampler": (0, (3, 1, 1, 1, 1, 1)),
}
DEVICE_LINES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)))
MOST_STEPS = 400
ROW_INCHES = (1.05, 0.95)  # of few rows and of many: two figures of four precisions fit on a page


def draw_trace(traces: Mapping[str, pd.DataFrame], say: Wording) -> Figure:
    """``traces``: the trace.parquet of one launch for each dtype. Each column of panels is one quantity."""
    drawn = {dtype: series for dtype, frame in traces.items() if (series := _series(frame))}
    if not drawn:
        return empty_figure(say("figure.no_trace"))
    quantities = sorted({quantity for series in drawn.values() for quantity, _ in series}, key=list(_QUANTITIES).index)
    figure = Figure(figsize=(PAGE_WIDTH_INCHES, 0.75 + ROW_INCHES[len(drawn) > 2] * len(drawn)), layout="constrained")
    panels = figure.subplots(len(drawn), len(quantities), squeeze=False)
    labels: dict[str, Line2D] = {}
    for row, (dtype, series) in zip(panels, drawn.items(), strict=True):
        start_s = float(traces[dtype]["t_s"].min())
        for axes, quantity in zip(row, quantities, strict=True):
            _shade_stages(axes, traces[dtype], start_s)
            drawn_of_role: Counter[str] = Counter()
            for name, line in _lines(series, quantity):
                role = _role(line)
                style = HELPER_LINES.get(name) or DEVICE_LINES[drawn_of_role[role] % len(DEVICE_LINES)]
                drawn_of_role[role] += 1
                labels.setdefault(name, _draw_line(axes, line, start_s, ROLE_COLOURS.get(role, GREY), style))
            axes.set_title(f"{say(f'figure.{quantity}')}, {dtype}")
            axes.set_ylim(0, _QUANTITIES[quantity] or None)
            axes.margins(x=0)
    for axes in panels[-1]:
        axes.set_xlabel(say("figure.time"))
    _add_legend(figure, labels, say)
    return figure


# The quantities that a panel can show and where its axis ends; without an end it follows the data.
_QUANTITIES: dict[str, float | None] = {"cores_busy": None, "core_util": 1.02}

Series = dict[tuple[str, str], pd.DataFrame]


def _series(frame: pd.DataFrame) -> Series:
    """{(quantity, label): frame of t_s, value, role}. Processes where there are any, else cores."""
    processes = frame[(frame["kind"] == "process") & frame["instance"].notna()]
    if len(processes):
        return {("cores_busy", label): part for label, part in _by_instance(processes)}
    cores = frame[frame["kind"] == "core"]
    return {("core_util", label): part for label, part in _by_device(cores, "util")}


def _by_device(frame: pd.DataFrame, column: str) -> list[tuple[str, pd.DataFrame]]:
    """One series per device, called by its instance and, where an instance has several, a number."""
    parts = []
    for instance, members in frame.groupby(frame["instance"].fillna("other"), sort=False):
        devices = list(members.groupby("device", sort=True))
        for number, (_, samples) in enumerate(devices):
            label = str(instance) if len(devices) == 1 else f"{instance} · {number}"
            if samples[column].notna().any():
                parts.append((label, _values(samples, samples[column])))
    return parts


def _by_instance(frame: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """One series per instance: the sum over its processes in bins of one sampling period."""
    parts = []
    for instance, members in frame.groupby("instance", sort=False):
        period = _period_s(members)
        per_process = members.assign(bin=(members["t_s"] / period).round().astype("int64"))
        summed = (
            per_process.groupby(["bin", "device"], as_index=False)["util"]
            .mean()
            .groupby("bin")["util"]
            .sum(min_count=1)
        )
        values = pd.DataFrame({"t_s": summed.index.to_numpy() * period, "value": summed.to_numpy()})
        parts.append((str(instance), values.assign(role=members["role"].iloc[0])))
    return parts


def _period_s(frame: pd.DataFrame) -> float:
    steps = [np.median(np.diff(part["t_s"].to_numpy())) for _, part in frame.groupby("device") if len(part) > 1]
    return max(float(np.median(steps)), 1e-3) if steps else 1.0


def _values(samples: pd.DataFrame, values: pd.Series) -> pd.DataFrame:
    ordered = samples.assign(value=values).sort_values("t_s")
    return ordered[["t_s", "value", "role"]]


def _lines(series: Series, quantity: str) -> list[tuple[str, pd.DataFrame]]:
    found = [(label, frame) for (name, label), frame in series.items() if name == quantity]
    return sorted(found, key=lambda item: ROLES.index(_role(item[1])) if _role(item[1]) in ROLES else len(ROLES))


def _role(frame: pd.DataFrame) -> str:
    """The role that all samples of a series share."""
    return str(frame["role"].iloc[0])


def _draw_line(axes: Axes, frame: pd.DataFrame, start_s: float, colour: str, style: Any) -> Line2D:
    """Means over equal windows, so that a long trace is not a black band."""
    bins = np.minimum(np.arange(len(frame)) * MOST_STEPS // max(len(frame), MOST_STEPS), MOST_STEPS - 1)
    means = frame.assign(bin=bins).groupby("bin")[["t_s", "value"]].mean()
    (line,) = axes.plot(means["t_s"] - start_s, means["value"], color=colour, linestyle=style, linewidth=0.9)
    return line


def _shade_stages(axes: Axes, frame: pd.DataFrame, start_s: float) -> None:
    for stage, times in frame.groupby("stage")["t_s"]:
        if stage in SHADES:
            axes.axvspan(times.min() - start_s, times.max() - start_s, color=SHADES[str(stage)], linewidth=0, zorder=0)


def _add_legend(figure: Figure, labels: Mapping[str, Line2D], say: Wording) -> None:
    lines = [
        Line2D([], [], color=line.get_color(), linestyle=line.get_linestyle(), label=name)
        for name, line in labels.items()
    ]
    shades = [
        Patch(facecolor=SHADES[stage], edgecolor="#BBBBBB", linewidth=0.4, label=say(f"stage.{stage}"))
        for stage in STAGES[:3]
    ]
    handles: Sequence[Any] = lines + shades
    add_legend(figure, handles, most=7, handlelength=2.4)
