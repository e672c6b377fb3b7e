"""The report in Chinese: no sentence of it is English, no glyph is missing, no page is empty."""

import re
import struct
import tomllib
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import typst
from sample_results import Sample, write_sample

import pdkv.reporting
from pdkv.analysing.comparison import compare
from pdkv.analysing.objectives import rank_objectives
from pdkv.artifacts import read_json, write_json
from pdkv.reporting import typefaces
from pdkv.reporting.figures import draw_figures
from pdkv.reporting.report_blocks import Report
from pdkv.reporting.report_markdown import render_markdown
from pdkv.reporting.report_model import ReportSettings, read_report, texts_of
from pdkv.reporting.report_pdf import LINE_BREAK, breakable, breakable_chinese, compile_report, set_up
from pdkv.reporting.typefaces import choose_typefaces
from pdkv.reporting.wording import Wording

ROOT = Path(__file__).parents[1]
TEMPLATES = Path(pdkv.reporting.__file__).parent / "templates"
CLAIMS = ROOT / "config/claims.yaml"
BASELINE = ("default", "fp16")
MODES = ("default", "chunked", "1p1d", "2x")
STUDIES = {
    "one launch": Sample(),
    "many launches": Sample(modes=MODES, concurrencies=(2, 4), launches=3),
    "on GPUs": Sample(modes=MODES, launches=5, gpu=True, load_format="dummy", model="some/model"),
    "few requests": Sample(modes=("default", "1p1d"), launches=2, requests=6, failed=frozenset()),
    "one cell": Sample(modes=("default",), dtypes=("fp16",), failed=frozenset()),
    "all failed": Sample(modes=("default", "1p1d"), dtypes=("fp16",), failed=frozenset({BASELINE, ("1p1d", "fp16")})),
    "three levels": Sample(modes=("default", "1p1d"), concurrencies=(1, 2, 4), launches=3, failed=frozenset()),
    "refused": Sample(modes=("default", "1p1d"), failed=frozenset(), launches=3),
}
# Four words in a row: names, terms and units stand alone or in twos. "TTFT" and the like are no words.
ENGLISH = re.compile(r"(?:\b[A-Za-z]+(?:'[a-z]+)?[ ,;:]+){3,}[A-Za-z]{2,}")
CHINESE = re.compile("[\u4e00-\u9fff]")


def stored_sentences() -> list[str]:
    """Every sentence that an artefact may hold, filled in."""
    catalogue = tomllib.loads((TEMPLATES / "stored_texts.zh.toml").read_text(encoding="utf-8"))
    singular = (re.sub(r"([A-Za-z])\{\d+\}", r"\1", english) for english in catalogue)
    return [re.sub(r"\{(\d+)…?\}", r"\1", english).replace("… ", "decode-0 ", 1) for english in singular]


def tell_real_sentences(cells: Sequence[Path]) -> None:
    """Checks and reasons of the sample are invented: put in their place what the source says, all of it."""
    said = [text for text in stored_sentences() if " " in text]
    for path in cells:
        content = read_json(path, "cell/1")
        for number, trial in enumerate(content["trials"]):
            doubtful = [check for check in trial["checks"] if check["state"] != "passed"]
            for check in doubtful:
                check |= {"name": "steady state", "evidence": "one launch", "remedy": "ask for more requests"}
            if content["state"] == "suspect" and not number:
                texts = [*said, said[0]] if len(said) % 2 else said
                trial["checks"] += [
                    {"name": "host not used by others", "state": "suspect", "evidence": evidence, "remedy": remedy}
                    for evidence, remedy in zip(texts[::2], texts[1::2], strict=True)
                ]
            if trial["failure"]:
                trial["failure"]["reason"] = (
                    "decode-0 ended with status 1: RuntimeError: NIXL agent could not be created"
                )
            for entry in (trial["trace"] or {}).get("missing") or []:
                entry["reason"] = "the host's own counters hold no such figure for a core or process"
        write_json(path, "cell/1", content)


def differ_in_environment(cell: Path) -> None:
    content = read_json(cell, "cell/1")
    content["environment"]["engine"]["vllm"] = "0.33.0"
    content["environment"]["foreign_cpu_share"] = 0.5
    write_json(cell, "cell/1", content)


def make_study(root: Path, name: str) -> list[Path]:
    cells = write_sample(root / "results", STUDIES[name])
    tell_real_sentences(cells)
    if name == "refused":
        differ_in_environment(cells[-1])
    compare(cells, BASELINE, root / "results/comparisons.csv")
    rank_objectives(cells, root / "results/objectives.csv")
    return cells


def report_of(root: Path, cells: Sequence[Path], language: str = "zh") -> Report:
    settings = ReportSettings(
        "部署模式与 KV 缓存精度", language, BASELINE, claims=CLAIMS, objectives=root / "results/objectives.csv"
    )
    return read_report(cells, root / "results/comparisons.csv", settings)


