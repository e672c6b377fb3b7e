"""The command ``pdkv``: its parser, what Snakemake calls when it starts, and the only place that exits."""

import argparse
import io
import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from pdkv import verbs
from pdkv.clock_skew import inputs_of_the_past
from pdkv.errors import UserError
from pdkv.measuring.interruption import Interrupted
from pdkv.preconditions import (
    require_claims,
    require_device_told,
    require_folder,
    require_options_of_jobs,
    require_reachable_model,
    require_study_folders,
    require_typefaces,
    require_writable,
    tell_survey,
)

if TYPE_CHECKING:
    from pdkv.result_files import ResultFiles
    from pdkv.study.config import Study

DEFAULT_CONFIG = Path("config/config.yaml")
WRONG_USE = 2

Run = Callable[[argparse.Namespace], int | None]


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run one verb.

    Exit status: what the verb returns, 2 for what the user can mend, 128 and the signal's number after one.
    """
    _speak_utf8()
    arguments = _parser().parse_args(argv)
    try:
        with inputs_of_the_past(_inputs(arguments)):
            status = arguments.run(arguments)
        sys.stdout.flush()
    except UserError as error:
        _exit_with(error)
    except BrokenPipeError:  # the reader of our output has left, e.g. head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        from pdkv.artifacts import explain_unwritable

        if not (problem := explain_unwritable(error)):
            raise
        _exit_with(problem)
    except Interrupted as error:
        print(f"pdkv: {error}", file=sys.stderr)
        sys.exit(128 + error.signal_number)
    except KeyboardInterrupt:
        print("pdkv: interrupted", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
    sys.exit(status or 0)


def _inputs(arguments: argparse.Namespace) -> list[Path]:
    """What a step of the workflow reads, by the arguments that name it."""
    named = [getattr(arguments, name, None) for name in ("trial", "trials", "cells", "comparisons", "objectives")]
    return [path for each in named for path in (each if isinstance(each, list) else [each]) if isinstance(path, Path)]


def study_or_exit(configfiles: Sequence[Path], overrides: Mapping[str, Any]) -> "Study":
    """The validated study of a Snakemake run, or its one message and exit status 2."""
    from pdkv.study.config import load_study

    try:
        for folder in (Path("results"), Path("reports")):
            require_folder(folder)
        if len(configfiles) > 1:
            names = ", ".join(str(path) for path in configfiles)
            raise UserError(f"--configfile names {names}", remedy="name one file: a study comes from exactly one")
        study = load_study(_as_typed(configfiles[0]) if configfiles else DEFAULT_CONFIG, dict(overrides))
        require_study_folders(study)
        require_claims(study)
        return study
    except UserError as error:
        _exit_with(error)


def results_or_exit(provider: Any, prefix: str | None) -> "ResultFiles":
    """The files of ``results/``, on disk or where Snakemake's default storage ``provider`` keeps them."""
    from pdkv.result_files import FilesOnDisk, StoredFiles

    try:
        return StoredFiles(provider, prefix) if provider else FilesOnDisk()
    except UserError as error:
        _exit_with(error)


def start_or_exit(
    study: "Study",
    measures: bool,
    writes: bool,
    on_cluster: bool = False,
    shares_disk: bool = True,
    outputs: Iterable[str] = (),
    logs: Iterable[str] = (),
    job_options: Iterable[tuple[str, str]] = (),
) -> None:
    """Lock the folder for a Snakemake run that is about to start; say what it will measure on this machine.

    ``shares_disk``: the jobs of a cluster see the files of this folder. ``outputs``: what they will write there;
    ``logs``: theirs, which Snakemake removes before it starts them. ``job_options``: what a job on a cluster needs and
    what it gets. If it can't measure, or can't write those or the report in its language: why, and exit status 2.
    """
    from pdkv.run_lock import lock_run

    try:
        lock_run(Path(".snakemake"))
        require_writable([*map(Path, outputs), *(Path(log).with_name("new") for log in logs)])
        if writes:
            require_typefaces(study)
        if measures and on_cluster:
            require_device_told(study)
            require_reachable_model(study, shares_disk)
            require_options_of_jobs(job_options)
        elif measures:
            tell_survey(study, sys.stderr)
    except UserError as error:
        _exit_with(error)


