# Environments, exported models and their references. What a file is made from stands in its path: where an input is
# `ancient`, the path carries a hash of its content (or of its meaningful lines), and its age says nothing.


wildcard_constraints:
    id="[0-9a-f]+",


rule environments:
    input:
        [environment.stamp for environment in plan.environments.values()],
        plan.machine_record,


rule environment:
    input:
        lambda w: ancient(plan.environments[w.environment].requirements),
    output:
        plan.cache / "environments/{environment}-{id}/environment.json",
    log:
        plan.cache / "logs/environment/{environment}-{id}.txt",
    retries: 2
    threads: 1
    params:
        requirements=lambda w: plan.environments[w.environment].requirements,
        existing=lambda w: plan.environments[w.environment].existing,
        folder=subpath(output[0], parent=True),
    message:
        "Building the environment of {wildcards.environment}"
    shell:
        "$PYTHON -m mononn_bench.cli environment --requirements {params.requirements:q}"
        " {params.existing} --folder {params.folder} > {log} 2>&1"


# Beside these a model that PyTorch knows has its weights.safetensors, and one over 2 GB its model.onnx.data. What comes
# after takes model.json as its input, which carries the network's digest and is written last: Snakemake hashes every
# input of a job when it ends, and half a gigabyte of that would disturb whatever is timed next.
rule export:
    input:
        plan.environments[plan.EXPORTER].stamp,
        lambda w: [ancient(path) for path in plan.models[w.model].sources],
    output:
        plan.cache / "models/{model}-{id}/model.json",
        plan.cache / "models/{model}-{id}/model.onnx",
        plan.cache / "models/{model}-{id}/identity/model.json",
        plan.cache / "models/{model}-{id}/identity/model.onnx",
        plan.cache / "models/{model}-{id}/identity/inputs.npz",
    log:
        plan.cache / "logs/export/{model}-{id}.txt",
    threads: 1
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
        plan.environments[plan.EXPORTER].stamp,
        plan.cache / "models/{model}-{id}/model.json",
    output:
        plan.cache / "models/{model}-{id}/reference.json",
        plan.cache / "models/{model}-{id}/reference.npz",
    log:
        plan.cache / "logs/reference/{model}-{id}.txt",
    threads: 1
    params:
        python=plan.environments[plan.EXPORTER].python,
        folder=subpath(output[0], parent=True),
    message:
        "Computing the reference answers of {wildcards.model}"
    shell:
        "{params.python} -m mononn_bench.cli reference --model-folder {params.folder} > {log} 2>&1"
