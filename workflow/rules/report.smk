# Takes: what was read and compared. Gives: figures, and the report as Markdown and PDF, in each language that the study
# asks for; {edition} is empty for the first of them.

DRAWN_BY = {"draw_figures", "write_pdf"}  # with the fonts of this machine


localrules:
    draw_figures,
    write_markdown,
    write_pdf,


rule draw_figures:
    input:
        cells=cells(f"{CELL}/cell.json"),
        requests=drawn_trials(f"{TRIAL}/requests.parquet"),
        traces=drawn_trials(f"{TRIAL}/trace.parquet"),
        comparisons=tables("results/comparisons.csv"),
    output:
        figures(),
    log:
        local("reports/logs/draw_figures{edition}.log"),
    conda:
        "../../envs/pipeline.yaml"
    threads: all_cores()
    params:
        source=digest("figures"),
        templates=folder_digest("reporting/templates"),
        language=language_of,
    shell:
        "pdkv draw-figures {input.cells:q} --comparisons {input.comparisons:q} --language {params.language}"
        " --processes {threads} --folder reports/figures{wildcards.edition} 2> {log:q}"


rule write_markdown:
    input:
        cells=cells(f"{CELL}/cell.json"),
        comparisons=tables("results/comparisons.csv"),
        objectives=tables("results/objectives.csv"),
        summary=tables("results/summary.csv"),
        figures=drawn,
        claims=claims_file(),
    output:
        markdown=report(
            local("reports/summary{edition}.md"),
            category="Report",
            caption="../report/markdown.rst",
        ),
        # Whole, what the report of a large study shows in part; no file where it shows everything.
        tables=directory(local("reports/tables{edition}")),
    log:
        local("reports/logs/write_markdown{edition}.log"),
    conda:
        "../../envs/pipeline.yaml"
    params:
        source=digest("report_markdown"),
        templates=folder_digest("reporting/templates"),
        report=report_settings,
    shell:
        "pdkv write-markdown {input.cells:q} --comparisons {input.comparisons:q} --objectives {input.objectives:q}"
        " --report {params.report:q} --figures reports/figures{wildcards.edition} --tables {output.tables:q}"
        " --output {output.markdown:q} 2> {log:q}"


rule write_pdf:
    input:
        cells=cells(f"{CELL}/cell.json"),
        comparisons=tables("results/comparisons.csv"),
        objectives=tables("results/objectives.csv"),
        figures=drawn,
        claims=claims_file(),
        # Not read: asking for the PDF brings the Markdown, the whole tables, the summary and the other
        # languages too.
        markdown=markdown_of,
        others=other_editions("reports/summary{edition}.pdf"),
    output:
        report(
            local("reports/summary{edition}.pdf"),
            category="Report",
            caption="../report/pdf.rst",
        ),
    log:
        local("reports/logs/write_pdf{edition}.log"),
    conda:
        "../../envs/pipeline.yaml"
    params:
        source=digest("report_pdf"),
        templates=folder_digest("reporting/templates"),
        report=report_settings,
    shell:
        "pdkv write-pdf {input.cells:q} --comparisons {input.comparisons:q} --objectives {input.objectives:q}"
        " --report {params.report:q} --figures reports/figures{wildcards.edition}"
        " --tables reports/tables{wildcards.edition} --output {output:q} 2> {log:q}"
