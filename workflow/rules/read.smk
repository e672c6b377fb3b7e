# Takes: the raw evidence of a launch. Gives: what was read from it, and cell.json: the launches of a cell together.
#
# Seconds each, and never a reason to measure again.


localrules:
    read_launch,
    read_warmup,
    read_load,
    trace_devices,
    summarize_cell,


rule read_launch:
    input:
        plan=f"{TRIAL}/plan.json",
        stages=f"{TRIAL}/stages.json",
        scrapes=f"{TRIAL}/scrapes.jsonl",
        server=ancient(f"{TRIAL}/server"),
    output:
        f"{TRIAL}/launch.json",
    log:
        f"{TRIAL}/logs/read_launch.log",
    conda:
        "../../envs/pipeline.yaml"
    params:
        source=digest("launch_facts"),
        folder=subpath(output[0], parent=True),
    shell:
        "pdkv read-launch {params.folder:q} 2> {log:q}"


rule read_warmup:
    input:
        stages=f"{TRIAL}/stages.json",
        requests=f"{TRIAL}/requests.parquet",
    output:
        f"{TRIAL}/warmup.json",
    log:
        f"{TRIAL}/logs/read_warmup.log",
    conda:
        "../../envs/pipeline.yaml"
    params:
        source=digest("warmup_facts"),
        folder=subpath(output[0], parent=True),
    shell:
        "pdkv read-warmup {params.folder:q} 2> {log:q}"


rule read_load:
    input:
        plan=f"{TRIAL}/plan.json",
        stages=f"{TRIAL}/stages.json",
        sends=f"{TRIAL}/sends.parquet",
        events=f"{TRIAL}/events.parquet",
        scrapes=f"{TRIAL}/scrapes.jsonl",
    output:
        requests=f"{TRIAL}/requests.parquet",
        metrics=f"{TRIAL}/metrics.json",
    log:
        f"{TRIAL}/logs/read_load.log",
    conda:
        "../../envs/pipeline.yaml"
    params:
        source=digest("load_facts"),
        folder=subpath(output.metrics, parent=True),
    shell:
        "pdkv read-load {params.folder:q} 2> {log:q}"


rule trace_devices:
    input:
        stages=f"{TRIAL}/stages.json",
        samples=f"{TRIAL}/samples.parquet",
        # When the load was full and how many tokens came meanwhile.
        metrics=f"{TRIAL}/metrics.json",
    output:
        trace=f"{TRIAL}/trace.parquet",
        summary=f"{TRIAL}/trace.json",
    log:
        f"{TRIAL}/logs/trace_devices.log",
    conda:
        "../../envs/pipeline.yaml"
    params:
        source=digest("utilization"),
        folder=subpath(output.summary, parent=True),
    shell:
        "pdkv trace-devices {params.folder:q} 2> {log:q}"


rule summarize_cell:
    input:
        launches(f"{TRIAL}/plan.json"),
        launches(f"{TRIAL}/launch.json"),
        launches(f"{TRIAL}/warmup.json"),
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
        source=digest("cell_summary"),
        trials=lambda wildcards, input: [
            str(Path(path).parent) for path in input.stages
        ],
        slo=service_levels(),
    shell:
        "pdkv summarize-cell {output:q} --trials {params.trials:q} --slo={params.slo:q} 2> {log:q}"
