# Environments, exported models and their references.


rule environment:
    output:
        plan.cache / "environments/{environment}-{id}/environment.json",
    log:
        plan.cache / "logs/environment/{environment}-{id}.txt",
    retries: 2
    params:
        requirements=lambda w: plan.environments[w.environment].requirements,
        existing=lambda w: plan.environments[w.environment].existing,
        folder=subpath(output[0], parent=True),
    message:
        "Building the environment of {wildcards.environment}"
    shell:
        "{sys.executable} -m mononn_bench.cli environment --requirements {params.requirements:q}"
        " {params.existing} --folder {params.folder} > {log} 2>&1"


rule export:
    input:
        plan.environments[plan.EXPORTER].stamp,
    output:
        plan.cache / "models/{model}-{id}/model.onnx",
        plan.cache / "models/{model}-{id}/model.json",
    log:
        plan.cache / "logs/export/{model}-{id}.txt",
    params:
        python=plan.environments[plan.EXPORTER].python,
        options=lambda w: plan.models[w.model].export_options,
        folder=subpath(output[0], parent=True),
    message:
        "Exporting {wildcards.model}"
    shell:
        "{params.python} -m mononn_bench.cli export {params.options}"
        " --output {params.folder} > {log} 2>&1"


rule reference:
    input:
        plan.cache / "models/{model}-{id}/model.json",
    output:
        plan.cache / "models/{model}-{id}/reference.json",
        plan.cache / "models/{model}-{id}/reference.npz",
    log:
        plan.cache / "logs/reference/{model}-{id}.txt",
    params:
        python=plan.environments[plan.EXPORTER].python,
        folder=subpath(output[0], parent=True),
    message:
        "Computing the reference answers of {wildcards.model}"
    shell:
        "{params.python} -m mononn_bench.cli reference --model-folder {params.folder} > {log} 2>&1"
