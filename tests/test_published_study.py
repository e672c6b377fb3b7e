"""The README and the study that it quotes say the same."""

import csv
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
STUDY = ROOT / "docs/studies/h200-8b"
COLUMNS = (
    ("ttft", "mean"),
    ("tpot", "mean"),
    ("itl", "p99"),
    ("e2el", "mean"),
    ("output_throughput", "value"),
    ("output_throughput_per_device", "value"),
)


def quoted() -> list[tuple[list[str], int, list[float]]]:
    """([workload, concurrency, mode, dtype], launches, numbers) of each row of the README's table."""
    row = re.compile(r"^\| (\w+), c = (\d+) \| (\S+) / (\S+) \| \d \| (\d) \| (.*) \|$", re.MULTILINE)
    return [
        (cell, int(launches), [float(text.replace(",", "")) for text in numbers.split(" | ")])
        for *cell, launches, numbers in row.findall((ROOT / "README.md").read_text())
    ]


def test_numbers_of_the_readme_are_those_of_the_study() -> None:
    with (STUDY / "summary.csv").open(newline="") as file:
        found = {
            (*(row[key] for key in ("workload", "concurrency", "mode", "dtype")), row["metric"], row["stat"]): row
            for row in csv.DictReader(file)
        }
    rows, report = quoted(), (STUDY / "summary.md").read_text()
    assert len(rows) == 15
    for cell, launches, numbers in rows:
        measured = [float(found[*cell, *column]["value"]) for column in COLUMNS]
        assert numbers == pytest.approx(measured, rel=0.005), cell
        workload, concurrency, mode, dtype = cell
        of_cell = rf"^\| c = {concurrency} in {workload} \| {mode} \| {dtype} \| .* / 0 \| \d+ \| (\d+) \|$"
        assert re.findall(of_cell, report, re.MULTILINE) == [str(launches)], cell


def test_sentences_of_the_readme_are_those_of_the_study() -> None:
    with (STUDY / "comparisons.csv").open(newline="") as file:
        effects = {
            tuple(row[key] for key in ("workload", "concurrency", "metric", "stat", "mode", "dtype")): row
            for row in csv.DictReader(file)
            if row["factor"] == "baseline"
        }
    for *effect, verdict, said in (
        ("chat", "2", "output_throughput", "value", "default", "fp8", "lower", "−1.9% [−2.1, −1.6]"),
        ("chat", "64", "output_throughput", "value", "default", "fp8", "higher", "+4.8% [+4.3, +5.4]"),
        ("chat", "64", "ttft", "mean", "1p1d", "bf16", "lower", "−56.5% [−60.0, −52.8]"),
        ("long", "8", "tpot", "mean", "1p1d", "bf16", "lower", "−75.9% [−76.6, −75.2]"),
        ("long", "8", "ttft", "mean", "1p1d", "bf16", "higher", "+139.0% [+125.3, +153.6]"),
    ):
        row = effects[tuple(effect)]
        assert row["verdict"] == verdict
        numbers = [100 * (float(row[key]) - 1) for key in ("ratio", "ci_low", "ci_high")]
        texts = [f"{number:+.1f}".replace("-", "−") for number in numbers]
        assert said.split() == [f"{texts[0]}%", f"[{texts[1]},", f"{texts[2]}]"]
        assert said in " ".join((ROOT / "README.md").read_text().split())


def test_everything_that_the_study_links_to_is_there() -> None:
    for page in ("README.md", "summary.md"):
        for link in re.findall(r"\]\(([^)#:]+)\)", (STUDY / page).read_text()):
            assert (STUDY / link).is_file(), f"{page}: {link}"
    for link in re.findall(r"\]\((docs/[^)#]+)\)", (ROOT / "README.md").read_text()):
        assert (ROOT / link).exists(), link
