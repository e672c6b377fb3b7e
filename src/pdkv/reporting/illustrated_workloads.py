"""Of which workloads of a study the report draws figures, and what it says of the others."""

from collections.abc import Sequence

from pdkv.analysing.study_results import StudyResults
from pdkv.reporting.figure_names import figure_count, illustrated
from pdkv.reporting.report_blocks import Paragraph
from pdkv.reporting.wording import Wording


def illustrated_workloads(results: StudyResults) -> list[str]:
    """The first of the study, as many as a report has room for; rules name the figures of the same ones."""
    return illustrated({workload: _count_figures(results, workload) for workload in results.workloads})


def say_what_is_not_drawn(results: StudyResults, drawn: Sequence[str], say: Wording) -> list[Paragraph]:
    """How many workloads have no figures, and how to get them; nothing where all have theirs."""
    missing = len(results.workloads) - len(drawn)
    if not missing:
        return []
    return [Paragraph(say("figures.left_out", drawn=len(drawn), all=len(results.workloads), missing=missing))]


def _count_figures(results: StudyResults, workload: str) -> int:
    modes = {cell.mode for cell in results.cells_of(workload)}
    return figure_count(len(results.points_of(workload)), len(modes))
