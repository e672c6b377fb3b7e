"""A report of a large study shows a part, counts what it leaves out, and leaves nothing out of the files beside it."""

import csv
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from sample_results import Sample, write_sample

from pdkv.artifacts import read_csv, read_json, write_csv, write_json
from pdkv.reporting import figure_names
from pdkv.reporting.report_blocks import (
    Bullets,
    Column,
    Excerpt,
    Foremost,
    Paragraph,
    Report,
    Section,
    Table,
    Value,
    left,
    row,
)
from pdkv.reporting.report_bounds import (
    MOST_SAID,
    SHOWN_ITEMS,
    SHOWN_NOTES,
    SHOWN_ROWS,
    SHOWN_TEXTS,
    SOME_SAID,
    WHOLE_ITEMS,
    WHOLE_NOTES,
    WHOLE_ROWS,
    WHOLE_TEXTS,
    bound_report,
    few_of,
)
from pdkv.reporting.report_failures import MOST_TOLD
from pdkv.reporting.report_markdown import render_markdown, write_markdown
from pdkv.reporting.report_model import ReportSettings, read_report
from pdkv.reporting.report_pdf import compile_report
from pdkv.reporting.report_phrases import MOST_LISTED, listed, listed_some, separated
from pdkv.reporting.wording import Wording

SAY = Wording("en")
COLUMNS = (left("Cell"), Column("Value"))
WORKLOADS = 40


def numbered(count: int, **more: object) -> Table:
    return replace(Table("t", COLUMNS, tuple(row(f"cell {i}", str(i)) for i in range(count))), **more)  # type: ignore[arg-type]


def bounded(*blocks: object, language: str = "en") -> Report:
    report = Report("t", "s", (), (), (Section("x", blocks),), language)  # type: ignore[arg-type]
    return bound_report(report, "tables", Wording(language))


def table_of(report: Report) -> Table:
    (table,) = (block for block in report.sections[0].blocks if isinstance(block, Table))
    return table


def whole(report: Report, name: str) -> list[list[str]]:
    (text,) = (file.text for file in report.whole if file.name == name)
    return list(csv.reader(io.StringIO(text)))


def firsts(table: Table) -> list[str]:
    return [each[0].text for each in table.rows]


