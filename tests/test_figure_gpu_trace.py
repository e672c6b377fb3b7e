"""A figure of GPUs: a row for each, in the order of roles, with the phases shaded and a close-up of the first level."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from sample_results import Sample, write_sample

from pdkv.artifacts import read_parquet
from pdkv.reporting.figure_gpu_trace import (
    CLOSE_UP_S,
    LEVEL_SHADES,
    MOST_INCHES,
    ROLE_COLOURS,
    SHADES,
    draw_gpu_trace,
    shows_gpus,
)
from pdkv.reporting.wording import Wording

SAY = Wording("en")


def trace_of(tmp_path: Path, mode: str, **settings: object) -> pd.DataFrame:
    sample = Sample(modes=(mode,), dtypes=("bf16",), gpu=True, concurrencies=(2, 64), failed=frozenset(), **settings)  # type: ignore[arg-type]
    (cell,) = write_sample(tmp_path, sample)
    frame: pd.DataFrame = read_parquet(cell.parent / "r1" / "trace.parquet").to_pandas()
    return frame


def shades_of(axes: Axes) -> list[str]:
    return [
        to_hex(patch.get_facecolor()).upper()
        for patch in axes.patches
        if patch.get_fill() and patch.get_alpha() is None
    ]


def test_a_row_for_each_gpu_with_its_role_s_colour(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, "1p1d")
    figure = draw_gpu_trace({"bf16": trace, "fp8": trace}, ["c = 2", "c = 64"], SAY)
    whole, close_up = figure.axes[0::2], figure.axes[1::2]
    titles = [axes.get_title(loc="left") or axes.get_title() for axes in whole]
    assert titles == ["bf16 · prefill-0", "bf16 · decode-0", "fp8 · prefill-0", "fp8 · decode-0"]
    colours = [to_hex(axes.collections[0].get_facecolor()[0]) for axes in whole]
    assert colours == [ROLE_COLOURS[role].lower() for role in ("prefill", "decode") * 2]
    assert {axes.get_title(loc="left") or axes.get_title() for axes in close_up} == {"c = 2"}
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["prefill busy", "decode busy", "GPU memory busy", "Launch", "Warm-up", "Load levels"]


def test_launch_warm_up_and_each_load_level_are_shaded_where_they_were(tmp_path: Path) -> None:
    figure = draw_gpu_trace({"bf16": trace_of(tmp_path, "default")}, ["c = 2", "c = 64"], SAY)
    axes = figure.axes[0]
    found = {
        colour: patch.get_extents().transformed(axes.transData.inverted())
        for colour, patch in zip(shades_of(axes), axes.patches, strict=False)
    }
    assert set(found) >= {shade.upper() for shade in (SHADES["launch"], SHADES["warmup"], *LEVEL_SHADES)}
    spans = {colour: (box.x0, box.x1) for colour, box in found.items()}
    assert spans[SHADES["warmup"].upper()] == pytest.approx((45, 51), abs=0.1)
    assert spans[LEVEL_SHADES[0].upper()] == pytest.approx((51, 66), abs=0.1)
    assert spans[LEVEL_SHADES[1].upper()] == pytest.approx((66, 81), abs=0.1)
    assert [text.get_text() for text in axes.texts] == ["c = 2", "c = 64"]


def test_the_close_up_shows_the_samples_themselves(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, "1p1d")
    figure = draw_gpu_trace({"bf16": trace}, ["c = 2", "c = 64"], SAY)
    (line,) = figure.axes[1].lines
    level = trace[(trace["point"] == 0) & (trace["role"] == "prefill")]
    assert len(line.get_xdata()) == pytest.approx(min(CLOSE_UP_S, 15.0) * 20, abs=2)
    assert set(np.asarray(line.get_ydata())) <= set(level["mem_util"])


def test_many_gpus_fit_on_a_page_and_other_rows_are_left_out(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, "2x")
    many = pd.concat([trace.assign(device=trace["device"] + str(number)) for number in range(4)])
    stray = trace.assign(kind="gpu_process", role=None)
    figure = draw_gpu_trace({"bf16": pd.concat([many, stray]), "fp8": many}, ["c = 2"], SAY)
    assert len(figure.axes) == 2 * 16
    assert figure.get_figheight() <= MOST_INCHES
    assert (figure.axes[2].get_title(loc="left") or figure.axes[2].get_title()) == "bf16 · replica-0 · 1"


def test_a_launch_that_never_reached_its_load_has_no_close_up(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, "default")
    cut = trace[trace["stage"] == "launch"]
    figure = draw_gpu_trace({"bf16": cut}, ["c = 2", "c = 64"], SAY)
    assert not figure.axes[1].axison


def test_gpus_without_a_role_and_cores_are_no_gpu_trace(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, "default")
    assert shows_gpus(trace)
    assert not shows_gpus(trace.assign(role=None))
    assert not shows_gpus(trace.assign(kind="core"))
