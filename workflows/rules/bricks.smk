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


# What the machine gives, primitive by primitive, in seconds; once for all suites.
rule primitives:
    input:
        ancient(plan.machine_record),
    output:
        plan.machine_record.with_name("primitives.json"),
    log:
        plan.cache / "logs/machine" / f"{plan.machine}.primitives.txt",
    threads: plan.config.threads
    resources:
        machine=1000,
    params:
        name=plan.machine,
        made_by=plan.primitive_identity,
    message:
        "Measuring what the machine gives"
    shell:
        "$PYTHON -m mononn_bench.cli machine --name {params.name} --measure {output} > {log} 2>&1"
