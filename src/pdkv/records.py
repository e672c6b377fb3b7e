"""What one trial is, frozen: the validated study cut down to the slice that one launch depends on.

A slice is plain JSON (:meth:`Trial.to_slice`), is all that the measuring wing gets to know of the study, and is what
Snakemake compares to decide whether a trial must be measured again.
"""

import json
from dataclasses import dataclass
from typing import Any, Literal

Arrival = Literal["closed", "poisson", "constant"]
EngineKind = Literal["auto", "cpu", "cuda", "custom"]
EngineDevice = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True)
class LoadPoint:
    """One load level. Closed loop: ``concurrency`` users; open loop: ``rate`` requests per second. The other is None.

    ``requests`` counts the measured ones; ramp and drain requests are sent in addition.
    """

    arrival: Arrival
    concurrency: int | None
    rate: float | None
    requests: int

    @property
    def label(self) -> str:
        """``2`` for two users, ``0.5/s`` for an open loop: the concurrency column of the summary."""
        return str(self.concurrency) if self.arrival == "closed" else f"{self.rate:g}/s"


@dataclass(frozen=True)
class Workload:
    """Lengths in tokens and the load levels, measured in this order within one launch."""

    id: str
    input_tokens: int
    output_tokens: int
    max_model_len: int
    points: tuple[LoadPoint, ...]


@dataclass(frozen=True)
class Mode:
    """How the engine is deployed.

    ``prefill`` and ``decode`` count the instances of a disaggregated mode (both 0 otherwise), ``replicas`` those of a
    plain one, ``nodes`` the machines to which they are dealt, as many to each. ``chunked_prefill`` None leaves the
    engine's own default. ``args`` are engine arguments by flag name
    without dashes in front (``max-num-seqs``); bool, number, string, or a structure that is passed as JSON.
    """

    id: str
    prefill: int
    decode: int
    replicas: int
    chunked_prefill: bool | None
    tensor_parallel_size: int
    args: dict[str, Any]
    prefill_args: dict[str, Any]
    decode_args: dict[str, Any]
    env: dict[str, str]
    kv_connector: str | None
    kv_connector_config: dict[str, Any]
    endpoint: str | None
    nodes: int = 1

    @property
    def disaggregated(self) -> bool:
        """Whether prefill and decode run in different instances."""
        return self.prefill > 0

    @property
    def instance_count(self) -> int:
        """Server processes of the engine, the router not counted."""
        return self.prefill + self.decode if self.disaggregated else self.replicas


@dataclass(frozen=True)
class KvDtype:
    """``model_dtype`` is vLLM's ``--dtype``, ``kv_cache_dtype`` its ``--kv-cache-dtype``."""

    id: str
    model_dtype: str
    kv_cache_dtype: str


@dataclass(frozen=True)
class Model:
    """``name`` is ``bundled``, a folder, or a hub id. ``load_format`` ``dummy`` means random weights."""

    name: str
    load_format: str
    revision: str | None
    tokenizer: str | None


@dataclass(frozen=True)
class Engine:
    """Which vLLM. ``custom`` names either its ``python`` or a ``command`` prefix that stands for ``vllm``.

    ``token_budget`` is ``--max-num-batched-tokens``, set in every mode so that modes differ in nothing else;
    ``kv_cache_gib`` is the KV cache of one CPU instance; ``gpu_memory_utilization`` its share of each GPU. ``device``
    is what a custom one computes on; ``auto``: what the machine has on which the trial is planned.
    """

    kind: EngineKind
    python: str | None
    command: tuple[str, ...]
    args: dict[str, Any]
    env: dict[str, str]
    token_budget: int
    kv_cache_gib: int
    gpu_memory_utilization: float
    device: EngineDevice = "auto"

    @property
    def named_device(self) -> Literal["cpu", "cuda"] | None:
        """What it computes on, where the config says it."""
        said = self.kind if self.kind in ("cpu", "cuda") else self.device
        return said if said in ("cpu", "cuda") else None


@dataclass(frozen=True)
class Limits:
    """Seconds after which a launch, a request or a whole trial is given up, and how warm-up is done."""

    launch_timeout_s: float
    request_timeout_s: float
    ramp_interval_s: float
    warmup_rounds: int
    trial_timeout_s: float = 86_400.0


@dataclass(frozen=True)
class Trial:
    """One launch of one cell."""

    workload: Workload
    mode: Mode
    dtype: KvDtype
    repeat: int
    model: Model
    engine: Engine
    limits: Limits
    seed: int

    @property
    def name(self) -> str:
        """``workload/mode/dtype/r1``: its folder under ``results/``."""
        return f"{self.workload.id}/{self.mode.id}/{self.dtype.id}/r{self.repeat}"

    def to_slice(self) -> str:
        """Canonical JSON: the same study gives the same text, however its config was spelt."""
        return json.dumps(vars(self), default=vars, sort_keys=True, ensure_ascii=False)

    @classmethod
    def from_slice(cls, text: str) -> "Trial":
        """The trial that :meth:`to_slice` wrote."""
        raw = json.loads(text)
        workload = dict(raw["workload"], points=tuple(LoadPoint(**point) for point in raw["workload"]["points"]))
        engine = dict(raw["engine"], command=tuple(raw["engine"]["command"]))
        return cls(
            workload=Workload(**workload),
            mode=Mode(**raw["mode"]),
            dtype=KvDtype(**raw["dtype"]),
            repeat=raw["repeat"],
            model=Model(**raw["model"]),
            engine=Engine(**engine),
            limits=Limits(**raw["limits"]),
            seed=raw["seed"],
        )
