"""The sizes of a model that decide memory, read from its ``config.json``; unknown stays None."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BYTES = {"float16": 2.0, "bfloat16": 2.0, "auto": 2.0, "fp8": 1.0, "fp8_e4m3": 1.0, "fp8_e5m2": 1.0, "float32": 4.0}


@dataclass(frozen=True)
class ModelShape:
    """Parameters, layers and heads; each None where ``config.json`` does not say."""

    parameters: int | None
    layers: int | None
    kv_heads: int | None
    head_dim: int | None
    vocab_size: int | None
    max_positions: int | None
    heads: int | None = None

    def weights_bytes(self, model_dtype: str) -> int | None:
        """Memory of one copy of the weights."""
        return None if self.parameters is None else round(self.parameters * BYTES.get(model_dtype, 2.0))

    def kv_bytes_per_token(self, kv_cache_dtype: str) -> int | None:
        """Keys and values of all layers for one token."""
        if self.layers is None or self.kv_heads is None or self.head_dim is None:
            return None
        return round(2 * self.layers * self.kv_heads * self.head_dim * BYTES.get(kv_cache_dtype, 2.0))

    def kv_bytes_per_token_of_rank(self, kv_cache_dtype: str, ranks: int) -> int | None:
        """What each of ``ranks`` keeps of it: heads are dealt out, and repeated where there are more ranks."""
        whole = self.kv_bytes_per_token(kv_cache_dtype)
        return whole * math.ceil(self.kv_heads / ranks) // self.kv_heads if whole and self.kv_heads else whole

    def can_be_split(self, ranks: int) -> bool:
        """Whether vLLM can give each of ``ranks`` as many heads, as far as is known; KV heads may be repeated."""
        heads, kv_heads = self.heads or ranks, self.kv_heads or ranks
        return heads % ranks == 0 and (kv_heads % ranks == 0 or ranks % kv_heads == 0)


_SIZES = {
    *("num_attention_heads", "hidden_size", "num_hidden_layers", "num_key_value_heads", "head_dim", "vocab_size"),
    *("max_position_embeddings", "intermediate_size"),
}
UNKNOWN = ModelShape(None, None, None, None, None, None)


def read_model_shape(folder: Path) -> ModelShape:
    """Read a model folder; a hub id or a folder without ``config.json`` gives :data:`UNKNOWN`."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return UNKNOWN
    if not isinstance(config, dict):
        return UNKNOWN
    language_model = config.get("text_config")  # multimodal models keep it one level down
    if isinstance(language_model, dict):
        config = language_model
    # What is no size is not known.
    config = {key: None if key in _SIZES and not _is_size(value) else value for key, value in config.items()}
    heads, hidden = config.get("num_attention_heads"), config.get("hidden_size")
    return ModelShape(
        parameters=_count_parameters(config),
        layers=config.get("num_hidden_layers"),
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or (hidden // heads if hidden and heads else None),
        vocab_size=config.get("vocab_size"),
        max_positions=config.get("max_position_embeddings"),
        heads=heads,
    )


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**40


def _count_parameters(config: dict[str, Any]) -> int | None:
    """A dense decoder's parameters from its shape; None where this formula does not hold (mixtures of experts)."""
    keys = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
    if any(not isinstance(config.get(key), int) for key in keys) or any("expert" in key for key in config):
        return None
    hidden, layers, heads, inner, vocabulary = (int(config[key]) for key in keys)
    head_dim = config.get("head_dim") or hidden // heads
    kv_heads = config.get("num_key_value_heads") or heads
    attention = hidden * head_dim * (2 * heads + 2 * kv_heads)
    embeddings = vocabulary * hidden * (1 if config.get("tie_word_embeddings") else 2)
    return int(layers * (attention + 3 * hidden * inner + 2 * hidden) + embeddings + hidden)
