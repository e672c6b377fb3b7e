"""How much of a large study its report shows: of long tables, lists and series of them, what a person can read.

A study of the usual size is shown whole. Of a larger one each table, series of like tables and list says how many of
its rows are shown, and in which file beside the report all of them stand.
"""

import csv
import io
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

from pdkv.reporting.report_blocks import (
    Block,
    Bullets,
    Column,
    Foremost,
    Paragraph,
    Report,
    Section,
    Table,
    Value,
    WholeFile,
)
from pdkv.reporting.wording import Wording

WHOLE_ROWS = 200  # of a table, or of like tables of a section together: about five pages
SHOWN_ROWS = 40  # of what is longer: about a page
WHOLE_ITEMS, SHOWN_ITEMS = 60, 15  # of a list
WHOLE_TEXTS, SHOWN_TEXTS = 200, 40  # paragraphs and lists of a section: some come once for each workload
WHOLE_NOTES, SHOWN_NOTES = 20, 10  # of a table: some come once for each load level
MOST_SAID, SOME_SAID = 8, 3  # sentences of one kind in the summary

WHOLE_FILES = ("table-*.csv", "list-*.txt")

Row: TypeAlias = tuple[Value, ...]


def bound_report(report: Report, folder: str, say: Wording) -> Report:
    """The report as it is shown, with the files, to lie in ``folder`` beside it, that hold what is left out of it."""
    bounds = _Bounds(folder, say)
    sections = tuple(map(bounds.bound, report.sections))
    return replace(report, sections=sections, whole=tuple(bounds.files))


def few_of(sentences: Sequence[str], say: Wording) -> list[str]:
    """Sentences of the summary that say the same of each workload: of many the first, and where the others stand."""
    if len(sentences) <= MOST_SAID:
        return list(sentences)
    return [*sentences[:SOME_SAID], say("bounds.said", count=f"{len(sentences) - SOME_SAID:,}")]


def first_where(flags: Iterable[bool], key: str, say: Wording) -> Foremost:
    """The rows of a table whose flag is set come before others; ``key`` says what they are."""
    return Foremost(tuple(number for number, flag in enumerate(flags) if flag), say(f"bounds.name.{key}"))


class _Bounds:
    """Counts the tables that are shown, for files are named after them."""

    def __init__(self, folder: str, say: Wording) -> None:
        self.folder, self.say = folder, say
        self.tables = self.lists = 0
        self.files: list[WholeFile] = []

    def bound(self, section: Section) -> Section:
        return replace(section, blocks=tuple(self._blocks(self._texts(section.blocks))))

    def _blocks(self, blocks: Sequence[Block]) -> Iterator[Block]:
        alike: dict[tuple[Column, ...], list[Table]] = {}
        for block in blocks:
            if isinstance(block, Table):
                alike.setdefault(block.columns, []).append(block)
        long = {columns: tables for columns, tables in alike.items() if _count_rows(tables) > WHOLE_ROWS}
        for block in blocks:
            match block:
                case Table() if block.columns in long:
                    if block is long[block.columns][0]:
                        yield from self._part(long[block.columns])
                case Table():
                    self.tables += 1
                    yield self._with_few_notes(block)
                case Bullets():
                    yield self._list(block)
                case _:
                    yield block

    def _part(self, tables: Sequence[Table]) -> Iterator[Block]:
        """As many tables of a series as have few rows together; of one that is long by itself, some rows."""
        path = self._file(f"table-{self.tables + 1:03}.csv", _as_csv(tables, self.say))
        shown = [tables[0] if len(tables[0].rows) <= WHOLE_ROWS else self._selection(tables[0], path)]
        for table in tables[1:]:
            if _count_rows(shown) + len(table.rows) > SHOWN_ROWS:
                break
            shown.append(table)
        self.tables += len(shown)
        yield from map(self._with_few_notes, shown)
        left = tables[len(shown) :]
        if left:
            foremost = ""
            if named := [each.foremost for each in left if each.foremost]:
                count = sum(len(each.rows) for each in named)
                key = "bounds.left" if count else "bounds.left_none"
                foremost = self.say(key, count=f"{count:,}", name=named[0].name)
            words = {"shown": len(shown), "all": len(tables), "rows": f"{_count_rows(left):,}"}
            yield Paragraph(self.say("bounds.tables", foremost=foremost, file=path, **words))

    def _selection(self, table: Table, path: str) -> Table:
        chosen = _choose(table)
        foremost = ""
        if table.foremost:
            kept = len(set(chosen) & set(table.foremost.rows))
            words = {"kept": f"{kept:,}", "count": f"{len(table.foremost.rows):,}", "name": table.foremost.name}
            foremost = self.say("bounds.foremost" if table.foremost.rows else "bounds.foremost_none", **words)
        words = {"shown": f"{len(chosen):,}", "all": f"{len(table.rows):,}"}
        note = self.say("bounds.rows", foremost=foremost, file=path, **words)
        ruled = tuple(number for number in range(1, len(chosen)) if _has_rule(table, *chosen[number - 1 : number + 1]))
        return replace(table, rows=_rows_of(table, chosen), ruled=ruled, notes=(note, *table.notes))

    def _with_few_notes(self, table: Table) -> Table:
        if len(table.notes) <= WHOLE_NOTES:
            return table
        return replace(
            table, notes=(*table.notes[:SHOWN_NOTES], self._left_out(table.notes, SHOWN_NOTES, "bounds.items"))
        )

    def _list(self, block: Bullets) -> Bullets:
        """The first items, and the closing ones, which are about all of them."""
        items = block.items
        if len(items) <= WHOLE_ITEMS:
            return block
        end = len(items) - block.closing
        said = self._left_out(items, SHOWN_ITEMS + block.closing, "bounds.items")
        return Bullets((*items[:SHOWN_ITEMS], said, *items[end:]), block.closing)

    def _texts(self, blocks: Sequence[Block]) -> list[Block]:
        """Of a section with a text for each workload the first ones."""
        texts = [block for block in blocks if isinstance(block, Paragraph | Bullets)]
        if len(texts) <= WHOLE_TEXTS:
            return list(blocks)
        said = [line for text in texts for line in ([text.text] if isinstance(text, Paragraph) else text.items)]
        left = {id(text) for text in texts[SHOWN_TEXTS:]}
        kept = sum(1 if isinstance(text, Paragraph) else len(text.items) for text in texts[:SHOWN_TEXTS])
        sentence = Paragraph(self._left_out(said, kept, "bounds.texts"))
        return [*(block for block in blocks if id(block) not in left), sentence]

    def _left_out(self, items: Sequence[str], shown: int, key: str) -> str:
        self.lists += 1
        path = self._file(f"list-{self.lists:03}.txt", "".join(f"{item}\n" for item in items))
        return self.say(key, count=f"{len(items) - shown:,}", all=f"{len(items):,}", file=path)

    def _file(self, name: str, text: str) -> str:
        self.files.append(WholeFile(name, text))
        return f"{self.folder}/{name}"


