"""Figures: the files follow from the study, their bytes from the results; no panel shows what was not measured."""

import itertools
import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from sample_results import Sample, write_sample

from pdkv.errors import UserError
from pdkv.reporting import figure_names, typefaces
from pdkv.reporting.figure_names import (
    curves_figure,
    ecdf_figure,
    illustrated,
    metrics_figure,
    trace_figure,
    ttft_parts_figure,
)
from pdkv.reporting.figure_style import COLOURS
from pdkv.reporting.figures import draw_figures
from pdkv.reporting.report_blocks import Figure, Paragraph
from pdkv.reporting.report_model import ReportSettings, read_report
from pdkv.reporting.report_pdf import write_pdf


def figure_paths(modes: Iterable[str]) -> list[str]:
    """The figures of a study with one workload, ``short``, and one load level."""
    return [
        metrics_figure("short", 0),
        ecdf_figure("short", 0),
        curves_figure("short"),
        ttft_parts_figure("short"),
        *(trace_figure("short", mode) for mode in modes),
    ]


def draw(tmp_path: Path, sample: Sample | None = None) -> list[Path]:
    cells = write_sample(tmp_path / "results", sample)
    return draw_figures(cells, tmp_path / "results/comparisons.csv", tmp_path / "figures")


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return draw(tmp_path_factory.mktemp("study"))


def test_every_named_figure_and_no_other_is_drawn(drawn: list[Path]) -> None:
    folder = drawn[0].parents[1]
    named = figure_paths(("default", "chunked", "1p1d"))
    assert [path.relative_to(folder).as_posix() for path in drawn] == named
    assert sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()) == sorted(named)


def test_several_workloads_are_drawn_beside_each_other_with_the_same_bytes(tmp_path: Path) -> None:
    results, sample = tmp_path / "results", Sample(modes=("default",), dtypes=("fp16",), requests=4)
    cells = [path for name in ("a", "b", "c") for path in write_sample(results, replace(sample, workload=name))]
    one, two = (
        draw_figures(cells, results / "comparisons.csv", tmp_path / str(number), processes=number) for number in (1, 2)
    )
    assert [path.relative_to(tmp_path / "2") for path in two] == [path.relative_to(tmp_path / "1") for path in one]
    assert len(one) == 3 * len(figure_paths(["default"]))
    for alone, beside in zip(one, two, strict=True):
        assert alone.read_bytes() == beside.read_bytes(), alone


@pytest.mark.parametrize(("most", "drawn"), [(15, "abc"), (14, "ab"), (10, "ab"), (9, "a"), (4, "a")])
def test_a_report_of_many_workloads_has_figures_of_the_first_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, drawn: str
) -> None:
    """Five figures each; the first workload has its own however many they are."""
    monkeypatch.setattr(figure_names, "MOST_FIGURES", most)
    results, sample = tmp_path / "results", Sample(modes=("default",), dtypes=("fp16",), requests=4)
    cells = [path for name in ("a", "b", "c") for path in write_sample(results, replace(sample, workload=name))]
    figures = draw_figures(cells, results / "comparisons.csv", tmp_path / "figures")
    named = {path.relative_to(tmp_path / "figures").as_posix() for path in figures}
    assert {path.split("/")[0] for path in named} == set(drawn) and len(named) == 5 * len(drawn)
    for language, said in (("en", f"first {len(drawn)} of 3 workloads"), ("zh", f"3 个负载中，仅为前 {len(drawn)} 个")):
        settings = ReportSettings("A study", language, ("default", "fp16"))
        report = read_report(cells, results / "comparisons.csv", settings)
        blocks = [block for section in report.sections for block in section.blocks]
        shown = {block.path for block in blocks if isinstance(block, Figure)}
        assert shown <= named and {path.split("/")[0] for path in shown} == set(drawn)
        told = [block.text for block in blocks if isinstance(block, Paragraph) and said in block.text]
        assert len(told) == (0 if len(drawn) == 3 else 1)


