# One system's build of one model: two at a time, but one that tunes by timing holds the machine alone. A rival that
# cannot be built leaves a record with its status and reason; a job that fails is our own fault. build.json is written
# last and stands for its folder: model/ and identity/ hold what the system itself chose to write, log.txt what it said.


rule build:
    input:
        lambda w: plan.builds[w.model, w.system].environment.stamp,
        lambda w: plan.builds[w.model, w.system].model.record,
    output:
        plan.cache / "builds" / plan.machine / "{model}/{system}-{id}/build.json",
    log:
        plan.cache / "logs/build/{model}/{system}-{id}.txt",
    threads: lambda w: plan.builds[w.model, w.system].threads
    resources:
        machine=lambda w: plan.builds[w.model, w.system].shares,
    params:
        options=lambda w: plan.builds[w.model, w.system].options,
        folder=subpath(output[0], parent=True),
    message:
        "Building {wildcards.model} with {wildcards.system}"
    shell:
        "$PYTHON -m mononn_bench.cli build {params.options} --output {params.folder} > {log} 2>&1"