def _choose(table: Table) -> list[int]:
    """Numbers of the rows that are shown: the foremost, then such that say what none above them says.

    Of the latter as many for each value that is carried, such as an objective.
    """
    unlike: list[tuple[int, int]] = []
    seen: set[Row] = set()
    counts: Counter[Row] = Counter()
    for number, whole in enumerate(_filled(table)):
        carried = tuple(value for column, value in zip(table.columns, whole, strict=True) if column.carried)
        if whole[1:] not in seen:
            unlike.append((counts[carried], number))
            counts[carried] += 1
        seen.add(whole[1:])
    foremost = (*table.foremost.always, *table.foremost.rows) if table.foremost else ()
    return sorted(list(dict.fromkeys((*foremost, *(number for _, number in sorted(unlike)))))[:SHOWN_ROWS])


def _rows_of(table: Table, chosen: Sequence[int]) -> tuple[Row, ...]:
    """These rows; what is carried is written anew where the row that it stood in is left out."""
    whole = list(_filled(table))
    before: Row | None = None
    rows = []
    for each in (whole[number] for number in chosen):
        rows.append(_without_repeated(table.columns, each, before) if before else each)
        before = each
    return tuple(rows)


def _filled(table: Table) -> Iterator[Row]:
    """All rows with every carried value in its place."""
    above: Row = (Value(""),) * len(table.columns)
    for each in table.rows:
        above = tuple(
            old if column.carried and not value.text else value
            for column, value, old in zip(table.columns, each, above, strict=True)
        )
        yield above


def _without_repeated(columns: Sequence[Column], each: Row, before: Row) -> Row:
    """The carried values from the left on, as far as they are those of the row before, are empty again."""
    shown = list(each)
    for number, column in enumerate(columns):
        if column.carried and each[number] != before[number]:
            break
        if column.carried:
            shown[number] = Value("")
    return tuple(shown)


def _has_rule(table: Table, above: int, below: int) -> bool:
    """Whether a line is drawn anywhere between two rows."""
    return bisect_right(table.ruled, above) < bisect_right(table.ruled, below)


def _count_rows(tables: Sequence[Table]) -> int:
    return sum(len(table.rows) for table in tables)


def _as_csv(tables: Sequence[Table], say: Wording) -> str:
    """All rows of like tables, each behind the caption of its table; what stands under a value stands in brackets."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    titles = (
        say("word.grouped", group=column.group, title=column.title) if column.group else column.title
        for column in tables[0].columns
    )
    writer.writerow((say("pdf.table"), *titles))
    for table in tables:
        writer.writerows((table.caption, *(_plain(value, say) for value in each)) for each in _filled(table))
    return text.getvalue()


def _plain(value: Value, say: Wording) -> str:
    shown = value.text + value.mark
    if not value.under:
        return shown
    return say("word.only_in", value=shown, cells=say("list.phrase").join(value.under.split("\n")))
