"""Trials beside each other on GPUs: only where the user allows it, and then in turn and out of each other's way."""

import os
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

from fake_nvml import write_pynvml
from test_workflow_reruns import STUDY, Workspace

from pdkv.artifacts import read_json
from pdkv.study.config import load_study

TWO_GPUS = 'FakeGpu("GPU-1", bus=1), FakeGpu("GPU-2", bus=2)'
SINGLE = "default: {}, mine: {args: {max_num_seqs: 8}}"


def measure(folder: Path, modes: str, repeats: int, *options: str) -> tuple[list[dict[str, Any]], str]:
    """``stages.json`` of a study on two invented GPUs by the time at which their launches began."""
    workspace = Workspace(folder / "study")
    head, _, tail = STUDY.partition("modes:")
    tail = tail[tail.index("dtypes:") :].replace("repeats: 1", f"repeats: {repeats}")
    workspace.write_study(f"{head}modes: {{{modes}}}\n{tail}")
    nvml = write_pynvml(folder / "nvml", TWO_GPUS)
    names = [trial.name for trial in load_study(workspace.folder / "config/config.yaml").trials()]
    done = subprocess.run(
        [*workspace.command(*options), "--cores", "2", *(f"results/{name}/stages.json" for name in names)],
        cwd=workspace.folder,
        env={**workspace.environment, "PYTHONPATH": f"{nvml}{os.pathsep}{workspace.source}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    found = [read_json(workspace.folder / f"results/{name}/stages.json", "stages/1") for name in names]
    assert {stages["outcome"]["status"] for stages in found} == {"ok"}
    return sorted(found, key=lambda stages: stages["stages"][0]["start_s"]), done.stdout


def gpus_of(stages: dict[str, Any]) -> set[str]:
    return {uuid for instance in stages["instances"] for uuid in instance["gpus"]}


def name_of(stages: dict[str, Any]) -> str:
    trial = stages["trial"]
    return f"{trial['workload']['id']}/{trial['mode']['id']}/{trial['dtype']['id']}/r{trial['repeat']}"


def overlap(one: dict[str, Any], other: dict[str, Any]) -> bool:
    starts, ends = ([each["stages"][at][key] for each in (one, other)] for at, key in ((0, "start_s"), (-1, "end_s")))
    return max(starts) < min(ends)


def test_trials_run_beside_each_other_on_gpus_of_their_own_and_say_so(tmp_path: Path) -> None:
    trials, _ = measure(tmp_path, f"{SINGLE}, 2x: {{}}", 2, "--resources", "gpu=2")
    pairs = [(one, other) for one in trials for other in trials if one is not other and overlap(one, other)]
    assert pairs
    for one, other in pairs:
        assert not gpus_of(one) & gpus_of(other)
        assert name_of(other) in one["beside"]
    # Repeat by repeat, although each second GPU could have been filled with a small trial of a later repeat.
    repeats = [stages["trial"]["repeat"] for stages in trials]
    assert sum(max(repeats[:at], default=1) > repeat for at, repeat in enumerate(repeats)) <= 1


def test_nothing_runs_beside_a_measurement_unless_it_is_said(tmp_path: Path) -> None:
    trials, _ = measure(tmp_path, SINGLE, 1)
    assert not any(overlap(one, other) for one, other in pairwise(trials))
    assert {tuple(stages["beside"]) for stages in trials} == {()}
