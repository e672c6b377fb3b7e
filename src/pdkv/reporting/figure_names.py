"""Where each figure of a study lies below the figures folder: known from the config alone, so that rules can name it.

A folder per workload keeps apart what would meet in one name: mode ``b_c`` of ``a``, and mode ``c`` of ``a_b``.
"""


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
