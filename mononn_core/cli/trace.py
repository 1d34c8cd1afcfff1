"""``mononn trace``: where the time of one inference goes, from time stamps inside the function."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from mononn_core.cli.feeds import chosen
from mononn_core.errors import OptionError, ToolchainError
from mononn_core.files import write_atomically
from mononn_core.gpu import Gpu
from mononn_core.machine import Machine
from mononn_core.runtime import ceilings, trace
from mononn_core.runtime.base import BaseSession
from mononn_core.runtime.gpu_session import GpuSession
from mononn_core.runtime.loading import load


def run(options: argparse.Namespace) -> int:
    """Writes the Perfetto file, prints the table, or both."""
    if not (options.output or options.table or options.json or options.model):
        raise OptionError("nothing to do; give -o TRACE.json for Perfetto, --table, --model, or several")
    if options.below is not None and not 0 < options.below <= 100:
        raise OptionError(f"--below {options.below:g} is no share of a ceiling; give a percentage over 0, at most 100")
    with load(options.artifact, options.threads) as session:
        one, inputs = chosen(session, options)
        stamps = trace.record(session, inputs, options.repeat)
        manifest = session.artifact.specialisations[one.index]
        if options.table or options.json or options.model:
            phases = trace.table(stamps, manifest, roofs(session))
    if options.output:
        try:
            write_atomically(Path(options.output), [trace.chrome_trace(stamps, manifest).encode()])
        except OSError as error:
            raise OptionError(f"{options.output} cannot be written ({error.strerror}); choose another -o") from error
    share = None if options.below is None else options.below / 100
    if options.json:
        print(json.dumps(trace.to_json(phases if share is None else trace.below(phases, share))))
    elif options.model:
        print(trace.format_model(phases))
    elif options.table:
        print(trace.format_table(phases) if share is None else trace.format_below(phases, share))
    return 0


def roofs(session: BaseSession) -> Machine | Gpu:
    """This machine with measured ceilings for the session's threads, or with stated ones where no compiler is; for a
    GPU the stated ones of what the file was scheduled for."""
    machine, manifest = Machine.probe(), session.info
    if isinstance(session, GpuSession):
        return trace.stated_machine(manifest)
    print("measuring this machine's ceilings", file=sys.stderr)
    try:
        measured = ceilings.measure(session.threads)
    except ToolchainError as error:
        print(f"ceilings are stated, not measured: {error}", file=sys.stderr)
        return machine
    return measured.applied_to(machine)
