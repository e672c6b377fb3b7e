"""Logs of real servers in every dress, and the lines that show why one failed."""

import re
from dataclasses import asdict
from pathlib import Path

import pytest

from pdkv.analysing.server_log import LogFacts, read_server_log
from pdkv.log_text import MAX_LINE, excerpt, failure_reason

DATA = Path(__file__).parent / "data"


def read(name: str) -> str:
    return (DATA / name).read_bytes().decode("utf-8", errors="replace")


DEFAULT_AUTO = LogFacts(
    engine_version="0.26.0",
    model_runner="V2",
    model="/models/llama-8b",
    model_dtype="bfloat16",
    kv_cache_dtype="auto",
    load_format="dummy",
    quantization="none",
    chunked_prefill=True,
    max_num_batched_tokens=8192,
    max_num_seqs=None,
    max_model_len=2048,
    prefix_caching=False,
    enforce_eager=False,
    tensor_parallel_size=1,
    attention_backend="FLASH_ATTN",
    flash_attention=3,
    kv_cache_tokens=850_928,
    max_concurrency=415.49,
    kv_cache_bytes=round(103.87 * 2**30),
    block_size=None,
    kv_connector="none",
    async_scheduling=True,
    engine_init_s=57.61,
    model_load_s=3.327088,
    compile_s=27.59,
    graph_capture_s=8.0,
    compile_cache="cold",
    weights_bytes=round(13.8 * 2**30),
    activation_bytes=round(0.93 * 2**30),
    non_torch_bytes=round(0.22 * 2**30),
    graph_bytes=round(0.98 * 2**30),
)


def test_all_facts_of_a_cuda_log() -> None:
    assert read_server_log(read("h200/default_auto.log")) == DEFAULT_AUTO


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("h200/default_fp8.log", {"kv_cache_dtype": "fp8", "kv_cache_tokens": 1_701_360, "max_concurrency": 830.74}),
        (
            "h200/nochunk_auto.log",
            {
                "chunked_prefill": False,
                "max_num_batched_tokens": 8192,
                "kv_cache_tokens": 851_408,
                "compile_cache": "warm",  # the same graph as default's, which had been launched before
                "compile_s": 6.8,
            },
        ),
        ("h200/pd_auto_P.log", {"kv_connector": "NixlConnector", "attention_backend": "FLASH_ATTN"}),
        ("h200/pd_auto_D.log", {"kv_connector": "NixlConnector", "kv_cache_tokens": 851_408, "compile_cache": "warm"}),
        (
            "h200/default_e5m2.log",  # died in its warm-up: what came before is known, what would have come is not
            {
                "kv_cache_dtype": "fp8_e5m2",
                "attention_backend": "FLASHINFER",
                "engine_init_s": None,
                "flash_attention": None,
                "compile_cache": "cold",
                "weights_bytes": round(13.8 * 2**30),
                "graph_bytes": None,
            },
        ),
        (
            "cpu/default_auto.log",  # 0.32: capacity and concurrency in one line, no attention backend
            {
                "engine_version": "0.32.0",
                "model_runner": "V1",
                "kv_cache_tokens": 46_592,
                "max_concurrency": 22.75,
                "kv_cache_bytes": 2**30,
                "enforce_eager": True,
                "attention_backend": None,
                "graph_capture_s": None,
                "compile_cache": None,  # an eager engine compiles nothing, so it is neither cold nor warm
                "weights_bytes": None,
            },
        ),
        ("cpu/default_fp8.log", {"kv_cache_dtype": "fp8", "kv_cache_tokens": 93_184, "max_concurrency": 45.5}),
        ("cpu/default_float16.log", {"model_dtype": "float16", "kv_cache_tokens": 46_592}),
        ("cpu/default_float16_fp8.log", {"model_dtype": "float16", "kv_cache_dtype": "fp8", "kv_cache_tokens": 93_184}),
        ("cpu/unchunked_auto.log", {"chunked_prefill": False, "max_num_batched_tokens": 2048}),
        ("cpu/pd_auto_D.log", {"kv_connector": "NixlConnector", "chunked_prefill": True}),
        ("cpu/pd_fp8_P.log", {"kv_connector": "NixlConnector", "kv_cache_dtype": "fp8"}),
    ],
)
def test_facts_of_recorded_logs(name: str, expected: dict[str, object]) -> None:
    facts = asdict(read_server_log(read(name)))
    assert {key: facts[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("Compiling a graph for compile range (1, 8192) takes 13.48 s", "cold"),
        ("Cache the graph for dynamic shape\nCache the graph of shape 1 for later use", "cold"),
        ("Directly load the compiled graph(s) for dynamic shape from the cache, took 1.2 s", "warm"),
        ("Directly load AOT compilation from path /c/model", "warm"),
        # One range from the cache, another one compiled: the launch waited for the compiler.
        (
            "Directly load the compiled graph(s) for compile range (1, 8) from\nCompiling a graph for compile range",
            "cold",
        ),
        ("Using cache directory: /c for vLLM's torch.compile", None),
    ],
)
def test_whether_the_compile_cache_was_warm(lines: str, expected: str | None) -> None:
    assert read_server_log(lines).compile_cache == expected


