"""What the sub-commands of mononn-bench do. Each takes the parsed options and returns the exit status."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from argparse import Namespace
from pathlib import Path

from mononn_bench.errors import BadOptionError, RecordError
from mononn_bench.measure.build import build_system, read_environment
from mononn_bench.measure.environment import available_bytes, describe_machine
from mononn_bench.measure.process import PACKAGE, Limits, Worker, WorkerFailedError
from mononn_bench.models.zoo import ZOO
from mononn_bench.systems import REAL, get_system
from mononn_bench.systems.environment import adopt_environment, make_environment, requirement_lines

ROOT = PACKAGE.parent


def doctor(_: Namespace) -> int:
    """Print what the machine has, and for each system whether it would work."""
    machine = describe_machine()
    vectors = [flag for flag in ("avx2", "fma", "avx512f", "avx512_bf16", "amx_tile", "asimd") if flag in machine.flags]
    free = shutil.disk_usage(ROOT).free / 1e9
    compilers = [name for name in ("cc", "gcc", "clang", "g++") if shutil.which(name)]
    rows = {
        "Python": platform.python_version(),
        "processor": f"{machine.cpu}, {machine.cores} cores, {' '.join(vectors) or 'no known vector extension'}",
        "caches of a core": ", ".join(f"{k} {v} KiB" for k, v in machine.caches_kib.items()) or "not exposed",
        "memory": f"{machine.memory_mb} MB, {available_bytes() // 1_000_000} MB available",
        "disk": f"{free:.0f} GB free",
        "clock, governor": f"{machine.clock}, {machine.governor}",
        "compilers": ", ".join(compilers) or "none: PyTorch's Inductor needs g++",
    }
    for name, text in rows.items():
        print(f"{name:18}{text}")
    for system in REAL:
        print(f"{system.name:18}{_probe(system.name)}")
    return 0


def models(_: Namespace) -> int:
    """Print the catalogue."""
    for name, spec in ZOO.items():
        print(f"{name:16}{spec.summary}{'; pretrained weights' if spec.hub else ''}")
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

    if options.path:
        record = write_user_model(options.model, options.path, dict(options.shape), options.output)
    else:
        cache = Path(os.environ.get("HF_HUB_CACHE", options.output.parent / "hub"))
        record = write_catalogued_model(options.model, options.weights, options.seed, options.output, cache)
    print(f"{record.name}: {record.flops / 1e9:.3f} GFLOP, {record.weight_bytes / 1e6:.1f} MB of weights")
    return 0


def reference(options: Namespace) -> int:
    """Compute right answers beside the model."""
    from mononn_bench.models.reference import write_reference

    record = write_reference(options.model_folder, options.seed)
    print(f"{record.sets} input sets, {record.method}")
    return 0


def build(options: Namespace) -> int:
    """Build one model with one system; 0 even where the system fails, which the record says."""
    get_system(options.system)
    record = build_system(
        options.system,
        environment=options.environment,
        model_folder=options.model_folder.absolute(),
        output=options.output.absolute(),
        threads=options.threads,
        precision=options.precision,
        target=options.target,
        limits=Limits(options.time_limit, options.memory_limit),
    )
    print(f"{options.system}: {record.status} {record.reason}")
    return 0


def report(options: Namespace) -> int:
    """Write tables and figures from records, and print the first table."""
    from mononn_bench.report.write import write_report

    print(write_report(options.records, options.output))
    return 0


def _requirements(system: str) -> Path:
    return ROOT / "envs" / f"{get_system(system).environment}.txt"


def _probe(system: str) -> str:
    """One line: the version that answers, in its own environment where that stands, else in this interpreter."""
    from mononn_bench.workflow.identity import requirements_id

    name = get_system(system).environment
    folder = ROOT / ".cache" / "environments" / f"{name}-{requirements_id(_requirements(system))}"
    try:
        found = read_environment(folder)
        python, where = Path(found.interpreter), "its environment"
        if found.status != "ok":
            return f"unavailable: {found.reason}"
    except RecordError:
        python, where = Path(sys.executable), "this interpreter; its own environment is not built yet"
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as scratch:
        try:
            with Worker(system, python, cores=cores, scratch=Path(scratch)) as worker:
                versions = worker.ask("probe", Limits(60, 4096))["versions"]
        except WorkerFailedError as error:
            return f"{error.status}: {error.reason} ({where})"
    return f"ok, version {next(iter(versions.values()))} ({where})"
