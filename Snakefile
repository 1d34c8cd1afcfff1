# Compares inference systems on this machine: README.md says how, docs/measuring.md what the numbers mean.
import sys

from mononn_bench.files import ROOT
from mononn_bench.workflow.machine import require_settled, sleep_while_jobs_run
from mononn_bench.workflow.plan import plan_of, stale_tables


report: "workflows/report/workflow.rst"


if not workflow.overwrite_configfiles:

    configfile: "workflows/config.yaml"


plan = plan_of(config, workflow.overwrite_configfiles, workflow.config_settings.config)

# Jobs replace their shell, so that they die with Snakemake and leave no orphan.
shell.prefix(
    f"export PYTHON={sys.executable!r} PYTHONPATH={str(ROOT)!r} MONONN_DIE_WITH_PARENT=1; exec "
)


include: "workflows/rules/models.smk"
include: "workflows/rules/quantise.smk"
include: "workflows/rules/build.smk"
include: "workflows/rules/measure.smk"
include: "workflows/rules/profile.smk"
include: "workflows/rules/bricks.smk"
include: "workflows/rules/start.smk"
include: "workflows/rules/lengths.smk"
include: "workflows/rules/report.smk"


rule all:
    default_target: True
    input:
        plan.report,
        plan.timelines,


onstart:
    require_settled(config, local=workflow.local_exec)
    sleep_while_jobs_run(workflow)


onerror:
    print(*stale_tables(plan), sep="\n", file=sys.stderr)
