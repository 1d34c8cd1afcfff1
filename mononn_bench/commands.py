"""What the sub-commands of mononn-bench do. Each takes the parsed options and returns the exit status."""

from __future__ import annotations

import os
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

from mononn_bench.codec import write_record
from mononn_bench.doctor import main as examine_here
from mononn_bench.errors import BadOptionError
from mononn_bench.files import FILES
from mononn_bench.measure.build import build_system
from mononn_bench.measure.primitives import read_primitives
from mononn_bench.measure.process import Limits
from mononn_bench.models.zoo import ZOO
from mononn_bench.profiled import Stated
from mononn_bench.systems import REAL, get_system
from mononn_bench.systems.environment import adopt_environment, make_environment, requirement_lines
from mononn_bench.workflow.machine import note_machine, require_cores, settled


def doctor(_: Namespace) -> int:
    """Print what the machine has, what the default comparison would take, and for each system whether it would work."""
    return examine_here([])


def machine(options: Namespace) -> int:
    """Print the lines of a configuration that `auto` stands for here, or write down that results are this machine's, or
    measure what it gives.
    """
    here = settled({})
    if options.measure:
        return _measure_machine(options.name or here["machine"], options.measure)
    if options.output:
        note_machine(options.name or here["machine"], options.output)
        return 0
    print(f"machine: {here['machine']}\nthreads: {here['threads']}\ntargets: [{', '.join(here['targets'])}]")
    return 0


def _measure_machine(name: str, output: Path) -> int:
    from mononn_bench.report.grids import markdown
    from mononn_bench.report.machine import machine_grids
    from mononn_core import cost_constants

    found = read_primitives(name, sorted(os.sched_getaffinity(0)), print)
    found = replace(found, stated=tuple(Stated(c.name, c.value, c.unit, c.meaning) for c in cost_constants()))
    write_record(found, output)
    print("\n".join(map(markdown, machine_grids(found))))
    print(output)
    return 0


def models(_: Namespace) -> int:
    """Print the catalogue."""
    for name, spec in ZOO.items():
        print(f"{name:20}{spec.summary}{f'; pretrained weights: {spec.hub.summary}' if spec.hub else ''}")
    return 0


def systems(_: Namespace) -> int:
    """Print the systems, each with its environment's pinned packages."""
    for system in REAL:
        pins = [line for line in requirement_lines(_requirements(system.name)) if not line.startswith("-")]
        print(f"{system.name:16}{', '.join(pins)}")
    return 0


def environment(options: Namespace) -> int:
    """Build or describe a virtual environment."""
    if not options.requirements.is_file():
        raise BadOptionError(f"There is no requirements file {options.requirements}: correct its path.")
    if options.existing:
        adopt_environment(options.existing, options.requirements, options.folder)
        return 0
    record = make_environment(options.requirements, options.folder)
    print(f"{options.folder.name}: {record.status} {record.reason} ({record.seconds:.0f} s)")
    return 0


def export(options: Namespace) -> int:
    """Write a model folder."""
    from mononn_bench.models.folder import write_catalogued_model, write_user_model
    from mononn_bench.models.hub import find_cache

    if options.path:
        record = write_user_model(options.model, options.path, dict(options.shape), options.output)
    else:
        cache = find_cache(options.output.parent / "hub")
        record = write_catalogued_model(options.model, options.weights, options.seed, options.output, cache)
    print(f"{record.name}: {record.flops / 1e9:.3f} GFLOP, {record.weight_bytes / 1e6:.1f} MB of weights")
    return 0


def quantise(options: Namespace) -> int:
    """Write the folder of a model's 8-bit file."""
    from mononn_bench.models.quantise import write_quantised_model

    record = write_quantised_model(options.model_folder, options.output)
    print(f"{record.name}: {record.weight_bytes / 1e6:.1f} MB of weights")
    return 0


def reference(options: Namespace) -> int:
    """Compute right answers beside the model."""
    from mononn_bench.models.reference import write_quantised_reference, write_reference

    if options.unquantised:
        record = write_quantised_reference(options.model_folder, options.unquantised)
    else:
        record = write_reference(options.model_folder, options.seed)
    print(f"{record.sets} input sets, {record.method}")
    return 0


def build(options: Namespace) -> int:
    """Build one model with one system; 0 even where the system fails, which the record says."""
    get_system(options.system)
    require_cores(options.threads)
    record = build_system(
        options.system,
        environment=options.environment,
        model_folder=options.model_folder.absolute(),
        output=options.output.absolute(),
        threads=options.threads,
        precision=options.precision,
        target=options.target,
        limits=Limits(options.time_limit, options.memory_limit),
        defaults=options.defaults,
    )
    print(f"{options.system}: {record.status} {record.reason}")
    return 0


def report(options: Namespace) -> int:
    """Write tables and figures from records, and print the first table."""
    from mononn_bench.report.write import write_report

    print(write_report(options.records, options.output, options.primitives))
    return 0


def simulate(options: Namespace) -> int:
    """Print what the choice of estimator, rounds and cycles rests on."""
    from mononn_bench.report.design import simulation

    print(simulation(options.reference), end="")
    return 0


def _requirements(system: str) -> Path:
    return FILES / "envs" / f"{get_system(system).environment}.txt"
