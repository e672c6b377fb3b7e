"""One report model from stored results: the writers of Markdown and PDF only render it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pdkv.analysing.claim_file import read_claims
from pdkv.analysing.claims import judge_claims
from pdkv.analysing.objective_places import Outcome, read_outcomes
from pdkv.analysing.study_results import StudyResults, read_study_results
from pdkv.analysing.token_cost import Prices
from pdkv.analysing.verdicts import MARGIN
from pdkv.errors import UserError
from pdkv.reporting.report_activity import describe_activity
from pdkv.reporting.report_blocks import Bullets, Definitions, Figure, Paragraph, Report, Section, Table
from pdkv.reporting.report_bounds import bound_report
from pdkv.reporting.report_claims import describe_claims, say_how_claims_came_out
from pdkv.reporting.report_conditions import describe_conditions
from pdkv.reporting.report_definitions import describe_definitions
from pdkv.reporting.report_effects import describe_disaggregation, describe_precision
from pdkv.reporting.report_energy import describe_energy
from pdkv.reporting.report_failures import describe_failures
from pdkv.reporting.report_identical import describe_identical_cells
from pdkv.reporting.report_limits import say_what_is_untold
from pdkv.reporting.report_memory import describe_memory
from pdkv.reporting.report_metrics import describe_metrics
from pdkv.reporting.report_phrases import all_are_suspect
from pdkv.reporting.report_recommendations import describe_conclusion
from pdkv.reporting.report_servers import describe_servers
from pdkv.reporting.report_service import describe_service_levels
from pdkv.reporting.report_stages import describe_stages
from pdkv.reporting.report_summary import say_what_is_known
from pdkv.reporting.report_title import subtitle
from pdkv.reporting.report_traces import describe_traces
from pdkv.reporting.report_ttft_parts import describe_ttft_parts
from pdkv.reporting.wording import Wording


@dataclass(frozen=True)
class ReportSettings:
    """The study's ``report`` section: title, language, and the (mode, dtype) that the others are compared with.

    Without a ``title`` the report has one in its language. ``config`` is the file that the study comes from, as a
    person names it from the project's folder, ``overrides`` the keys that the command line replaced, ``claims`` the
    file of the claims to test, ``objectives`` the objectives.csv that recommendations are made from, ``margin`` the
    share within which an effect is called equivalent, ``tables`` the folder of whole tables as seen from the report.
    """

    title: str | None
    language: str
    baseline: tuple[str, str]
    config: str | None = None
    claims: Path | None = None
    margin: float = MARGIN
    objectives: Path | None = None
    prices: Prices | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    tables: str = "tables"

    @classmethod
    def from_json(cls, text: str) -> "ReportSettings":
        """Read ``{title, language, baseline: {mode, dtype}, config, overrides, claims, margin, cost}``.

        Title, language and baseline must be there.
        """
        try:
            raw = json.loads(text)
            return cls(
                None if raw["title"] is None else str(raw["title"]),
                str(raw["language"]),
                (str(raw["baseline"]["mode"]), str(raw["baseline"]["dtype"])),
                None if raw.get("config") is None else str(raw["config"]),
                None if raw.get("claims") is None else Path(raw["claims"]),
                float(raw.get("margin", MARGIN)),
                prices=Prices.from_json(raw.get("cost")),
                overrides=dict(raw.get("overrides") or {}),
            )
        except (ValueError, KeyError, TypeError) as error:
            form = '{"title": …, "language": "en", "baseline": {"mode": …, "dtype": …}, "config": …}'
            raise UserError(f"the report's settings cannot be read: {error!r}", remedy=f"give JSON: {form}") from None


def read_report(cell_files: Sequence[Path], comparisons: Path, settings: ReportSettings) -> Report:
    """The report of the named cell.json files, in the study's order."""
    outcomes = read_outcomes(settings.objectives) if settings.objectives else []
    return build_report(read_study_results(cell_files, comparisons), settings, outcomes)


def build_report(results: StudyResults, settings: ReportSettings, outcomes: Sequence[Outcome] = ()) -> Report:
    """The report, section by section, as far as it is shown; without ``outcomes`` it recommends nothing."""
    say = Wording(settings.language)
    if all_are_suspect(results):
        say = say.without_marks("summary.suspect", "crossovers.suspect")
    baseline, margin = settings.baseline, settings.margin
    claims = read_claims(settings.claims) if settings.claims else {}
    findings = judge_claims(results, claims, margin)
    sections = [
        *describe_conditions(results, say),
        *describe_metrics(results, baseline, margin, say),
        *describe_identical_cells(results, say),
        *describe_disaggregation(results, baseline, margin, say),
        *describe_precision(results, baseline, margin, say),
        *describe_ttft_parts(results, say),
        *describe_service_levels(results, say),
        *(describe_conclusion(results, outcomes, margin, say) if settings.objectives else []),
        *(describe_claims(results, claims, findings, say) if settings.claims else []),
        *describe_servers(results, say),
        *describe_stages(results, say),
        *describe_traces(results, say),
        *describe_activity(results, say),
        *describe_energy(results, settings.prices, say),
        *describe_memory(results, say),
        *describe_failures(results, say),
        *describe_definitions(settings.config, settings.overrides, say),
    ]
    report = Report(
        title=settings.title or say("summary.study_title"),
        subtitle=subtitle(results, say),
        said=(
            *say_what_is_known(results, outcomes, baseline, margin, say),
            *([say_how_claims_came_out(results, findings, say)] if claims else []),
        ),
        untold=say_what_is_untold(results, say),
        sections=tuple(sections),
        language=settings.language,
    )
    return bound_report(report, settings.tables, say)


def texts_of(report: Report) -> Iterator[str]:
    """Every text that is set in the text font: all but excerpts, which are escaped where they are made."""
    yield from (report.title, report.subtitle, *report.said, *report.untold)
    for section in report.sections:
        yield section.title
        yield from _texts_of_section(section)


def _texts_of_section(section: Section) -> Iterator[str]:
    for block in section.blocks:
        match block:
            case Paragraph(text) | Figure(_, text):
                yield text
            case Bullets():
                yield from block.items
            case Definitions(pairs):
                yield from (text for pair in pairs for text in pair)
            case Table():
                yield from (block.caption, *block.notes)
                yield from (text for column in block.columns for text in (column.title, column.group))
                yield from (
                    text for line in block.rows for value in line for text in (value.text, value.under, value.mark)
                )
