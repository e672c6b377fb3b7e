# Takes: the raw evidence of a launch. Gives: what was read from it, and cell.json: the launches of a cell together.
#
# Seconds each, and never a reason to measure again.


localrules:
    read_trial,
    summarize_cell,


# One job for all that is read of a launch: in a study of thousands, jobs are what building the DAG takes its time for.
rule read_trial:
    input:
        plan=f"{TRIAL}/plan.json",
        stages=f"{TRIAL}/stages.json",
        sends=f"{TRIAL}/sends.parquet",
        events=f"{TRIAL}/events.parquet",
        samples=f"{TRIAL}/samples.parquet",
        scrapes=f"{TRIAL}/scrapes.jsonl",
        server=ancient(f"{TRIAL}/server"),
    output:
        launch=f"{TRIAL}/launch.json",
        requests=f"{TRIAL}/requests.parquet",
        metrics=f"{TRIAL}/metrics.json",
        trace=f"{TRIAL}/trace.parquet",
        devices=f"{TRIAL}/trace.json",
    log:
        f"{TRIAL}/logs/read_trial.log",
    conda:
        "../../envs/pipeline.yaml"
    params:
        source=readers["metrics.json"],
        folder=subpath(output.launch, parent=True),
    shell:
        "pdkv read-trial {params.folder:q} --source {params.source} 2> {log:q}"


rule summarize_cell:
    input:
        launches(f"{TRIAL}/plan.json"),
        launches(f"{TRIAL}/launch.json"),
        launches(f"{TRIAL}/requests.parquet"),
        launches(f"{TRIAL}/metrics.json"),
        launches(f"{TRIAL}/trace.json"),
        stages=launches(f"{TRIAL}/stages.json"),
    output:
        f"{CELL}/cell.json",
    log:
        f"{CELL}/logs/summarize_cell.log",
    conda:
        "../../envs/pipeline.yaml"
    params:
        source=readers["cell.json"],
        trials=lambda wildcards, input: [
            str(Path(path).parent) for path in input.stages
        ],
        slo=service_levels(),
    shell:
        "pdkv summarize-cell {output:q} --trials {params.trials:q} --slo={params.slo:q}"
        " --source {params.source} 2> {log:q}"
