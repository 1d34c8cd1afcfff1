# From the start of a process to its first answer, every system side by side; builds and references as for cases.


rule start:
    input:
        lambda w: plan.inputs(w.group),
        machine=ancient(plan.machine_record),
    output:
        plan.results / "start/{group}.json",
    log:
        plan.cache / "logs/start/{group}.txt",
    threads: plan.config.threads
    resources:
        machine=1000,
    params:
        options=lambda w: plan.start_options(w.group),
        made_by=plan.start_identity,
    message:
        "Measuring the first answers of {wildcards.group}: alone on the machine; progress in {log}"
    shell:
        "$PYTHON -m mononn_bench.cli start {params.options} --machine {input.machine} --output {output} > {log} 2>&1"
