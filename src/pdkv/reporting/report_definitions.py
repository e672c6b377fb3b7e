"""What every number means, and how to make the report again."""

import re
import shlex

from pdkv.reporting.report_blocks import Definitions, Excerpt, Paragraph, Section
from pdkv.reporting.wording import Wording

DEFAULT_CONFIG = "config/config.yaml"  # what Snakemake reads if it is told nothing


def describe_definitions(config: str | None, say: Wording) -> list[Section]:
    """Both closing sections. ``config`` is the study's file, as a person names it from the project's folder."""
    definitions = tuple(_define(text) for text in say.section("define").values())
    return [
        Section(say("definitions.title"), (Paragraph(say("definitions.introduction")), Definitions(definitions))),
        Section(
            say("reproduce.title"),
            (Paragraph(say("reproduce.text")), Excerpt(command_for(config)), Paragraph(say("reproduce.where"))),
        ),
    ]


def _define(text: str) -> tuple[str, str]:
    term, meaning = re.split(": |：", text, maxsplit=1)
    return term, meaning


def command_for(config: str | None) -> str:
    """The command that makes the report of a study again."""
    named = f" --configfile {shlex.quote(config)}" if config and config != DEFAULT_CONFIG else ""
    return f"snakemake --cores 1 reports/summary.pdf{named}"
