"""Where each figure of a study lies below the figures folder: known from the config alone, so that rules can name it.

A folder per workload keeps apart what would meet in one name: mode ``b_c`` of ``a``, and mode ``c`` of ``a_b``.
"""

from collections.abc import Mapping
from itertools import accumulate

MOST_FIGURES = 200


def metrics_figure(workload: str, point: int) -> str:
    """The metrics of each cell with their spread, at one load level (``point`` counts from 0 in the config's order)."""
    return f"{workload}/metrics_{point}.svg"


def ecdf_figure(workload: str, point: int) -> str:
    """The distributions of TTFT and ITL of each cell at one load level."""
    return f"{workload}/ecdf_{point}.svg"


def curves_figure(workload: str) -> str:
    """Throughput against latency of each cell over its load levels."""
    return f"{workload}/curves.svg"


def ttft_parts_figure(workload: str) -> str:
    """Where the first token's time goes, for each cell and load level."""
    return f"{workload}/ttft_parts.svg"


def trace_figure(workload: str, mode: str) -> str:
    """The devices of one deployment mode over time."""
    return f"{workload}/trace_{mode}.svg"


def figure_count(levels: int, modes: int) -> int:
    """How many figures a workload with so many load levels and modes has: two a level, two of all, one a mode."""
    return 2 * levels + 2 + modes


def illustrated(figures: Mapping[str, int]) -> list[str]:
    """The workloads of which a report draws figures, given how many each would have: the first of the config.

    As many as stay within ``MOST_FIGURES``, but one always. Nobody leafs through a thousand figures, and each takes a
    third of a second to draw and to set.
    """
    totals = accumulate(figures.values())
    fitting = [workload for workload, total in zip(figures, totals, strict=True) if total <= MOST_FIGURES]
    return fitting or list(figures)[:1]
