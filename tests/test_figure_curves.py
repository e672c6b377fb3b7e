"""The figure of throughput against latency: what is drawn of cells whose levels are known."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from load_cells import CLOSED, cell_of, launch, open_points
from matplotlib.figure import Figure

from pdkv.analysing.study_results import Cell
from pdkv.reporting.figure_curves import draw_curves, share_a_unit
from pdkv.reporting.figure_style import Style
from pdkv.reporting.wording import Wording

CURVE = ((10.0, 1.0), (30.0, 1.5), (50.0, 2.0), (50.0, 4.0))
SLOWER = ((9.0, 1.1), (28.0, 1.6), (48.0, 2.1), (47.0, 4.4))


def levels(*curves: Sequence[tuple[float, float]]) -> Mapping[int, Sequence[dict[str, Any]]]:
    return {i: [launch(throughput=curve[i][0], e2el_s=curve[i][1]) for curve in curves] for i in range(len(curves[0]))}


def draw(*cells: Cell, configured: Sequence[Mapping[str, Any]] = CLOSED) -> Figure:
    modes, dtypes = ([getattr(cell, name) for cell in cells] for name in ("mode", "dtype"))
    style = Style(list(dict.fromkeys(modes)), list(dict.fromkeys(dtypes)))
    return draw_curves(cells, configured, style, Wording("en"))


def labels(figure: Figure, panel: int = 0) -> list[str]:
    return sorted(text.get_text() for text in figure.axes[panel].texts)


def test_a_line_joins_the_levels_in_ascending_order() -> None:
    configured = [CLOSED[2], CLOSED[0], CLOSED[3], CLOSED[1]]
    mixed = {i: [launch(throughput=CURVE[k][0], e2el_s=CURVE[k][1])] for i, k in enumerate((2, 0, 3, 1))}
    figure = draw(cell_of(mixed, configured=configured), configured=configured)
    line = figure.axes[0].lines[0]
    assert list(line.get_xdata()) == [1000, 1500, 2000, 4000]
    assert list(line.get_ydata()) == [10, 30, 50, 50]
    assert labels(figure) == ["1", "16", "4", "64"]


def test_six_cells_differ_without_colour() -> None:
    cells = [
        cell_of(levels(CURVE), mode=mode, dtype=dtype)
        for mode in ("default", "chunked", "1p1d")
        for dtype in ("fp16", "fp8")
    ]
    lines = draw(*cells).legends[0].get_lines()
    assert len({(line.get_marker(), line.get_fillstyle(), line.get_linestyle()) for line in lines}) == 6


def test_throughput_is_of_each_device_where_all_have_some() -> None:
    two = cell_of(levels(CURVE), mode="2x", gpus=2)
    figure = draw(cell_of(levels(CURVE)), two)
    assert list(figure.axes[0].lines[1].get_ydata()) == [5, 15, 25, 25]
    assert figure.axes[0].get_ylabel() == "output tok/s per GPU"
    unknown = cell_of(levels(CURVE), mode="mine", gpus=0)
    assert not share_a_unit([two, unknown])
    figure = draw(two, unknown)
    assert figure.axes[0].get_ylabel() == "output tok/s"
    assert list(figure.axes[0].lines[0].get_ydata()) == [10, 30, 50, 50]


def test_the_spread_of_launches_is_drawn_only_where_there_are_several() -> None:
    assert not draw(cell_of(levels(CURVE))).axes[0].collections
    spread = draw(cell_of(levels(CURVE, SLOWER))).axes[0].collections
    assert len(spread) == 2 * len(CURVE)
    (left, right) = spread[0].get_segments()[0][:, 0]  # type: ignore[attr-defined]
    assert (left, right) == (1000, 1100)


def test_the_ring_stands_at_a_knee_inside_the_range_and_nowhere_else() -> None:
    def rings(figure: Figure) -> list[float]:
        lines = figure.axes[0].lines
        return [float(line.get_xdata()[0]) for line in lines if line.get_markerfacecolor() == "none"]  # type: ignore[index]

    assert rings(draw(cell_of(levels(CURVE)))) == [2000]
    assert rings(draw(cell_of(levels(CURVE[:3])))) == [], "its end"
    earlier = ((10.0, 1.0), (40.0, 1.5), (50.0, 2.0), (50.0, 4.0))
    assert rings(draw(cell_of(levels(CURVE, earlier)))) == [], "launches disagree"


def test_one_level_is_a_point_and_says_so() -> None:
    figure = draw(cell_of(levels(CURVE[:1]), configured=CLOSED[:1]), configured=CLOSED[:1])
    assert "one load level: points, no curves" in figure.axes[0].get_title()
    assert len(figure.axes[0].lines[0].get_xdata()) == 1  # type: ignore[arg-type]


def test_users_and_rates_have_panels_of_their_own() -> None:
    configured = [*CLOSED[:2], *open_points(1.0, 4.0)]
    figure = draw(cell_of(levels(CURVE), configured=configured), configured=configured)
    assert len(figure.axes) == 6
    assert labels(figure) == ["1", "4"]
    assert labels(figure, 3) == ["1/s", "4/s"]


@pytest.mark.parametrize("levels_of_the_other", [{}, {0: []}, {0: [launch()]}], ids=["failed", "invalid", "no values"])
def test_cells_without_numbers_are_left_out(levels_of_the_other: Mapping[int, Sequence[dict[str, Any]]]) -> None:
    figure = draw(cell_of(levels(CURVE)), cell_of(levels_of_the_other, mode="1p1d"))
    assert len(figure.legends[0].get_lines()) == 1


def test_where_markers_of_a_level_lie_together_it_is_labelled_once() -> None:
    near = tuple((throughput * 1.001, latency) for throughput, latency in CURVE)
    assert labels(draw(cell_of(levels(CURVE)), cell_of(levels(near), dtype="fp8"))) == ["1", "16", "4", "64"]
    far = tuple((throughput / 2, latency * 2) for throughput, latency in CURVE)
    assert len(labels(draw(cell_of(levels(CURVE)), cell_of(levels(far), dtype="fp8")))) > 4