def test_memory_of_an_instance_is_that_of_all_its_ranks() -> None:
    log = (
        "non-default args: {'tensor_parallel_size': 2}\nInitializing a V1 LLM engine (v0.26.0) tensor_parallel_size=2\n"
    )
    log += "rank 0: Model loading took 7.0 GiB and 3 seconds\nrank 1: Model loading took 7.5 GiB and 3 seconds\n"
    assert read_server_log(log).weights_bytes == 15 * 2**30
    assert read_server_log("Model loading took 7.0 GiB and 3 seconds").weights_bytes is None  # of how many ranks?


def colour(text: str) -> str:
    text = re.sub(r"^(\(\w+ pid=\d+\))", "\x1b[0;36m\\1\x1b[0;0m", text, flags=re.MULTILINE)
    return re.sub(r"\b(INFO|WARNING|ERROR) ", "\x1b[32m\\1\x1b[0m ", text)


def prefix(mark: str, text: str) -> str:
    return "\n".join(mark + line for line in text.split("\n"))


@pytest.mark.parametrize("name", ["h200/default_fp8.log", "h200/pd_auto_D.log", "cpu/default_auto.log"])
@pytest.mark.parametrize(
    "dress",
    [
        colour,
        lambda text: prefix("worker-1  | ", text),
        lambda text: prefix("0: ", text),
        lambda text: prefix("worker-1  | ", colour(text)),
        lambda text: text.replace("\r\n", "\n").replace("\n", "\r\n"),
    ],
    ids=["colour", "container prefix", "rank prefix", "prefix and colour", "CRLF"],
)
@pytest.mark.fault(
    "launch",
    "a log in colour, with a container's prefixes, CRLF or progress bars",
    "the same facts as from the plain one",
)
def test_the_dress_of_a_log_changes_no_fact(name: str, dress: object) -> None:
    plain = read(name)
    dressed = dress(plain)  # type: ignore[operator]
    assert dressed != plain
    assert read_server_log(dressed) == read_server_log(plain)


def test_a_real_engine_in_colour() -> None:
    """The same server, launched once more with VLLM_LOGGING_COLOR=1: only its start-up times differ."""
    coloured = read("cpu/default_auto_colour.log")
    assert "\x1b[" in coloured
    facts, plain = asdict(read_server_log(coloured)), asdict(read_server_log(read("cpu/default_auto.log")))
    times = {"engine_init_s", "model_load_s"}
    assert {key for key in facts if facts[key] != plain[key]} <= times
    assert all(facts[key] > 0 for key in times)
    assert "\x1b" not in excerpt(coloured)
    assert failure_reason(coloured) is None


def test_a_fact_behind_a_redrawn_progress_bar_is_found() -> None:
    line = (
        "Capturing:   0%|  | 0/51\rCapturing: 100%|##| 51/51\r(EngineCore pid=1) INFO GPU KV cache size: 1,234 tokens\n"
    )
    assert read_server_log(line).kv_cache_tokens == 1234


@pytest.mark.parametrize(
    ("line", "backend"),
    [
        ("(W pid=1) INFO 10-10 10:10:10 [rocm.py:512] Using ROCM_AITER_FA backend.", "ROCM_AITER_FA"),
        ("INFO [rocm.py:850] Using TRITON_ATTN backend out of potential backends: ['TRITON_ATTN'].", "TRITON_ATTN"),
        ("INFO [xpu.py:239] Using Flash Attention backend.", "Flash Attention"),
        ("INFO [cuda.py:446] Using AttentionBackendEnum.TRITON_ATTN backend.", "TRITON_ATTN"),
        ("INFO [cuda.py:482] Using NEVER_HEARD_OF attention backend out of potential backends: []", "NEVER_HEARD_OF"),
        ("INFO [selector.py:138] Using HND KV cache layout for CPU_ATTN backend.", "CPU_ATTN"),
        ("INFO [rocm.py:894] Using Flash Attention backend for ViT model.", None),
        ("INFO [layer.py:12] Using TRITON Unquantized MoE backend out of potential backends: ['TRITON']", None),
        ("INFO nothing of the kind", None),
    ],
)
def test_attention_backends_are_kept_as_they_are_written(line: str, backend: str | None) -> None:
    assert read_server_log(line).attention_backend == backend


def test_rocm_names_its_own_fp8() -> None:
    text = read("h200/default_fp8.log").replace("kv_cache_dtype=fp8,", "kv_cache_dtype=fp8_e4m3fnuz,")
    assert read_server_log(text).kv_cache_dtype == "fp8_e4m3fnuz"


@pytest.mark.fault(
    "launch",
    "a log that says nothing of what was resolved",
    "null, and the checks that need it are unknown, not passed",
)
def test_a_log_that_says_nothing_gives_nothing() -> None:
    assert read_server_log("") == LogFacts()
    assert set(asdict(read_server_log("hello\nworld")).values()) == {None}


