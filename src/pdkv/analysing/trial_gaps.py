"""The time between the launches of a study: what Snakemake and the rules that read results took there.

A job's own wall time does not hold it. Launches are put on one axis by the pair of clocks that each has recorded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pdkv.analysing.study_results import Cell
from pdkv.artifacts import read_json

LONGEST_GAP_S = 600.0  # beyond it the study was interrupted, and taken up again some other time


@dataclass(frozen=True)
class TrialGaps:
    """``gaps_s`` between launches that followed one another, and ``walls_s``, the wall times of these runs together.

    ``overlapping`` says that launches ran side by side: then the wall times say nothing about the time that passed.
    """

    count: int
    gaps_s: float
    walls_s: float
    overlapping: bool


def trial_gaps(cells: Sequence[Cell]) -> TrialGaps | None:
    """None where fewer than two launches followed one another, or where their times were not recorded."""
    files = [cell.folder / f"r{trial['repeat']}" / "stages.json" for cell in cells for trial in cell.trials]
    spans = sorted(_unix_span(path) for path in files if path.is_file())
    followed, overlapping = [], False
    end_s = spans[0][1] if spans else 0.0
    for start_s, its_end_s in spans[1:]:
        overlapping |= start_s < end_s
        followed.append(start_s - end_s)
        end_s = max(end_s, its_end_s)
    counted = [gap for gap in followed if 0 <= gap <= LONGEST_GAP_S]
    walls_s = sum(end - start for start, end in spans)
    return TrialGaps(len(counted), sum(counted), walls_s, overlapping) if counted else None


def _unix_span(path: Path) -> tuple[float, float]:
    stages = read_json(path, "stages/1")
    offset_s = stages["clock"]["unix_s"] - stages["clock"]["monotonic_s"]
    return stages["wall"]["start_s"] + offset_s, stages["wall"]["end_s"] + offset_s
