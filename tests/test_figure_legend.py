"""Legends lie within their figures, whatever the cells are called."""

import pytest
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from pdkv.reporting.figure_legend import add_legend


def drawn(names: list[str], most: int = 6) -> tuple[float, int]:
    """How wide the legend is, as a share of the figure, and how many entries stand beside each other."""
    figure = Figure(figsize=(6.3, 3.0), layout="constrained")
    figure.add_subplot()
    add_legend(figure, [Line2D([], [], label=name) for name in names], most=most, handlelength=3)
    (legend,) = figure.legends
    figure.draw_without_rendering()
    tops = [round(text.get_window_extent().y0) for text in legend.get_texts()]
    return legend.get_window_extent().width / figure.bbox.width, tops.count(max(tops))


@pytest.mark.parametrize("length", [4, 14, 30])
def test_long_names_take_more_rows_and_never_more_than_the_figure(length: int) -> None:
    width, _ = drawn([f"{i}{'m' * length}" for i in range(7)])
    assert width <= 1


def test_short_names_stand_beside_each_other_up_to_the_most() -> None:
    assert drawn(["a", "b", "c"])[1] == 3
    assert drawn([str(i) for i in range(9)])[1] == 6
    assert drawn(["a very long name of a cell/fp8_e5m2"] * 6)[1] < 6
