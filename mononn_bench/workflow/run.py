"""`make bench`: check configuration and user models, free a killed run's lock, install, run, print the table."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from mononn_bench.errors import BenchError
from mononn_bench.models.user import read_user_model
from mononn_bench.workflow.config import ROOT, read_config
from mononn_bench.workflow.plan import make_plan


class BusyError(BenchError):
    """Another run of the workflow is under way in the same folder."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the workflow in the current folder; 0 when all is made, 1 when a job failed, 2 on bad input."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--cores", default="all", help="cores the workflow may use (default: all)")
    parser.add_argument("--configfile", type=Path, default=ROOT / "workflows" / "config.yaml")
    options = parser.parse_args(arguments)
    try:
        plan = make_plan(read_config(options.configfile))
        for choice in plan.config.models:
            if choice.path:
                read_user_model(Path(choice.path), choice.shapes)
        free_stale_lock(Path.cwd())
    except BenchError as error:
        print(error, file=sys.stderr)
        return 2
    started = time.monotonic()
    if _snakemake(options, "environments") != 0:
        return 1
    print(f"installation: {time.monotonic() - started:.0f} s (environments of the compared systems)", flush=True)
    if _snakemake(options, "all") != 0:
        return 1
    print((plan.results / "tables" / "speedup.md").read_text())
    print(f"tables:  {plan.results / 'tables'}\nfigures: {plan.results / 'figures'}\nrecords: {plan.results / 'raw'}")
    print(f"time: {time.monotonic() - started:.0f} s")
    return 0


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


def _snakemake(options: argparse.Namespace, target: str) -> int:
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile"), "--cores", options.cores]
    command += ["--configfile", str(options.configfile), "--", target]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