class TestTable:
    def test_as_long_as_the_bound_is_as_it_was(self) -> None:
        table = numbered(WHOLE_ROWS)
        report = bounded(table)
        assert report.sections[0].blocks == (table,) and report.whole == ()

    def test_longer_shows_some_rows_and_says_where_all_are(self) -> None:
        table = numbered(WHOLE_ROWS + 1, notes=("a note",))
        report = bounded(table)
        shown = table_of(report)
        assert shown.rows == table.rows[:SHOWN_ROWS]
        assert shown.notes[0].startswith(f"{SHOWN_ROWS} of {WHOLE_ROWS + 1} rows are shown; ")
        assert "tables/table-001.csv" in shown.notes[0] and shown.notes[1:] == ("a note",)
        lines = whole(report, "table-001.csv")
        assert lines == [["Table", "Cell", "Value"], *(["t", f"cell {i}", str(i)] for i in range(WHOLE_ROWS + 1))]

    def test_foremost_rows_are_shown_wherever_they_stand(self) -> None:
        last = WHOLE_ROWS
        shown = table_of(bounded(numbered(last + 1, foremost=Foremost((last, 7), "that failed"))))
        assert firsts(shown) == [*(f"cell {i}" for i in range(SHOWN_ROWS - 1)), f"cell {last}"]
        assert "first those that failed (2 of 2)" in shown.notes[0]

    def test_more_foremost_rows_than_are_shown_are_counted(self) -> None:
        rows = tuple(range(100, 100 + SHOWN_ROWS + 3))
        shown = table_of(bounded(numbered(WHOLE_ROWS + 1, foremost=Foremost(rows[::-1], "that failed"))))
        assert firsts(shown) == [f"cell {i}" for i in rows[3:]], "the first named are the most important"
        assert f"first those that failed ({SHOWN_ROWS} of {SHOWN_ROWS + 3})" in shown.notes[0]

    def test_that_there_is_none_foremost_is_said(self) -> None:
        shown = table_of(bounded(numbered(WHOLE_ROWS + 1, foremost=Foremost((), "that failed"))))
        assert "there are none that failed" in shown.notes[0]

    def test_a_sum_is_shown_and_not_counted_as_foremost(self) -> None:
        foremost = Foremost((3,), "that failed", always=(WHOLE_ROWS,))
        shown = table_of(bounded(numbered(WHOLE_ROWS + 1, foremost=foremost)))
        assert firsts(shown)[-1] == f"cell {WHOLE_ROWS}" and "(1 of 1)" in shown.notes[0]

    def test_of_rows_that_say_the_same_the_first_is_shown(self) -> None:
        rows = tuple(row(f"cell {i}", "odd" if i % 2 else "even") for i in range(WHOLE_ROWS + 1))
        report = bounded(Table("t", COLUMNS, rows, foremost=Foremost((4,), "that failed")))
        assert firsts(table_of(report)) == ["cell 0", "cell 1", "cell 4"]
        assert f"3 of {WHOLE_ROWS + 1} rows" in table_of(report).notes[0]
        assert len(whole(report, "table-001.csv")) == 1 + len(rows)

    def test_each_carried_value_has_its_rows_and_stands_above_them(self) -> None:
        """An objective is written once above its loads: above those that are shown, and in every row of the file."""
        columns = (left("Objective", carried=True), Column("Load"))
        rows = tuple(row(f"goal {i // 100}" if i % 100 == 0 else "", str(i)) for i in range(300))
        report = bounded(Table("t", columns, rows))
        each = SHOWN_ROWS // 3
        texts = [tuple(value.text for value in line) for line in table_of(report).rows]
        assert [text for text in texts if text[0]] == [("goal 0", "0"), ("goal 1", "100"), ("goal 2", "200")]
        assert ("", str(200 + each - 1)) in texts and len(texts) == SHOWN_ROWS
        assert whole(report, "table-001.csv")[-1] == ["t", "goal 2", "299"]

    def test_a_carried_value_is_written_anew_where_its_own_row_is_left_out(self) -> None:
        columns = (left("Claim", carried=True), left("Test", carried=True), Column("Load"))
        rows = tuple(row("A" if i == 0 else "", f"test {i // 50}" if i % 50 == 0 else "", str(i)) for i in range(300))
        foremost = Foremost((60, 61, *range(110, 110 + SHOWN_ROWS - 2)), "refuted")
        texts = [
            tuple(v.text for v in line) for line in table_of(bounded(Table("t", columns, rows, (), (), foremost))).rows
        ]
        assert texts[:4] == [("A", "test 1", "60"), ("", "", "61"), ("", "test 2", "110"), ("", "", "111")]

    def test_lines_stand_between_the_groups_of_what_is_shown(self) -> None:
        foremost = Foremost((0, 1, 5, 9, 10, *range(100, 100 + SHOWN_ROWS - 5)), "that failed")
        shown = table_of(bounded(numbered(WHOLE_ROWS + 1, ruled=(1, 3, 4, 100), foremost=foremost)))
        assert shown.ruled == (1, 2, 5)

    def test_marks_and_what_stands_under_a_value_are_in_the_file(self) -> None:
        rows = tuple(row(f"cell {i}", Value("9.5", under="+1.0%\nhigher", mark="†")) for i in range(WHOLE_ROWS + 1))
        said = f"9.5† (+1.0%{SAY('list.phrase')}higher)"
        assert whole(bounded(Table("t", COLUMNS, rows)), "table-001.csv")[1] == ["t", "cell 0", said]

    def test_the_file_is_named_after_the_number_of_the_table(self) -> None:
        other = Table("u", (left("Other"),), (row("a"),))
        report = bounded(other, numbered(WHOLE_ROWS + 1), other)
        assert [file.name for file in report.whole] == ["table-002.csv"]
        lines = render_markdown(report).splitlines()
        (label,) = (line for line in lines if line.endswith(" t") and line.startswith("*Table"))
        assert label == "*Table 2.* t"


