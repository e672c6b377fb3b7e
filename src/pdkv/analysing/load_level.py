"""How a load level is called in tables, and which of two is the higher."""

from collections.abc import Mapping, Sequence
from typing import Any


def load_label(point: Mapping[str, Any]) -> str:
    """``2`` for two users, ``0.5/s`` for an open loop: the concurrency column of the summary."""
    return str(point["concurrency"]) if point["arrival"] == "closed" else f"{point['rate']:g}/s"


def load_ladders(points: Sequence[Mapping[str, Any]]) -> list[tuple[int, ...]]:
    """The positions of a workload's load levels from the lowest to the highest, whatever their order in the config.

    Numbers of users are one ladder and request rates another: between the two there is no higher and lower.
    """
    numbered = list(enumerate(points))
    users = sorted((point["concurrency"], index) for index, point in numbered if point["arrival"] == "closed")
    rates = sorted((point["rate"], index) for index, point in numbered if point["arrival"] != "closed")
    return [tuple(index for _, index in ladder) for ladder in (users, rates) if ladder]
