"""What may stand in a study's config file: keys, types and bounds, each with the words that an error message uses.

Short forms (``model: bundled``, ``modes: [default, 1p1d]``, ``concurrency: 2``) are turned into the long form first, so
that every key has one type.
"""

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

ScalarArgs = dict[str, Any]
NO_FLAG = r"^[^-]"  # a name that begins with a dash would be read as an argument of its own
OWN_VARIABLES = {
    "VLLM_CPU_KVCACHE_SPACE": ": use engine.kv_cache_gib",
    "VLLM_CPU_OMP_THREADS_BIND": ": cores are split among the instances",
    "VLLM_NIXL_SIDE_CHANNEL_HOST": "",
    "VLLM_NIXL_SIDE_CHANNEL_PORT": "",
    "VLLM_SERVER_DEV_MODE": ": it is how a server is asked what it resolved",
    "CUDA_VISIBLE_DEVICES": ": GPUs are leased; set it for the whole of pdkv to offer fewer",
}


def _whole(value: Any) -> Any:
    if isinstance(value, bool | str):
        raise ValueError("not a whole number")
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _number(value: Any) -> Any:
    if isinstance(value, bool | str):
        raise ValueError("not a number")
    return value


def _listed(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


def _named(value: Any) -> Any:
    """``[default, 1p1d]`` is short for ``{default: {}, 1p1d: {}}``."""
    if not isinstance(value, list):
        return value
    names = [item for item in value if isinstance(item, str)]
    if len(names) < len(value):
        raise ValueError("a list of names must hold names only; quote what YAML takes for something else")
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{name} is listed twice")
    return {name: {} for name in names}


def _or_empty(value: Any) -> Any:
    return {} if value is None else value


def _keyed(key: str, section: Any) -> BeforeValidator:
    """A bare string is short for ``{key: string}``."""
    return BeforeValidator(
        lambda value: {key: value} if isinstance(value, str) else value, json_schema_input_type=section | str
    )


def _variables(value: Any) -> Any:
    """Environment variables that an operating system takes and that pdkv does not set itself."""
    for name, text in value.items() if isinstance(value, dict) else ():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or "\0" in str(text):
            raise ValueError(f"{name!r} can't be an environment variable")
        if name in OWN_VARIABLES:
            raise ValueError(f"pdkv sets {name} itself{OWN_VARIABLES[name]}")
    return value


Whole = Annotated[int, BeforeValidator(_whole)]
Number = Annotated[float, BeforeValidator(_number)]
Variables = Annotated[dict[str, str], BeforeValidator(_variables)]
Requests = Annotated[Whole, Field(ge=1, le=1_000_000_000)]
Users = Annotated[Whole, Field(ge=1, le=65536)]
Rate = Annotated[Number, Field(gt=0, le=1e6)]
Texts = Annotated[list[str], BeforeValidator(_listed, json_schema_input_type=list[str] | str)]
Arguments = Annotated[ScalarArgs, BeforeValidator(_or_empty, json_schema_input_type=ScalarArgs | None)]


class _Section(BaseModel):
    # Defaults too: 600 and 600.0 must give the same slice, or writing a default out would measure everything again.
    model_config = ConfigDict(extra="forbid", str_strip_whitespace=True, validate_default=True)


class ModelSection(_Section):
    """The model that every cell serves."""

    name: str = Field("bundled", pattern=NO_FLAG, description="bundled, a folder, or a model id of the hub")
    load_format: str = Field(
        "auto", pattern=NO_FLAG, description="vLLM's --load-format: auto, dummy (random weights), safetensors, …"
    )
    revision: str | None = Field(None, pattern=NO_FLAG, description="a revision of a hub model")
    tokenizer: str | None = Field(None, pattern=NO_FLAG, description="a tokenizer other than the model's own")


class EngineSection(_Section):
    """Which vLLM serves, and what it is given in every mode."""

    kind: Literal["auto", "cpu", "cuda", "custom"] = Field("auto", description="auto, cpu, cuda or custom")
    python: str | None = Field(None, description="a Python that has vLLM")
    command: Texts = Field(
        default_factory=list, description='what stands for "vllm", e.g. apptainer exec --nv vllm.sif vllm'
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto, cpu or cuda (with python or command)")
    args: Arguments = Field(default_factory=dict, description="vLLM arguments for every mode, e.g. {max_num_seqs: 64}")
    env: Variables = Field(default_factory=dict, description="environment variables, as strings")
    token_budget: Whole | None = Field(None, ge=16, le=1_048_576, description="a whole number, at least 16")
    kv_cache_gib: Whole = Field(1, ge=1, le=4096, description="a whole number of GiB, at least 1 (CPU engine)")
    gpu_memory_utilization: Number = Field(0.9, gt=0, le=1, description="a share above 0 and up to 1")


class WorkloadSection(_Section):
    """Lengths and load levels."""

    input_tokens: Whole = Field(ge=1, le=10_000_000, description="a whole number of tokens, at least 1")
    output_tokens: Whole = Field(ge=1, le=10_000_000, description="a whole number of tokens, at least 1")
    concurrency: Annotated[list[Users], BeforeValidator(_listed, json_schema_input_type=list[Users] | Users)] = Field(
        default_factory=list, description="whole numbers from 1 to 65536"
    )
    request_rate: Annotated[list[Rate], BeforeValidator(_listed, json_schema_input_type=list[Rate] | Rate)] = Field(
        default_factory=list, description="requests per second, above 0"
    )
    arrival: Literal["poisson", "constant"] = Field("poisson", description="poisson or constant (with request_rate)")
    requests: Annotated[list[Requests], BeforeValidator(_listed, json_schema_input_type=list[Requests] | Requests)] = (
        Field(min_length=1, description="a whole number of measured requests, for all load levels or one for each")
    )
    max_model_len: Whole = Field(ge=2, le=100_000_000, description="a whole number of tokens")

    @model_validator(mode="after")
    def _consistent(self) -> "WorkloadSection":
        if not self.concurrency and not self.request_rate:
            raise ValueError("needs concurrency or request_rate")
        for name, levels in (("concurrency", self.concurrency), ("request_rate", self.request_rate)):
            if len(set(levels)) < len(levels):
                raise ValueError(f"{name} lists a level twice: {levels}")
        count = len(self.concurrency) + len(self.request_rate)
        if len(self.requests) not in (1, count):
            raise ValueError(
                f"requests lists {len(self.requests)} numbers for {count} load levels: one for all, or one for each"
            )
        if self.input_tokens + self.output_tokens > self.max_model_len:
            raise ValueError(
                f"input_tokens + output_tokens = {self.input_tokens} + {self.output_tokens} = "
                f"{self.input_tokens + self.output_tokens} does not fit max_model_len {self.max_model_len}"
            )
        return self


class KvConnectorSection(_Section):
    """The connector that moves KV blocks from prefill to decode."""

    name: str = Field("NixlConnector", min_length=1, description="a KV connector of vLLM, e.g. NixlConnector")
    config: dict[str, Any] = Field(default_factory=dict, description="further keys of its --kv-transfer-config")


class ModeSection(_Section):
    """One deployment mode. A name like ``2p1d`` or ``2x`` says the topology by itself."""

    prefill: Whole | None = Field(None, ge=1, le=64, description="a whole number of prefill instances")
    decode: Whole | None = Field(None, ge=1, le=64, description="a whole number of decode instances")
    replicas: Whole | None = Field(None, ge=1, le=64, description="a whole number of replicas")
    chunked_prefill: bool | None = Field(None, description="true or false")
    tensor_parallel_size: Whole = Field(1, ge=1, le=64, description="a whole number of GPUs or ranks per instance")
    nodes: Whole = Field(1, ge=1, le=64, description="a whole number of nodes of a Slurm cluster")
    args: Arguments = Field(default_factory=dict, description="vLLM arguments, e.g. {max_num_seqs: 8}")
    prefill_args: Arguments = Field(default_factory=dict, description="vLLM arguments of the prefill instances")
    decode_args: Arguments = Field(default_factory=dict, description="vLLM arguments of the decode instances")
    env: Variables = Field(default_factory=dict, description="environment variables, as strings")
    kv_connector: Annotated[KvConnectorSection, _keyed("name", KvConnectorSection)] = Field(
        default_factory=lambda: KvConnectorSection.model_validate({}), description="a name, or {name, config}"
    )
    endpoint: str | None = Field(
        None, pattern=r"^http://[!-~]+$", description="the http:// address of a running server"
    )


ModeSettings = Annotated[ModeSection, BeforeValidator(_or_empty, json_schema_input_type=ModeSection | None)]
_MODE_NAMES = BeforeValidator(_named, json_schema_input_type=dict[str, ModeSettings] | list[str])


class LimitsSection(_Section):
    """When something is given up."""

    launch_timeout_s: Number = Field(900, gt=0, le=86400, description="seconds")
    request_timeout_s: Number = Field(600, gt=0, le=86400, description="seconds")
    trial_hours: Number = Field(24, gt=0, le=10_000, description="hours; a launch that is not over then is given up")
    study_hours: Number = Field(72, gt=0, le=10_000, description="hours; a study estimated to take longer is refused")


class LoadSection(_Section):
    """How load begins."""

    ramp_interval_ms: Number = Field(10, ge=0, le=60_000, description="milliseconds between the starts of two users")
    warmup_rounds: Whole = Field(2, ge=1, le=100, description="a whole number of rounds, at least 1")


class ServiceLevelSection(_Section):
    """What counts as good service. It is asked of what was measured: it changes nothing that is measured."""

    ttft_ms: Number | None = Field(None, gt=0, le=86_400_000, description="milliseconds, above 0")
    tpot_ms: Number | None = Field(None, gt=0, le=86_400_000, description="milliseconds, above 0")
    e2el_ms: Number | None = Field(None, gt=0, le=86_400_000, description="milliseconds, above 0")
    target_share: Number = Field(0.9, gt=0, le=1, description="a share of the requests, above 0 and up to 1")

    @model_validator(mode="after")
    def _limits_something(self) -> "ServiceLevelSection":
        if self.ttft_ms is None and self.tpot_ms is None and self.e2el_ms is None:
            raise ValueError("names no limit")
        return self


class CostSection(_Section):
    """What the hardware costs. It is asked of what was measured: it changes nothing that is measured."""

    per_gpu_hour: Number | None = Field(None, gt=0, le=1e6, description="the price of a GPU an hour, above 0")
    per_host_hour: Number | None = Field(
        None, gt=0, le=1e6, description="the price of a host an hour, above 0, for cells that compute on its CPU"
    )
    currency: str = Field("USD", min_length=1, max_length=8, description="a currency, e.g. USD")

    @model_validator(mode="after")
    def _prices_something(self) -> "CostSection":
        if self.per_gpu_hour is None and self.per_host_hour is None:
            raise ValueError("names no price")
        return self


class BaselineSection(_Section):
    """The cell that the others are compared with."""

    mode: str | None = Field(None, description="one of the modes")
    dtype: str | None = Field(None, description="one of the dtypes")


class ReportSection(_Section):
    """What the report says and in which words."""

    title: str | None = Field(None, min_length=1, description="a text")
    language: Literal["en", "zh", "both"] = Field("en", description="en, zh or both")
    margin: Number = Field(
        0.02, gt=0, le=0.5, description="a share above 0 and up to 0.5; an effect inside it is called equivalence"
    )
    claims: str | None = Field(
        None, pattern=r"^[^{}]+$", description="a file of claims to test, e.g. config/claims.yaml, without braces"
    )
    baseline: BaselineSection = Field(
        default_factory=lambda: BaselineSection.model_validate({}), description="{mode, dtype}"
    )


class StudySection(_Section):
    """A whole config file."""

    model: Annotated[ModelSection, _keyed("name", ModelSection)] = Field(
        default_factory=lambda: ModelSection.model_validate({}),
        description="bundled, a folder, a hub id, or {name, load_format}",
    )
    engine: Annotated[EngineSection, _keyed("kind", EngineSection)] = Field(
        default_factory=lambda: EngineSection.model_validate({}),
        description="auto, cpu, cuda, or {python}, or {command}",
    )
    workloads: dict[str, WorkloadSection] = Field(min_length=1, description="at least one workload by name")
    modes: Annotated[dict[str, ModeSettings], _MODE_NAMES] = Field(
        min_length=1, description="at least one mode: a list of names, or settings by name"
    )
    dtypes: Texts = Field(min_length=1, description="a list of fp16, bf16, fp8, fp8_e4m3, fp8_e5m2")
    repeats: Whole = Field(1, ge=1, le=1000, description="a whole number of launches per cell, at least 1")
    launches: dict[str, Annotated[int, Field(ge=0, le=1000), BeforeValidator(_whole)]] = Field(
        default_factory=dict,
        description="whole numbers of launches that some cells have instead, 0 for none, e.g. {'*/unchunked/*': 1}",
    )
    seed: Whole = Field(0, ge=0, le=2**31, description="a whole number")
    load: LoadSection = Field(
        default_factory=lambda: LoadSection.model_validate({}), description="settings of the load"
    )
    limits: LimitsSection = Field(default_factory=lambda: LimitsSection.model_validate({}), description="time limits")
    slo: ServiceLevelSection | None = Field(
        None, description="at least one of ttft_ms, tpot_ms and e2el_ms, e.g. {ttft_ms: 500, tpot_ms: 50}"
    )
    cost: CostSection | None = Field(
        None, description="per_gpu_hour, per_host_hour or both, e.g. {per_gpu_hour: 2.5, currency: USD}"
    )
    report: ReportSection = Field(
        default_factory=lambda: ReportSection.model_validate({}), description="settings of the report"
    )
