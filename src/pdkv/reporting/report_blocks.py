"""What a report is made of, free of any markup: both writers turn the same blocks into their own form."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias


@dataclass(frozen=True)
class Value:
    """One place of a table: a text, smaller lines under it, whether it is the best, a footnote's mark."""

    text: str
    under: str = ""
    best: bool = False
    mark: str = ""


@dataclass(frozen=True)
class Column:
    """``group`` is a heading over neighbouring columns; a ``wide`` column takes the room that is left.

    An empty value of a ``carried`` column stands for the one above it.
    """

    title: str
    group: str = ""
    align: Literal["left", "right"] = "right"
    wide: bool = False
    carried: bool = False


@dataclass(frozen=True)
class Foremost:
    """Where not all rows are shown: numbers of those that matter before others, the first most, and what they are.

    Sums over the others are ``always`` shown.
    """

    rows: tuple[int, ...]
    name: str
    always: tuple[int, ...] = ()


@dataclass(frozen=True)
class Table:
    """Every row has one value per column; a line is drawn above each row whose number is in ``ruled``, ascending."""

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]
    notes: tuple[str, ...] = ()
    ruled: tuple[int, ...] = ()
    foremost: Foremost | None = None

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"table {self.caption!r}: {len(row)} values for {len(self.columns)} columns")


@dataclass(frozen=True)
class Paragraph:
    """Running text."""

    text: str


@dataclass(frozen=True)
class Bullets:
    """A list of short texts; the last ``closing`` of them are about all that are before."""

    items: tuple[str, ...]
    closing: int = 0


@dataclass(frozen=True)
class Definitions:
    """Terms and what they mean."""

    items: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Figure:
    """``path`` is relative to the figures folder."""

    path: str
    caption: str


@dataclass(frozen=True)
class Excerpt:
    """Lines of a log or commands, shown as they are in a monospace font."""

    text: str


Block: TypeAlias = Table | Paragraph | Bullets | Definitions | Figure | Excerpt


@dataclass(frozen=True)
class Section:
    """A heading of ``level`` 1 or 2 and what follows it."""

    title: str
    blocks: tuple[Block, ...]
    level: int = 1


@dataclass(frozen=True)
class WholeFile:
    """All that a table or list would hold, in a file of this name beside the report, where the report shows a part."""

    name: str
    text: str


@dataclass(frozen=True)
class Report:
    """A report. ``said`` and ``untold`` are the summary: what the numbers carry and what they don't."""

    title: str
    subtitle: str
    said: tuple[str, ...]
    untold: tuple[str, ...]
    sections: tuple[Section, ...]
    language: str
    whole: tuple[WholeFile, ...] = ()


def row(*values: "str | Value") -> tuple[Value, ...]:
    """A table row; bare texts become values."""
    return tuple(value if isinstance(value, Value) else Value(value) for value in values)


def left(title: str, *, wide: bool = False, carried: bool = False) -> Column:
    """A column of texts."""
    return Column(title, align="left", wide=wide, carried=carried)


def ruled_by(keys: Iterable[object]) -> tuple[int, ...]:
    """Numbers of the rows whose key differs from that of the row before."""
    listed = list(keys)
    return tuple(number for number in range(1, len(listed)) if listed[number] != listed[number - 1])
