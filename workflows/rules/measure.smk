# A case is measured whole: all its systems side by side, alone on the machine.


rule measure:
    input:
        lambda w: [build.record for build in plan.cases[w.case].builds],
        lambda w: plan.cases[w.case].model.reference,
    output:
        plan.results / "raw/{case}-{id}.json",
    log:
        plan.cache / "logs/measure/{case}-{id}.txt",
    resources:
        machine=1000,
    params:
        options=lambda w: plan.cases[w.case].options,
    message:
        "Measuring {wildcards.case}: all systems side by side, alone on the machine; progress in {log}"
    shell:
        "{sys.executable} -m mononn_bench.cli measure {params.options} --output {output} > {log} 2>&1"
