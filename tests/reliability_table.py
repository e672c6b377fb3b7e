"""The table of faults in docs/reliability.md, out of the tests that show them.

``python tests/reliability_table.py`` prints it, ``... docs/reliability.md`` puts it between the marks of that file. A
test shows a fault where it says so: ``@pytest.mark.fault(kind, fault, happens)``. Pytest itself collects them.
"""

import contextlib
import io
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

TESTS = Path(__file__).parent
KINDS = ("launch", "load", "pd", "devices", "host", "stored", "input")
START, END = "<!-- faults: made by `make reliability` -->", "<!-- end of faults -->"


class Fault(NamedTuple):
    kind: str
    fault: str
    happens: str


class Shown(NamedTuple):
    """By which test, and whether a real vLLM server runs in it."""

    test: str
    engine: str


class Collected:
    """A plugin that keeps every test that is found, also those that this machine would leave out."""

    def __init__(self) -> None:
        self.faults: dict[Fault, list[Shown]] = {}

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        own = getattr(getattr(item, "callspec", None), "marks", ())
        whole, case = item.nodeid.partition("[")[0], item.nodeid
        for mark in item.iter_markers("fault"):
            fault = Fault(*_words(mark, item.nodeid))
            test = case if mark in own else whole
            shown = Shown(test.removeprefix("tests/"), "real" if item.get_closest_marker("engine") else "fake")
            tests = self.faults.setdefault(fault, [])
            if shown not in tests:
                tests.append(shown)


def _words(mark: pytest.Mark, test: str) -> Sequence[str]:
    words = mark.args
    if len(words) != 3 or mark.kwargs or not all(isinstance(word, str) and word.strip() for word in words):
        raise pytest.UsageError(f"{test}: fault() takes a kind, a fault and what happens: {words} {mark.kwargs}")
    if words[0] not in KINDS:
        raise pytest.UsageError(f"{test}: {words[0]!r} is no kind of fault: one of {', '.join(KINDS)}")
    return words


def collect() -> dict[Fault, list[Shown]]:
    """Faults in the order of their kinds, each with its tests; SystemExit where pytest can't collect."""
    collected = Collected()
    with contextlib.redirect_stdout(io.StringIO()) as said:
        status = pytest.main(["--collect-only", f"--rootdir={TESTS.parent}", str(TESTS)], plugins=[collected])
    if status != pytest.ExitCode.OK:
        sys.exit(f"pytest could not collect the tests:\n{said.getvalue()}")
    return dict(sorted(collected.faults.items(), key=lambda item: KINDS.index(item[0].kind)))


def lines(faults: dict[Fault, list[Shown]]) -> Iterator[str]:
    """Of the table."""
    yield "| kind | fault | what happens | test that shows it | engine |"
    yield "|---|---|---|---|---|"
    for fault, tests in faults.items():
        words = (word.replace("|", "\\|") for word in fault)
        named = "<br>".join(f"`{each.test}`" for each in tests)
        yield f"| {' | '.join(words)} | {named} | {' and '.join(sorted({each.engine for each in tests}))} |"


def put_into(document: str, table: str) -> str:
    """The document with this table between its marks."""
    before, _, rest = document.partition(START)
    _, found, after = rest.partition(END)
    if not found:
        sys.exit(f"the document lacks its marks: {START} and {END}")
    return f"{before}{START}\n{table}\n{END}{after}"


def main() -> None:
    table = "\n".join(lines(collect()))
    if len(sys.argv) > 1:
        path = Path(sys.argv[1])
        path.write_text(put_into(path.read_text(encoding="utf-8"), table), encoding="utf-8")
    else:
        print(table)


if __name__ == "__main__":
    main()