def test_which_workloads_have_figures_follows_the_order_of_the_config() -> None:
    assert illustrated({}) == []
    assert illustrated({"z": 150, "a": 50, "b": 1}) == ["z", "a"]
    assert illustrated({"z": 150, "a": 51, "b": 1}) == ["z"], "none further down fills what is left"


def test_what_a_drawing_process_cannot_read_is_told_as_ever(tmp_path: Path) -> None:
    results, sample = tmp_path / "results", Sample(modes=("default",), dtypes=("fp16",), requests=4)
    cells = [path for name in ("a", "b") for path in write_sample(results, replace(sample, workload=name))]
    (cells[1].parent / "r1/requests.parquet").unlink()
    with pytest.raises(UserError, match=r"requests.parquet is not there\n.*run snakemake again"):
        draw_figures(cells, results / "comparisons.csv", tmp_path / "figures", processes=2)


def test_same_results_give_the_same_bytes(drawn: list[Path], tmp_path: Path) -> None:
    for first, second in zip(drawn, draw(tmp_path), strict=True):
        assert first.read_bytes() == second.read_bytes(), first.name
        assert b"<dc:date>" not in first.read_bytes()


def test_bytes_do_not_depend_on_locale_or_the_user_s_matplotlib(drawn: list[Path], tmp_path: Path) -> None:
    (tmp_path / "matplotlibrc").write_text("font.size: 22\naxes.grid: True\n")
    cells = write_sample(tmp_path / "results")
    script = (
        "import sys; from pathlib import Path; from pdkv.reporting.figures import draw_figures; "
        "draw_figures([Path(a) for a in sys.argv[3:]], Path(sys.argv[1]), Path(sys.argv[2]))"
    )
    posix = {
        "LC_ALL": "POSIX",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
        "MATPLOTLIBRC": str(tmp_path / "matplotlibrc"),
    }
    arguments = [str(tmp_path / "results/comparisons.csv"), str(tmp_path / "figures"), *map(str, cells)]
    subprocess.run([sys.executable, "-c", script, *arguments], check=True, env={**os.environ, **posix})
    folder = drawn[0].parents[1]
    for path in drawn:
        assert path.read_bytes() == (tmp_path / "figures" / path.relative_to(folder)).read_bytes(), path.name


def test_text_is_drawn_as_outlines_so_that_no_viewer_needs_the_font(drawn: list[Path]) -> None:
    for path in drawn:
        text = path.read_text(encoding="utf-8")
        assert "<text" not in text
        assert "DejaVuSans-" in text  # the glyphs are those of the bundled font


def test_cells_are_told_apart_by_the_colour_of_their_mode(drawn: list[Path]) -> None:
    metrics = next(path for path in drawn if path.name == "metrics_0.svg").read_text(encoding="utf-8").lower()
    assert all(colour.lower() in metrics for colour in COLOURS[:3])


def test_colours_differ_in_greyscale() -> None:
    def lightness(colour: str) -> float:
        red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
        return 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2

    levels = sorted(lightness(colour) ** (1 / 3) for colour in COLOURS)
    assert min(b - a for a, b in itertools.pairwise(levels)) > 0.04


def test_a_study_without_numbers_still_gives_every_figure(tmp_path: Path) -> None:
    sample = Sample(failed=frozenset((m, d) for m in Sample().modes for d in Sample().dtypes))
    drawn = draw(tmp_path, sample)
    assert len(drawn) == len(figure_paths(sample.modes))
    assert all(path.stat().st_size < 40_000 for path in drawn)  # a sentence each, no panels


