# Layers and runs of layers of every model, each measured by itself with every system, unless the database knows it.


rule bricks:
    input:
        lambda w: plan.brick_inputs(w.group),
        machine=ancient(plan.machine_record),
    output:
        plan.results / "bricks/{group}.json",
    log:
        plan.cache / "logs/bricks/{group}.txt",
    threads: plan.config.threads
    resources:
        machine=1000,
    params:
        options=lambda w: plan.brick_options(w.group),
        made_by=plan.brick_identity,
    message:
        "Measuring the bricks of {wildcards.group}: alone on the machine; progress in {log}"
    shell:
        "$PYTHON -m mononn_bench.cli bricks {params.options} --machine {input.machine} --output {output} > {log} 2>&1"
