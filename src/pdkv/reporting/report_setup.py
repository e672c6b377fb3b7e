"""What the cells ran on: model, engine, hardware and software, each fact once where all cells agree in it."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from pdkv.analysing.comparability import differing_variables
from pdkv.analysing.study_results import Cell, StudyResults
from pdkv.reporting.report_blocks import Table, Value, left, row
from pdkv.reporting.report_phrases import is_launched, known_or_dash, same_or_split
from pdkv.reporting.wording import Wording
from pdkv.units import DASH, format_bytes


def uses_random_weights(results: StudyResults) -> bool:
    """Whether any cell served a model without its trained weights."""
    return any(
        is_launched(cell) and (cell.config.get("model") or {}).get("load_format") == "dummy" for cell in results.cells
    )


def gpu_names(environment: dict[str, Any]) -> str:
    """``2 × NVIDIA H200 (141 GiB)`` for the GPUs of a trial, on all its nodes; empty without any."""
    return ", ".join(f"{count} × {kind}" for kind, count in gpu_counts(environment).items())


def gpu_counts(environment: dict[str, Any]) -> Counter[str]:
    """How many GPUs of each kind, ``NVIDIA H200 (141 GiB)``."""
    nodes = (environment, *(environment.get("nodes") or ()))
    gpus = [gpu for node in nodes for gpu in node.get("gpus") or ()]
    return Counter(f"{gpu.get('name') or 'GPU'} ({format_bytes(gpu.get('memory_bytes'))})" for gpu in gpus)


def model_name(cell: Cell, say: Wording) -> str:
    """The model as a reader knows it; empty where it is not recorded."""
    name = str((cell.config.get("model") or {}).get("name") or "")
    return say("model.bundled") if name == "bundled" else name


def setup_table(results: StudyResults, say: Wording) -> Table:
    """One line per fact; where cells differ in it, each value with its cells."""
    rows = []
    for key, read in _SETUP.items():
        values = [(cell, text) for cell in results.cells if (text := read(cell, say))]
        if key in _OF_LAUNCHED and any(is_launched(cell) for cell, _ in values):
            said = say("mode.as_user_runs")
            launched = {cell: text for cell, text in values if is_launched(cell)}
            values = [
                (cell, launched.get(cell, said)) for cell in results.cells if cell in launched or not is_launched(cell)
            ]
        elif key in _OF_LAUNCHED:
            values = []
        if key in _OF_EVERY_HOST and values:
            known, unknown = dict(values), say("setup.not_recorded")
            values = [
                (cell, known.get(cell, unknown)) for cell in results.cells if cell in known or _environment_of(cell)
            ]
        if values:
            rows.append(row(say(f"setup.{key}"), same_or_split(values, results, say)))
    rows += _differing_variables(results, say)
    return Table(
        say("conditions.setup_caption"), (left(say("setup.item")), left(say("setup.value"), wide=True)), tuple(rows)
    )


def _differing_variables(results: StudyResults, say: Wording) -> list[tuple[Value, ...]]:
    """A line for each variable that servers got from the shell and that was not the same for all cells."""
    environments = [(cell, _environment_of(cell)) for cell in results.cells]
    rows = []
    for name in differing_variables([environment for _, environment in environments]):
        values = [
            (cell, str(settings.get(name, say("setup.not_set"))))
            for cell, environment in environments
            if (settings := environment.get("inherited")) is not None and settings.get(name, "") is not None
        ]
        rows.append(row(say("setup.variable", name=name), same_or_split(values, results, say)))
    return rows


def _environment_of(cell: Cell) -> dict[str, Any]:
    return cell.content.get("environment") or {}


def _from_environment(key: str) -> Callable[[Cell, Wording], str]:
    def read(cell: Cell, say: Wording) -> str:
        value = _environment_of(cell).get(key)
        return "" if value is None else known_or_dash(value, say)

    return read


def _from_engine(key: str) -> Callable[[Cell, Wording], str]:
    return lambda cell, _: str((_environment_of(cell).get("engine") or {}).get(key) or "")


def _from_config(part: str, key: str) -> Callable[[Cell, Wording], str]:
    def read(cell: Cell, say: Wording) -> str:
        value = (cell.config.get(part) or {}).get(key)
        return "" if value in (None, {}, [], ()) else known_or_dash(value, say)

    return read


def _load_format(cell: Cell, say: Wording) -> str:
    found = str((cell.config.get("model") or {}).get("load_format") or "")
    return say(f"load_format.{found}") if say.has(f"load_format.{found}") else found


def _driver(cell: Cell, _: Wording) -> str:
    return next(
        (str(gpu["driver"]) for gpu in _environment_of(cell).get("gpus") or [] if gpu.get("driver")),
        "",
    )


def _nodes(cell: Cell, _: Wording) -> str:
    """How many, where it is more than one."""
    others = _environment_of(cell).get("nodes") or []
    return str(1 + len(others)) if others else ""


# What each trial records of where it ran: a cell without it must not seem to share what others have. A trial that came
# to no record of its environment at all, as one that failed before, is left out.
_OF_EVERY_HOST = ("host_cpu", "cores", "memory", "virtualized", "kernel", "python", "pdkv", "source")
# What the study asks of servers that it starts; a server that its user runs has its own.
_OF_LAUNCHED = ("load_format", "engine", "token_budget", "engine_args", "engine_env")

_SETUP: dict[str, Callable[[Cell, Wording], str]] = {
    "model": model_name,
    "load_format": _load_format,
    "engine": _from_config("engine", "kind"),
    "vllm": _from_engine("vllm"),
    "torch": _from_engine("torch"),
    "transformers": _from_engine("transformers"),
    "router": _from_engine("router"),
    "nixl": _from_engine("nixl"),
    "token_budget": _from_config("engine", "token_budget"),
    "engine_args": _from_config("engine", "args"),
    "engine_env": _from_config("engine", "env"),
    "nodes": _nodes,
    "gpus": lambda cell, _: gpu_names(_environment_of(cell)),
    "driver": _driver,
    "host_cpu": _from_environment("host_cpu"),
    "cores": _from_environment("cores"),
    "memory": lambda cell, _: format_bytes(_environment_of(cell).get("memory_bytes")).replace(DASH, ""),
    "virtualized": _from_environment("virtualized"),
    "kernel": _from_environment("kernel"),
    "python": _from_environment("python"),
    "pdkv": _from_environment("pdkv"),
    "source": _from_environment("source"),
    "seed": lambda cell, _: str(cell.config.get("seed", "")),
    "launches": lambda cell, _: str(len(cell.trials)),
}
