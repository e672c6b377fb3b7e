"""What output tokens cost at the configured price of the hardware that a cell runs on."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pdkv.analysing.hardware_units import hardware_units

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

    def of_an_hour(self, cell: Mapping[str, Any]) -> float | None:
        """All GPUs of a cell, or, where it computes on a CPU, the host. ``None`` for what has no price."""
        units = hardware_units(cell)
        if units is None:
            return None
        if units[1] == "GPU":
            return None if self.per_gpu_hour is None else self.per_gpu_hour * units[0]
        return self.per_host_hour


def cost_per_million_tokens(cell: Mapping[str, Any], output_tok_s: float | None, prices: Prices) -> float | None:
    """Price of a million output tokens at a throughput that is kept up; idle hours are not in it."""
    hour = prices.of_an_hour(cell)
    return None if hour is None or not output_tok_s else hour / (output_tok_s * _SECONDS_PER_HOUR) * 1e6
