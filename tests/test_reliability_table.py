"""docs/reliability.md says what the tests show, no more and no less."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from reliability_table import END, KINDS, START, Fault, Shown, lines, put_into

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs/reliability.md"
AT_LEAST = 40


@pytest.fixture(scope="module")
def table() -> str:
    """As the tests have it now. In a process of its own: pytest within pytest would import everything twice."""
    made = subprocess.run(
        [sys.executable, str(ROOT / "tests/reliability_table.py")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    return made.stdout.strip()


def test_the_document_holds_what_the_tests_say(table: str) -> None:
    document = DOCUMENT.read_text(encoding="utf-8")
    assert put_into(document, table) == document, "say `make reliability`"


def test_there_are_enough_faults_and_none_twice(table: str) -> None:
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table.splitlines()[2:]]
    assert {len(row) for row in rows} <= {5}
    assert len(rows) >= AT_LEAST
    twice = [fault for fault, count in Counter(row[1] for row in rows).items() if count > 1]
    assert twice == [], "one fault in two wordings of what happens"
    assert {row[0] for row in rows} <= set(KINDS)
    files = {name.partition("::")[0] for row in rows for name in re.findall(r"`(.+?)`", row[3])}
    assert all((ROOT / "tests" / file).is_file() for file in files), files


def test_a_row_names_all_tests_of_a_fault() -> None:
    fault = Fault("load", "a | b", "it is said")
    assert list(lines({fault: [Shown("test_a.py::one", "fake"), Shown("test_b.py::two", "real")]}))[2:] == [
        "| load | a \\| b | it is said | `test_a.py::one`<br>`test_b.py::two` | fake and real |"
    ]


def test_hand_written_text_stays() -> None:
    assert put_into(f"before\n{START}\nold\n{END}\nafter\n", "new") == f"before\n{START}\nnew\n{END}\nafter\n"


def test_a_document_without_marks_is_refused() -> None:
    with pytest.raises(SystemExit, match="lacks its marks"):
        put_into("nothing", "new")