@pytest.fixture(scope="module", params=STUDIES)
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Report:
    root = tmp_path_factory.mktemp("study")
    return report_of(root, make_study(root, request.param))


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, Path]:
    """A study with its figures."""
    root = tmp_path_factory.mktemp("drawn")
    cells = make_study(root, "one launch")
    draw_figures(cells, root / "results/comparisons.csv", root / "figures", "zh")
    return report_of(root, cells), root / "figures"


def read_by_people(markdown: str) -> Iterator[str]:
    """The lines without code, log excerpts and what is quoted."""
    for number, part in enumerate(re.split(r"^`{3,}.*$", markdown, flags=re.MULTILINE)):
        if number % 2 == 0:
            yield from re.sub(r"\\?`[^`]*\\?`|“[^”]*”", "■", part).split("\n")


def test_no_sentence_is_english(report: Report) -> None:
    found = [match.group() for line in read_by_people(render_markdown(report)) for match in ENGLISH.finditer(line)]
    assert not found


def test_the_scan_finds_english(tmp_path: Path) -> None:
    english = render_markdown(report_of(tmp_path, make_study(tmp_path, "one launch"), "en"))
    assert sum(bool(ENGLISH.search(line)) for line in read_by_people(english)) > 40


def test_marks_are_of_full_width(report: Report) -> None:
    for line in read_by_people(render_markdown(report)):
        assert not re.search(r"[\u4e00-\u9fff] ?[,;?!]|[,;?!] ?[\u4e00-\u9fff]|[\u4e00-\u9fff]\.(?:$| )", line), line
        assert not re.search(
            r"[，。；：、] |[\u4e00-\u9fff] [\u4e00-\u9fff]|。。|；；|，，", line.replace("| ", "|")
        ), line


def test_both_languages_say_the_same_things(tmp_path: Path) -> None:
    """Sections, tables and numbers: only words differ."""
    cells = make_study(tmp_path, "many launches")
    chinese, english = (report_of(tmp_path, cells, language) for language in ("zh", "en"))
    assert len(chinese.said) == len(english.said)
    assert len(chinese.untold) == len(english.untold)
    assert [section.level for section in chinese.sections] == [section.level for section in english.sections]
    for one, other in zip(chinese.sections, english.sections, strict=True):
        assert [type(block) for block in one.blocks] == [type(block) for block in other.blocks], one.title
    told, known = (re.findall(r"[+−]?\d+\.\d+%?", "\n".join(texts_of(each))) for each in (chinese, english))
    assert sorted(told) == sorted(known)


def test_every_sentence_that_is_stored_has_its_place_in_the_report(tmp_path: Path) -> None:
    text = render_markdown(report_of(tmp_path, make_study(tmp_path, "one launch")))
    assert "decode-0 以状态 1 退出：RuntimeError：“NIXL agent could not be created”" in text
    assert "RuntimeError: NIXL agent could not be created\n" in text, "a log excerpt stays as it is"
    assert "主机自身的计数器没有 CPU 核或进程的这类数据" in text
    assert "检查路由器是否转发 kv_transfer_params" in text


def test_a_refusal_names_the_fields(tmp_path: Path) -> None:
    text = render_markdown(report_of(tmp_path, make_study(tmp_path, "refused")))
    assert re.search(r"不可比较：.*engine\.vllm: 0\.3[23]\.0 / 0\.3[23]\.0；主机负载：(空闲 / 繁忙|繁忙 / 空闲)", text)


def test_claims_without_chinese_words_stand_in_their_own(tmp_path: Path) -> None:
    cells = make_study(tmp_path, "one launch")
    claims = tmp_path / "claims.yaml"
    claims.write_text(
        "A1: {says: only in English, untested: {en: because, zh: 因为}}\nA2: {says: {zh: 只有中文}, untested: x}\n",
        encoding="utf-8",
    )
    for language, words in (("zh", ("only in English", "因为", "只有中文")), ("en", ("because", "只有中文"))):
        settings = ReportSettings("t", language, BASELINE, claims=claims)
        text = render_markdown(read_report(cells, tmp_path / "results/comparisons.csv", settings))
        assert all(word in text for word in words)


def test_every_character_has_a_glyph(report: Report) -> None:
    """By the fonts' own tables, for the whole report and for what a template adds to it."""
    texts = [*texts_of(report), *Wording("zh").all_texts(), (TEMPLATES / "report.typ").read_text(encoding="utf-8")]
    chosen = choose_typefaces(texts)
    known = frozenset().union(*(typefaces._characters(path) for path in chosen.files))
    assert not {char for text in texts for char in text if ord(char) not in known} - {"\n", LINE_BREAK}


