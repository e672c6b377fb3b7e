"""The report's section and figure on where TTFT goes: what they show, mark and leave out."""

import itertools
import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure as Drawing
from matplotlib.patches import Rectangle
from sample_results import Sample, write_sample

from pdkv.analysing.study_results import StudyResults, read_study_results
from pdkv.reporting.figure_ttft_parts import LOOKS, draw_ttft_parts
from pdkv.reporting.report_blocks import Figure, Section, Table
from pdkv.reporting.report_ttft_parts import describe_ttft_parts
from pdkv.reporting.wording import Wording

SAMPLE = Sample(modes=("default", "1p1d"), dtypes=("fp16",), concurrencies=(2, 8), failed=frozenset())
SAY = Wording("en")
SINGLE = {"prefill_intake": 0.010, "prefill_queue": 0.020, "prefill": 0.050}
PAIR = {
    "router": 0.001, **SINGLE, "decode_intake": 0.004, "decode_queue": 0.006, "kv_transfer": 0.020,
    "first_decode_step": 0.008,
}  # fmt: skip


def split(parts: dict[str, Any], unexplained_s: float = 0.001) -> dict[str, Any]:
    whole = sum(value for value in parts.values() if value is not None) + unexplained_s
    places = {"router": 40, "prefill": 40, "decode": 40} if "router" in parts else {"prefill": 40}
    share = unexplained_s / whole
    state = "explained" if abs(share) <= 0.05 else "unexplained"
    rest = {"unexplained_s": unexplained_s, "unexplained_share": share, "requests": 40, "counted": places}
    return {"state": state, "ttft_mean_s": whole, "parts": parts, **rest}


MISMATCHED = {**split(PAIR), "state": "mismatched", "unexplained_s": None, "unexplained_share": None}
TRANSFER = {"count": 40, "bytes": 40 * 2**20 * 128, "seconds": 0.8}


def results_of(tmp_path: Path, change: Callable[[str, dict[str, Any]], None]) -> StudyResults:
    """The sample with ``change(mode, point)`` made to every load level of every cell."""
    cells = write_sample(tmp_path / "results", SAMPLE)
    for path in cells:
        content = json.loads(path.read_text(encoding="utf-8"))
        del content["digest"]
        for point in content["points"]:
            change(content["mode"], point)
        path.write_text(json.dumps(content), encoding="utf-8")
    return read_study_results(cells, tmp_path / "results/comparisons.csv")


def told(mode: str, point: dict[str, Any], of_pair: dict[str, Any] | None = None) -> None:
    pair = mode == "1p1d"
    point["ttft_parts"] = (of_pair or split(PAIR)) if pair else split(SINGLE)
    point["metrics"]["ttft"]["mean"] = point["ttft_parts"]["ttft_mean_s"]
    point["server"] = {"kv_transfer": TRANSFER if pair else None}


def with_pair(of_pair: dict[str, Any]) -> Callable[[str, dict[str, Any]], None]:
    return lambda mode, point: told(mode, point, of_pair)


def tables(section: Section) -> list[Table]:
    return [block for block in section.blocks if isinstance(block, Table)]


def cells_of(table: Table, row: int) -> list[str]:
    return [f"{value.text} {value.under}".strip() + value.mark for value in table.rows[row]]


def test_parts_stand_in_milliseconds_over_their_share_of_ttft(tmp_path: Path) -> None:
    (section,) = describe_ttft_parts(results_of(tmp_path, told), SAY)
    parts, _ = tables(section)
    assert [column.title for column in parts.columns] == [
        "Load", "Cell", "TTFT", "Router", "Intake", "Queue", "Running", "Intake", "Queue", "KV transfer", "First step",
        "Unexplained",
    ]  # fmt: skip
    assert [column.group for column in parts.columns] == ["", "", "", "", *["Prefill"] * 3, *["Decode"] * 4, ""]
    assert cells_of(parts, 0) == [
        "c = 2", "default/fp16", "81.0", "–", "10.0 12%", "20.0 25%", "50.0 62%", *["–"] * 4, "1.00 1%",
    ]  # fmt: skip
    assert cells_of(parts, 3) == [
        "c = 8", "1p1d/fp16", "120", "1.00 1%", "10.0 8%", "20.0 17%", "50.0 42%", "4.00 3%", "6.00 5%", "20.0 17%",
        "8.00 7%", "1.00 1%",
    ]  # fmt: skip
    assert parts.ruled == (2,)


