# Takes: the config file. Gives: the validated study, and what each rule's params need to know of it.
#
# Snakemake's own reading of the config is left aside: it lets the later of two equal keys win and merges files into
# each other. A study comes from exactly one file.
import gc
import json
import re
import shlex
import sys
from functools import cache
from pathlib import Path

from pdkv.cli import results_or_exit, study_or_exit, start_or_exit
from pdkv.due import is_read_by, trial_due
from pdkv.measuring.job_request import engine_here
from pdkv.reporting.figure_names import (
    curves_figure,
    ecdf_figure,
    figure_count,
    illustrated,
    metrics_figure,
    trace_figure,
    ttft_parts_figure,
)
from pdkv.result_files import FilesOnDisk
from pdkv.study.report_editions import editions
from pdkv.wings import MEASURER, PLANNER, digest, folder_digest

# The jobs of a DAG live as long as the run: looking through all of them for garbage, again and again while it grows,
# takes a quarter of the time in which that of a large study is built.
gc.set_threshold(100_000, 50, 100)

study = study_or_exit(
    workflow.config_settings.configfiles, workflow.config_settings.config
)
trials = {trial.name: trial for trial in study.trials()}
slices = {name: trial.to_slice() for name, trial in trials.items()}
positions = {name: number for number, name in enumerate(trials, 1)}
results = results_or_exit(
    workflow.storage_registry.default_storage_provider,
    workflow.storage_settings.default_storage_prefix,
)
planner = digest(*PLANNER)
# What was read of a launch, and what of a cell: each file says which source made it and what was made with it.
readers = {"metrics.json": digest("trial_facts"), "cell.json": digest("cell_summary")}
computes_on = engine_here(study.engine, Path(".engine")).device
workload_modes = list(dict.fromkeys(cell[:2] for cell in study.cells()))
languages = {
    edition.suffix: edition.language for edition in editions(study.report.language)
}


# `pdkv` is the one of this Python, whether or not its environment is activated. It replaces the shell (exec), so that a
# signal for the job reaches it. The thread limits that Snakemake derives from --cores are no part of the study.
PREFIX = (
    "set -euo pipefail; "
    "unset OMP_NUM_THREADS GOTO_NUM_THREADS OPENBLAS_NUM_THREADS MKL_NUM_THREADS VECLIB_MAXIMUM_THREADS NUMEXPR_NUM_THREADS; "
    f'pdkv() {{ exec {shlex.quote(sys.executable)} -X utf8 -P -m pdkv "$@"; }}; '
)
shell.prefix(PREFIX.replace("{", "{{").replace("}", "}}"))

CELL = "results/{workload}/{mode}/{dtype}"
TRIAL = f"{CELL}/r{{repeat}}"
BUNDLED_MODEL = ".engine/models/bundled/config.json"


wildcard_constraints:
    workload="|".join(re.escape(workload.id) for workload in study.workloads),
    mode="|".join(re.escape(mode.id) for mode in study.modes),
    dtype="|".join(re.escape(dtype.id) for dtype in study.dtypes),
    repeat=r"[1-9][0-9]*",
    # In brackets: Snakemake takes an empty constraint, that of one language, for none.
    edition=f"(?:{'|'.join(re.escape(suffix) for suffix in languages)})",


def trial_name(wildcards):
    """The one key by which everything about a trial is looked up: nothing is decoded from a wildcard."""
    return "{0.workload}/{0.mode}/{0.dtype}/r{0.repeat}".format(wildcards)


def all_cores():
    """Every core that Snakemake may use here; on a cluster, where it need not know, the profile says how many."""
    return workflow.resource_settings.cores or 1


def measure_slots():
    """How many trials may run beside each other here: `--resources gpu=N`, where they compute on GPUs; else one."""
    given = workflow.global_resources.get("gpu")
    return given.value if computes_on == "cuda" and given and given.value else 1


