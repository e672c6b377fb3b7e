# Takes: each trial's slice of the config. Gives: plan.json and the raw evidence of its one launch.
#
# A trial is measured again if its slice or the source of the measuring wing changed, or if it failed: never because a
# file became newer. A server that fails is a result and no error of the job (docs/decisions/0002).


localrules:
    prepare_model,
    plan_server,


rule prepare_model:
    output:
        BUNDLED_MODEL,
    log:
        "results/logs/prepare_model.log",
    conda:
        "../../envs/pipeline.yaml"
    params:
        folder=subpath(output[0], parent=True),
        # A function of output is not compared: another engine does not make the model anew.
        python=lambda wildcards, output: study.engine.python or "",
    shell:
        "pdkv prepare-model {params.folder:q} --python={params.python:q} 2> {log:q}"


rule plan_server:
    input:
        bundled_model(),
    output:
        f"{TRIAL}/plan.json",
    log:
        f"{TRIAL}/logs/plan_server.log",
    # Before all measurements, so that these keep their order.
    priority: len(trials) + 1
    conda:
        "../../envs/pipeline.yaml"
    params:
        trial=lambda wildcards: slices[trial_name(wildcards)],
        source=planner,
    shell:
        "pdkv plan --trial {params.trial:q} --source {params.source} {output:q} 2> {log:q}"


rule measure:
    input:
        bundled_model(),
        plan=plan_of,
    output:
        stages=f"{TRIAL}/stages.json",
        sends=f"{TRIAL}/sends.parquet",
        events=f"{TRIAL}/events.parquet",
        samples=f"{TRIAL}/samples.parquet",
        scrapes=f"{TRIAL}/scrapes.jsonl",
        server=directory(f"{TRIAL}/server"),
    log:
        f"{TRIAL}/logs/measure.log",
    # Repeat by repeat, each in its seeded order.
    priority: lambda wildcards: len(trials) - positions[trial_name(wildcards)] + 1
    conda:
        "../../envs/pipeline.yaml"
    # Nothing runs beside a measurement on the same machine, other measurements on GPUs if `--resources gpu=` allows.
    threads: job_threads
    resources:
        **NODES,
        gpu=measure_gpus,
        cpus_per_gpu=cores_of_gpu,
        mem_mb=job_memory_mb,
        runtime=job_minutes,
        slurm_extra=job_sharing,
        position=lambda wildcards: f"{positions[trial_name(wildcards)]}/{len(trials)}",
    params:
        trial=lambda wildcards: slices[trial_name(wildcards)],
        source=digest(*MEASURER),
        attempt=lambda wildcards: due_of(trial_name(wildcards)).attempt,
        folder=subpath(output.stages, parent=True),
    shell:
        # Snakemake's own process: if it is killed, the measurement ends too and leaves nothing.
        "pdkv measure {params.folder:q} --attempt {params.attempt} --position {resources.position:q} --log {log:q}"
        ' --parent "$PPID"'
