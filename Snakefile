# The study, from the config file to the report: `snakemake --cores 1 reports/summary.pdf`.
#
# Takes: config/config.yaml, or the one file that --configfile names; --config key=value replaces single keys.
# Gives: results/ (evidence and tables, docs/artifacts.md says what is in each file) and reports/.
from snakemake.utils import min_version

from pdkv.study.report_editions import left_editions
from pdkv.study.study_outcome import outcome_line

min_version("9.27")


include: "workflow/rules/common.smk"
include: "workflow/rules/cluster.smk"
include: "workflow/rules/measure.smk"
include: "workflow/rules/read.smk"
include: "workflow/rules/compare.smk"
include: "workflow/rules/report.smk"


rule all:
    default_target: True
    input:
        reports("reports/summary{edition}.md"),
        reports("reports/summary{edition}.pdf"),


# Only what is about to measure here asks this machine for GPUs, memory and an engine: results can be read anywhere.
onstart:
    if workflow.is_main_process and not workflow.touch:
        jobs = list(workflow.dag.needrun_jobs())
        due = {job.rule.name for job in jobs}
        # Those in object storage are not seen from here.
        written, logs = (
            [path for files in each for path in files if not path.is_storage]
            for each in ([job.output for job in jobs], [job.log for job in jobs])
        )
        start_or_exit(
            study,
            measures="measure" in due,
            writes=not due.isdisjoint(DRAWN_BY),
            on_cluster=not workflow.local_exec,
            shares_disk=has_shared_disk(),
            outputs=written,
            logs=logs,
            job_options=job_options(jobs),
        )


# A run that ends well may hold cells that failed, or whose numbers are in doubt: these are results, no errors of a job.
onsuccess:
    if workflow.is_main_process and not workflow.touch:
        made = {
            rule: [
                Path(job.output[0])
                for job in workflow.dag.jobs
                if job.rule.name == rule
            ]
            for rule in ("summarize_cell", "write_pdf")
        }
        if line := outcome_line(made["summarize_cell"], made["write_pdf"]):
            print(line, file=sys.stderr)
        for path in left_editions(study.report.language, Path("reports")):
            print(
                f"note: {path} is of an earlier run, not of this one",
                file=sys.stderr,
            )
