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


def quoted() -> list[tuple[str, str, str, list[float]]]:
    """(concurrency, mode, dtype, numbers) of each row of the README's table."""
    rows = re.findall(r"^\| c = (\d+) \| (\S+) / (\S+) \| (.*) \|$", (ROOT / "README.md").read_text(), re.MULTILINE)
    return [(*row[:3], [float(text.replace(",", "")) for text in row[3].split(" | ")][2:]) for row in rows]


def test_numbers_of_the_readme_are_those_of_the_study() -> None:
    with (STUDY / "summary.csv").open(newline="") as file:
        found = {
            (row["concurrency"], row["mode"], row["dtype"], row["metric"], row["stat"]): row["value"]
            for row in csv.DictReader(file)
            if row["workload"] == "chat"
        }
    rows = quoted()
    assert len(rows) == 10
    for *cell, numbers in rows:
        measured = [float(found[*cell, *column]) for column in COLUMNS]
        assert numbers == pytest.approx(measured, rel=0.005), cell


def test_sentences_of_the_readme_are_those_of_the_study() -> None:
    with (STUDY / "comparisons.csv").open(newline="") as file:
        effects = {
            (row["concurrency"], row["metric"], row["stat"], row["mode"], row["dtype"]): row
            for row in csv.DictReader(file)
            if row["factor"] == "baseline" and row["workload"] == "chat"
        }
    for concurrency, metric, stat, mode, dtype, verdict, said in (
        ("2", "output_throughput", "value", "default", "fp8", "lower", "−1.9% [−2.1, −1.6]"),
        ("64", "output_throughput", "value", "default", "fp8", "higher", "+4.8% [+4.3, +5.4]"),
        ("64", "ttft", "mean", "1p1d", "bf16", "lower", "−56.5% [−60.0, −52.8]"),
    ):
        row = effects[concurrency, metric, stat, mode, dtype]
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
