"""Service levels and load: goodput, the highest load that meets them, knees and crossovers."""

from pdkv.analysing.study_results import StudyResults
from pdkv.reporting.report_blocks import Section
from pdkv.reporting.wording import Wording


def describe_service_levels(results: StudyResults, say: Wording) -> list[Section]:
    """The section; nothing for a study of a single load level without service levels."""
    return []