# ---- the command line ----------------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pdkv", description="Measure and compare vLLM deployments.")
    parsers = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    _add_study_verbs(parsers)
    _add_load_verbs(parsers)
    _add_trial_verbs(parsers)
    _add_result_verbs(parsers)
    return parser


def _add(
    parsers: Any, name: str, run: Callable[[argparse.Namespace], int | None], text: str
) -> argparse.ArgumentParser:
    verb: argparse.ArgumentParser = parsers.add_parser(name, help=text, description=text, allow_abbrev=False)
    verb.set_defaults(run=run)
    return verb


def _add_study_verbs(parsers: Any) -> None:
    check = _add(parsers, "check", verbs.run_check, "say what a study would do here, and whether it can")
    check.add_argument("--config", type=Path, default=DEFAULT_CONFIG, help="config file (default: %(default)s)")
    doctor = _add(
        parsers, "doctor", verbs.run_doctor, "say what on this machine would stop a study, each with its cure"
    )
    doctor.add_argument("--config", type=Path, default=DEFAULT_CONFIG, help="config file (default: %(default)s)")
    doctor.add_argument("--clean", action="store_true", help="end and remove what dead trials have left")
    install = _add(parsers, "install-engine", verbs.run_install_engine, "make the environment of the embedded engine")
    install.add_argument("kind", choices=("auto", "cpu", "cuda"), nargs="?", default="auto")
    install.add_argument("--config", type=Path, metavar="FILE", help="the engine that this study asks for")
    prepare = _add(parsers, "prepare-model", verbs.run_prepare_model, "make the folder of the bundled model")
    prepare.add_argument("folder", type=Path)
    prepare.add_argument("--python", help="one that has torch and transformers (default: the embedded engine's)")
    merge = _add(parsers, "merge", verbs.run_merge, "join the results of two machines or runs into one study")
    merge.add_argument("folders", type=Path, nargs="+", metavar="FOLDER", help="folders that hold results/, at least 2")
    merge.add_argument("--into", type=Path, default=Path(), metavar="FOLDER", help="without results (default: here)")
    _add(parsers, "schema", verbs.run_schema, "print the JSON schema of config files")


def _add_load_verbs(parsers: Any) -> None:
    load = _add(parsers, "load", verbs.run_load, "load a running server and print what it did")
    load.add_argument("--url", required=True, help="base URL, e.g. http://127.0.0.1:8000")
    load.add_argument("--model", required=True, help="the model's name at the server")
    load.add_argument("--input-tokens", type=_positive(int), required=True, metavar="N")
    load.add_argument("--output-tokens", type=_positive(int), required=True, metavar="N")
    level = load.add_mutually_exclusive_group(required=True)
    level.add_argument("--concurrency", type=_positive(int), metavar="N", help="users, each with one request in flight")
    level.add_argument(
        "--request-rate", type=_positive(float), metavar="R", help="requests per second, whatever happens"
    )
    load.add_argument("--arrival", choices=("poisson", "constant"), default="poisson", help="with --request-rate")
    load.add_argument("--requests", type=_positive(int), required=True, metavar="N", help="measured requests")
    load.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for requests.parquet")
    load.add_argument("--seed", type=int, help="of the prompts (default: new ones, so that no cached prefix helps)")
    ramp = _positive(float, or_zero=True)
    load.add_argument(
        "--ramp-interval-ms", type=ramp, default=10.0, metavar="MS", help="users start so far apart; 0: all at once"
    )
    load.add_argument("--timeout", type=_positive(float), default=600.0, metavar="S", help="per request, in seconds")


