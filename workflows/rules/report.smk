# Tables, figures and the page, from the records; the page links the timelines that stand.


rule report:
    input:
        plan.timelines,
        records=[case.record for case in plan.cases.values()],
    output:
        plan.report,
    log:
        plan.cache / "logs/report.txt",
    params:
        made_by=plan.report_identity,
        folder=plan.results,
    message:
        "Writing tables, figures and the page"
    shell:
        "{sys.executable} -m mononn_bench.cli report {input.records} --output {params.folder} > {log} 2>&1"