def measure_threads():
    """Cores of a measurement: so many that all slots take them all, and nothing else runs beside measurements."""
    return max(1, all_cores() // measure_slots())


def measure_gpus(wildcards):
    """What a measurement takes of the resource gpu: on a cluster the GPUs that it needs, on this machine one slot.

    If it asked here for all that it needs, then Snakemake would fill each single GPU that is free with the next small
    trial, and a trial that needs two would come last, after all repeats of the others. So it starts in its turn, and
    waits in its lease.
    """
    if computes_on != "cuda":
        return 0
    mode = trials[trial_name(wildcards)].mode
    needed = 0 if mode.endpoint else mode.instance_count * mode.tensor_parallel_size
    return min(1, needed) if workflow.local_exec else needed


def bundled_model():
    """The model as an input where the study serves it. Its age says nothing: it is made once."""
    return [ancient(BUNDLED_MODEL)] if study.model.name == "bundled" else []


@cache
def due_of(name):
    """What is due of a trial, as its evidence was when its job was created: before that is removed."""
    return trial_due(results, name, slices[name], planner, computes_on)


def plan_of(wildcards):
    """plan.json as an input whose age matters only if it must be made again.

    Copied results have new times in any order; a plan that still holds must not cost a measurement. It can't be ancient
    always: where a job runs again, Snakemake does not look for reasons in jobs that depend on it by ancient files alone.
    Plan and evidence of another trial are made anew, also where Snakemake has no notes of what they were made with.
    """
    name = trial_name(wildcards)
    path = f"results/{name}/plan.json"
    if workflow.is_main_process and not workflow.touch:
        workflow.dag.forcefiles.update(map(results.known_as, due_of(name).outdated))
    return path if due_of(name).needs_plan else ancient(path)


def missed(paths, files=results):
    """These files; what is not there of them is made, also where what was made of it is still there.

    And so is what another version read: Snakemake does not see that where its notes are gone, or are not to count, and
    one report would be of two versions. It costs seconds each.

    To Snakemake they are steps on the way, and not missed then. But it removes a job's outputs before it starts it: if
    it is killed while a failed launch is tried again, the report that names the failure would hide for ever that the
    launch was not measured.
    """
    if workflow.is_main_process and not workflow.touch:
        workflow.dag.forcefiles.update(
            files.known_as(path)
            for path in map(str, paths)
            if must_be_made(path, files)
        )
    return paths


def must_be_made(path, files):
    """Which version has read a file is asked on a disk alone: in object storage each would have to be fetched."""
    source = readers.get(path.rpartition("/")[2])
    if source and not workflow.storage_settings.default_storage_provider:
        return not is_read_by(path, source)
    return not files.holds(path)


def launches(pattern):
    """An input function: files of all launches of a cell."""

    def of_cell(wildcards):
        cell = dict(wildcards)
        repeats = range(1, study.launch_count(**cell) + 1)
        return missed([pattern.format(repeat=repeat, **cell) for repeat in repeats])

    return of_cell


def cells(pattern):
    """An input function: files of all cells, in the order of the study's tables."""
    return lambda wildcards: missed(
        [pattern.format(workload=w, mode=m, dtype=d) for w, m, d in study.cells()]
    )


def tables(*paths):
    """An input function: tables of the whole study."""
    return lambda wildcards: missed(paths)


def drawn_trials(pattern):
    """Files of all launches that figures are drawn from."""
    drawn = set(drawn_workloads())
    return [
        pattern.format(workload=w, mode=m, dtype=d, repeat=r)
        for w, m, d in study.cells()
        if w in drawn
        for r in range(1, study.launch_count(w, m, d) + 1)
    ]


def prices():
    """What the hardware costs, where the study says it; no trial knows of it either."""
    return json.dumps(study.cost.model_dump(), sort_keys=True) if study.cost else ""


def service_levels():
    """What counts as good service, where the study says it. No trial knows of it: it is asked of what was measured."""
    return json.dumps(study.slo.model_dump(), sort_keys=True) if study.slo else ""


def figures():
    """The figures of an edition of the report, with what Snakemake's own report says about it."""
    drawn = drawn_workloads()
    return [
        figure
        for workload in study.workloads
        if workload.id in drawn
        for figure in level_figures(workload)
        + [curves_of(workload), ttft_parts_of(workload)]
        + mode_figures(workload)
    ]


def drawn_workloads():
    """Ids of the workloads that a report has figures of."""
    counts = {
        workload.id: figure_count(len(workload.points), len(modes))
        for workload in study.workloads
        if (modes := modes_of(workload))
    }
    return illustrated(counts)


def level_figures(workload):
    return [
        described_figure(
            path(workload.id, number),
            kind,
            {"workload": workload.id, "load": point.label},
        )
        for number, point in enumerate(workload.points)
        for kind, path in (("metrics", metrics_figure), ("ecdf", ecdf_figure))
    ]


def curves_of(workload):
    path, labels = curves_figure(workload.id), {"workload": workload.id}
    return described_figure(path, "curves", labels)


def ttft_parts_of(workload):
    path, labels = ttft_parts_figure(workload.id), {"workload": workload.id}
    return described_figure(path, "ttft_parts", labels)


def mode_figures(workload):
    return [
        described_figure(
            trace_figure(workload.id, mode),
            "trace",
            {"workload": workload.id, "mode": mode},
        )
        for mode in modes_of(workload)
    ]


def modes_of(workload):
    """The modes that a workload is measured in, in the order of the config."""
    return [mode for name, mode in workload_modes if name == workload.id]


def described_figure(path, kind, labels):
    return report(
        local(f"reports/figures{{edition}}/{path}"),
        category="Figures",
        caption=f"../report/{kind}.rst",
        labels={"figure": kind, **labels},
    )


def drawn(wildcards):
    """One figure, which stands for all that its job draws, and what has been lost of the others since.

    For each input of a job Snakemake looks through all inputs of the job that makes it: with every figure here, a fifth
    of the time in which the DAG of a large study is built.
    """
    plain = map(str, figures())  # without what Snakemake's own report is told of them
    first, *others = (figure.format(edition=wildcards.edition) for figure in plain)
    lost = [figure for figure in others if not Path(figure).exists()]
    return list(map(local, [first, *lost] if Path(first).exists() else [first]))


def claims_file():
    """The file of claims as an input, where the study names one."""
    return [local(study.report.claims)] if study.report.claims else []


# Results may live in object storage (profiles/kubernetes), reports are where Snakemake runs.
def reports(pattern):
    """The files of all editions of the report."""
    return [local(path) for path in expand(pattern, edition=languages)]


def markdown_of(wildcards):
    """The same edition of the report as Markdown, with the tables that both forms of it show in part."""
    paths = [f"reports/{name}" for name in ("summary{}.md", "tables{}")]
    reported = [local(path.format(wildcards.edition)) for path in paths]
    return missed(reported, FilesOnDisk())


def other_editions(pattern):
    """An input function: the first edition brings the others."""

    def files(wildcards):
        return [
            local(pattern.format(edition=suffix))
            for suffix in languages
            if suffix != wildcards.edition == ""
        ]

    return files


def language_of(wildcards):
    return languages[wildcards.edition]


def report_settings(wildcards):
    """What the report needs to know of the config."""
    baseline = {"mode": study.baseline_mode, "dtype": study.baseline_dtype}
    settings = {
        "title": study.report.title,
        "language": language_of(wildcards),
        "baseline": baseline,
        "config": str(study.source),
        "overrides": workflow.config_settings.config,
        "claims": study.report.claims,
        "margin": study.report.margin,
        "cost": study.cost.model_dump() if study.cost else None,
    }
    return json.dumps(settings, sort_keys=True, ensure_ascii=False)
