"""What every number means, and how to make the report again."""

from pdkv.report_blocks import Definitions, Excerpt, Paragraph, Section
from pdkv.study_results import StudyResults
from pdkv.wording import Wording


def describe_definitions(results: StudyResults, say: Wording) -> list[Section]:
    """Both closing sections."""
    terms = tuple(tuple(text.split(": ", 1)) for text in say.section("define").values())
    definitions = tuple((term, meaning) for term, meaning in terms)
    return [
        Section(say("definitions.title"), (Paragraph(say("definitions.introduction")), Definitions(definitions))),
        Section(
            say("reproduce.title"),
            (Paragraph(say("reproduce.text")), Excerpt(say("reproduce.commands")), Paragraph(say("reproduce.where"))),
        ),
    ]