def test_one_request_of_one_token_leaves_its_panels_empty_without_a_warning(tmp_path: Path) -> None:
    sample = Sample(
        modes=("default",), dtypes=("fp16",), requests=1, outputs=1, failed=frozenset(), suspect=frozenset()
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(draw(tmp_path, sample)) == len(figure_paths(["default"]))


def without_numbers(content: dict[str, Any]) -> None:
    """Every launch is invalid: the load levels are there, no launch is in their numbers."""
    content["state"] = "invalid"
    for trial in content["trials"]:
        trial["state"] = "invalid"
    for point in content["points"]:
        for summary in point["metrics"].values():
            summary.update({key: 0 if key == "n" else None for key in summary if key != "unit"})
        point.update(state="invalid", launches=0, repeats=[], per_launch=[], excluded=[{"repeat": 1, "reason": "bad"}])


def without_metrics(content: dict[str, Any]) -> None:
    for point in content["points"]:
        point["metrics"] = {name: dict.fromkeys(summary) for name, summary in point["metrics"].items()}
        point["per_launch"] = [dict.fromkeys(launch) for launch in point["per_launch"]]


@pytest.mark.parametrize("emptied", [without_numbers, without_metrics])
@pytest.mark.parametrize("only", [slice(None), slice(1, 2)], ids=["all cells", "one cell"])
def test_cells_without_numbers_are_drawn_without_a_warning(
    tmp_path: Path, emptied: Callable[[dict[str, Any]], None], only: slice
) -> None:
    cells = write_sample(tmp_path / "results", Sample(failed=frozenset()))
    for path in cells[only]:
        content = json.loads(path.read_text(encoding="utf-8"))
        del content["digest"]
        emptied(content)
        path.write_text(json.dumps(content), encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn = draw_figures(cells, tmp_path / "results/comparisons.csv", tmp_path / "figures")
    assert len(drawn) == len(figure_paths(Sample().modes))
    for path in drawn:
        assert "nan" not in re.sub(r"<style.*?</style>", "", path.read_text(encoding="utf-8")).split()
    settings = ReportSettings("A study", "en", ("default", "fp16"))
    write_pdf(cells, tmp_path / "results/comparisons.csv", settings, tmp_path / "summary.pdf", tmp_path / "figures")
    assert (tmp_path / "summary.pdf").stat().st_size > 10_000


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_extremes_are_drawn_without_a_warning(tmp_path: Path, scale: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sample = Sample(modes=("default",), dtypes=("fp16",), scale=scale, failed=frozenset(), suspect=frozenset())
        assert len(draw(tmp_path, sample)) == len(figure_paths(["default"]))


def test_no_figure_stays_open(drawn: list[Path]) -> None:
    assert drawn
    assert plt.get_fignums() == []


CHINESE = Sample(modes=("default", "预填充"), dtypes=("fp16",), failed=frozenset(), suspect=frozenset())


def test_a_character_that_no_font_has_is_named_with_the_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typefaces, "_installed_fonts", list)
    with pytest.raises(UserError, match="Chinese") as raised:
        draw(tmp_path, CHINESE)
    assert "U+5145" in raised.value.problem
    assert "pip install cvttf-notosanscjk-regular" in raised.value.remedy
    assert not list((tmp_path / "figures").rglob("*.svg"))


def test_a_font_that_was_just_installed_is_found_and_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    font = make_font(tmp_path / "fresh.ttf", "预填充")
    monkeypatch.setattr(typefaces, "_installed_fonts", lambda: [font])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib warns of a glyph that its fonts lack
        drawn = draw(tmp_path, CHINESE)
    metrics = next(path for path in drawn if path.name == "metrics_0.svg").read_text(encoding="utf-8")
    assert "Fresh-" in metrics.replace("FreshTest", "Fresh")


def make_font(path: Path, characters: str) -> Path:
    """A font that has just these characters, each as a square."""
    names = [f"c{ord(char):04x}" for char in characters]
    pen = TTGlyphPen(None)
    pen.moveTo((0, 0))
    for corner in ((0, 700), (700, 700), (700, 0)):
        pen.lineTo(corner)
    pen.closePath()
    square = pen.glyph()
    builder = FontBuilder(1000, isTTF=True)
    builder.setupGlyphOrder([".notdef", *names])
    builder.setupCharacterMap({ord(char): name for char, name in zip(characters, names, strict=True)})
    builder.setupGlyf(dict.fromkeys((".notdef", *names), square))
    builder.setupHorizontalMetrics(dict.fromkeys((".notdef", *names), (800, 0)))
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": "FreshTest", "styleName": "Regular", "psName": "FreshTest"})
    builder.setupOS2()
    builder.setupPost()
    builder.save(path)
    return path