@pytest.mark.parametrize(("measured_s", "told_as"), [(0.06, "120 ms against 60.0 ms (+100.0%)"), (0.115, None)])
def test_a_mean_over_all_requests_far_from_the_measured_one_is_told(
    tmp_path: Path, measured_s: float, told_as: str | None
) -> None:
    def change(mode: str, point: dict[str, Any]) -> None:
        told(mode, point)
        if (mode, point["point"]) == ("1p1d", 1):
            point["metrics"]["ttft"]["mean"] = measured_s

    (section,) = describe_ttft_parts(results_of(tmp_path, change), SAY)
    notes = [note for note in tables(section)[0].notes if "measured" in note]
    assert len(notes) == (1 if told_as else 0)
    assert all(note.startswith("c = 8: ") and note.endswith(f": 1p1d/fp16 {told_as}.") for note in notes)
    (figure,) = [block for block in section.blocks if isinstance(block, Figure)]
    assert "not that of the measured requests" in figure.caption


def test_transfers_are_told_per_request_and_by_their_rate(tmp_path: Path) -> None:
    twice = {**TRANSFER, "count": 80}  # two ranks, each with half of the bytes
    for transfer, shown in (
        (TRANSFER, ["128 MiB", "1.00", "20.0", "6.71"]),
        (twice, ["128 MiB", "2.00", "10.0", "6.71"]),
        (dict.fromkeys(TRANSFER), ["–"] * 4),
        (dict.fromkeys(TRANSFER, 0), ["0 B", "0", "–", "–"]),
    ):

        def change(mode: str, point: dict[str, Any], transfer: dict[str, Any] = transfer) -> None:
            told(mode, point)
            point["server"]["kv_transfer"] = transfer if mode == "1p1d" else None

        (section,) = describe_ttft_parts(results_of(tmp_path, change), SAY)
        _, transfers = tables(section)
        assert [cells_of(transfers, row)[:2] for row in (0, 1)] == [["c = 2", "1p1d/fp16"], ["c = 8", "1p1d/fp16"]]
        assert cells_of(transfers, 0)[2:] == shown


def test_a_study_without_disaggregation_has_neither_decode_nor_transfers(tmp_path: Path) -> None:
    def change(mode: str, point: dict[str, Any]) -> None:
        point["ttft_parts"] = split(SINGLE) if mode == "default" else None

    (section,) = describe_ttft_parts(results_of(tmp_path, change), SAY)
    (parts,) = tables(section)
    assert [column.title for column in parts.columns][3:] == ["Intake", "Queue", "Running", "Unexplained"]
    assert len(parts.rows) == 2


def test_what_does_not_add_up_is_marked_and_said(tmp_path: Path) -> None:
    surplus = split(PAIR, -0.02)
    for of_pair, mark, words in (
        (split(PAIR, 0.03), "30.0 20%*", "* more than 5% of TTFT"),
        (surplus, "−20.0 −20%*", "* more than 5% of TTFT"),
        (split({**PAIR, "router": None}), "1.00 1%", ""),
        (MISMATCHED, "–", "‡ servers and client"),
    ):
        (section,) = describe_ttft_parts(results_of(tmp_path, with_pair(of_pair)), SAY)
        parts = tables(section)[0]
        assert cells_of(parts, 1)[-1] == mark
        assert any(note.startswith(words) for note in parts.notes)
        assert len(parts.notes) == (3 if words else 2)
        assert cells_of(parts, 1)[1] == "1p1d/fp16" + ("‡" if of_pair is MISMATCHED else "")
        assert cells_of(parts, 0)[-1] == "1.00 1%", "the other cell is not marked"


