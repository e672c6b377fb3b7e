# Takes: what was read and compared. Gives: figures, and the report as Markdown and PDF.


localrules:
    draw_figures,
    write_markdown,
    write_pdf,


rule draw_figures:
    input:
        cells=cells(f"{CELL}/cell.json"),
        requests=all_trials(f"{TRIAL}/requests.parquet"),
        traces=all_trials(f"{TRIAL}/trace.parquet"),
        comparisons="results/comparisons.csv",
    output:
        figures(),
    log:
        "reports/logs/draw_figures.log",
    conda:
        "../../envs/pipeline.yaml"
    params:
        source=digest("figures"),
        templates=folder_digest("reporting/templates"),
        language=study.report.language,
    shell:
        "pdkv draw-figures {input.cells:q} --comparisons {input.comparisons:q} --language {params.language}"
        " --folder reports/figures 2> {log:q}"


rule write_markdown:
    input:
        cells=cells(f"{CELL}/cell.json"),
        comparisons="results/comparisons.csv",
        summary="results/summary.csv",
        figures=figures(),
        claims=claims_file(),
    output:
        report(
            "reports/summary.md", category="Report", caption="../report/markdown.rst"
        ),
    log:
        "reports/logs/write_markdown.log",
    conda:
        "../../envs/pipeline.yaml"
    params:
        source=digest("report_markdown"),
        templates=folder_digest("reporting/templates"),
        report=report_settings(),
    shell:
        "pdkv write-markdown {input.cells:q} --comparisons {input.comparisons:q} --report {params.report:q}"
        " --output {output:q} 2> {log:q}"


rule write_pdf:
    input:
        cells=cells(f"{CELL}/cell.json"),
        comparisons="results/comparisons.csv",
        figures=figures(),
        claims=claims_file(),
        # Not read: asking for the PDF brings the Markdown and the summary too.
        markdown="reports/summary.md",
    output:
        report("reports/summary.pdf", category="Report", caption="../report/pdf.rst"),
    log:
        "reports/logs/write_pdf.log",
    conda:
        "../../envs/pipeline.yaml"
    params:
        source=digest("report_pdf"),
        templates=folder_digest("reporting/templates"),
        report=report_settings(),
    shell:
        "pdkv write-pdf {input.cells:q} --comparisons {input.comparisons:q} --report {params.report:q}"
        " --output {output:q} 2> {log:q}"
