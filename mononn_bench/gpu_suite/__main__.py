"""The command line: see the package's docstring."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from fnmatch import fnmatch
from pathlib import Path

from mononn_bench.codec import write_text
from mononn_bench.gpu_suite.case import source_digest
from mononn_bench.gpu_suite.contenders import CONTENDERS
from mononn_bench.gpu_suite.device import package_versions
from mononn_bench.gpu_suite.plan import describe, plan
from mononn_bench.gpu_suite.prepare import prepare
from mononn_bench.gpu_suite.records import SuiteRecord
from mononn_bench.gpu_suite.runner import finished, run_plan
from mononn_bench.gpu_suite.table import table
from mononn_bench.measure.environment import describe_machine
from mononn_bench.measure.process import PACKAGE
from mononn_bench.systems.cuda import find_gpus
from mononn_bench.workflow.machine import CUDA, name_here

WORK = PACKAGE.parent / ".cache" / "gpu-suite"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suite, or go on where an earlier call ended; 0 even where steps fail, which the records say."""
    top = parser()
    options = top.parse_args(arguments)
    work: Path = options.work.absolute()
    steps = plan(work, options.emulate, tuple(options.systems.split(",")))
    steps = [s for s in steps if any(fnmatch(s.name, pattern) for pattern in options.only.split(","))]
    if options.plan:
        print(describe(steps, options.minutes))
        return 0
    if options.prepare:
        prepare(steps, options.prepare, work, lambda text: print(text, flush=True))
        return 0
    if options.out is None:
        top.error("--out DIR says where the records go")
    out: Path = options.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    suite = SuiteRecord(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command=shlex.join(["python", "-m", "mononn_bench.gpu_suite", *(arguments or sys.argv[1:])]),
        source_revision=_revision(),
        machine=describe_machine(name_here(len(os.sched_getaffinity(0)), [CUDA])),
        versions={"python": sys.version.split()[0], **package_versions()},
        rehearsal=options.emulate,
        steps=(),
        sources=source_digest("mononn_core", "mononn_bench"),
        gpus=tuple(gpu.name for gpu in find_gpus()),
    )
    if not options.again:
        suite = replace(suite, steps=finished(out / "records.json", suite, work))
    suite = run_plan(steps, suite, out, work, options.minutes, lambda text: print(text, flush=True))
    text = table(suite)
    write_text(out / "table.txt", text + "\n")
    print(f"\n{text}\n\n{out / 'records.json'}")
    return 0


def parser() -> argparse.ArgumentParser:
    """The options."""
    top = argparse.ArgumentParser(prog="python -m mononn_bench.gpu_suite", description=__doc__)
    top.add_argument("--out", type=Path, metavar="DIR", help="where records.json and table.txt go")
    top.add_argument("--minutes", type=float, metavar="N", help="end after so long; later steps are left out")
    top.add_argument("--plan", action="store_true", help="print the steps, when each is expected, and what it leaves")
    help_text = "compile for a GPU that is not here (H100, ...), so that DIR/cubins of --work can be brought along"
    top.add_argument("--prepare", metavar="GPU", help=help_text)
    top.add_argument("--again", action="store_true", help="run what stands in DIR already, too")
    top.add_argument("--emulate", action="store_true", help="rehearse every kind of step on a CPU")
    help_text = "steps to run, by their names in records.json, with * and commas (compare:bert-base-b1-*)"
    top.add_argument("--only", default="*", metavar="PATTERN", help=help_text)
    help_text = "contenders of the comparison, with commas"
    top.add_argument("--systems", default=",".join(CONTENDERS), metavar="A,B", help=help_text)
    help_text = "where models and builds are kept for the next run"
    top.add_argument("--work", type=Path, default=WORK, metavar="DIR", help=help_text)
    return top


def _revision() -> str:
    command = ["git", "-C", str(PACKAGE.parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
    except OSError:
        return "unknown"


if __name__ == "__main__":
    sys.exit(main())
