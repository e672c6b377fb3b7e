"""The engine of a study from its section."""

import shlex

from pdkv.records import Engine
from pdkv.study.config_messages import fault
from pdkv.study.config_schema import EngineSection
from pdkv.study.engine_args import check_args, normalize_args
from pdkv.study.yaml_source import YamlSource


def resolve_engine(section: EngineSection, source: YamlSource) -> Engine:
    """Raises :class:`UserError` where the section names more than one engine, or none."""
    named = [key for key in ("python", "command") if getattr(section, key)]
    if len(named) == 2 or (named and section.kind not in ("auto", "custom")):
        raise fault(
            source,
            ("engine",),
            "names more than one engine",
            "one of kind: auto, kind: cpu, kind: cuda, python, command",
        )
    if section.kind == "custom" and not named:
        raise fault(source, ("engine",), "kind custom without an engine", "python: PATH, or command: PREFIX")
    if section.device != "auto" and not named:
        raise fault(source, ("engine", "device"), "says what python or command computes on", "kind: cpu, or kind: cuda")
    command = _words(section.command[0], source) if len(section.command) == 1 else section.command
    check_args(section.args, ("engine", "args"), source)
    return Engine(
        kind="custom" if named else section.kind,
        python=section.python,
        command=tuple(command),
        args=normalize_args(section.args),
        env=section.env,
        token_budget=section.token_budget or 0,
        kv_cache_gib=section.kv_cache_gib,
        gpu_memory_utilization=section.gpu_memory_utilization,
        device=section.device,
    )


def _words(command: str, source: YamlSource) -> list[str]:
    """A command written as one text, as a shell would split it."""
    try:
        return shlex.split(command)
    except ValueError as error:
        raise fault(source, ("engine", "command"), f"found {command}: {error}", "a list of words") from None
