# A case is measured whole: all its systems side by side, alone on the machine.


rule measure:
    input:
        lambda w: [build.record for build in plan.cases[w.model].builds],
        lambda w: plan.models[w.model].reference,
    output:
        plan.results / "raw/{model}-{id}.json",
    log:
        plan.cache / "logs/measure/{model}-{id}.txt",
    resources:
        machine=1000,
    params:
        options=lambda w: plan.cases[w.model].options,
    message:
        "Measuring {wildcards.model}: all systems side by side, alone on the machine; progress in {log}"
    shell:
        "{sys.executable} -m mononn_bench.cli measure {params.options} --output {output} > {log} 2>&1"
