# The 8-bit file of a model, one for every system that reads it, and the right answers of that file. Only configurations
# with int8 among their precisions get here. As in models.smk model.json is written last and stands for its folder.


rule quantise:
    input:
        lambda w: plan.environments[plan.QUANTISER].stamp,
        lambda w: plan.quantised[w.model].unquantised.record,
    output:
        plan.cache / "quantised/{model}-{id}/model.json",
        plan.cache / "quantised/{model}-{id}/model.onnx",
    log:
        plan.cache / "logs/quantise/{model}-{id}.txt",
    threads: 1
    params:
        python=lambda w: plan.environments[plan.QUANTISER].python,
        source=lambda w: plan.quantised[w.model].unquantised.folder,
        folder=subpath(output[0], parent=True),
    message:
        "Quantising {wildcards.model}"
    shell:
        "{params.python} -m mononn_bench.cli quantise --model-folder {params.source} --output {params.folder}"
        " > {log} 2>&1"


rule quantised_reference:
    input:
        plan.environments[plan.EXPORTER].stamp,
        plan.cache / "quantised/{model}-{id}/model.json",
        lambda w: plan.quantised[w.model].unquantised.reference,
        lambda w: plan.quantised[w.model].unquantised.reference.with_suffix(".npz"),
    output:
        plan.cache / "quantised/{model}-{id}/reference.json",
        plan.cache / "quantised/{model}-{id}/reference.npz",
    log:
        plan.cache / "logs/quantised-reference/{model}-{id}.txt",
    threads: 1
    params:
        python=plan.environments[plan.EXPORTER].python,
        options=lambda w: plan.quantised[w.model].reference_options,
    message:
        "Computing the reference answers of {wildcards.model} in int8"
    shell:
        "{params.python} -m mononn_bench.cli reference {params.options} > {log} 2>&1"
