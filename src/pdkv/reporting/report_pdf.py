"""The report as PDF: the blocks go to the compiler as data, so that nothing in them can be markup."""

import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import typst

from pdkv.artifacts import atomic_path
from pdkv.errors import UserError
from pdkv.reporting.report_blocks import Block, Bullets, Definitions, Excerpt, Figure, Paragraph, Report, Table
from pdkv.reporting.report_model import ReportSettings, read_report, texts_of
from pdkv.reporting.typefaces import MONO_FONT, Typefaces, choose_typefaces
from pdkv.reporting.wording import Wording

LINE_BREAK = "\u200b"  # zero-width space: a line may end here
NO_BREAK = "\u2060"  # word joiner
LONGEST_WORD = 18
LONG_TEXT = 60
SMALLEST_SHARE, LARGEST_SHARE = 6, 12
_MARK_BEFORE_WORD = re.compile("[，；：、。](?=[^\\s，；：、。）”])")
_CHINESE = re.compile("[\u3000-\u9fff\uff00-\uffef]+")
_RUNS = re.compile(f"{_CHINESE.pattern}|[^\u3000-\u9fff\uff00-\uffef]+")
EXCERPT_WIDTH = 112  # characters of the monospace font on a line


def write_pdf(
    cell_files: Sequence[Path], comparisons: Path, settings: ReportSettings, output: Path, figures: Path
) -> None:
    """Write the report to ``output`` with the figures below the folder ``figures``."""
    report = read_report(cell_files, comparisons, settings)
    with atomic_path(output) as temporary:
        temporary.write_bytes(compile_report(report, figures)[0])


def compile_report(report: Report, figures: Path, *, pages_as_png: bool = False, ppi: float = 100) -> list[bytes]:
    """The PDF as one item, or each page as PNG. Raises :class:`UserError` where a figure or a glyph is missing."""
    with set_up(report, figures) as (source, faces):
        form: Literal["png", "pdf"] = "png" if pages_as_png else "pdf"
        pages = typst.compile(str(source), root=str(source.parent), font_paths=faces, format=form, ppi=ppi)
    return list(pages) if isinstance(pages, list) else [pages]


@contextmanager
def set_up(report: Report, figures: Path) -> Iterator[tuple[Path, typst.Fonts]]:
    """The template in a folder with all that the compiler may read (the report as data, the figures), and the fonts."""
    say = Wording(report.language)
    shown = [block.path for section in report.sections for block in section.blocks if isinstance(block, Figure)]
    for path in shown:
        if not (figures / path).is_file():
            raise UserError(f"{figures / path} is not there", remedy="run snakemake again: it draws what is missing")
    typefaces = choose_typefaces([*texts_of(report), *say.all_texts()])
    with typefaces.folder() as fonts, tempfile.TemporaryDirectory(prefix="pdkv-report-") as name:
        root = Path(name)
        source = root / "report.typ"
        source.write_bytes((files("pdkv.reporting") / "templates" / "report.typ").read_bytes())
        data = json.dumps(_as_data(report, typefaces, say), ensure_ascii=False)
        (root / "report.json").write_bytes(data.encode("utf-8"))
        for path in shown:
            target = root / "figures" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(figures / path, target)
        yield source, typst.Fonts(include_system_fonts=False, include_embedded_fonts=False, font_paths=[str(fonts)])


def _as_data(report: Report, typefaces: Typefaces, say: Wording) -> dict[str, Any]:
    sections: list[dict[str, Any]] = [
        {"title": section.title, "level": section.level, "blocks": [_block(block) for block in section.blocks]}
        for section in report.sections
    ]
    # Numbered here: Typst counts a figure that floats where it lands, and several on one page alike.
    drawn = [block for section in sections for block in section["blocks"] if block["kind"] == "figure"]
    for number, figure in enumerate(drawn, 1):
        figure["number"] = number
    return {
        **{key: value for key, value in vars(report).items() if key != "whole"},
        "said": [breakable_chinese(text) for text in report.said],
        "untold": [breakable_chinese(text) for text in report.untold],
        "sections": sections,
        "fonts": list(typefaces.families),
        "outlined": typefaces.one_weight,
        "mono": [MONO_FONT, *typefaces.families],
        "words": {key: say(f"pdf.{key}") for key in ("contents", "figure", "table")}
        # Numbers are known only where pages are set.
        | {"page": say.texts["pdf.page"], "label": say.texts["word.label"]}
        | {"said": say("summary.title"), "untold": say("untold.title")},
    }


