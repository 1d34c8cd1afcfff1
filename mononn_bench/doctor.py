"""Whether the suite can work on this machine, and what it will take: `make doctor`, before anything is installed.

Nothing but the standard library is imported here, so that it runs where nothing is; what needs more (the plan of a
configuration, the systems' probes) is looked at where the suite's own environment stands.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from ctypes.util import find_library
from dataclasses import dataclass
from pathlib import Path

from mononn_bench.files import FILES, ROOT
from mononn_bench.measure.environment import available_bytes, describe_machine
from mononn_bench.record import Machine
from mononn_bench.workflow.identity import requirements_id

HERE = ROOT if FILES == ROOT else Path.cwd()
"""Where environments and models are kept."""
SUITE = "the suite itself"
LEAST_PYTHON, LEAST_MEMORY_MB, MODELS_GB = (3, 11), 7000, 10.0
VECTORS = {"x86_64": ("avx2", "fma"), "aarch64": ("asimd",)}
"""What generated code needs of each kind of processor."""
INSTALLED_MB_A_SECOND = 6.0
"""About what pip manages, download and unpacking together, on a usual connection."""


@dataclass(frozen=True)
class Cost:
    """Megabytes to download and on the disk."""

    download_mb: int
    disk_mb: int


COSTS = {
    SUITE: Cost(220, 900),
    "mononn": Cost(130, 550),
    "onnxruntime": Cost(41, 170),
    "openvino": Cost(76, 330),
    "torch": Cost(260, 1210),
    "tvm": Cost(650, 1500),
    "xla": Cost(150, 720),
    "zentorch": Cost(290, 1270),
}
"""Measured on Linux, x86_64. Other environments have no size here."""


@dataclass(frozen=True)
class Finding:
    """A line of the doctor's. `trouble` is one sentence where the suite cannot work because of it."""

    name: str
    text: str
    trouble: str = ""