class TestSeries:
    """Tables of a section with the same columns, such as one for each workload."""

    def test_short_together_is_as_it_was(self) -> None:
        tables = [numbered(20) for _ in range(WHOLE_ROWS // 20)]
        assert bounded(*tables).sections[0].blocks == tuple(tables)

    def test_long_together_shows_the_first_and_counts_the_rest(self) -> None:
        doubtful = Foremost((1, 2), "that failed")
        tables = [numbered(20, caption=f"t{i}", foremost=doubtful) for i in range(WHOLE_ROWS // 20 + 1)]
        report = bounded(*tables, Paragraph("after"))
        *shown, said, after = report.sections[0].blocks
        assert shown == tables[: SHOWN_ROWS // 20] and after == Paragraph("after")
        left_out = len(tables) - len(shown)
        assert isinstance(said, Paragraph)
        assert f"{len(shown)} of {len(tables)} tables" in said.text and f"{20 * left_out} rows" in said.text
        assert f"{2 * left_out} of these are ones that failed" in said.text and "tables/table-001.csv" in said.text
        lines = whole(report, "table-001.csv")
        assert len(lines) == 1 + 20 * len(tables) and lines[-1][0] == tables[-1].caption

    def test_the_first_of_a_series_may_be_too_long_by_itself(self) -> None:
        report = bounded(numbered(WHOLE_ROWS + 1), numbered(3))
        table, said = report.sections[0].blocks
        assert isinstance(table, Table) and isinstance(said, Paragraph)
        assert len(table.rows) == SHOWN_ROWS and "1 of 2 tables" in said.text and "3 rows" in said.text

    def test_tables_of_other_columns_or_sections_are_no_series(self) -> None:
        tables = [numbered(20, columns=(left(f"Cell {i}"), Column("Value"))) for i in range(50)]
        assert bounded(*tables).whole == ()


class TestTexts:
    def test_a_list_as_long_as_the_bound_is_as_it_was(self) -> None:
        items = Bullets(tuple(map(str, range(WHOLE_ITEMS))), closing=2)
        assert bounded(items).sections[0].blocks == (items,)

    def test_a_longer_list_keeps_its_beginning_and_what_is_about_all_of_it(self) -> None:
        items = tuple(f"item {i}" for i in range(WHOLE_ITEMS + 1))
        report = bounded(Bullets(items, closing=2))
        (block,) = report.sections[0].blocks
        assert isinstance(block, Bullets)
        assert block.items[:SHOWN_ITEMS] == items[:SHOWN_ITEMS] and block.items[-2:] == items[-2:]
        (said,) = block.items[SHOWN_ITEMS:-2]
        assert f"{len(items) - SHOWN_ITEMS - 2} more" in said and f"all {len(items)}" in said
        assert report.whole[0].text.splitlines() == list(items) and report.whole[0].name in said

    def test_paragraphs_of_each_workload_are_told_as_far_as_they_are_read(self) -> None:
        texts = tuple(Paragraph(f"text {i}") for i in range(WHOLE_TEXTS + 1))
        assert bounded(*texts[:-1]).sections[0].blocks == texts[:-1]
        report = bounded(*texts, Excerpt("log"))
        *shown, log, said = report.sections[0].blocks
        assert shown == list(texts[:SHOWN_TEXTS]) and log == Excerpt("log") and isinstance(said, Paragraph)
        assert f"{len(texts) - SHOWN_TEXTS} more" in said.text
        assert report.whole[0].text.splitlines() == [text.text for text in texts]

    def test_of_many_notes_of_a_table_the_first(self) -> None:
        notes = tuple(f"note {i}" for i in range(WHOLE_NOTES + 1))
        table = Table("t", COLUMNS, (row("a", "1"),), notes)
        assert bounded(replace(table, notes=notes[:-1])).whole == ()
        report = bounded(table)
        *some, said = table_of(report).notes
        assert tuple(some) == notes[:SHOWN_NOTES] and f"{len(notes) - SHOWN_NOTES} more" in said
        assert report.whole[0].text.splitlines() == list(notes) and report.whole[0].name in said

    def test_that_tables_are_left_out_is_said_though_texts_are_left_out_too(self) -> None:
        texts = [Paragraph(f"text {i}") for i in range(WHOLE_TEXTS + 1)]
        report = bounded(*texts, *(numbered(20) for _ in range(50)))
        told = [block.text for block in report.sections[0].blocks if isinstance(block, Paragraph)]
        for file in report.whole:
            assert sum(file.name in text for text in told) == 1, file.name
        assert len(report.whole) == 2

    def test_sentences_of_the_summary(self) -> None:
        sentences = [f"sentence {i}" for i in range(MOST_SAID + 1)]
        assert few_of(sentences[:-1], SAY) == sentences[:-1]
        *some, said = few_of(sentences, SAY)
        assert some == sentences[:SOME_SAID] and f"{len(sentences) - SOME_SAID} more" in said

    def test_names(self) -> None:
        names = [f"w{i}" for i in range(MOST_LISTED + 1)]
        assert listed_some(names[:-1], SAY) == listed(names[:-1], SAY)
        assert separated(names[:-1], "list.semicolon", SAY) == "; ".join(names[:-1])
        few = f"w0, w1, w2 and {len(names) - 3} others"
        assert listed_some(names, SAY) == separated(names, "list.semicolon", SAY) == few


def test_a_part_that_is_shown_can_be_set(tmp_path: Path) -> None:
    for language in ("en", "zh"):
        report = bounded(numbered(WHOLE_ROWS + 1), Bullets(tuple(map(str, range(100))), 1), language=language)
        assert compile_report(report, tmp_path)[0].startswith(b"%PDF")


def write_large(results: Path, workloads: int = WORKLOADS) -> list[Path]:
    """The sample's six cells, of which one failed and one is in doubt, under each of so many workloads."""
    cells = write_sample(results, Sample(requests=4))
    effects = read_csv(results / "comparisons.csv")
    names = [f"w{number:02}" for number in range(workloads)]
    written = []
    for name in names:
        for path in cells:
            content = read_json(path, "cell/1")
            content["workload"] = content["config"]["workload"]["id"] = name
            written.append(results / name / path.relative_to(results / "short"))
            write_json(written[-1], "cell/1", content)
    lines = io.StringIO()
    writer = csv.DictWriter(lines, list(effects[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({**effect, "workload": name} for name in names for effect in effects)
    write_csv(results / "comparisons.csv", lines.getvalue())
    return written


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_large(tmp_path_factory.mktemp("large") / "results")


def read(cells: Sequence[Path], language: str) -> Report:
    comparisons = cells[0].parents[3] / "comparisons.csv"
    return read_report(cells, comparisons, ReportSettings("Large", language, ("default", "fp16")))


def blocks_of(report: Report) -> list[object]:
    return [block for section in report.sections for block in section.blocks]


def test_a_study_of_the_usual_size_is_shown_whole(tmp_path: Path) -> None:
    cells = write_large(tmp_path / "results", 3)
    assert read(cells, "en").whole == ()
    output = tmp_path / "reports/summary.md"
    write_markdown(cells, tmp_path / "results/comparisons.csv", ReportSettings("S", "en", ("default", "fp16")), output)
    assert list((tmp_path / "reports/tables").iterdir()) == []


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_large_study_is_shown_in_part_and_no_row_is_lost(
    cells: list[Path], language: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figure_names, "MOST_FIGURES", 1)
    report = read(cells, language)
    names = [f"tables/{file.name}" for file in report.whole]
    text = render_markdown(report)
    for name in names:
        assert text.count(name) >= 1, f"{name} is not named where something is left out"
    tables = [block for block in blocks_of(report) if isinstance(block, Table)]
    assert all(len(table.rows) <= WHOLE_ROWS for table in tables)
    say = Wording(language)
    validity = next(number for number, table in enumerate(tables, 1) if table.caption == say("validity.caption"))
    lines = whole(report, f"table-{validity:03}.csv")[1:]
    assert [line[1] for line in lines] == [f"{p.parts[-4]}/{p.parts[-3]}/{p.parts[-2]}" for p in cells]
    states = [line[2] for line in lines]
    for state in ("failed", "suspect"):
        assert states.count(say(f"state.{state}")) == WORKLOADS
    note = tables[validity - 1].notes[0]
    assert str(2 * WORKLOADS) in note and str(len(cells)) in note and str(SHOWN_ROWS) in note
    shown = {each[1].text for each in tables[validity - 1].rows}
    assert shown == {say("state.failed"), say("state.suspect")}, "what needs a look comes first"


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_failed_launch_is_told_or_listed(cells: list[Path], language: str) -> None:
    report, say = read(cells, language), Wording(language)
    told = [section for section in report.sections if section.title.startswith("1p1d/fp8")]
    (rest,) = (section for section in report.sections if section.title == say("failures.rest"))
    said, table = rest.blocks
    assert isinstance(said, Paragraph) and isinstance(table, Table)
    assert len(told) == MOST_TOLD and len(table.rows) == WORKLOADS - MOST_TOLD
    assert str(WORKLOADS - MOST_TOLD) in said.text
    assert {each[0].text.split("/")[0] for each in table.rows} == {f"w{i}" for i in range(MOST_TOLD, WORKLOADS)}


def test_what_was_left_out_lies_beside_the_report_and_nothing_older(cells: list[Path], tmp_path: Path) -> None:
    output, folder = tmp_path / "reports/summary.zh.md", tmp_path / "reports/tables.zh"
    folder.mkdir(parents=True)
    (folder / "table-999.csv").write_text("of an earlier report")
    settings = ReportSettings("Large", "zh", ("default", "fp16"), tables="tables.zh")
    write_markdown(cells, cells[0].parents[3] / "comparisons.csv", settings, output)
    report = read_report(cells, cells[0].parents[3] / "comparisons.csv", settings)
    assert report.whole and {path.name for path in folder.iterdir()} == {file.name for file in report.whole}
    for file in report.whole:
        assert (folder / file.name).read_text(encoding="utf-8") == file.text
        assert f"tables.zh/{file.name}" in output.read_text(encoding="utf-8")