def test_no_box_stands_for_a_glyph(drawn: tuple[Report, Path]) -> None:
    """PDF/A forbids glyphs that stand for none: the compiler refuses to write one. Without the font it does refuse."""
    with set_up(*drawn) as (source, faces):
        root = str(source.parent)
        dated = source.read_text(encoding="utf-8").replace("date: none", "date: datetime(year: 2026, month: 1, day: 1)")
        source.write_text(dated, encoding="utf-8")  # PDF/A wants a date
        pdf = typst.compile(str(source), root=root, font_paths=faces, format="pdf", pdf_standards="a-2b")
        assert pdf.startswith(b"%PDF-")
        with choose_typefaces(["a"]).folder() as latin:
            poor = typst.Fonts(include_system_fonts=False, include_embedded_fonts=False, font_paths=[str(latin)])
            with pytest.raises(typst.TypstError, match="could not be displayed"):
                typst.compile(str(source), root=root, font_paths=poor, format="pdf", pdf_standards="a-2b")


def pixels(png: bytes) -> np.ndarray:
    """Rows of bytes of a PNG, still filtered: enough to see whether anything is drawn."""
    at, data = 8, b""
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        if png[at + 4 : at + 8] == b"IDAT":
            data += png[at + 8 : at + 8 + length]
        at += 12 + length
    height = struct.unpack(">I", png[20:24])[0]
    return np.frombuffer(zlib.decompress(data), dtype=np.uint8).reshape(height, -1)[:, 1:]


def test_every_page_is_a_picture_with_something_on_it(drawn: tuple[Report, Path]) -> None:
    pages = compile_report(*drawn, pages_as_png=True, ppi=50)
    assert len(pages) >= 5
    for page in pages:
        width, height = struct.unpack(">II", page[16:24])
        assert height / width == pytest.approx(297 / 210, abs=0.01)
        written = (pixels(page) != 0).any(axis=1).mean()  # a row like the one above it is all zero once filtered
        assert written > 0.05  # header and footer alone are less


def test_figures_say_what_they_show_in_chinese(tmp_path: Path) -> None:
    """Text becomes outlines: other words give other outlines, and the same words the same bytes."""
    cells = make_study(tmp_path, "one cell")
    drawn = {}
    for name, language in (("en", "en"), ("zh", "zh"), ("again", "zh")):
        paths = draw_figures(cells, tmp_path / "results/comparisons.csv", tmp_path / name, language)
        drawn[name] = {path.relative_to(tmp_path / name): path.read_bytes() for path in paths}
    assert set(drawn["en"]) == set(drawn["zh"])
    assert drawn["zh"] == drawn["again"]
    assert all(drawn["en"][path] != drawn["zh"][path] for path in drawn["en"])


def test_lines_may_end_after_full_width_marks() -> None:
    assert breakable_chinese("更低，−3.6%（存疑）。") == f"更低，{LINE_BREAK}−3.6%（存疑）。"
    assert breakable_chinese("（a）、（b）：”") == f"（a）、{LINE_BREAK}（b）：”"
    assert breakable_chinese("plain, text; stays") == "plain, text; stays"


def test_chinese_in_tables_is_not_cut_as_a_word() -> None:
    long = "这是一段没有空格的很长的中文文字用来检验是否会被当作一个词而切开"
    assert breakable(long) == long
    assert breakable(f"{long}{'x' * 40}").replace(LINE_BREAK, "") == f"{long}{'x' * 40}"
    assert LINE_BREAK in breakable("中文/data/models/a_very_long_folder_name_without_blanks")


def test_a_plain_font_is_taken_before_a_bold_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    regular = choose_typefaces(["预填充"]).files[-1]
    assert "Bold" not in regular.name
    for name in ("NotoTest-Bold.otf", "NotoTest-Regular.otf"):
        (tmp_path / name).symlink_to(regular)
    monkeypatch.setattr(typefaces, "_installed_fonts", lambda: sorted(tmp_path.iterdir()))
    chosen = choose_typefaces(["预填充"])
    assert [path.name for path in chosen.files[-2:]] == ["NotoTest-Regular.otf", "NotoTest-Bold.otf"]
    assert not chosen.one_weight
    (tmp_path / "NotoTest-Bold.otf").unlink()
    assert choose_typefaces(["预填充"]).one_weight


def test_a_font_to_fall_back_on_comes_after_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    regular = choose_typefaces(["预填充"]).files[-1]
    for name in ("AFallbackFull", "Noto"):
        (tmp_path / f"{name}{regular.suffix}").symlink_to(regular)
    monkeypatch.setattr(typefaces, "_installed_fonts", lambda: sorted(tmp_path.iterdir()))
    assert choose_typefaces(["预填充"]).files[-1].stem == "Noto"


def test_a_study_without_a_title_has_one_in_the_language_of_its_report(tmp_path: Path) -> None:
    cells = write_sample(tmp_path / "results")
    titles = {
        language: read_report(
            cells, tmp_path / "results/comparisons.csv", ReportSettings(None, language, ("default", "fp16"))
        ).title
        for language in ("en", "zh")
    }
    assert titles == {"en": "Deployment mode and KV-cache precision", "zh": "部署模式与 KV 缓存精度"}
