"""`make bench`: check configuration and user models, free a killed run's lock, install, run, print the table."""

from __future__ import annotations

import argparse
import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from mononn_bench.errors import BenchError
from mononn_bench.files import ROOT
from mononn_bench.measure.worker import die_with_parent
from mononn_bench.models.user import read_user_model
from mononn_bench.report.names import BRICKS, PAGE, SPEED
from mononn_bench.workflow.config import DEFAULT, read_comparison
from mononn_bench.workflow.plan import Plan, make_plan
from mononn_bench.workflow.progress import DURATIONS, Progress, steps_to_make

LOOK_S = 10.0
"""How often the log of a measurement is looked at: seldom, since whatever runs disturbs it."""
ENDING_S = 30.0
"""How long Snakemake may take to end its jobs when it is interrupted."""
INTERRUPTED = 130


class BusyError(BenchError):
    """Another run of the workflow is under way in the same folder."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the workflow in the current folder; 0 when all is made, 1 when a job failed, 2 on bad input, 130 when it was
    interrupted.
    """
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--cores", default="all", help="cores the workflow may use (default: all)")
    parser.add_argument("--configfile", type=Path, default=DEFAULT)
    options = parser.parse_args(arguments)
    try:
        plan = make_plan(read_comparison(options.configfile))
        for choice in plan.config.models:
            if choice.path:
                read_user_model(Path(choice.path), choice.shapes)
        free_stale_lock(Path.cwd())
    except BenchError as error:
        print(error, file=sys.stderr)
        return 2
    started = time.monotonic()
    try:
        for target in ("environments", "all"):
            if _snakemake(options, target, plan) != 0:
                return 1
            if target == "environments":
                print(f"installation: {time.monotonic() - started:.0f} s (environments of the compared systems)")
    except KeyboardInterrupt:
        print("\nStopped. What is finished is kept: the same command goes on from here.", file=sys.stderr)
        return INTERRUPTED
    _show(plan)
    print(f"time: {time.monotonic() - started:.0f} s")
    return 0


def _show(plan: Plan) -> None:
    for name in (
        ([SPEED] if plan.cases else [])
        + ([BRICKS[0]] if plan.bricks else [])
        + [f"{name}.md" for name, paths in plan.studies.items() if paths]
    ):
        print((plan.results / "tables" / name).read_text())
    print(f"page:    {plan.results / PAGE}")
    print(f"tables:  {plan.results / 'tables'}\nfigures: {plan.results / 'figures'}\nrecords: {plan.results / 'raw'}")


def free_stale_lock(folder: Path) -> None:
    """Remove the lock of a workflow run that was killed; raises BusyError while one is alive in `folder`."""
    locks = folder / ".snakemake" / "locks"
    if not locks.is_dir() or not any(locks.iterdir()):
        return
    alive = _snakemake_in(folder)
    if alive is not None:
        raise BusyError(f"Another run (process {alive}) works in {folder}: wait for it, or end it and run again.")
    for lock in locks.iterdir():
        lock.unlink()


def _snakemake_in(folder: Path) -> int | None:
    """The process id of a living Snakemake whose working folder is `folder`."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            here = (process / "cwd").resolve() == folder.resolve()
        except OSError:
            continue
        if here and any(word.endswith(b"snakemake") for word in words[:3]):
            return int(process.name)
    return None


def _snakemake(options: argparse.Namespace, target: str, plan: Plan) -> int:
    """Run a target, showing steps with the minutes left; Snakemake's exit status.

    Raises KeyboardInterrupt once Snakemake, which the terminal interrupts too, has ended its jobs.
    """
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile"), "--cores", options.cores]
    command += ["--configfile", str(options.configfile), "--config", *settled_options(plan), "--", target]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    progress = Progress(steps_to_make(plan), plan.cache / DURATIONS)
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, preexec_fn=die_with_parent
    ) as process:
        try:
            _follow(process, progress)
            return process.wait()
        except KeyboardInterrupt:
            try:
                process.wait(ENDING_S)
            except subprocess.TimeoutExpired:
                process.kill()
            raise


def settled_options(plan: Plan) -> list[str]:
    """What `auto` was found to mean, so that whoever reads the configuration again, wherever, has the same plan."""
    config = plan.config
    return [f"machine={config.machine}", f"threads={config.threads}", f"targets=[{','.join(config.targets)}]"]


def _follow(process: subprocess.Popen[bytes], progress: Progress) -> None:
    """Print what `progress` makes of the process's lines, until it closes its output."""
    assert process.stdout is not None
    rest = b""
    while True:
        ready, _, _ = select.select([process.stdout], [], [], LOOK_S)
        if not ready:
            lines = [progress.round()]
        else:
            read = os.read(process.stdout.fileno(), 1 << 16)
            *whole, rest = (rest + read).split(b"\n")
            lines = [progress.line(line.decode(errors="replace"), time.monotonic()) for line in whole]
        for line in lines:
            if line is not None:
                print(line, flush=True)
        if ready and not read:
            return


if __name__ == "__main__":
    sys.exit(main())
