"""A study of thousands of trials: does Snakemake still start at once, and is the report still written in minutes?

``python benchmarks/scale.py FOLDER`` makes such a study in FOLDER (nothing in it was measured: one workload's synthetic
results, in every workload again) and times three things, each in a process of its own: building the DAG where nothing
is there yet, finding that there is nothing to do where everything is there, and each step from cells to the report.
``--profile`` writes where the time went beside it, for ``python -m pstats``; such a run takes three times as long.
"""

import argparse
import base64
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from sample_results import Sample, write_sample  # noqa: E402 - the synthetic results of the tests

from pdkv.artifacts import read_json, write_json  # noqa: E402
from pdkv.reporting.figure_names import (  # noqa: E402
    curves_figure,
    ecdf_figure,
    metrics_figure,
    trace_figure,
    ttft_parts_figure,
)
from pdkv.study.config import Study, load_study  # noqa: E402
from pdkv.wings import PLANNER, digest  # noqa: E402

MAX_DAG_S, MAX_NOTHING_S, MAX_REPORT_S = 60.0, 60.0, 300.0
DTYPES = ("bf16", "fp8")
EVIDENCE = ("sends.parquet", "events.parquet", "samples.parquet", "scrapes.jsonl")
READ = ("launch.json", "metrics.json", "trace.json")
REQUESTS = 20


def main() -> None:
    """Make the study once, then time what was asked for."""
    arguments = _arguments()
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    write_config(folder / "config/config.yaml", arguments.workloads, arguments.modes, arguments.repeats)
    study = load_study(folder / "config/config.yaml")
    cells = [folder / "results" / "/".join(cell) / "cell.json" for cell in study.cells()]
    print(f"{len(cells):,} cells × {study.repeats} launches = {len(cells) * study.repeats:,} trials", flush=True)
    steps = arguments.steps
    if "dag" in steps:
        shutil.rmtree(folder / "results", ignore_errors=True)
        _time("DAG", snakemake("--dry-run", "--quiet"), folder, MAX_DAG_S, arguments.profile)
    if "nothing" in steps or "report" in steps:
        write_results(folder, study)
    if "report" in steps:
        spent = [_time(name, command, folder, None, arguments.profile) for name, command in report_steps(cells)]
        walls, cpus, gibs = zip(*spent, strict=True)
        _show("report", sum(walls), sum(cpus), max(gibs), MAX_REPORT_S)
    if "nothing" in steps:
        write_notes(folder, study)
        write_report_files(folder, study)
        _time("nothing to do", snakemake("--dry-run"), folder, MAX_NOTHING_S, arguments.profile)


def snakemake(*arguments: str) -> list[str]:
    """Snakemake on the workflow of this checkout."""
    return ["-m", "snakemake", "--snakefile", str(ROOT / "Snakefile"), "--cores", "1", *arguments]


def report_steps(cells: Sequence[Path]) -> Iterator[tuple[str, list[str]]]:
    """Name and command of each step from cells to the report, as the rules call them."""
    comparisons, objectives = ["--comparisons", "results/comparisons.csv"], ["--objectives", "results/objectives.csv"]
    settings = {"title": "Scale", "language": "en", "baseline": {"mode": "default", "dtype": DTYPES[0]}}
    told = [*comparisons, *objectives, "--report", json.dumps(settings)]
    for name, options in (
        ("aggregate", ["--parquet", "results/summary.parquet", "--csv", "results/summary.csv"]),
        ("compare", ["--baseline", "default", DTYPES[0], "--output", "results/comparisons.csv"]),
        ("rank-objectives", ["--output", "results/objectives.csv"]),
        ("draw-figures", [*comparisons, "--folder", "reports/figures", "--processes", str(os.cpu_count())]),
        ("write-markdown", [*told, "--output", "reports/summary.md"]),
        ("write-pdf", [*told, "--output", "reports/summary.pdf"]),
    ):
        yield name, ["-m", "pdkv", name, *map(str, cells), *options]


def write_config(path: Path, workloads: int, modes: int, repeats: int) -> None:
    """A study of so many workloads and modes, two precisions each."""
    workload = {"input_tokens": 128, "output_tokens": 16, "concurrency": [2], "requests": REQUESTS}
    study = {
        "model": "fake/model",
        "engine": {"command": ["/bin/true"], "device": "cpu"},
        "workloads": {f"w{number:04}": {**workload, "max_model_len": 512} for number in range(workloads)},
        "modes": {
            "default": {},
            **{f"m{number}": {"args": {"max_num_seqs": 8 + number}} for number in range(1, modes)},
        },
        "dtypes": list(DTYPES),
        "repeats": repeats,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(study, indent=1), encoding="utf-8")  # JSON is YAML


