"""The command ``pdkv``: one thin verb per rule, and the only place that exits.

Each verb imports what it needs when it runs, so that a quick verb starts quickly.
"""

import argparse
import io
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from pdkv.clock_skew import inputs_of_the_past
from pdkv.errors import UserError
from pdkv.measuring.interruption import Interrupted, raise_when_told_to_stop

if TYPE_CHECKING:
    from pdkv.measuring.machine_checks import Finding
    from pdkv.reporting.report_model import ReportSettings
    from pdkv.study.config import Study

DEFAULT_CONFIG = Path("config/config.yaml")
ENGINES = Path(".engine")  # embedded engines and the bundled model, beside results/
NOTHING_MEASURED = 1
MACHINE_UNFIT = 1
WRONG_USE = 2


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run one verb.

    Exit status: 0, 1 if a load measured nothing, 2 for what the user can mend, 128 and the signal's number after one.
    """
    _speak_utf8()
    arguments = _parser().parse_args(argv)
    try:
        with inputs_of_the_past(_inputs(arguments)):
            arguments.run(arguments)
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
    sys.exit(0)


def _inputs(arguments: argparse.Namespace) -> list[Path]:
    """What a step of the workflow reads, by the arguments that name it."""
    named = [getattr(arguments, name, None) for name in ("trial", "trials", "cells", "comparisons", "objectives")]
    return [path for each in named for path in (each if isinstance(each, list) else [each]) if isinstance(path, Path)]


def study_or_exit(configfiles: Sequence[Path], overrides: Mapping[str, Any]) -> "Study":
    """The validated study of a Snakemake run, or its one message and exit status 2."""
    from pdkv.study.config import load_study

    try:
        for folder in (Path("results"), Path("reports")):
            _require_folder(folder)
        if len(configfiles) > 1:
            names = ", ".join(str(path) for path in configfiles)
            raise UserError(f"--configfile names {names}", remedy="name one file: a study comes from exactly one")
        study = load_study(_as_typed(configfiles[0]) if configfiles else DEFAULT_CONFIG, dict(overrides))
        _require_claims(study)
        return study
    except UserError as error:
        _exit_with(error)


def _require_folder(path: Path) -> None:
    """What is to be written there must not fail after hours of measuring."""
    if path.is_dir():
        return
    if path.is_symlink():
        remedy = f"mount or make {path.readlink()}, or remove the link"
        raise UserError(f"{path} is a link to {path.readlink()}, which is not there", remedy=remedy)
    if path.exists():
        raise UserError(f"{path} is a file, and pdkv's folder has that name", remedy="move it elsewhere")


def start_or_exit(
    study: "Study", measures: bool, writes: bool, on_cluster: bool = False, shares_disk: bool = True
) -> None:
    """Lock the folder for a Snakemake run that is about to start; say what it will measure on this machine.

    ``shares_disk``: the jobs of a cluster see the files of this folder. If it can't measure, or can't write the report
    in its language: why, and exit status 2.
    """
    from pdkv.run_lock import lock_run

    try:
        lock_run(Path(".snakemake"))
        if writes:
            _require_typefaces(study)
        if measures and on_cluster:
            _require_known_device(study)
            _require_reachable_model(study, shares_disk)
        elif measures:
            _survey(study, sys.stderr)
    except UserError as error:
        _exit_with(error)


# ---- verbs: what each rule of the workflow calls -------------------------------------------------------------------


def _check(arguments: argparse.Namespace) -> None:
    from pdkv.study.config import load_study

    study = load_study(arguments.config)
    for text in _require_claims(study):
        print(f"warning: {study.report.claims}: {text}")
    _survey(study, sys.stdout)
    _require_typefaces(study)


def _require_claims(study: "Study") -> list[str]:
    """Read once before anything runs: a fault in it is better known now than in the report.

    Returns warnings: what claims name and the study does not have.
    """
    if not study.report.claims:
        return []
    from pdkv.analysing.claim_file import find_strangers, read_claims

    try:
        claims = read_claims(Path(study.report.claims))
    except UserError as error:
        raise UserError(f"{study.source}: report.claims: {error.problem}", remedy=error.remedy) from None
    return find_strangers(claims, [mode.id for mode in study.modes], [dtype.id for dtype in study.dtypes])


def _require_typefaces(study: "Study") -> None:
    """Known before hours of measuring rather than after them."""
    from pdkv.study.report_editions import editions

    foreign = [edition.language for edition in editions(study.report.language) if edition.language != "en"]
    if foreign:
        from pdkv.reporting.typefaces import choose_typefaces
        from pdkv.reporting.wording import Wording

        choose_typefaces([text for language in foreign for text in Wording(language).all_texts()])


def _require_known_device(study: "Study") -> None:
    from pdkv.measuring.job_request import require_known_device

    if not all(mode.endpoint for mode in study.modes):
        require_known_device(study.engine)


def _require_reachable_model(study: "Study", shares_disk: bool) -> None:
    if study.model.name == "bundled" and not shares_disk:
        raise UserError(
            f"{study.source}: model: bundled is made in this folder, which the jobs do not see",
            remedy="copy a model into a volume that all pods have, and name its folder: model: /models/NAME",
        )


def _survey(study: "Study", stream: TextIO) -> None:
    from pdkv.measuring.survey import describe_survey, refuse_obstacles, survey_study

    survey = survey_study(study, ENGINES)
    print(describe_survey(survey), file=stream, flush=True)
    refuse_obstacles(study, survey)


def _plan(arguments: argparse.Namespace) -> None:
    from pdkv.artifacts import write_json
    from pdkv.measuring.plan import plan_trial
    from pdkv.measuring.resolve import choose_engine, require_engine, resolve_model
    from pdkv.records import Trial

    trial = Trial.from_slice(arguments.trial)
    if not trial.mode.endpoint:
        require_engine(trial.engine, ENGINES)
    plan = plan_trial(trial, choose_engine(trial.engine, ENGINES), *resolve_model(trial.model, ENGINES))
    write_json(arguments.output, "plan/1", {**plan, "source": arguments.source})


def _measure(arguments: argparse.Namespace) -> None:
    from pdkv.measuring.process_tree import be_told_of_death
    from pdkv.measuring.trial import measure

    if arguments.parent is not None and not be_told_of_death(arguments.parent):
        raise Interrupted(signal.SIGTERM)
    measure(arguments.trial, attempt=arguments.attempt, position=arguments.position, log=arguments.log)


def _read_trial(arguments: argparse.Namespace) -> None:
    from pdkv.analysing.trial_facts import read_trial

    read_trial(arguments.trial)


def _summarize_cell(arguments: argparse.Namespace) -> None:
    from pdkv.analysing.cell_summary import summarize_cell
    from pdkv.analysing.service_levels import ServiceLevels

    summarize_cell(arguments.trials, arguments.output, ServiceLevels.from_json(arguments.slo))


def _aggregate(arguments: argparse.Namespace) -> None:
    from pdkv.analysing.aggregate import aggregate

    aggregate(arguments.cells, arguments.parquet, arguments.csv)


def _compare(arguments: argparse.Namespace) -> None:
    from pdkv.analysing.comparison import compare

    compare(arguments.cells, arguments.baseline, arguments.output, arguments.margin)


def _rank_objectives(arguments: argparse.Namespace) -> None:
    from pdkv.analysing.objectives import rank_objectives
    from pdkv.analysing.token_cost import Prices

    prices = Prices.from_text(arguments.cost)
    rank_objectives(arguments.cells, arguments.output, arguments.margin, prices)


def _draw_figures(arguments: argparse.Namespace) -> None:
    from pdkv.reporting.figures import draw_figures

    draw_figures(arguments.cells, arguments.comparisons, arguments.folder, arguments.language, arguments.processes)


def _write_markdown(arguments: argparse.Namespace) -> None:
    from pdkv.reporting.report_markdown import write_markdown

    settings = _report_settings(arguments)
    figures = os.path.relpath(arguments.figures, arguments.output.parent)
    write_markdown(arguments.cells, arguments.comparisons, settings, arguments.output, figures)


def _write_pdf(arguments: argparse.Namespace) -> None:
    from pdkv.reporting.report_pdf import write_pdf

    settings = _report_settings(arguments)
    write_pdf(arguments.cells, arguments.comparisons, settings, arguments.output, arguments.figures)


def _report_settings(arguments: argparse.Namespace) -> "ReportSettings":
    from pdkv.reporting.report_model import ReportSettings

    return replace(ReportSettings.from_json(arguments.report), objectives=arguments.objectives)


# ---- verbs for people ----------------------------------------------------------------------------------------------


def _doctor(arguments: argparse.Namespace) -> None:
    from pdkv.measuring.leftovers import clean_leftovers, find_leftovers
    from pdkv.measuring.machine_checks import examine, is_at_work, name_leftovers
    from pdkv.study.config import load_study

    root = Path()
    at_work = is_at_work(root)
    leftovers = find_leftovers(root, at_work=at_work)
    try:
        study = load_study(arguments.config)
    except UserError:  # what lies here is still told; nothing is touched for a command that is wrong
        print(*name_leftovers(leftovers), sep="\n", flush=True)
        raise
    if arguments.clean:
        for line in clean_leftovers(leftovers) or ["nothing to clean"]:
            print(line, flush=True)
        leftovers = find_leftovers(root, at_work=at_work)
    findings = [*examine(study, ENGINES, root, leftovers, at_work=at_work), *_examine_report(study)]
    for finding in findings:
        print(finding)
    if any(finding.state == "problem" for finding in findings):
        sys.stdout.flush()
        sys.exit(MACHINE_UNFIT)


def _examine_report(study: "Study") -> "list[Finding]":
    from pdkv.measuring.machine_checks import Finding

    try:
        _require_claims(study)
        _require_typefaces(study)
    except UserError as error:
        return [Finding("report", "problem", error.problem, error.remedy)]
    return [Finding("report", "ok", f"can be written in the language of the study ({study.report.language})")]


def _install_engine(arguments: argparse.Namespace) -> None:
    from pdkv.installing.engine_env import install_engine
    from pdkv.study.config import load_study

    kind = load_study(arguments.config).engine.kind if arguments.config else arguments.kind
    if kind != "custom":  # an engine of the user's own is there already
        install_engine(kind, ENGINES)


def _prepare_model(arguments: argparse.Namespace) -> None:
    from pdkv.installing.bundled_model import prepare_model

    prepare_model(arguments.folder, (arguments.python,) if arguments.python else ())


def _merge(arguments: argparse.Namespace) -> None:
    from pdkv.study_merge import merge_studies

    for line in merge_studies(arguments.folders, arguments.into):
        print(line)


def _schema(_arguments: argparse.Namespace) -> None:
    from pdkv.study.config_schema import StudySection

    print(json.dumps(StudySection.model_json_schema(), indent=2, ensure_ascii=False))


def _load(arguments: argparse.Namespace) -> None:
    from pdkv.without_pandas import keep_pandas_out

    keep_pandas_out()
    from pdkv.analysing.load_table import describe_point, read_url_load
    from pdkv.measuring.url_load import measure_url
    from pdkv.progress import Progress

    with raise_when_told_to_stop(), Progress(arguments.model) as progress:
        progress.stage("load")
        record = measure_url(
            arguments.url,
            arguments.model,
            input_tokens=arguments.input_tokens,
            output_tokens=arguments.output_tokens,
            requests=arguments.requests,
            out_dir=arguments.out,
            concurrency=arguments.concurrency,
            rate=arguments.request_rate,
            arrival=arguments.arrival,
            seed=arguments.seed,
            ramp_interval_s=arguments.ramp_interval_ms / 1e3,
            timeout_s=arguments.timeout,
            progress=progress.requests,
        )
    facts = read_url_load(arguments.out, asdict(record.point), record.cpu_s / (record.end_s - record.start_s))
    print(describe_point(facts), flush=True)
    if not facts["requests"]["measured_ok"]:
        print("pdkv: no measured request succeeded", file=sys.stderr)
        sys.exit(NOTHING_MEASURED)


# ---- the command line ----------------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pdkv", description="Measure and compare vLLM deployments.")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    _add_study_verbs(verbs)
    _add_load_verb(verbs)
    _add_trial_verbs(verbs)
    _add_result_verbs(verbs)
    return parser


def _add_verb(verbs: Any, name: str, run: Callable[[argparse.Namespace], None], text: str) -> argparse.ArgumentParser:
    verb: argparse.ArgumentParser = verbs.add_parser(name, help=text, description=text, allow_abbrev=False)
    verb.set_defaults(run=run)
    return verb


def _add_study_verbs(verbs: Any) -> None:
    check = _add_verb(verbs, "check", _check, "say what a study would do here, and whether it can")
    check.add_argument("--config", type=Path, default=DEFAULT_CONFIG, help="config file (default: %(default)s)")
    doctor = _add_verb(verbs, "doctor", _doctor, "say what on this machine would stop a study, each with its cure")
    doctor.add_argument("--config", type=Path, default=DEFAULT_CONFIG, help="config file (default: %(default)s)")
    doctor.add_argument("--clean", action="store_true", help="end and remove what dead trials have left")
    install = _add_verb(verbs, "install-engine", _install_engine, "make the environment of the embedded engine")
    install.add_argument("kind", choices=("auto", "cpu", "cuda"), nargs="?", default="auto")
    install.add_argument("--config", type=Path, metavar="FILE", help="the engine that this study asks for")
    prepare = _add_verb(verbs, "prepare-model", _prepare_model, "make the folder of the bundled model")
    prepare.add_argument("folder", type=Path)
    prepare.add_argument("--python", help="one that has torch and transformers (default: the embedded engine's)")
    merge = _add_verb(verbs, "merge", _merge, "join the results of two machines or runs into one study")
    merge.add_argument("folders", type=Path, nargs="+", metavar="FOLDER", help="folders that hold results/, at least 2")
    merge.add_argument("--into", type=Path, default=Path(), metavar="FOLDER", help="without results (default: here)")
    _add_verb(verbs, "schema", _schema, "print the JSON schema of config files")


def _add_load_verb(verbs: Any) -> None:
    load = _add_verb(verbs, "load", _load, "load a running server and print what it did")
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


def _add_trial_verbs(verbs: Any) -> None:
    plan = _add_verb(verbs, "plan", _plan, "resolve a trial into commands, devices and memory")
    plan.add_argument("--trial", required=True, metavar="JSON", help="the trial's slice of the config")
    plan.add_argument("--source", default="", metavar="DIGEST", help="of the planner, kept in the plan")
    plan.add_argument("output", type=Path, help="plan.json")
    measure = _add_verb(verbs, "measure", _measure, "launch, warm and load the servers of a planned trial")
    measure.add_argument("trial", type=Path, help="folder that holds plan.json")
    measure.add_argument("--attempt", type=_positive(int), default=1, metavar="N")
    measure.add_argument("--position", default="", metavar="I/N", help="which trial of how many, for the progress line")
    measure.add_argument("--log", type=Path, required=True, metavar="FILE")
    measure.add_argument("--parent", type=int, metavar="PID", help="end all servers and stop as soon as it has ended")
    read = _add_verb(verbs, "read-trial", _read_trial, "what was launched, its load, its warmth and its devices")
    read.add_argument("trial", type=Path, help="folder of the trial's evidence")


def _add_result_verbs(verbs: Any) -> None:
    cell = _add_verb(verbs, "summarize-cell", _summarize_cell, "the launches of a cell together")
    cell.add_argument("output", type=Path, help="cell.json")
    cell.add_argument("--trials", type=Path, nargs="+", required=True, help="folders of its launches")
    cell.add_argument("--slo", default="", metavar="JSON", help="service levels that goodput is counted by")
    everything = _add_verb(verbs, "aggregate", _aggregate, "one row for each number of the study")
    _add_cells(everything, "--parquet", "--csv")
    compare = _add_verb(verbs, "compare", _compare, "effects between cells, with intervals and verdicts")
    compare.add_argument("--baseline", nargs=2, required=True, metavar=("MODE", "DTYPE"))
    compare.add_argument("--margin", type=_positive(float), default=0.02, metavar="SHARE")
    _add_cells(compare, "--output")
    rank = _add_verb(verbs, "rank-objectives", _rank_objectives, "which cells may be the best at what")
    rank.add_argument("--margin", type=_positive(float), default=0.02, metavar="SHARE")
    rank.add_argument("--cost", default="", metavar="JSON", help="prices of the hardware")
    _add_cells(rank, "--output")
    figures = _add_verb(verbs, "draw-figures", _draw_figures, "figures as SVG")
    figures.add_argument("--language", default="en")
    figures.add_argument("--processes", type=_positive(int), default=1, metavar="N")
    _add_cells(figures, "--comparisons", "--folder")
    for name, run, text in (
        ("write-markdown", _write_markdown, "the report as Markdown"),
        ("write-pdf", _write_pdf, "the report as PDF"),
    ):
        report = _add_verb(verbs, name, run, text)
        report.add_argument("--report", required=True, metavar="JSON", help="title, language, baseline")
        report.add_argument("--figures", type=Path, default=Path("reports/figures"))
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
    print(f"pdkv: {error}", file=sys.stderr)
    sys.exit(WRONG_USE)


def _as_typed(path: Path) -> Path:
    """The path as a person would name it from here: Snakemake has made it absolute."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _speak_utf8() -> None:
    """Whatever the locale says: names and units hold characters that ASCII has not; paths come out as they came in."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="surrogateescape")
