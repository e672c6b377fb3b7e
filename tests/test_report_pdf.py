"""PDF: data stays data, pages hold known glyphs only, the same results give the same bytes."""

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typst
from sample_results import EXCERPT, Sample, write_sample
from test_figures import make_font

from pdkv.errors import UserError
from pdkv.reporting import typefaces
from pdkv.reporting.figures import draw_figures
from pdkv.reporting.report_blocks import (
    Bullets,
    Definitions,
    Excerpt,
    Paragraph,
    Report,
    Section,
    Table,
    Value,
    left,
    row,
)
from pdkv.reporting.report_model import ReportSettings, read_report
from pdkv.reporting.report_pdf import EXCERPT_WIDTH, breakable, compile_report, set_up, write_pdf

SETTINGS = ReportSettings("A study", "en", ("default", "fp16"))
HOSTILE = (*EXCERPT.split("\n")[:10], "#let x = 1", "$ a $", "<label>", "= heading", "\\", '"', '#image("/etc/passwd")')


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("study")
    cells = write_sample(root / "results")
    draw_figures(cells, root / "results/comparisons.csv", root / "reports/figures")
    return root


def cells_of(root: Path) -> list[Path]:
    sample = Sample()
    return [root / "results" / sample.workload / mode / dtype / "cell.json" for mode, dtype in sample.cells]


def report_of(root: Path) -> Report:
    return read_report(cells_of(root), root / "results/comparisons.csv", SETTINGS)


def query(report: Report, figures: Path, selector: str) -> list[dict[str, Any]]:
    with set_up(report, figures) as (source, faces):
        found: list[dict[str, Any]] = json.loads(
            typst.query(str(source), selector, root=str(source.parent), font_paths=faces)
        )
        return found


def bare(*blocks: Any, title: str = "t") -> Report:
    return Report(title, "s", ("said",), ("untold",), (Section("x", blocks),), "en")


def test_a_study_becomes_a_pdf_of_some_pages(study: Path) -> None:
    output = study / "reports/summary.pdf"
    write_pdf(cells_of(study), study / "results/comparisons.csv", SETTINGS, output, study / "reports/figures")
    assert output.read_bytes().startswith(b"%PDF-")
    pages = compile_report(report_of(study), study / "reports/figures", pages_as_png=True, ppi=40)
    assert 5 <= len(pages) <= 12
    for page in pages:
        width, height = struct.unpack(">II", page[16:24])
        assert height / width == pytest.approx(297 / 210, abs=0.01)  # A4


def test_contents_are_listed_only_in_long_reports(study: Path) -> None:
    assert query(report_of(study), study / "reports/figures", "outline")
    assert not query(bare(Paragraph("short")), study, "outline")


@pytest.mark.fault("host", "another locale, POSIX without UTF-8", "the same bytes")
def test_same_results_give_the_same_bytes_under_posix_too(study: Path, tmp_path: Path) -> None:
    here = compile_report(report_of(study), study / "reports/figures")[0]
    script = (
        "import sys; from pathlib import Path; from pdkv.reporting.report_model import ReportSettings\n"
        "from pdkv.reporting.report_pdf import write_pdf\n"
        "comparisons, output, figures, *cells = map(Path, sys.argv[1:])\n"
        "settings = ReportSettings('A study', 'en', ('default', 'fp16'))\n"
        "write_pdf(cells, comparisons, settings, output, figures)"
    )
    arguments = [
        study / "results/comparisons.csv",
        tmp_path / "summary.pdf",
        study / "reports/figures",
        *cells_of(study),
    ]
    posix = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    subprocess.run([sys.executable, "-c", script, *map(str, arguments)], check=True, env={**os.environ, **posix})
    assert (tmp_path / "summary.pdf").read_bytes() == here


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.fault("input", "markup of Typst in names, paths and logs", "printed literally; the PDF is made")
def test_text_is_never_markup(tmp_path: Path, text: str) -> None:
    table = Table(text, (left(text), left("b")), (row(Value(text, under=text, mark="*"), text),), notes=(text,))
    report = bare(Paragraph(text), Bullets((text,)), Definitions(((text, text),)), Excerpt(text), table, title=text)
    assert [found["text"] for found in query(report, tmp_path, "raw")] == [text]
    assert [found["body"]["text"] for found in query(report, tmp_path, "par") if found["body"].get("text") == text]
    assert compile_report(report, tmp_path)[0].startswith(b"%PDF-")