def test_no_section_where_no_server_was_asked(tmp_path: Path) -> None:
    def change(_mode: str, point: dict[str, Any]) -> None:
        point["ttft_parts"] = None

    assert describe_ttft_parts(results_of(tmp_path, change), SAY) == []


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_section_names_its_figure_in_each_language(tmp_path: Path, language: str) -> None:
    (section,) = describe_ttft_parts(results_of(tmp_path, told), Wording(language))
    figures = [block for block in section.blocks if isinstance(block, Figure)]
    assert [figure.path for figure in figures] == ["short/ttft_parts.svg"]
    assert "short" in figures[0].caption


def drawing(results: StudyResults) -> Drawing:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return draw_ttft_parts(results.cells_of("short"), results.points_of("short"), SAY)


def bars(figure: Drawing, panel: int) -> dict[int, list[tuple[float, float]]]:
    """{row: [(from, to) in ms]} of a panel, in the order of drawing."""
    found: dict[int, list[tuple[float, float]]] = {}
    for patch in figure.axes[panel].patches:
        assert isinstance(patch, Rectangle)
        row = round(patch.get_y() + patch.get_height() / 2)
        found.setdefault(row, []).append((patch.get_x(), patch.get_x() + patch.get_width()))
    return found


def test_bars_are_stacked_up_to_ttft(tmp_path: Path) -> None:
    figure = drawing(results_of(tmp_path, told))
    assert [axes.get_title() for axes in figure.axes] == ["concurrency 2", "concurrency 8"]
    for panel in (0, 1):
        found = bars(figure, panel)
        assert {row: len(stack) for row, stack in found.items()} == {0: 4, 1: 9}
        for stack, ttft_ms in ((found[0], 81), (found[1], 120)):
            assert stack[0][0] == 0
            assert [end for _, end in stack[:-1]] == pytest.approx([start for start, _ in stack[1:]])
            assert stack[-1][1] == pytest.approx(ttft_ms)
        assert [text.get_text().strip() for text in figure.axes[panel].texts] == ["81.0", "120"]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [SAY(f"ttft_part.{part}") for part in LOOKS]


def test_a_surplus_runs_past_the_mark_of_ttft(tmp_path: Path) -> None:
    figure = drawing(results_of(tmp_path, with_pair(split(PAIR, -0.02))))
    assert bars(figure, 0)[1][-1][1] == pytest.approx(119)
    marks = [collection.get_paths()[0].vertices[0][0] for collection in figure.axes[0].collections]  # type: ignore[index]
    assert marks == pytest.approx([81, 99])


def test_a_cell_whose_requests_do_not_match_has_no_bar(tmp_path: Path) -> None:
    figure = drawing(results_of(tmp_path, with_pair(MISMATCHED)))
    assert list(bars(figure, 0)) == [0]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["default/fp16"]


def test_a_level_that_one_cell_lacks_stays_empty(tmp_path: Path) -> None:
    def change(mode: str, point: dict[str, Any]) -> None:
        told(mode, point)
        if point["point"] == 1:
            point["ttft_parts"] = None

    figure = drawing(results_of(tmp_path, change))
    assert bars(figure, 1) == {}
    assert [text.get_text() for text in figure.axes[1].texts] == [SAY("figure.no_values")]


def test_without_any_breakdown_the_figure_says_so(tmp_path: Path) -> None:
    def change(_mode: str, point: dict[str, Any]) -> None:
        point["ttft_parts"] = None

    figure = drawing(results_of(tmp_path, change))
    assert [text.get_text() for text in figure.texts] == [SAY("figure.no_ttft_parts")]


def test_every_part_has_a_look_of_its_own_in_grey_too() -> None:
    greys = {}
    for part, (colour, hatch) in LOOKS.items():
        red, green, blue = (255, 255, 255) if colour == "white" else (
            int(value, 16) for value in re.findall("..", colour[1:])
        )  # fmt: skip
        greys[part] = (round((0.3 * red + 0.59 * green + 0.11 * blue) / 25), hatch)
    neighbours = list(greys.values())
    assert all(one != other for one, other in itertools.pairwise(neighbours))
    full = [greys[part] for part in ("router", "prefill", "kv_transfer", "first_decode_step", "unexplained")]
    assert len(set(full)) == len(full)
