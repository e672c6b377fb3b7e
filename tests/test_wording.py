"""Both languages say the same things: the same keys, and in each text the same placeholders."""

import re
import string
from pathlib import Path

import pytest

import pdkv.reporting
from pdkv.reporting.wording import Wording

TEMPLATES = Path(pdkv.reporting.__file__).parent / "templates"
LANGUAGES = sorted(path.name.split(".")[1] for path in TEMPLATES.glob("wording.*.toml"))
# What reads the same in Chinese: symbols, abbreviations of the field, names of products.
SAME_IN_BOTH = {
    "unit.ms", "unit.tok_s", "unit.tok_per_s_per_GPU", "unit.tokens_per_GPU", "unit.J_per_tok", "stat.n",
    "throughput.n", "load.closed_short", "setup.vllm", "setup.torch",
    "setup.transformers", "setup.nixl", "setup.pdkv", "servers.engine_version", "servers.model_runner",
    "mode.tensor_parallel", "summary.engine", "stat.p90", "stat.p99",
    *(f"metric.{metric}.{form}" for metric in ("ttft", "tpot", "itl", "e2el") for form in ("short", "name")),
}  # fmt: skip
# A half-width mark beside a Chinese character: a slip of the keyboard.
HALF_WIDTH = re.compile(r"[\u4e00-\u9fff][,;:!?()]|[,;:!?()][\u4e00-\u9fff]|\.$")


def texts(language: str) -> dict[str, str]:
    return dict(Wording(language).texts)


def placeholders(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}


def test_both_languages_are_there() -> None:
    assert LANGUAGES == ["en", "zh"]


def test_every_language_has_the_same_keys_in_the_same_order() -> None:
    assert list(texts("zh")) == list(texts("en"))


@pytest.mark.parametrize("key", texts("en"))
def test_every_text_has_the_same_placeholders(key: str) -> None:
    assert placeholders(texts("zh")[key]) == placeholders(texts("en")[key])


@pytest.mark.parametrize("key", sorted(set(texts("zh")) - SAME_IN_BOTH))
def test_every_chinese_text_is_chinese(key: str) -> None:
    text = texts("zh")[key]
    words = re.sub(r"\{.*?\}", "", text)
    assert not re.search("[A-Za-z]", words) or re.search(r"[\u3000-\u30ff\u4e00-\u9fff\uff00-\uffef]", text), text
    assert not HALF_WIDTH.search(text), text


def test_what_reads_the_same_is_still_a_key() -> None:
    assert not SAME_IN_BOTH - set(texts("en"))