def write_results(folder: Path, study: Study) -> None:
    """All files of the study: one workload's cells in full, the others' linked to them under their own names."""
    made = folder / "made"
    if not made.is_dir():
        first = study.workloads[0].id
        modes = [mode.id for mode in study.modes]
        outputs = study.workloads[0].output_tokens
        sample = Sample(modes, DTYPES, first, launches=study.repeats, requests=REQUESTS, outputs=outputs)
        write_sample(made, sample)
    planner = digest(*PLANNER)
    contents = {"evidence": "", "read": f'{{"schema": "metrics/1", "source": "{digest("trial_facts")}"}}'}
    clock, wall = {"monotonic_s": 0.0, "unix_s": 1.8e9}, {"start_s": 0.0, "end_s": 84.0}
    stages = {"attempt": 1, "outcome": {"status": "ok"}, "clock": clock, "wall": wall}
    for workload, mode, dtype in study.cells():
        source = made / study.workloads[0].id / mode / dtype
        cell = folder / "results" / workload / mode / dtype
        content = {"source": digest("cell_summary"), **read_json(source / "cell.json", "cell/1")}
        content["workload"] = content["config"]["workload"]["id"] = workload
        for repeat in _repeats(study):
            trial = cell / f"r{repeat}"
            (trial / "server").mkdir(parents=True, exist_ok=True)
            plan = {"trial": json.loads(study.trial(workload, mode, dtype, repeat).to_slice()), "source": planner}
            write_json(trial / "plan.json", "plan/1", plan)
            write_json(trial / "stages.json", "stages/1", stages)
            # No file may have more than 65,000 names, and what is read may not grow older than what it is read from.
            for kind, names in (("evidence", EVIDENCE), ("read", READ)):
                placeholder = made / f"{kind}-{workload}-{repeat}"
                placeholder.write_text(contents[kind], encoding="utf-8")
                for name in names:
                    _link(placeholder, trial / name)
            for name in ("requests.parquet", "trace.parquet"):
                _link(source / trial.name / name, trial / name)
        write_json(cell / "cell.json", "cell/1", content)


def write_notes(folder: Path, study: Study) -> None:
    """What Snakemake notes of every file of a trial and a cell when its job has ended.

    It does so itself for one cell; those of the others say the same under their own names. To let it touch 60,000 jobs
    would take most of an hour.
    """
    shutil.rmtree(folder / ".snakemake", ignore_errors=True)
    first, *others = ("/".join(cell) for cell in study.cells())
    _run(snakemake("--touch", "--quiet", "--", f"results/{first}/cell.json"), folder)
    notes = folder / ".snakemake/metadata"
    told = {base64.b64decode(path.name).decode(): path.read_text(encoding="utf-8") for path in notes.iterdir()}
    for cell in others:
        slices = [(_noted_slice(study, first, repeat), _noted_slice(study, cell, repeat)) for repeat in _repeats(study)]
        for name, text in told.items():
            own = text.replace(first, cell)
            for old, new in slices:
                own = own.replace(old, new)
            path = notes / base64.b64encode(name.replace(first, cell).encode()).decode()
            path.write_text(own, encoding="utf-8")


def write_report_files(folder: Path, study: Study) -> None:
    """Empty ones where none was written, and one age for all files: none is newer than what was made from it."""
    tables = ("summary.parquet", "summary.csv", "comparisons.csv", "objectives.csv")
    paths = [*(f"results/{name}" for name in tables), "reports/summary.md", "reports/summary.pdf"]
    for workload in study.workloads:
        levels = range(len(workload.points))
        figures = [figure(workload.id, level) for figure in (metrics_figure, ecdf_figure) for level in levels]
        figures += [curves_figure(workload.id), ttft_parts_figure(workload.id)]
        figures += [trace_figure(workload.id, mode.id) for mode in study.modes]
        paths += [f"reports/figures/{figure}" for figure in figures]
    (folder / "reports/tables").mkdir(parents=True, exist_ok=True)
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).touch()
    now = time.time()
    for kind in ("results", "reports"):
        for path in (folder / kind).rglob("*"):
            os.utime(path, (now, now))


def _noted_slice(study: Study, cell: str, repeat: int) -> str:
    return json.dumps(repr(study.trial(*cell.split("/"), repeat).to_slice()))


def _repeats(study: Study) -> range:
    return range(1, study.repeats + 1)


def _link(source: Path, path: Path) -> None:
    path.unlink(missing_ok=True)
    os.link(source, path)


def _run(command: Sequence[str], folder: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
    )
    if done.returncode:
        sys.exit(done.stdout[-3000:])
    return done.stdout


def _time(
    name: str, command: Sequence[str], folder: Path, limit_s: float | None, profile: bool
) -> tuple[float, float, float]:
    """Run it and show (seconds, seconds of CPU, GiB at most)."""
    profiled = ["-m", "cProfile", "-o", str(folder / f"{name.replace(' ', '-')}.prof")] if profile else []
    process = os.fork()
    if process == 0:  # so that the memory is this step's own
        before = time.monotonic()
        output = _run([*profiled, *command], folder)
        if name == "nothing to do" and "Nothing to be done" not in output:
            print(output[-3000:])
            os._exit(1)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent = (time.monotonic() - before, used.ru_utime + used.ru_stime, used.ru_maxrss / 2**20)
        (folder / "spent.json").write_text(json.dumps(spent))
        os._exit(0)
    if os.waitpid(process, 0)[1]:
        sys.exit(f"{name} failed")
    spent = json.loads((folder / "spent.json").read_text())
    _show(name, *spent, limit_s)
    return tuple(spent)


def _show(name: str, wall_s: float, cpu_s: float, gib: float, limit_s: float | None) -> None:
    limit = "" if limit_s is None else f"  {'kept' if wall_s <= limit_s else 'BROKEN'}: at most {limit_s:g} s"
    print(f"{name:16} {wall_s:7.1f} s {cpu_s:7.1f} s CPU {gib:5.2f} GiB{limit}", flush=True)


def _arguments() -> Any:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workloads", type=int, default=100)
    parser.add_argument("--modes", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--steps", nargs="+", choices=("dag", "nothing", "report"), default=("dag", "nothing", "report")
    )
    parser.add_argument("--profile", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