def test_ranks_share_the_blocks_of_the_smallest() -> None:
    config = "Initializing a V1 LLM engine (v0.26.0) with config: model='m', tensor_parallel_size=2, x=1\n"
    memory = "(Worker_TP0) Available KV cache memory: 10.00 GiB\n(Worker_TP1) Available KV cache memory: 8.50 GiB\n"
    assert read_server_log(config + memory).kv_cache_bytes == 17 * 2**30
    assert read_server_log(memory).kv_cache_bytes is None  # how many ranks there are is not known


# --- why a server failed


@pytest.mark.fault(
    "launch",
    "an error in a worker and a dozen that follow from it",
    "the root is the reason, with the end of the log that shows it",
)
def test_the_reason_is_the_root_and_not_its_consequence() -> None:
    text = read("h200/default_e5m2.log")
    reason = "ValueError: The dtype of q torch.float8_e4m3fn does not match the q_data_type torch.float8_e5m2"
    assert failure_reason(text) == f"{reason} specified in plan function."
    lines = excerpt(text, 12).split("\n")
    assert len(lines) <= 12
    assert any(line.startswith(reason) for line in lines)
    assert "RuntimeError: Engine core initialization failed" in lines[-1]
    assert not any("pid=" in line or "^^^" in line for line in lines)


@pytest.mark.parametrize("dress", [colour, lambda text: prefix("worker-1  | ", text), lambda text: prefix("0: ", text)])
def test_the_reason_is_found_in_any_dress(dress: object) -> None:
    dressed = dress(read("h200/default_e5m2.log"))  # type: ignore[operator]
    assert failure_reason(dressed) == failure_reason(read("h200/default_e5m2.log"))
    assert "\x1b" not in excerpt(dressed)


@pytest.mark.parametrize(
    "name", ["h200/default_auto.log", "h200/pd_auto_D.log", "cpu/default_auto.log", "cpu/pd_auto_P.log"]
)
def test_a_server_that_was_told_to_stop_has_no_reason(name: str) -> None:
    assert failure_reason(read(name)) is None  # its shutdown logs an EngineDeadError, its start an optional import


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "x\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.\n",
            "torch.OutOfMemoryError: CUDA out",
        ),
        ("usage: vllm serve\nvllm serve: error: unrecognized arguments: --foo\n", "vllm serve: error: unrecognized"),
        (
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
            "  Value error, max_model_len (99999) is too great [type=value_error, input_value=1]\n",
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig: "
            "Value error, max_model_len (99999) is too great",
        ),
        ('Traceback\n  File "a.py", line 1, in f\n    assert a > b\nAssertionError\n', "AssertionError: assert a > b"),
        ("ERROR:    [Errno 98] error while attempting to bind: address already in use\n", "ERROR:    [Errno 98]"),
        ("loading\nKilled\n", "Killed"),
        ("bash: line 1: vllm: command not found\n", "bash: line 1: vllm: command not found"),
    ],
)
def test_reasons_of_other_deaths(text: str, reason: str) -> None:
    found = failure_reason(text)
    assert found is not None
    assert found.startswith(reason)


def test_only_consequences_are_better_than_nothing() -> None:
    text = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}\n"
    assert failure_reason(text) == text.strip()


@pytest.mark.fault(
    "launch",
    "markup, escape codes and NUL in the last lines of a log",
    "shown literally, without what no page can show",
)
def test_an_excerpt_keeps_markup_and_drops_what_no_page_can_show() -> None:
    lines = ["see @fig1 #base cost $1", "C:\\new <frozen importlib>", "a_b*c", "odd ` quote", "] closing", "// gone"]
    lines += ["/* gone", "| pipe | cell |", "<img src=x>", "1. first"]
    text = "\n".join([*lines, "x" * 5000, "nul \x00 and \x1b[31mcolour\x1b[0m"])
    shown = excerpt(text, 12).split("\n")
    assert shown[:10] == lines
    assert shown[10] == "x" * MAX_LINE + "… (5,000 characters)"
    assert shown[11] == "nul  and colour"


def test_an_excerpt_shows_a_progress_bar_once_and_cuts_at_the_shutdown() -> None:
    text = "Loading 0%\rLoading 50%\rLoading 100%\nstill waiting\n[shutdown] API server: shutdown triggered\nbye\n"
    assert excerpt(text, 5) == "Loading 100%\nstill waiting"
    assert excerpt("", 5) == ""


def test_a_broken_pipe_is_never_the_cause() -> None:
    """As vLLM 0.32 logs it whose engine core the kernel killed while a worker loaded the model."""
    died = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
    pipe = "(Worker pid=7) ERROR 11-30 12:44:54 [multiproc_executor.py:953] BrokenPipeError: [Errno 32] Broken pipe"
    assert failure_reason(f"{died}\n{pipe}\n") == died
    assert failure_reason(f"ValueError: no kernel\n{died}\n{pipe}\n") == "ValueError: no kernel"
    assert failure_reason(f"{pipe}\n") == "BrokenPipeError: [Errno 32] Broken pipe"
