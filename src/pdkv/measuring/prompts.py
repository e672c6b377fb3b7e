"""Seeded prompts, request bodies and send times: what is asked, and when, is settled before the load starts.

Everything here is a pure function of its arguments. The same workload is asked the same prompts in every cell,
so that requests of two cells form pairs, and no two prompts of a launch share a first block, so that a prefix
cache has nothing to find.
"""

import random
from dataclasses import dataclass
from typing import Literal

import orjson

Arrival = Literal["closed", "poisson", "constant"]
Part = Literal["ramp", "measured", "drain", "warmup"]

PART_CODES: dict[Part, int] = {"ramp": 0, "measured": 1, "drain": 2, "warmup": 3}
MAX_POINTS = 1 << 10
MAX_INDEX = 1 << 32
SMALLEST_CACHE_BLOCK = 16  # tokens; the lead that makes a prompt unique must lie within the first block


@dataclass(frozen=True)
class Prompts:
    """The prompts of one workload: token ids drawn evenly from ``[low, high)``, which must leave out special ids."""

    seed: int
    workload: str
    input_tokens: int
    low: int
    high: int

    def __post_init__(self) -> None:
        if self.input_tokens < 1:
            raise ValueError(f"a prompt needs at least one token, not {self.input_tokens}")
        if self.low < 0 or self.high - self.low < SMALLEST_CACHE_BLOCK:
            raise ValueError(f"[{self.low}, {self.high}) holds too few token ids to draw from")

    def tokens(self, point: int, part: Part, index: int) -> list[int]:
        """Exactly ``input_tokens`` ids for the ``index``-th prompt of a part of a load point (-1: warmup)."""
        draw = random.Random(f"{self.seed}/{self.workload}/{point}/{part}/{index}")
        ids = draw.choices(range(self.low, self.high), k=self.input_tokens)
        lead = self._lead(point, part, index)[: self.input_tokens]
        ids[: len(lead)] = lead
        return ids

    def _lead(self, point: int, part: Part, index: int) -> list[int]:
        """First ids that no other (point, part, index) has: its number in base ``high - low``, digits shifted."""
        if not (-1 <= point < MAX_POINTS - 1 and 0 <= index < MAX_INDEX):
            raise ValueError(f"no prompt for point {point}, index {index}")
        number = (index * MAX_POINTS + point + 1) * len(PART_CODES) + PART_CODES[part]
        room = MAX_INDEX * MAX_POINTS * len(PART_CODES)
        shift = random.Random(f"{self.seed}/{self.workload}")
        span = self.high - self.low
        lead = []
        while room > 0:
            number, digit = divmod(number, span)
            lead.append(self.low + (digit + shift.randrange(span)) % span)
            room //= span
        return lead


def encode_body(model: str, tokens: list[int], output_tokens: int) -> bytes:
    """The JSON body of a streamed ``POST /v1/completions`` that answers with exactly ``output_tokens`` tokens.

    Greedy and without a seed: a seed of its own would give each request a generator, and servers slower sampling.
    """
    return orjson.dumps(
        {
            "model": model,
            "prompt": tokens,
            "max_tokens": output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
        }
    )


def send_offsets(arrival: Arrival, rate: float, count: int, *, seed: int, workload: str, point: int) -> list[float]:
    """Seconds after the start at which ``count`` requests are sent in an open loop of ``rate`` requests per second.

    ``poisson`` has exponential gaps, ``constant`` equal ones; the first request is sent at 0.
    """
    if arrival == "closed" or rate <= 0:
        raise ValueError(f"an open loop needs a rate, not {arrival} at {rate}")
    if arrival == "constant":
        return [number / rate for number in range(count)]
    draw = random.Random(f"{seed}/{workload}/{point}/gaps")
    offsets, now = [], 0.0
    for _ in range(count):
        offsets.append(now)
        now += draw.expovariate(rate)
    return offsets
