# Tables, figures and the page, from the records; the page links the timelines that stand. Pictures and tables of a
# system against itself (aa) and of our own variants (ablation) stand beside them where the records have any.


rule report:
    input:
        plan.timelines,
        plan.profiles,
        plan.bricks,
        plan.lengths.records,
        plan.primitives,
        *plan.studies.values(),
        records=[case.record for case in plan.cases.values()],
    output:
        page=report(plan.page, caption="../report/page.rst", category="Page"),
        tables=report(plan.tables, caption="../report/tables.rst", category="Tables"),
        figures=report(
            plan.figures, caption="../report/figures.rst", category="Figures"
        ),
        prints=plan.prints,
    log:
        plan.cache / "logs/report.txt",
    threads: 1
    params:
        made_by=plan.report_identity,
        options=plan.report_options,
        folder=plan.results,
    message:
        "Writing tables, figures and the page"
    shell:
        "$PYTHON -m mononn_bench.cli report {input.records} {params.options} --output {params.folder} > {log} 2>&1"
