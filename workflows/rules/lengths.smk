# Requests of many lengths: each network's encoder with an open axis, and how every system answers them. As in models.smk
# model.json is written last and stands for its folder.


rule encoder:
    input:
        plan.environments[plan.EXPORTER].stamp,
    output:
        plan.cache / "encoders/{model}-{id}/model.json",
    log:
        plan.cache / "logs/encoder/{model}-{id}.txt",
    threads: 1
    params:
        python=plan.environments[plan.EXPORTER].python,
        options=lambda w: plan.lengths.encoder_options(w.model),
    message:
        "Exporting the encoder of {wildcards.model}"
    shell:
        "{params.python} -m mononn_bench.cli encoder {params.options} > {log} 2>&1"


rule lengths:
    input:
        lambda w: plan.lengths.inputs(w.model),
        machine=ancient(plan.machine_record),
    output:
        plan.results / "lengths/{model}.json",
    log:
        plan.cache / "logs/lengths/{model}.txt",
    threads: plan.config.threads
    resources:
        machine=1000,
    params:
        options=lambda w: plan.lengths.options(w.model),
        made_by=plan.lengths.identity,
    message:
        "Measuring requests of many lengths to {wildcards.model}: alone on the machine; progress in {log}"
    shell:
        "$PYTHON -m mononn_bench.cli lengths {params.options} --machine {input.machine} --output {output} > {log} 2>&1"
