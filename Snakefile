# Compares inference systems on this machine: README.md says how, docs/measuring.md what the numbers mean.
import sys

from mononn_bench.errors import BenchError
from mononn_bench.workflow.config import ROOT
from mononn_bench.workflow.plan import make_plan, stale_tables

if "models" not in config:

    configfile: "workflows/config.yaml"


try:
    plan = make_plan(config)
except BenchError as error:
    print(error, file=sys.stderr)
    raise SystemExit(2)

# Jobs replace their shell, so that they die with Snakemake and leave no orphan.
shell.prefix(f"export PYTHONPATH={str(ROOT)!r} MONONN_DIE_WITH_PARENT=1; exec ")


include: "workflows/rules/models.smk"
include: "workflows/rules/build.smk"
include: "workflows/rules/measure.smk"
include: "workflows/rules/profile.smk"
include: "workflows/rules/report.smk"


rule all:
    default_target: True
    input:
        plan.report,
        plan.timelines,


rule environments:
    input:
        [environment.stamp for environment in plan.environments.values()],


onerror:
    for line in stale_tables(plan):
        print(line, file=sys.stderr)
