# A few untimed runs of every system of a case under its own profiler, and one timeline of them all.


rule profile:
    input:
        lambda w: plan.inputs(w.group),
        machine=ancient(plan.machine_record),
    output:
        record=plan.results / "profiles/{group}.json",
        timeline=plan.results / "profiles/{group}.perfetto.json",
    log:
        plan.cache / "logs/profile/{group}.txt",
    threads: plan.config.threads
    resources:
        machine=1000,
    params:
        options=lambda w: plan.profile_options(w.group),
        made_by=plan.profile_identity,
        folder=subpath(output[0], parent=True),
    message:
        "Profiling {wildcards.group}: a few runs of each system"
    shell:
        "$PYTHON -m mononn_bench.cli profile {params.options} --machine {input.machine}"
        " --output {params.folder} > {log} 2>&1"
