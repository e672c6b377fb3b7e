# Takes: cell.json of every cell. Gives: the summary of all numbers, the effects between cells with their intervals, and
# which cells may be the best at what.


localrules:
    aggregate,
    compare,
    rank_objectives,


rule aggregate:
    input:
        cells=cells(f"{CELL}/cell.json"),
    output:
        parquet="results/summary.parquet",
        csv="results/summary.csv",
    log:
        "results/logs/aggregate.log",
    conda:
        "../../envs/pipeline.yaml"
    params:
        source=digest("aggregate"),
        cost=prices(),
    shell:
        "pdkv aggregate {input.cells:q} --cost={params.cost:q} --parquet {output.parquet:q} --csv {output.csv:q} 2> {log:q}"


rule compare:
    input:
        cells=cells(f"{CELL}/cell.json"),
    output:
        "results/comparisons.csv",
    log:
        "results/logs/compare.log",
    conda:
        "../../envs/pipeline.yaml"
    params:
        source=digest("comparison"),
        baseline=[study.baseline_mode, study.baseline_dtype],
        margin=study.report.margin,
    shell:
        "pdkv compare {input.cells:q} --baseline {params.baseline:q} --margin {params.margin} --output {output:q} 2> {log:q}"


rule rank_objectives:
    input:
        cells=cells(f"{CELL}/cell.json"),
    output:
        "results/objectives.csv",
    log:
        "results/logs/rank_objectives.log",
    conda:
        "../../envs/pipeline.yaml"
    params:
        source=digest("objectives"),
        margin=study.report.margin,
        cost=prices(),
    shell:
        "pdkv rank-objectives {input.cells:q} --margin {params.margin} --cost={params.cost:q} --output {output:q} 2> {log:q}"
