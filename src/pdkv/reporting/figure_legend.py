"""The legend of a figure, below its panels."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure


def add_legend(figure: Figure, handles: Sequence[Any], *, most: int, **options: float) -> None:
    """In at most ``most`` columns, and in as few as it takes for the legend to lie within the figure.

    Names of cells are the study's own, as long as its modes are: a number of columns that fits all is not known before.
    """
    for columns in range(min(len(handles), most), 0, -1):
        legend = figure.legend(handles=handles, loc="outside lower center", ncols=columns, **options)
        if columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
            return
        legend.remove()