def _add_trial_verbs(parsers: Any) -> None:
    plan = _add(parsers, "plan", verbs.run_plan, "resolve a trial into commands, devices and memory")
    plan.add_argument("--trial", required=True, metavar="JSON", help="the trial's slice of the config")
    plan.add_argument("--source", default="", metavar="DIGEST", help="of the planner, kept in the plan")
    plan.add_argument("output", type=Path, help="plan.json")
    measure = _add(parsers, "measure", verbs.run_measure, "launch, warm and load the servers of a planned trial")
    measure.add_argument("trial", type=Path, help="folder that holds plan.json")
    measure.add_argument("--attempt", type=_positive(int), default=1, metavar="N")
    measure.add_argument("--position", default="", metavar="I/N", help="which trial of how many, for the progress line")
    measure.add_argument("--log", type=Path, required=True, metavar="FILE")
    measure.add_argument("--parent", type=int, metavar="PID", help="end all servers and stop as soon as it has ended")
    read = _add(parsers, "read-trial", verbs.run_read_trial, "what was launched, its load, its warmth and its devices")
    read.add_argument("trial", type=Path, help="folder of the trial's evidence")
    read.add_argument("--source", default="", metavar="DIGEST", help="of what reads it, kept in metrics.json")


def _add_result_verbs(parsers: Any) -> None:
    cell = _add(parsers, "summarize-cell", verbs.run_summarize_cell, "the launches of a cell together")
    cell.add_argument("output", type=Path, help="cell.json")
    cell.add_argument("--trials", type=Path, nargs="+", required=True, help="folders of its launches")
    cell.add_argument("--slo", default="", metavar="JSON", help="service levels that goodput is counted by")
    cell.add_argument("--source", default="", metavar="DIGEST", help="of what summarizes it, kept in cell.json")
    everything = _add(parsers, "aggregate", verbs.run_aggregate, "one row for each number of the study")
    everything.add_argument("--cost", default="", metavar="JSON", help="prices of the hardware")
    _add_cells(everything, "--parquet", "--csv")
    compare = _add(parsers, "compare", verbs.run_compare, "effects between cells, with intervals and verdicts")
    compare.add_argument("--baseline", nargs=2, required=True, metavar=("MODE", "DTYPE"))
    compare.add_argument("--margin", type=_positive(float), default=0.02, metavar="SHARE")
    _add_cells(compare, "--output")
    rank = _add(parsers, "rank-objectives", verbs.run_rank_objectives, "which cells may be the best at what")
    rank.add_argument("--margin", type=_positive(float), default=0.02, metavar="SHARE")
    rank.add_argument("--cost", default="", metavar="JSON", help="prices of the hardware")
    _add_cells(rank, "--output")
    figures = _add(parsers, "draw-figures", verbs.run_draw_figures, "figures as SVG")
    figures.add_argument("--language", default="en")
    figures.add_argument("--processes", type=_positive(int), default=1, metavar="N")
    _add_cells(figures, "--comparisons", "--folder")
    for name, run, text in (
        ("write-markdown", verbs.run_write_markdown, "the report as Markdown"),
        ("write-pdf", verbs.run_write_pdf, "the report as PDF"),
    ):
        report = _add(parsers, name, run, text)
        report.add_argument("--report", required=True, metavar="JSON", help="title, language, baseline")
        report.add_argument("--figures", type=Path, default=Path("reports/figures"))
        report.add_argument("--tables", type=Path, help="of tables that are shown in part; beside the report")
        _add_cells(report, "--comparisons", "--objectives", "--output")


def _add_cells(verb: argparse.ArgumentParser, *paths: str) -> None:
    verb.add_argument("cells", type=Path, nargs="+", help="cell.json files in the study's order")
    for path in paths:
        verb.add_argument(path, type=Path, required=True)


def _positive(kind: type[int] | type[float], *, or_zero: bool = False) -> Callable[[str], int | float]:
    def convert(text: str) -> int | float:
        value = kind(text)
        if not (0 < value < float("inf") or (or_zero and value == 0)):
            raise argparse.ArgumentTypeError(f"{text} is not {'0 or more' if or_zero else 'above 0'}")
        return value

    convert.__name__ = "whole number" if kind is int else "number"  # argparse says "invalid whole number value"
    return convert


# ---- endings -------------------------------------------------------------------------------------------------------


def _exit_with(error: UserError) -> NoReturn:
    from pdkv.redaction import redact

    print(f"pdkv: {redact(str(error))}", file=sys.stderr)
    sys.exit(WRONG_USE)


def _as_typed(path: Path) -> Path:
    """The path as a person would name it from here: Snakemake has made it absolute."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _speak_utf8() -> None:
    """Whatever the locale says: names and units hold characters that ASCII has not; paths come out as they came in."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="surrogateescape")
