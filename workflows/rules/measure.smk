# The machine that measures, and its cases. A case is measured whole: all its systems side by side, alone on the machine.


# Runs where the measurements do, and fails where that is not the machine that the plan was made for.
rule machine:
    output:
        plan.machine_record,
    log:
        plan.cache / "logs/machine" / f"{plan.machine}.txt",
    threads: plan.config.threads
    resources:
        machine=1000,
    params:
        name=plan.machine,
    message:
        "Describing the machine"
    shell:
        "$PYTHON -m mononn_bench.cli machine --name {params.name} --output {output} > {log} 2>&1"


rule measure:
    input:
        lambda w: plan.cases[w.case].inputs,
        machine=ancient(plan.machine_record),
    output:
        plan.results / "raw/{case}-{id}.json",
    log:
        plan.cache / "logs/measure/{case}-{id}.txt",
    threads: plan.config.threads
    resources:
        machine=1000,
    params:
        options=lambda w: plan.cases[w.case].options,
    message:
        "Measuring {wildcards.case}: all systems side by side, alone on the machine; progress in {log}"
    shell:
        "$PYTHON -m mononn_bench.cli measure {params.options} --machine {input.machine} --output {output} > {log} 2>&1"
