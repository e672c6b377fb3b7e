"""Which engine and which model a trial really uses on this machine: what ``auto`` and ``bundled`` stand for."""

import os
import shutil
import sys
from pathlib import Path

from pdkv.errors import UserError
from pdkv.installing import engine_env
from pdkv.installing.engine_env import EmbeddedKind
from pdkv.measuring.container_client import require_runnable
from pdkv.measuring.model_shape import UNKNOWN, ModelShape, read_model_shape
from pdkv.measuring.plan import ResolvedEngine
from pdkv.records import Engine, Model

# Known before the model is made, so that a first run can be estimated and planned too.
BUNDLED_SHAPE = ModelShape(
    parameters=134_515_008, layers=30, kv_heads=3, head_dim=64, vocab_size=49_152, max_positions=8192, heads=9
)
VLLM_MODULE = "vllm.entrypoints.cli.main"  # the `vllm` script of an environment, whatever its PATH


def choose_engine(engine: Engine, home: Path, device: EmbeddedKind | None = None) -> ResolvedEngine:
    """The engine behind ``auto``, ``cpu``, ``cuda``, a Python or a command prefix, whether or not it is there.

    ``home`` is the folder of the embedded engines, ``device`` what it computes on where the study does not name it;
    without, this machine decides.
    """
    device = engine.named_device or device or engine_env.detect_kind()
    router = (sys.executable, "-P", "-m", "vllm_router.launch_router")
    if engine.command:
        return ResolvedEngine("custom", device, engine.command, None, router)
    if engine.python:
        python = str(_absolute(engine.python))
        return ResolvedEngine("custom", device, (python, "-m", VLLM_MODULE), python, router)
    python = str(engine_env.engine_python(device, home))
    return ResolvedEngine(device, device, (python, "-m", VLLM_MODULE), python, router)


def require_engine(engine: Engine, home: Path) -> None:
    """Raise :class:`UserError` where the chosen engine is not there or is of a version that is not known."""
    chosen = choose_engine(engine, home)
    if engine.command:
        require_runnable(engine.command, on_gpus=chosen.device == "cuda")
        if shutil.which(engine.command[0]) is None:
            if os.sep in engine.command[0] and os.path.exists(engine.command[0]):  # noqa: PTH110 - raises as is_dir does
                raise UserError(
                    f"engine.command: {engine.command[0]} can't be run: it is no executable file",
                    remedy="make it one (chmod +x), or mend engine.command",
                )
            raise UserError(
                f"engine.command: there is no program {engine.command[0]}", remedy="install it, or mend engine.command"
            )
    elif chosen.python and engine.python:
        if not os.access(chosen.python, os.X_OK):
            raise UserError(f"engine.python: {chosen.python} can't be run", remedy="name the Python that has vLLM")
        version = engine_env.engine_version([chosen.python])
        if version is None:
            raise UserError(f"engine.python: {chosen.python} has no vLLM", remedy="name the Python that has vLLM")
        engine_env.check_supported(version)
    else:
        engine_env.require_engine("cuda" if chosen.kind == "cuda" else "cpu", home)


def resolve_model(model: Model, home: Path) -> tuple[str, ModelShape]:
    """The model as vLLM is told it, and its shape (unknown for a hub id).

    Raises :class:`UserError` for a folder that is not a model.
    """
    if model.name == "bundled":
        return str(home / "models" / "bundled"), BUNDLED_SHAPE
    looks_like_path = model.name.startswith((".", "/", "~")) or model.name.count("/") > 1
    folder = _absolute(model.name)
    if not os.path.isdir(folder):  # noqa: PTH112 - Path.is_dir raises for a name too long for a file
        if looks_like_path:
            raise UserError(f"model: there is no folder {folder}", remedy="name a model folder, a hub id, or bundled")
        return model.name, UNKNOWN
    if not (folder / "config.json").is_file():
        raise UserError(
            f"model: {folder} holds no config.json", remedy="name the folder that holds the model's config.json"
        )
    return str(folder), read_model_shape(folder)


def _absolute(path: str) -> Path:
    # absolute, but not resolved: a virtual environment's Python is a link, and following it leaves the environment
    try:
        return Path(path).expanduser().absolute()
    except RuntimeError:
        raise UserError(f"{path}: there is no such user", remedy="write the path out") from None
