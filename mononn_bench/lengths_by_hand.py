"""`mononn-bench lengths`: requests of many lengths, from a folder that stands, or by a network's name, making first
what is missing; and `mononn-bench encoder`, the network with an open axis.
"""

from __future__ import annotations

import os
import secrets
import shlex
from argparse import Namespace
from pathlib import Path

from mononn_bench.by_hand import entrant_of, machine_of, plan_by_name, prepare_environments, prepare_step, tell
from mononn_bench.codec import read_record, write_record
from mononn_bench.errors import BadOptionError
from mononn_bench.lengths import serving
from mononn_bench.lengths.build import entries_of
from mononn_bench.lengths.case import serve_case
from mononn_bench.lengths.distribution import SQUAD, read_distribution
from mononn_bench.record import ModelRecord
from mononn_bench.served import ServingSettings
from mononn_bench.systems import get_system
from mononn_bench.workflow.identity import digest, source_id


def encoder(options: Namespace) -> int:
    """Write the folder of an encoder with an open axis of tokens."""
    from mononn_bench.lengths.export import write_encoder

    record = write_encoder(options.model, read_distribution(options.distribution), options.output)
    print(f"{record.name}: {record.flops / 1e9:.3f} GFLOP at the longest request")
    return 0


def lengths(options: Namespace) -> int:
    """Answer requests of many lengths with every system; 0 even where one fails, which the record says."""
    from mononn_bench.report.grids import markdown
    from mononn_bench.report.lengths import length_grids

    if (options.target, options.precision, options.defaults) != ("cpu", "fp32", False):
        raise BadOptionError("Requests of many lengths are answered on the CPU, in fp32, with every system's options "
                             "set: leave --target, --precision and --defaults out.")  # fmt: skip
    if options.path:
        raise BadOptionError("Requests of many lengths need a catalogued network: name one with --model.")
    distribution = read_distribution(options.distribution)
    folder, environments = options.model_folder, dict(options.environment)
    if folder is None:
        folder, environments = _prepared(options)
    for system in environments:
        get_system(system)
    cores = tuple(sorted(os.sched_getaffinity(0))[: options.threads])
    model = read_record(ModelRecord, folder / "model.json")
    output: Path = options.output or Path(".cache/by-hand/lengths") / f"{model.name}.json"
    settings = ServingSettings(
        rounds=options.rounds, cycles=options.cycles, requests=options.requests, step=options.step,
        memory_requests=options.memory_requests, seed=options.seed,
        order_seed=secrets.randbits(32) if options.order_seed is None else options.order_seed, threads=len(cores),
        build_limit_s=options.build_limit, answer_limit_s=options.answer_limit, memory_limit_mb=options.memory_limit,
    )  # fmt: skip
    entrants = [entrant_of(name, where, cores, "fp32", options.builds) for name, where in environments.items()]
    forms = source_id([Path(serving.__file__)], options.builds)
    record = serve_case(
        folder,
        [entry for one in entrants for entry in entries_of(one.system, one.python, digest(one.identity, forms))],
        distribution,
        settings,
        cores=cores,
        scratch=output.absolute().parent / f".{output.stem}.scratch",
        builds=options.builds,
        machine_name=machine_of(options),
        command=_command(model.name, list(environments), settings, options.distribution),
        say=tell,
    )
    write_record(record, output)
    print("\n".join(markdown(grid) for grid in length_grids([record])))
    print(output)
    return 0


def _prepared(options: Namespace) -> tuple[Path, dict[str, Path]]:
    """The encoder's folder and each system's environment, made where they are missing, in the workflow's folders."""
    from mononn_bench.workflow.lengths import LengthsPlan
    from mononn_bench.workflow.plan import environment_of

    plan, name = plan_by_name(options)
    how = LengthsPlan(plan, None, options.distribution)
    prepare_environments(plan)
    record = how.encoder(name) / "model.json"
    prepare_step(plan, plan.EXPORTER, f"encoder {how.encoder_options(name)}", name, record)
    environments = {s: plan.environments[environment_of(s, "cpu")].folder for s in plan.systems("cpu")}
    return record.parent, environments


def _command(name: str, systems: list[str], settings: ServingSettings, distribution: Path) -> str:
    """The command that measures this again, from the network's name."""
    numbers = f"--rounds {settings.rounds} --cycles {settings.cycles} --requests {settings.requests}"
    numbers += f" --step {settings.step} --memory-requests {settings.memory_requests} --seed {settings.seed}"
    numbers += (
        f" --order-seed {settings.order_seed} --threads {settings.threads} --memory-limit {settings.memory_limit_mb}"
    )
    own = "" if distribution == SQUAD else f" --distribution {shlex.quote(str(distribution))}"
    return f"mononn-bench lengths --model {name} --systems {shlex.quote(','.join(systems))} {numbers}{own}"
