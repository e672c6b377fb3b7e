"""The line at the end of a run: what became of the cells, where the report is, and nothing where neither was asked."""

from pathlib import Path

import pytest

from pdkv.artifacts import write_json
from pdkv.study.study_outcome import outcome_line

PDF = Path("reports/summary.pdf")


def cells(folder: Path, *states: str) -> list[Path]:
    paths = [folder / str(number) / "cell.json" for number in range(len(states))]
    for path, state in zip(paths, states, strict=True):
        write_json(path, "cell/1", {"state": state})
    return paths


@pytest.mark.parametrize(
    ("states", "told"),
    [
        (["valid", "valid"], "cells: 2 valid; report: reports/summary.pdf"),
        (
            ["valid", "failed", "suspect", "failed"],
            "cells: 1 valid, 1 suspect, 2 failed (the report says why); report:",
        ),
        (["invalid"], "cells: 1 invalid (the report says why); report:"),
        ([], "report: reports/summary.pdf"),
    ],
)
def test_states_are_counted_in_their_order_and_doubt_points_to_the_report(
    tmp_path: Path, states: list[str], told: str
) -> None:
    assert outcome_line(cells(tmp_path, *states), [PDF]).startswith(f"pdkv: {told}")


def test_each_language_has_its_report() -> None:
    assert outcome_line([], [PDF, Path("reports/summary.zh.pdf")]).endswith("summary.pdf, reports/summary.zh.pdf")


def test_without_a_report_only_the_cells_and_without_both_nothing(tmp_path: Path) -> None:
    assert outcome_line(cells(tmp_path, "failed"), []) == "pdkv: cells: 1 failed"
    assert outcome_line([], []) == ""


def test_cells_that_are_elsewhere_or_were_edited_are_not_counted(tmp_path: Path) -> None:
    there, edited = cells(tmp_path, "valid", "suspect")
    edited.write_text(edited.read_text(encoding="utf-8").replace("suspect", "valid"), encoding="utf-8")
    assert outcome_line([there, edited, tmp_path / "gone.json"], []) == "pdkv: cells: 1 valid"
