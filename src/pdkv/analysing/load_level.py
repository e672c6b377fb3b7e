"""How a load level is called in tables."""

from collections.abc import Mapping
from typing import Any


def load_label(point: Mapping[str, Any]) -> str:
    """``2`` for two users, ``0.5/s`` for an open loop: the concurrency column of the summary."""
    return str(point["concurrency"]) if point["arrival"] == "closed" else f"{point['rate']:g}/s"
