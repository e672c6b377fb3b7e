"""The report as GitHub-flavoured Markdown. Data is escaped: what was a character stays one."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

from pdkv.artifacts import write_text
from pdkv.reporting.report_blocks import (
    Block,
    Bullets,
    Column,
    Definitions,
    Excerpt,
    Figure,
    Paragraph,
    Report,
    Table,
    Value,
)
from pdkv.reporting.report_bounds import WHOLE_FILES
from pdkv.reporting.report_model import ReportSettings, read_report
from pdkv.reporting.wording import Wording

_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
# An underscore or tilde within a word is no markup in GitHub's Markdown, and names read better without backslashes.
# A bracket is one only where a link, a footnote or a task's box could begin: intervals read better without.
_MARKUP = re.compile(r"[\\`*|$]|^\[|\[(?=\^)|\](?=[(\[:])|(?<!\w)_|_(?!\w)|~")
# What begins a list, a heading or an underline of one.
_LINE_START = re.compile(r"^([-+](?=\s|$)|#|=|--|\d+(?=[.)](?:\s|$)))")


def write_markdown(
    cell_files: Sequence[Path], comparisons: Path, settings: ReportSettings, output: Path, figures: str = "figures"
) -> None:
    """Write the report to ``output``, and beside it whole what it shows in part; ``figures`` is seen from it."""
    report = read_report(cell_files, comparisons, settings)
    write_whole_files(report, output.parent / settings.tables)
    write_text(output, render_markdown(report, figures))


def write_whole_files(report: Report, folder: Path) -> None:
    """Write what is shown in part only; a folder without a file where the report shows everything."""
    folder.mkdir(parents=True, exist_ok=True)
    for pattern in WHOLE_FILES:
        for old in folder.glob(pattern):
            old.unlink()
    for file in report.whole:
        write_text(folder / file.name, file.text)


def render_markdown(report: Report, figures: str = "figures") -> str:
    """The whole text."""
    say = Wording(report.language)
    lines = [f"# {escape(report.title)}", "", escape(report.subtitle), ""]
    lines += [f"**{say('summary.title')}**", "", *_bullets(report.said), ""]
    lines += [f"**{say('untold.title')}**", "", *_bullets(report.untold), ""]
    numbers = _Numbers(say, figures)
    for section in report.sections:
        lines += [f"{'#' * (section.level + 1)} {escape(section.title)}", ""]
        for block in section.blocks:
            lines += [*numbers.render(block), ""]
    return "\n".join(lines).rstrip() + "\n"


def escape(text: str) -> str:
    """``text`` so that Markdown shows just these characters; line ends become blanks."""
    flat = " ".join(text.split())
    escaped = _MARKUP.sub(lambda match: "\\" + match.group(), flat.translate(_ENTITIES))
    return _LINE_START.sub(_escape_start, escaped)


def _escape_start(match: re.Match[str]) -> str:
    mark = match.group()
    return f"{mark}\\" if mark.isdigit() else f"\\{mark}"


class _Numbers:
    """Renders blocks and counts tables and figures on the way, as the PDF does."""

    def __init__(self, say: Wording, figures: str) -> None:
        self.say, self.figures = say, figures
        self.tables = self.figure_count = 0

    def render(self, block: Block) -> Iterator[str]:
        """The lines of one block."""
        match block:
            case Paragraph(text):
                yield escape(text)
            case Bullets():
                yield from _bullets(block.items)
            case Definitions(items):
                for term, meaning in items:
                    yield f"- {self.say('word.colon', name=f'**{escape(term)}**', value=escape(meaning))}"
            case Excerpt(text):
                yield from _fenced(text)
            case Figure():
                yield from self._figure(block)
            case Table():
                yield from self._table(block)

    def _heading(self, column: Column) -> str:
        return self.say("word.grouped", group=column.group, title=column.title) if column.group else column.title

    def _label(self, kind: str, number: int) -> str:
        return self.say("word.label", kind=self.say(f"word.{kind}"), number=number)

    def _figure(self, figure: Figure) -> Iterator[str]:
        self.figure_count += 1
        label = f"{self.say('word.figure')} {self.figure_count}"
        yield f"![{label}]({self.figures}/{quote(figure.path)})"
        yield ""
        yield f"*{self._label('figure', self.figure_count)}* {escape(figure.caption)}"

    def _table(self, table: Table) -> Iterator[str]:
        self.tables += 1
        yield f"*{self._label('table', self.tables)}* {escape(table.caption)}"
        yield ""
        yield _row(escape(self._heading(column)) for column in table.columns)
        yield _row("---" if column.align == "left" else "---:" for column in table.columns)
        yield from (_row(_value(value, self.say) for value in row) for row in table.rows)
        for note in table.notes:
            yield ""
            yield escape(note)


def _row(cells: Iterator[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _value(value: Value, say: Wording) -> str:
    text = escape(value.text)
    shown = f"**{text}**" if value.best else text
    mark = escape(value.mark) if value.mark else ""
    if not value.under:
        return shown + mark
    return say("word.only_in", value=shown + mark, cells=escape(say("list.phrase").join(value.under.split("\n"))))


def _bullets(items: Sequence[str]) -> Iterator[str]:
    return (f"- {escape(item)}" for item in items)


def _fenced(text: str) -> Iterator[str]:
    """A code block whose fence is longer than any run of backquotes in it."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    yield f"{fence}text"
    yield from text.split("\n")
    yield fence
