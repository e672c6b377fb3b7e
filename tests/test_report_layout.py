"""The pages as a reader turns them: no header without its rows, no torn table, no lonely heading, no white half."""

import io
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
import typst
from sample_results import Sample, write_sample

from pdkv.reporting.figures import draw_figures
from pdkv.reporting.report_blocks import Paragraph, Report, Section, Table, Value, left, row
from pdkv.reporting.report_model import ReportSettings, read_report
from pdkv.reporting.report_pdf import compile_report, set_up

SETTINGS = ReportSettings("A study", "en", ("default", "fp16"))
GOOD = frozenset[tuple[str, str]]()
# Included by its name, the report is laid out as it is; each cell of a table leaves a note of where it came to stand.
PROBE = r"""
#show table.cell: it => [#context [#metadata((
  table: counter(figure.where(kind: table)).get().first(), row: it.y, page: here().page(),
))<cell>]#it]
#let plain(it) = if it.has("text") { it.text } else if it.has("children") { it.children.map(plain).join() } else if (
  it.has("body")
) { plain(it.body) } else if it.has("child") { plain(it.child) } else { " " }
#show table.cell: it => [#it#layout(size => if it.colspan == 1 {
  let weight = if it.y == 0 { "bold" } else { "regular" }
  let words = plain(it.body).split(regex("[ \u{200b}]"))
  let needs = calc.max(..words.map(word => measure(text(weight: weight, word)).width), 0pt)
  [#metadata((word: plain(it.body), needs: needs / 1pt, has: size.width / 1pt))<words>]
})]
#include "report.typ"
#context [#metadata(query(heading).map(it => (level: it.level, y: it.location().position().y / 1cm)))<headings>]
"""


@pytest.fixture(
    scope="module",
    params=[
        Sample(concurrencies=(1, 2)),
        Sample(concurrencies=(2, 64), launches=3, gpu=True, failed=GOOD, suspect=GOOD),
        Sample(modes=("default", "1p1d"), dtypes=("bf16",), requests=4, failed=GOOD, suspect=GOOD),
        Sample(modes=("default-of-a-cluster", "chunked", "1p1d"), dtypes=("fp16", "fp8_e4m3", "fp8_e5m2"), failed=GOOD),
    ],
    ids=["six cells", "three launches", "two cells", "long names"],
)  # fmt: skip
def study(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, Path]:
    root = tmp_path_factory.mktemp("study")
    cells = write_sample(root / "results", request.param)
    draw_figures(cells, root / "results/comparisons.csv", root / "figures")
    settings = ReportSettings("A study", "en", (request.param.modes[0], request.param.dtypes[0]))
    return read_report(cells, root / "results/comparisons.csv", settings), root / "figures"


def probe(report: Report, figures: Path, label: str) -> Any:
    with set_up(report, figures) as (source, faces):
        path = source.parent / "probe.typ"
        path.write_text(PROBE, encoding="utf-8")
        found = typst.query(str(path), f"<{label}>", field="value", root=str(source.parent), font_paths=faces)
    return json.loads(found)


def pages_of_rows(report: Report, figures: Path) -> dict[int, dict[int, set[int]]]:
    """{table: {page: rows on it}}; rows count the header's."""
    rows: dict[int, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    for cell in probe(report, figures, "cell"):
        rows[cell["table"]][cell["page"]].add(cell["row"])
    return rows


def tables_of(report: Report) -> Iterator[Table]:
    return (block for section in report.sections for block in section.blocks if isinstance(block, Table))


def header_rows(table: Table) -> int:
    return 2 if any(column.group for column in table.columns) else 1


def check_headers(report: Report, figures: Path) -> dict[int, dict[int, set[int]]]:
    where = pages_of_rows(report, figures)
    for number, table in enumerate(tables_of(report), 1):
        shown = set().union(*where[number].values())
        assert shown == set(range(header_rows(table) + len(table.rows))), table.caption
        for page, rows in where[number].items():
            assert max(rows) >= header_rows(table), f"page {page} has only the header of {table.caption}"
    return where


def test_no_header_stands_without_rows_and_small_tables_stay_whole(study: tuple[Report, Path]) -> None:
    where = check_headers(*study)
    for number, table in enumerate(tables_of(study[0]), 1):
        if len(table.rows) < 12:
            assert len(where[number]) == 1, table.caption


@pytest.mark.parametrize("lines", range(10, 30, 3))
def test_no_header_stands_without_rows_wherever_the_page_ends(tmp_path: Path, lines: int) -> None:
    small = Table("small", (left("a"), left("b")), tuple(row(str(i), "x") for i in range(8)))
    large = Table("large", (left("a"), left("b")), tuple(row(str(i), "x") for i in range(60)))
    blocks = (*(Paragraph(f"line {i}") for i in range(lines)), small, large)
    where = check_headers(Report("t", "s", ("said",), (), (Section("x", blocks),), "en"), tmp_path)
    assert len(where[1]) == 1
    assert len(where[2]) > 1


def test_a_table_of_long_texts_is_not_cut_off(tmp_path: Path) -> None:
    tall = Table("tall", (left("a"), left("b", wide=True)), tuple(row(str(i), "word " * 400) for i in range(9)))
    where = check_headers(Report("t", "s", ("said",), (), (Section("x", (tall,)),), "en"), tmp_path)
    assert len(where[1]) > 1


def test_no_heading_stands_alone_at_the_foot(study: tuple[Report, Path]) -> None:
    (headings,) = probe(*study, "headings")
    assert len(headings) >= len(study[0].sections)  # in a long report the contents have one too
    assert max(heading["y"] for heading in headings) < 26.5  # of 27.6 cm: a line of what it heads fits below


def test_no_word_runs_into_the_next_column(study: tuple[Report, Path]) -> None:
    words = probe(*study, "words")
    assert len(words) > 200
    assert [word for word in words if word["needs"] > word["has"] + 0.1] == []


def white_foot(page: bytes) -> float:
    """The share of a page's height between the last thing on it and its footer line."""
    pixels = matplotlib.image.imread(io.BytesIO(page))[..., :3]
    body = pixels[: int(len(pixels) * 0.93)]
    inked = np.flatnonzero((body < 0.9).any(axis=(1, 2)))
    return 1 - (inked.max() + 1) / len(body)


@pytest.mark.parametrize("lines", [18, 20])
def test_a_high_table_of_few_rows_leaves_no_half_page_white(tmp_path: Path, lines: int) -> None:
    rows = tuple((Value(str(i)), Value("x", under="y\nz")) for i in range(12))
    blocks = (*(Paragraph(f"line {i}") for i in range(lines)), Table("high", (left("a"), left("b")), rows))
    report = Report("t", "s", ("said",), (), (Section("x", blocks),), "en")
    pages = compile_report(report, tmp_path, pages_as_png=True, ppi=40)
    assert len(pages) == 2
    assert white_foot(pages[0]) < 0.36


def test_no_page_but_the_last_is_white_by_a_third(study: tuple[Report, Path]) -> None:
    pages = compile_report(*study, pages_as_png=True, ppi=40)
    assert len(pages) > 4
    assert [n for n, page in enumerate(pages[:-1], 1) if white_foot(page) > 1 / 3] == []
