"""Turn a GGUF file into a model folder that vLLM serves: ``python convert_bundled_model.py FILE.gguf FOLDER``.

Run by the engine's Python, which has torch and transformers, as the pipeline's does not. Imports nothing of pdkv.
"""

import sys
from pathlib import Path

import torch  # type: ignore[import-not-found]
from transformers import (  # type: ignore[import-not-found]
    AutoModelForCausalLM,
    AutoTokenizer,
    GgufConfig,
)


def convert(gguf: Path, folder: Path) -> None:
    """Write 16-bit weights, config and tokenizer of ``gguf`` into ``folder``, which is made."""
    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    model = AutoModelForCausalLM.from_pretrained(
        **source, quantization_config=GgufConfig(dequantize=True), dtype=torch.bfloat16
    )
    # The weights are plain numbers now: left in place, this entry would make vLLM look for a quantized model.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**source).save_pretrained(folder)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