def examine(machine: Machine, disk_free_gb: float, disk_needed_gb: float, folder: Path) -> list[Finding]:
    """What the machine has, each with the sentence that stops the suite where it is not enough."""
    return [
        _python(sys.version_info[:3]),
        _processor(machine),
        Finding("caches of a core", ", ".join(f"{k} {v} KiB" for k, v in machine.caches_kib.items()) or "not exposed"),
        _memory(machine.memory_mb, available_bytes() // 1_000_000),
        _disk(disk_free_gb, disk_needed_gb, folder),
        Finding("clock, governor", f"{machine.clock}, {machine.governor}"),
        Finding("compilers", _compilers() or "none: torch-inductor needs g++ and will read unavailable"),
        Finding(
            "allocator", find_library("tcmalloc_minimal") or "no tcmalloc: Debian's libtcmalloc-minimal4 helps PyTorch"
        ),
        Finding("counters", shutil.which("perf") or "no perf (Debian: linux-perf): profiles are without counters"),
        Finding("GPU", gpu_line() or "none found (nvidia-smi); the comparison is the CPU's"),
    ]


def _python(version: tuple[int, ...]) -> Finding:
    text = ".".join(map(str, version))
    if version[:2] < LEAST_PYTHON:
        return Finding("Python", text, f"Python {text} is too old: name 3.11 or newer, make bench PYTHON=python3.11.")
    if importlib.util.find_spec("ensurepip") is None:
        return Finding("Python", text, "Python has no ensurepip: install its venv package (Debian: python3-venv).")
    return Finding("Python", f"{text}, {sys.executable}")


def _processor(machine: Machine) -> Finding:
    needed = VECTORS.get(machine.architecture)
    wide = [f for f in ("avx2", "fma", "avx512f", "avx512_bf16", "amx_tile", "asimd", "sve") if f in machine.flags]
    text = (
        f"{machine.cpu}, {machine.architecture}, {machine.cores} cores, {' '.join(wide) or 'no vector extension known'}"
    )
    if platform.system() != "Linux" or needed is None:
        kind = f"{platform.system()} on {machine.architecture}"
        return Finding("processor", text, f"The suite runs on Linux with x86_64 or aarch64, not on {kind}.")
    missing = [flag for flag in needed if flag not in machine.flags]
    if missing:
        return Finding("processor", text, f"The processor lacks {', '.join(missing)}, which generated code needs.")
    return Finding("processor", text)


def _memory(total_mb: int, available_mb: int) -> Finding:
    trouble = f"{total_mb} MB of memory are too few: the full-size networks need {LEAST_MEMORY_MB} MB."
    return Finding("memory", f"{total_mb} MB, {available_mb} MB available", trouble * (total_mb < LEAST_MEMORY_MB))


def _disk(free_gb: float, needed_gb: float, folder: Path) -> Finding:
    trouble = ""
    if free_gb < needed_gb:
        trouble = (
            f"{folder} has {free_gb:.1f} GB free, and {needed_gb:.1f} GB are needed: free some or move the checkout."
        )
    elif not os.access(folder, os.W_OK):
        trouble = f"{folder} cannot be written to: move the checkout or change its owner."
    return Finding("disk", f"{free_gb:.0f} GB free, {needed_gb:.1f} GB needed", trouble)


def _compilers() -> str:
    return ", ".join(name for name in ("cc", "gcc", "clang", "g++") if shutil.which(name))


def gpu_line() -> str:
    """What nvidia-smi calls the first GPU; empty where there is none."""
    command = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip().splitlines()[0] if done.returncode == 0 and done.stdout.strip() else ""


def to_install(root: Path, environments: Iterable[str], files: Path | None = None) -> dict[str, Cost | None]:
    """Those of the environments (names of files under envs/ in `files`, or else in `root`) and of the suite that do not
    stand yet.
    """
    wanted: dict[str, Cost | None] = {} if (root / ".venv" / "bench.done").exists() else {SUITE: COSTS[SUITE]}
    for name in environments:
        requirements = (files or root) / "envs" / f"{name}.txt"
        stamp = root / ".cache" / "environments" / f"{name}-{requirements_id(requirements)}" / "environment.json"
        if not stamp.exists():
            wanted[name] = COSTS.get(name)
    return wanted


def expectation(costs: Mapping[str, Cost | None], work_minutes: int | None) -> str:
    """One line: what is still to be downloaded, what the disk must hold, how many minutes."""
    known = [cost for cost in costs.values() if cost is not None]
    download, disk = sum(cost.download_mb for cost in known), sum(cost.disk_mb for cost in known)
    install = f"{max(1, round(download / INSTALLED_MB_A_SECOND / 60))} min" if costs else "0 min"
    work = "measuring: known once the suite is installed" if work_minutes is None else f"work {work_minutes} min"
    more = f" and {len(costs) - len(known)} environments of unknown size" if len(known) < len(costs) else ""
    return f"download {download} MB{more}, disk {disk / 1000 + MODELS_GB:.1f} GB, installation {install}, {work}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what the machine has, what is to come, and each system's probe; 2 where the suite cannot work here."""
    parser = argparse.ArgumentParser(prog="make doctor", description=__doc__)
    parser.add_argument("--configfile", type=Path, default=FILES / "workflows" / "config.yaml")
    parser.add_argument("--brief", action="store_true", help="one line, or the one sentence that stops it")
    options = parser.parse_args(arguments)
    installed = importlib.util.find_spec("snakemake") is not None
    environments, minutes = _planned(options.configfile) if installed else (_default_environments(), None)
    costs = to_install(HERE, environments, FILES)
    needed = sum(cost.disk_mb for cost in costs.values() if cost) / 1000 + MODELS_GB * (minutes != 0)
    findings = examine(describe_machine(), shutil.disk_usage(HERE).free / 1e9, needed, HERE)
    if not options.brief:
        for finding in findings:
            print(f"{finding.name:18}{finding.text}")
        for name, cost in costs.items():
            size = f"download {cost.download_mb} MB, disk {cost.disk_mb} MB" if cost else "size unknown"
            print(f"{name:18}to be installed: {size}")
        if installed:
            _print_probes()
    troubles = [finding.trouble for finding in findings if finding.trouble]
    for trouble in troubles:
        print(trouble, file=sys.stderr)
    if troubles:
        return 2
    print(f"{'expected':18}{expectation(costs, minutes)}")
    return 0


def _default_environments() -> list[str]:
    """The environments of systems that need no GPU, before the configuration can be read."""
    return sorted(path.stem for path in (FILES / "envs").glob("*.txt") if path.stem in COSTS)


def _planned(configfile: Path) -> tuple[list[str], int | None]:
    """The environments a configuration needs, and the minutes of what it still has to make."""
    from mononn_bench.errors import BenchError
    from mononn_bench.workflow.config import read_comparison
    from mononn_bench.workflow.plan import make_plan
    from mononn_bench.workflow.progress import DURATIONS, recall, steps_to_make, whole_minutes

    try:
        plan = make_plan(read_comparison(configfile))
    except BenchError:
        return _default_environments(), None  # the driver says what is wrong with the configuration
    names = [name for name, environment in plan.environments.items() if not environment.existing]
    steps = {m: s for m, s in steps_to_make(plan).items() if not m.startswith("Building the environment")}
    return names, whole_minutes(recall(steps, plan.cache / DURATIONS).values()) if steps else 0


def _print_probes() -> None:
    """A line a system: the version that answers in its own environment, or why none does."""
    from mononn_bench.systems import REAL

    for system in REAL:
        print(f"{system.name:18}{probe(system.name)}")


def probe(system: str) -> str:
    """The version of a system that answers in its environment, or why none does."""
    from mononn_bench.errors import RecordError
    from mononn_bench.measure.build import read_environment
    from mononn_bench.measure.process import Limits, Worker, WorkerFailedError
    from mononn_bench.systems import get_system

    name = get_system(system).environment
    folder = HERE / ".cache" / "environments" / f"{name}-{requirements_id(FILES / 'envs' / f'{name}.txt')}"
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


if __name__ == "__main__":
    sys.exit(main())
