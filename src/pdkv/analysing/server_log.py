"""A server's log -> what it resolved. What the log does not say stays ``None``.

Written against the lines of vLLM 0.26 to 0.33 on CUDA, ROCm and CPU. A fact is looked for anywhere in a line, so that
marks of containers, colours and process names in front of it do not matter; a fact that is spelt in several ways has
several rows in the table of patterns.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pdkv.log_text import clean_lines

NONE = "none"  # known to be absent, which is something else than not known (None)


@dataclass(frozen=True)
class LogFacts:
    """What one instance wrote about itself, in the terms of launch.json. Seconds, bytes, tokens."""

    engine_version: str | None = None
    model_runner: str | None = None
    model: str | None = None
    model_dtype: str | None = None
    kv_cache_dtype: str | None = None
    load_format: str | None = None
    quantization: str | None = None
    chunked_prefill: bool | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    max_model_len: int | None = None
    prefix_caching: bool | None = None
    enforce_eager: bool | None = None
    tensor_parallel_size: int | None = None
    attention_backend: str | None = None
    flash_attention: int | None = None
    kv_cache_tokens: int | None = None
    max_concurrency: float | None = None
    kv_cache_bytes: int | None = None
    block_size: int | None = None
    kv_connector: str | None = None
    async_scheduling: bool | None = None
    engine_init_s: float | None = None
    model_load_s: float | None = None
    compile_s: float | None = None
    graph_capture_s: float | None = None
    compile_cache: str | None = None
    weights_bytes: int | None = None
    activation_bytes: int | None = None
    non_torch_bytes: int | None = None
    graph_bytes: int | None = None


def read_server_log(text: str) -> LogFacts:
    """Read the facts out of a whole log, in whatever dress it comes (colour, prefixes, CRLF, progress bars)."""
    log = "\n".join(clean_lines(text))
    sources = {
        "log": log,
        "config": _line_from(log, "Initializing a V1 LLM engine"),
        "arguments": _line_from(log, "non-default args:"),
    }
    found: dict[str, Any] = {}
    for field, source, pattern, convert in _PATTERNS:
        match = None if field in found else re.search(pattern, sources[source])
        if match:
            found[field] = convert(match[1])
    if sources["arguments"]:
        found.setdefault("kv_connector", NONE)
    found["kv_cache_bytes"] = _read_kv_cache_bytes(log, found.get("tensor_parallel_size"))
    found["compile_cache"] = _read_compile_cache(log)
    found |= _read_memory(log, found.get("tensor_parallel_size"))
    return LogFacts(**found)


def _count(text: str) -> int:
    return int(text.replace(",", ""))


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def _flag(text: str) -> bool:
    return text in ("True", "enabled")


def _name_or_none(text: str) -> str:
    return NONE if text == "None" else text


_PLATFORM = r"\[(?:cuda|rocm|xpu|cpu)\.py:\d+\] Using (?:AttentionBackendEnum\.)?"

# (fact, where it is looked for, pattern, how its text is read); of a fact's patterns the first that is found holds.
# "config" is the line in which the engine prints its resolved config, "arguments" the one with the server's arguments.
_PATTERNS: list[tuple[str, str, str, Callable[[str], Any]]] = [
    ("engine_version", "config", r"engine \(v([^\s)]+)\)", str),
    ("engine_version", "log", r"vLLM API server version (\d\S*)", str),
    ("engine_version", "log", r"\bversion (\d+\.\d+\.\d+\S*)", str),  # the banner
    ("model_runner", "log", r"\b[Uu]sing (?:the )?(V\d) [Mm]odel [Rr]unner", str),
    ("model_runner", "log", r"\[[cg]pu_(model_runner)\.py:\d+\]", lambda _: "V1"),  # V2 lives in files of other names
    ("model", "config", r"\bmodel='([^']*)'", str),
    ("model", "arguments", r"'model': '([^']*)'", str),
    ("model_dtype", "config", r"\bdtype=(?:torch\.)?(\w+)", str),
    ("kv_cache_dtype", "config", r"\bkv_cache_dtype='?([\w.]+)", str),
    ("kv_cache_dtype", "log", r"Using (\S+) data type to store kv cache", str),
    ("load_format", "config", r"\bload_format='?(?:LoadFormat\.)?(\w+)", str.lower),
    ("quantization", "config", r"\bquantization='?([\w-]+)", _name_or_none),
    ("chunked_prefill", "config", r"\benable_chunked_prefill=(True|False)", _flag),
    ("chunked_prefill", "log", r"Chunked prefill is (enabled|disabled)", _flag),
    ("max_num_batched_tokens", "log", r"Chunked prefill is enabled with max_num_batched_tokens=([\d,]+)", _count),
    ("max_num_batched_tokens", "arguments", r"'max_num_batched_tokens': (\d+)", int),
    ("max_num_seqs", "arguments", r"'max_num_seqs': (\d+)", int),
    ("max_model_len", "config", r"\bmax_seq_len=(\d+)", int),
    ("max_model_len", "log", r"Using max model len ([\d,]+)", _count),
    ("prefix_caching", "config", r"\benable_prefix_caching=(True|False)", _flag),
    ("enforce_eager", "config", r"\benforce_eager=(True|False)", _flag),
    ("tensor_parallel_size", "config", r"\btensor_parallel_size=(\d+)", int),
    # The name is kept as it is written, so that a backend nobody has heard of is kept too. The bare form (ROCm, XPU) is
    # only believed from a platform's own file; CPU engines name their backend beside the layout, if at all.
    ("attention_backend", "log", r"Using (?:AttentionBackendEnum\.)?(\S+) attention backend\b", str),
    ("attention_backend", "log", _PLATFORM + r"([A-Z]\S*(?: \S+){0,3}?) backend\b(?! for)", str),
    ("attention_backend", "log", r"KV cache layout for (\S+) backend", str),
    ("flash_attention", "log", r"Using Flash ?Attention version (\d)", int),
    ("kv_cache_tokens", "log", r"\bKV cache size: ([\d,]+) tokens", _count),
    ("max_concurrency", "log", r"Maximum concurrency for [\d,]+ tokens per request: ([\d.,]+)x", _number),
    ("block_size", "arguments", r"'block_size': (\d+)", int),
    ("kv_connector", "arguments", r"\bkv_connector['\"]?[=:] ?['\"](\w+)['\"]", str),
    ("kv_connector", "log", r"Creating v1 connector with name: (\w+)", str),
    ("async_scheduling", "log", r"Asynchronous scheduling is (enabled|disabled)", _flag),
    ("engine_init_s", "log", r"init engine \(.*?\) took ([\d.]+) s", float),
    ("model_load_s", "log", r"Model loading took .*?([\d.]+) seconds", float),
    ("model_load_s", "log", r"Loading weights took ([\d.]+) seconds", float),
    ("compile_s", "log", r"torch\.compile (?:and initial profiling run )?(?:took|takes) ([\d.]+) s in total", float),
    ("compile_s", "log", r"\(compilation: ([\d.]+) s\)", float),
    ("graph_capture_s", "log", r"Graph capturing finished in ([\d.]+) sec", float),
]


def _line_from(text: str, mark: str) -> str:
    """The rest of the first line that holds ``mark``, from the mark on; empty where there is none."""
    start = text.find(mark)
    return text[start:].partition("\n")[0] if start >= 0 else ""


def _read_kv_cache_bytes(log: str, tensor_parallel_size: int | None) -> int | None:
    """Memory for the KV cache over all ranks of the instance.

    Every rank may print what it has; the engine gives all of them the blocks of the smallest.
    """
    shares = re.findall(r"Available KV cache memory: ([\d.]+) GiB", log)
    shares = shares or re.findall(r"\(([\d.]+)/[\d.]+\) GiB for KV cache", log)  # the CPU engine
    if not shares or tensor_parallel_size is None:
        return None
    return round(min(float(share) for share in shares) * tensor_parallel_size * 2**30)


def _read_compile_cache(log: str) -> str | None:
    """``cold`` where a graph was compiled, ``warm`` where all came from the cache, ``None`` where nothing was."""
    if re.search(r"Compiling a graph for|Cache the graph of (?:compile range|shape|dynamic shape)", log):
        return "cold"
    loaded = re.search(r"Directly load (?:the compiled graph\(s\)|AOT compilation)", log)
    return "warm" if loaded else None


_MEMORY = {
    "weights_bytes": (r"usage is ([\d.]+) GiB for weight", r"Model loading took ([\d.]+) GiB"),
    "activation_bytes": (r"([\d.]+) GiB for peak activation",),
    "non_torch_bytes": (r"([\d.]+) GiB for non-torch memory",),
    "graph_bytes": (
        r"([\d.]+) GiB for CUDAGraph memory",
        r"Graph capturing finished in [\d.]+ secs?, took ([\d.]+) GiB",
    ),
}


def _read_memory(log: str, tensor_parallel_size: int | None) -> dict[str, int | None]:
    """Memory of an instance besides its KV cache, over all ranks; the largest of them stands for each."""
    found: dict[str, int | None] = dict.fromkeys(_MEMORY)
    for name, patterns in _MEMORY.items() if tensor_parallel_size is not None else ():
        shares = next((shares for pattern in patterns if (shares := re.findall(pattern, log))), [])
        if shares and tensor_parallel_size:
            found[name] = round(max(map(float, shares)) * tensor_parallel_size * 2**30)
    return found
