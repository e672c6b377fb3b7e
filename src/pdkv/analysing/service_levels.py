"""What counts as good service, and how many requests got it: goodput and the share of requests that meet every limit.

Taken over the measured requests of a load point. One that failed does not meet; one whose latency equals the limit
does. A request of fewer than two output tokens has no TPOT and so cannot break a limit on it (``vllm bench serve``
takes it for 0, which comes to the same).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from pdkv.analysing.point_requests import BoolArray, PointRequests

GOODPUT, SHARE = "goodput", "slo_share"
LIMITED = ("ttft", "tpot", "e2el")

_CLOCK_S = 1e-9  # what the clock resolves: a latency is a difference of two of its stamps, rounded


@dataclass(frozen=True)
class ServiceLevels:
    """The study's ``slo``: limits in milliseconds, ``None`` where there is none, and the share of requests to meet."""

    ttft_ms: float | None
    tpot_ms: float | None
    e2el_ms: float | None
    target_share: float

    @classmethod
    def from_json(cls, text: str) -> "ServiceLevels | None":
        """Read ``{ttft_ms, tpot_ms, e2el_ms, target_share}``; ``None`` of an empty text."""
        return cls(**json.loads(text)) if text else None

    @classmethod
    def of_cell(cls, cell: Mapping[str, Any]) -> "ServiceLevels | None":
        """What the goodput in a cell.json was counted by."""
        return cls(**cell["slo"]) if cell.get("slo") else None

    @property
    def limits_ms(self) -> dict[str, float]:
        """The limit of each limited latency."""
        return {name: limit for name in LIMITED if (limit := getattr(self, f"{name}_ms")) is not None}

    def as_json(self) -> dict[str, float | None]:
        """For cell.json."""
        return asdict(self)


def requests_that_meet(requests: PointRequests, levels: ServiceLevels) -> BoolArray:
    """Measured, successful requests that keep every limit."""
    meets = requests.measured
    for name, limit_ms in levels.limits_ms.items():
        latency_s = requests[f"{name}_s"]
        within = latency_s <= limit_ms / 1e3 + _CLOCK_S  # what is not known (NaN) is within no limit
        if name == "tpot":
            within |= requests["output_tokens"] < 2
        meets = meets & within
    return meets


def service_metrics(
    requests: PointRequests, request_throughput: float | None, levels: ServiceLevels
) -> dict[str, dict[str, Any]]:
    """``goodput`` (req/s) and ``slo_share`` of one launch at one load point; ``n`` is the number of measured requests.

    Goodput is the request throughput times the share of the successful measured requests that meet: the same window,
    the same requests. It is 0 where none meets, and null where the request throughput is.
    """
    measured = int(np.count_nonzero(requests.part == "measured"))
    successful = int(np.count_nonzero(requests.measured))
    met = int(np.count_nonzero(requests_that_meet(requests, levels)))
    goodput: float | None = None
    if measured and not met:
        goodput = 0.0
    elif met and request_throughput is not None:
        goodput = request_throughput * (met / successful)
    return _metrics(goodput, met, measured)


def pool_service_metrics(launches: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Several launches together: goodput is their mean, the share that of all their requests."""
    goodputs = [launch[GOODPUT]["value"] for launch in launches if launch[GOODPUT]["value"] is not None]
    mean = float(np.mean(goodputs)) if goodputs else None
    return _metrics(mean, *(sum(launch[SHARE][key] for launch in launches) for key in ("met", "n")))


def _metrics(goodput: float | None, met: int, measured: int) -> dict[str, dict[str, Any]]:
    share = met / measured if measured else None
    return {
        GOODPUT: {"unit": "req/s", "n": measured, "value": goodput},
        SHARE: {"unit": "share", "n": measured, "met": met, "value": share},
    }
