# A few untimed runs of every system of a case under its own profiler, and one timeline of them all.


rule profile:
    input:
        lambda w: [build.record for build in plan.groups[w.group]],
        lambda w: plan.groups[w.group][0].model.reference,
    output:
        plan.results / "profiles/{group}.perfetto.json",
    log:
        plan.cache / "logs/profile/{group}.txt",
    resources:
        machine=1000,
    params:
        options=lambda w: plan.profile_options(w.group),
        made_by=plan.profile_identity,
        folder=subpath(output[0], parent=True),
    message:
        "Profiling {wildcards.group}: a few runs of each system"
    shell:
        "{sys.executable} -m mononn_bench.cli profile {params.options} --output {params.folder} > {log} 2>&1"
