"""How every figure looks: colour by mode, marker and line by dtype, type as in the report, the same bytes each time."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager

from pdkv.artifacts import atomic_path
from pdkv.reporting.typefaces import Typefaces

PAGE_WIDTH_INCHES = 6.7  # the text width of the A4 report: figures are drawn at their true size
# Told apart by colour-blind readers (after Okabe and Ito) and, by their lightness, in greyscale.
COLOURS = ("#12355B", "#C95900", "#2DA999", "#81357D", "#EAAC29", "#B2D4EB")
MARKERS = ("o", "s", "^", "D", "v", "P")
LINES: tuple[Any, ...] = (
    "-",
    (0, (4, 1.5)),
    (0, (1, 1.2)),
    (0, (5, 1.5, 1, 1.5)),
    (0, (8, 2)),
    (0, (3, 1, 1, 1, 1, 1)),
)
INK, GREY = "#1D2A3A", "#6B6B6B"


@dataclass(frozen=True)
class Style:
    """The look of each cell of a study: ``modes`` and ``dtypes`` in the study's order."""

    modes: Sequence[str]
    dtypes: Sequence[str]

    def colour(self, mode: str) -> str:
        """The colour of a deployment mode."""
        return COLOURS[self.modes.index(mode) % len(COLOURS)]

    def marker(self, dtype: str) -> str:
        """The marker of a KV-cache precision."""
        return MARKERS[self.dtypes.index(dtype) % len(MARKERS)]

    def line(self, dtype: str) -> Any:
        """The line style of a KV-cache precision."""
        return LINES[self.dtypes.index(dtype) % len(LINES)]


@contextmanager
def figure_settings(typefaces: Typefaces) -> Iterator[None]:
    """matplotlib's settings while figures are drawn, whatever the user's own are.

    Text becomes outlines: it looks the same in a browser and in the PDF, with no font installed.
    """
    for path in typefaces.files:
        fontManager.addfont(path)
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(
            {
                "font.family": list(typefaces.families),
                "font.size": 7.5,
                "axes.titlesize": 8,
                "axes.titlelocation": "left",
                "axes.labelsize": 7.5,
                "axes.linewidth": 0.6,
                "axes.edgecolor": GREY,
                "axes.spines.top": False,
                "axes.spines.right": False,
                "axes.axisbelow": True,
                "axes.formatter.useoffset": False,
                "axes.formatter.use_locale": False,
                "grid.color": "#DDDDDD",
                "grid.linewidth": 0.5,
                "xtick.labelsize": 7,
                "ytick.labelsize": 7,
                "xtick.major.width": 0.6,
                "ytick.major.width": 0.6,
                "legend.fontsize": 7,
                "legend.frameon": False,
                "text.parse_math": False,
                "svg.fonttype": "path",
                "svg.hashsalt": "pdkv",
                "text.color": INK,
                "axes.labelcolor": INK,
                "axes.titlecolor": INK,
                "xtick.labelcolor": INK,
                "ytick.labelcolor": INK,
                "path.simplify": True,
            }
        )
        yield


def save_figure(figure: Figure, path: Path) -> Path:
    """Write ``figure`` as SVG without a date, so that the same results give the same bytes; returns ``path``."""
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="svg", metadata={"Date": None, "Creator": "pdkv"})
    return path


def empty_figure(reason: str) -> Figure:
    """A figure that says why there is nothing to show."""
    figure = Figure(figsize=(PAGE_WIDTH_INCHES, 0.6))
    figure.text(0.5, 0.5, reason, ha="center", va="center", color=GREY)
    return figure
