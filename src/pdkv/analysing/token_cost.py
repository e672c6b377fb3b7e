"""What output tokens, and requests that were served well, cost at the price of the hardware that a cell runs on."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pdkv.analysing.hardware_units import hardware_units

COST, GOOD_COST = "cost_per_million_tokens", "cost_per_million_good_requests"
BOUGHT = {COST: "output_throughput", GOOD_COST: "goodput"}  # so many a second
_SECONDS_PER_HOUR = 3600


@dataclass(frozen=True)
class Prices:
    """Of a GPU and of a host an hour, in ``currency``; ``None`` where the study names none."""

    per_gpu_hour: float | None
    per_host_hour: float | None
    currency: str

    @classmethod
    def from_json(cls, content: Mapping[str, Any] | None) -> "Prices | None":
        """Prices as the report's settings hold them: ``{per_gpu_hour, per_host_hour, currency}``, or nothing."""
        if not content:
            return None
        gpu, host = content.get("per_gpu_hour"), content.get("per_host_hour")
        return cls(None if gpu is None else float(gpu), None if host is None else float(host), str(content["currency"]))

    @classmethod
    def from_text(cls, text: str) -> "Prices | None":
        """:meth:`from_json` of JSON; ``None`` of an empty text."""
        return cls.from_json(json.loads(text)) if text else None

    def unit_of(self, metric: str) -> str:
        """``USD/M tokens`` or ``USD/M requests``."""
        return f"{self.currency}/M {'tokens' if metric == COST else 'requests'}"

    def of_an_hour(self, cell: Mapping[str, Any]) -> float | None:
        """All GPUs of a cell, or, where it computes on a CPU, the host. ``None`` for what has no price."""
        units = hardware_units(cell)
        if units is None:
            return None
        if units[1] == "GPU":
            return None if self.per_gpu_hour is None else self.per_gpu_hour * units[0]
        return self.per_host_hour

    def why_none(self, cell: Mapping[str, Any]) -> str | None:
        """Why a cell has no price; ``None`` if it has one."""
        if self.of_an_hour(cell) is not None:
            return None
        units = hardware_units(cell)
        if units is None:
            return "its hardware is not known"
        return "no GPU price given" if units[1] == "GPU" else "no host price given"


def cost_per_million(cell: Mapping[str, Any], per_second: float | None, prices: Prices) -> float | None:
    """Price of a million tokens or requests at a rate that is kept up; idle hours are not in it."""
    hour = prices.of_an_hour(cell)
    return None if hour is None or not per_second else hour / (per_second * _SECONDS_PER_HOUR) * 1e6