def test_excerpt_of_the_failed_launch_is_on_the_page(study: Path) -> None:
    excerpts = query(report_of(study), study / "reports/figures", "raw")
    lines = excerpts[0]["text"].split("\n")
    for line in EXCERPT.split("\n")[:10]:
        assert line in lines
    assert max(map(len, lines)) <= EXCERPT_WIDTH + 2


def test_long_words_of_tables_can_be_broken_at_their_joints() -> None:
    assert breakable("short words stay") == "short words stay"
    broken = breakable("/data/models/a_very_long_folder_name_without_blanks")
    assert broken.replace("\u200b", "") == "/data/models/a_very_long_folder_name_without_blanks"
    assert max(map(len, breakable("x" * 100).split("\u200b"))) <= 18


@pytest.mark.fault(
    "input",
    "a name in a script that no font here has",
    "no page with boxes: a message names the script and the package to install",
)
def test_a_character_that_no_font_has_stops_before_a_page_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(typefaces, "_installed_fonts", list)
    with pytest.raises(UserError, match=r"Chinese.*型模") as raised:
        compile_report(bare(Paragraph("model /data/模型")), tmp_path)
    assert "fonts-noto-cjk" in raised.value.remedy
    with pytest.raises(UserError, match="Devanagari"):
        compile_report(bare(Paragraph("मॉडल")), tmp_path)


def test_an_installed_font_fills_the_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    font = make_font(tmp_path / "fresh.ttf", "模型")
    monkeypatch.setattr(typefaces, "_installed_fonts", lambda: [font])
    pdf = compile_report(bare(Paragraph("model /data/模型")), tmp_path)[0]
    assert b"FreshTest" in pdf


def test_a_missing_figure_is_a_message(study: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"metrics_0\.svg is not there"):
        compile_report(report_of(study), tmp_path)


@pytest.mark.parametrize(
    "sample",
    [
        Sample(failed=frozenset((m, d) for m in Sample().modes for d in Sample().dtypes)),
        Sample(modes=("default",), dtypes=("fp16",), requests=1, outputs=1, failed=frozenset(), suspect=frozenset()),
        Sample(launches=3, gpu=True, modes=("default", "a" * 60, "1p1d"), failed=frozenset(), suspect=frozenset()),
    ],
    ids=["all failed", "one request", "long names"],
)
@pytest.mark.fault(
    "input", "a study of which every cell failed, or with a single request", "the report is made all the same"
)
def test_odd_studies_become_pdfs_too(tmp_path: Path, sample: Sample) -> None:
    cells = write_sample(tmp_path / "results", sample)
    draw_figures(cells, tmp_path / "results/comparisons.csv", tmp_path / "figures")
    output = tmp_path / "summary.pdf"
    write_pdf(cells, tmp_path / "results/comparisons.csv", SETTINGS, output, tmp_path / "figures")
    assert output.stat().st_size > 10_000


def test_figures_are_numbered_in_the_order_of_the_report(study: Path) -> None:
    """Typst's own counter gives figures that float to one page the same number."""
    with set_up(report_of(study), study / "reports/figures") as (source, _):
        data = json.loads((source.parent / "report.json").read_text(encoding="utf-8"))
    figures = [block for section in data["sections"] for block in section["blocks"] if block["kind"] == "figure"]
    assert [figure["number"] for figure in figures] == list(range(1, len(figures) + 1))
    assert len(figures) >= 5