def _block(block: Block) -> dict[str, Any]:
    told = {key: value for key, value in vars(block).items() if key not in ("foremost", "closing")}
    data: dict[str, Any] = {"kind": type(block).__name__.lower(), **told}
    if isinstance(block, Paragraph):
        data["text"] = breakable_chinese(block.text)
    if isinstance(block, Bullets):
        data["items"] = [breakable_chinese(item) for item in block.items]
    if isinstance(block, Definitions):
        data["items"] = [[term, breakable_chinese(meaning)] for term, meaning in block.items]
    if isinstance(block, Figure | Table):
        data["caption"] = breakable_chinese(block.caption)
    if isinstance(block, Excerpt):
        data["text"] = "\n".join(_wrap(line) for line in block.text.split("\n"))
    if isinstance(block, Table):
        data["notes"] = [breakable_chinese(note) for note in block.notes]
        data["rows"] = [[{**vars(value), "text": breakable(value.text)} for value in row] for row in block.rows]
        # "tok/s" stays on one line.
        data["columns"] = [
            {**vars(column), "title": column.title.replace("/", f"/{NO_BREAK}"), "share": _share(block, number)}
            for number, column in enumerate(block.columns)
        ]
        data["groups"] = _column_groups(block)
    return data


def _share(table: Table, number: int) -> int:
    """How much of the room that columns of numbers share this one needs, in characters.

    Of wide columns, which share what is left, one with long texts gets twice as much as one with short ones.
    """
    column = table.columns[number]
    if column.wide:
        texts = (text for row in table.rows for text in (row[number].text, *row[number].under.split("\n")))
        return 2 if max(map(_width, texts), default=0) > LONG_TEXT else 1
    values = max((_width(row[number].text) for row in table.rows), default=0)
    return max(SMALLEST_SHARE, *map(_width, column.title.split()), min(values, LARGEST_SHARE))


def _width(text: str) -> int:
    """In characters of a Latin font: a Chinese one is as wide as two."""
    return len(text) + sum(map(len, _CHINESE.findall(text)))


def _column_groups(table: Table) -> list[dict[str, Any]]:
    """Neighbouring columns of one group together: ``{title, span}``."""
    groups: list[dict[str, Any]] = []
    for column in table.columns:
        if groups and column.group and groups[-1]["title"] == column.group:
            groups[-1]["span"] += 1
        else:
            groups.append({"title": column.group, "span": 1})
    return groups


def breakable(text: str) -> str:
    """Long words of a table may be broken, at their own joints where they have some: a path must not leave the page."""
    words = breakable_chinese(text).split(" ")
    return " ".join(LINE_BREAK.join(map(_breakable_run, word.split(LINE_BREAK))) for word in words)


def breakable_chinese(text: str) -> str:
    """A line may end after a full-width mark, also before the sign of a number: else half of it would stay empty."""
    return _MARK_BEFORE_WORD.sub(rf"\g<0>{LINE_BREAK}", text)


def _breakable_run(word: str) -> str:
    """Chinese breaks anywhere by itself; what is between is a word."""
    return "".join(
        run if len(run) <= LONGEST_WORD or _CHINESE.match(run) else _breakable_word(run) for run in _RUNS.findall(word)
    )


def _breakable_word(word: str) -> str:
    parts, since = [], 0
    for char in word:
        parts.append(char)
        since += 1
        if char in "/_-.,=:;" or since >= LONGEST_WORD:
            parts.append(LINE_BREAK)
            since = 0
    return "".join(parts)


def _wrap(line: str) -> str:
    """A log line cut into pieces of the page's width; the blank in front says that it goes on."""
    pieces = [line[start : start + EXCERPT_WIDTH] for start in range(0, len(line), EXCERPT_WIDTH)]
    return "\n  ".join(pieces) if pieces else line
