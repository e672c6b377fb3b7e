"""What each verb of the command line does: one thin function per rule of the workflow, then those for people.

Each imports what it needs when it runs, so that a quick verb starts quickly. What one returns is its exit status.
"""

import argparse
import json
import os
import signal
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pdkv.errors import UserError
from pdkv.measuring.interruption import Interrupted, raise_when_told_to_stop
from pdkv.preconditions import (
    ENGINES,
    require_claims,
    require_study_folders,
    require_typefaces,
    require_writable,
    tell_survey,
)

if TYPE_CHECKING:
    from pdkv.measuring.machine_checks import Finding
    from pdkv.reporting.report_model import ReportSettings
    from pdkv.study.config import Study

NOTHING_MEASURED = 1
MACHINE_UNFIT = 1


def run_check(arguments: argparse.Namespace) -> None:
    """What the study would do on this machine, and whether it can: 2 and the reason where not."""
    from pdkv.analysing.verdicts import MIN_LAUNCHES
    from pdkv.study.config import load_study
    from pdkv.study.launch_counts import describe_repeats, find_few_launches

    study = load_study(arguments.config)
    for text in find_few_launches(study, MIN_LAUNCHES):
        print(f"warning: {study.source}: {text}")
    for text in require_claims(study):
        print(f"warning: {study.report.claims}: {text}")
    require_study_folders(study)
    require_writable(Path(folder, "new") for folder in ("results", "reports", ".snakemake"))
    if note := describe_repeats(study, MIN_LAUNCHES):
        print(f"note: {study.source}: {note}")
    tell_survey(study, sys.stdout)
    require_typefaces(study)


def run_plan(arguments: argparse.Namespace) -> None:
    """A trial's slice of the config becomes plan.json: commands, devices, memory. Starts nothing."""
    from pdkv.artifacts import write_json
    from pdkv.measuring.plan import plan_trial
    from pdkv.measuring.resolve import choose_engine, require_engine, resolve_model
    from pdkv.records import Trial

    trial = Trial.from_slice(arguments.trial)
    if not trial.mode.endpoint:
        require_engine(trial.engine, ENGINES)
    plan = plan_trial(trial, choose_engine(trial.engine, ENGINES), *resolve_model(trial.model, ENGINES))
    write_json(arguments.output, "plan/1", {**plan, "source": arguments.source})


def run_measure(arguments: argparse.Namespace) -> None:
    """Launch, warm and load what plan.json says; the evidence is written whether that succeeds or not."""
    from pdkv.measuring.process_tree import be_told_of_death
    from pdkv.measuring.trial import measure

    if arguments.parent is not None and not be_told_of_death(arguments.parent):
        raise Interrupted(signal.SIGTERM)
    measure(arguments.trial, attempt=arguments.attempt, position=arguments.position, log=arguments.log, home=ENGINES)


def run_read_trial(arguments: argparse.Namespace) -> None:
    """The facts of one trial out of its evidence."""
    from pdkv.analysing.trial_facts import read_trial

    read_trial(arguments.trial, arguments.source)


def run_summarize_cell(arguments: argparse.Namespace) -> None:
    """cell.json out of the facts of its launches."""
    from pdkv.analysing.cell_summary import summarize_cell
    from pdkv.analysing.service_levels import ServiceLevels

    levels = ServiceLevels.from_json(arguments.slo)
    summarize_cell(arguments.trials, arguments.output, levels, arguments.source)


def run_aggregate(arguments: argparse.Namespace) -> None:
    """summary.parquet and summary.csv."""
    from pdkv.analysing.aggregate import aggregate
    from pdkv.analysing.token_cost import Prices

    aggregate(arguments.cells, arguments.parquet, arguments.csv, Prices.from_text(arguments.cost))


def run_compare(arguments: argparse.Namespace) -> None:
    """comparisons.csv."""
    from pdkv.analysing.comparison import compare

    compare(arguments.cells, arguments.baseline, arguments.output, arguments.margin)


