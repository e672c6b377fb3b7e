"""What every number means, and how to make the report again."""

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

from pdkv.reporting.report_blocks import Definitions, Excerpt, Paragraph, Section
from pdkv.reporting.wording import Wording

DEFAULT_CONFIG = "config/config.yaml"  # what Snakemake reads if it is told nothing

_PLAIN = re.compile(r"[A-Za-z./~][\w./+-]*")
_NOT_TEXT = {"true", "false", "inf", "infinity", "nan"}  # what Snakemake takes for a number or a truth value


def describe_definitions(config: str | None, overrides: Mapping[str, Any], say: Wording) -> list[Section]:
    """Both closing sections. ``config`` is the study's file, as a person names it from the project's folder.

    ``overrides`` are the keys that were replaced on the command line.
    """
    definitions = tuple(_define(text) for text in say.section("define").values())
    command = Excerpt(command_for(config, overrides))
    return [
        Section(say("definitions.title"), (Paragraph(say("definitions.introduction")), Definitions(definitions))),
        Section(say("reproduce.title"), (Paragraph(say("reproduce.text")), command, Paragraph(say("reproduce.where")))),
    ]


def _define(text: str) -> tuple[str, str]:
    term, meaning = re.split(": |：", text, maxsplit=1)
    return term, meaning


def command_for(config: str | None, overrides: Mapping[str, Any]) -> str:
    """The command that makes the report of a study again."""
    named = f" --configfile {shlex.quote(config)}" if config and config != DEFAULT_CONFIG else ""
    replaced = [shlex.quote(f"{key}={_as_override(value)}") for key, value in overrides.items()]
    return f"snakemake --cores 1 reports/summary.pdf{named}{' --config ' if replaced else ''}{' '.join(replaced)}"


def _as_override(value: Any) -> str:
    """A value so that ``--config`` reads the same again: plain where that is safe, else JSON, which is YAML too."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _NOT_TEXT:
        return value
    return json.dumps(value, ensure_ascii=False)