def run_rank_objectives(arguments: argparse.Namespace) -> None:
    """objectives.csv."""
    from pdkv.analysing.objectives import rank_objectives
    from pdkv.analysing.token_cost import Prices

    prices = Prices.from_text(arguments.cost)
    rank_objectives(arguments.cells, arguments.output, arguments.margin, prices)


def run_draw_figures(arguments: argparse.Namespace) -> None:
    """The figures of one language."""
    from pdkv.reporting.figures import draw_figures

    draw_figures(arguments.cells, arguments.comparisons, arguments.folder, arguments.language, arguments.processes)


def run_write_markdown(arguments: argparse.Namespace) -> None:
    """The report as Markdown in one language, its figures linked from where it lies."""
    from pdkv.reporting.report_markdown import write_markdown

    settings = _report_settings(arguments)
    figures = os.path.relpath(arguments.figures, arguments.output.parent)
    write_markdown(arguments.cells, arguments.comparisons, settings, arguments.output, figures)


def run_write_pdf(arguments: argparse.Namespace) -> None:
    """The report as PDF in one language."""
    from pdkv.reporting.report_pdf import write_pdf

    settings = _report_settings(arguments)
    write_pdf(arguments.cells, arguments.comparisons, settings, arguments.output, arguments.figures)


def _report_settings(arguments: argparse.Namespace) -> "ReportSettings":
    from pdkv.reporting.report_model import ReportSettings

    beside = arguments.output.parent
    tables = os.path.relpath(arguments.tables or beside / "tables", beside)
    return replace(ReportSettings.from_json(arguments.report), objectives=arguments.objectives, tables=tables)


# ---- for people ----------------------------------------------------------------------------------------------------


def run_doctor(arguments: argparse.Namespace) -> int:
    """Each finding a line; 1 if one would stop a study. Leftovers are touched with ``--clean`` alone."""
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
    findings = [*_examine_folders(study), *examine(study, ENGINES, root, leftovers, at_work=at_work)]
    findings += _examine_report(study)
    for finding in findings:
        print(finding)
    if any(finding.state == "problem" for finding in findings):
        return MACHINE_UNFIT
    return 0


def _examine_folders(study: "Study") -> "list[Finding]":
    from pdkv.measuring.machine_checks import Finding

    try:
        require_study_folders(study)
    except UserError as error:
        return [Finding("folders", "problem", error.problem, error.remedy)]
    return [Finding("folders", "ok", "results and reports can be looked into")]


def _examine_report(study: "Study") -> "list[Finding]":
    from pdkv.measuring.machine_checks import Finding

    try:
        require_claims(study)
        require_typefaces(study)
    except UserError as error:
        return [Finding("report", "problem", error.problem, error.remedy)]
    return [Finding("report", "ok", f"can be written in the language of the study ({study.report.language})")]


def run_install_engine(arguments: argparse.Namespace) -> None:
    """Make the embedded engine's environment, unless the study brings its own."""
    from pdkv.installing.engine_env import install_engine
    from pdkv.study.config import load_study

    kind = load_study(arguments.config).engine.kind if arguments.config else arguments.kind
    if kind != "custom":  # an engine of the user's own is there already
        install_engine(kind, ENGINES)


def run_prepare_model(arguments: argparse.Namespace) -> None:
    """Make the folder of the bundled model."""
    from pdkv.installing.bundled_model import prepare_model

    prepare_model(arguments.folder, (arguments.python,) if arguments.python else ())


def run_merge(arguments: argparse.Namespace) -> None:
    """Join folders of results; says what came from where."""
    from pdkv.study_merge import merge_studies

    for line in merge_studies(arguments.folders, arguments.into):
        print(line)


def run_schema(_arguments: argparse.Namespace) -> None:
    """Print the JSON schema of config files."""
    from pdkv.study.config_schema import StudySection

    print(json.dumps(StudySection.model_json_schema(), indent=2, ensure_ascii=False))


def run_load(arguments: argparse.Namespace) -> int:
    """Load a server that runs already; 1 if no measured request succeeded."""
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
        return NOTHING_MEASURED
    return 0
