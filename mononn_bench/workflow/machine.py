"""The machine that measures: what `auto` means on it, and its record, which binds a folder of results to it."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mononn_bench.codec import read_record, write_record
from mononn_bench.errors import BadOptionError, BenchError
from mononn_bench.measure.environment import describe_machine, processor_name
from mononn_bench.record import SCHEMA_VERSION, BuildRecord, Machine
from mononn_bench.systems.cuda import Gpu, find_gpus
from mononn_bench.workflow.identity import digest, machine_name

AUTO, CUDA = "auto", "cuda"
ASKED = ("machine", "threads", "targets")
"""The keys of a configuration that may say `auto`. Where all three are stated, a plan asks no machine for anything."""
MADE_HERE = re.compile(r"-(\d+)c-[0-9a-f]{6}(-.+)?$")
"""The cores and the GPU in a name that `name_here` made; a name that a person chose does not match."""


@dataclass(frozen=True)
class MachineRecord:
    """machine.json: the machine that a folder of results belongs to; `gpus` are names with drivers."""

    created: str
    machine: Machine
    gpus: tuple[str, ...]
    schema_version: int = SCHEMA_VERSION


class OtherMachineError(BenchError):
    """This machine is not the one that a plan, a folder of results or a build was made for."""


def unsettled(mapping: Mapping[str, Any]) -> list[str]:
    """The keys of a configuration that this machine would have to answer."""
    return [key for key in ASKED if mapping.get(key, AUTO) == AUTO]


def settled(filled: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration, defaults filled in, with `auto` replaced by what this machine has and this process may use."""
    asked, found = unsettled(filled), dict(filled)
    if "threads" in asked:
        found["threads"] = len(os.sched_getaffinity(0))
    if "targets" in asked:
        found["targets"] = ["cpu", CUDA] if find_gpus() else ["cpu"]
    if "machine" in asked:
        found["machine"] = name_here(found["threads"], found["targets"])
    return found


def sleep_while_jobs_run(workflow: Any) -> None:
    """Have Snakemake's scheduler wake up when a local job ends, and at no other time: to keep to a number of jobs a
    second it wakes up in every one of them for each past job, which would disturb what is timed."""
    if workflow.local_exec:
        workflow.scheduler.job_rate_limiter = None


def require_settled(mapping: Mapping[str, Any], *, local: bool) -> None:
    """Raises OtherMachineError where jobs run elsewhere and this machine would have to answer for theirs."""
    asked = unsettled(mapping)
    if asked and not local:
        raise OtherMachineError(
            f"The configuration leaves {', '.join(asked)} to the machine that starts the workflow, and another "
            "one will measure: run mononn-bench machine there and put the lines it prints into the configuration."
        )


def name_here(threads: int, targets: Collection[str]) -> str:
    """What this machine's folder is called: by processor, cores of a case and, where it is a target, GPU."""
    name = machine_name(Path("/proc/cpuinfo").read_text(), threads)
    return name + gpu_suffix(find_gpus()) if CUDA in targets else name


def gpu_suffix(gpus: Sequence[Gpu]) -> str:
    """What a GPU and its driver add to the machine's name."""
    if not gpus:
        return "-no-gpu"
    words = re.sub(r"[^a-z0-9]+", "-", gpus[0].name.lower()).strip("-")
    return f"-{words}-{digest([(gpu.name, gpu.driver) for gpu in gpus])[:4]}"


def note_machine(name: str, path: Path) -> MachineRecord:
    """Write down that results under `name` are of this machine; OtherMachineError where another one made the name."""
    made = MADE_HERE.search(name)
    if made and name != (here := name_here(int(made[1]), [CUDA] if made[2] else [])):
        raise OtherMachineError(
            f"This machine is {here}, and the plan is for {name}: start the workflow there, or put what "
            "mononn-bench machine prints here into the configuration."
        )
    created = datetime.now(UTC).isoformat(timespec="seconds")
    record = MachineRecord(created, describe_machine(name), _gpus())
    write_record(record, path)
    return record


def require_machine(path: Path, threads: int, target: str) -> MachineRecord:
    """The record of the machine that results belong to; raises OtherMachineError where this is another one."""
    record = read_record(MachineRecord, path)
    kept, here = processor_name(record.machine), processor_name(describe_machine())
    if target == CUDA and kept == here:
        kept, here = "; ".join(record.gpus) or "no GPU", "; ".join(_gpus()) or "no GPU"
    if kept != here:
        raise OtherMachineError(
            f"{path} says that results of {record.machine.name} come from {kept}, and this is {here}: name this "
            "machine differently in the configuration."
        )
    require_cores(threads)
    return record


def require_builds(builds: Iterable[tuple[Path, BuildRecord]], meant: Mapping[str, Any]) -> None:
    """Raises OtherMachineError for a build, with its folder, that another processor made, BadOptionError for one whose
    record says something else than is `meant`.
    """
    here = processor_name(describe_machine())
    for folder, build in builds:
        for name, value in meant.items():
            if getattr(build, name) != value:
                raise BadOptionError(f"{folder} has {name} {getattr(build, name)}, not {value}: build it anew.")
        if build.processor and build.processor != here:
            raise OtherMachineError(
                f"{folder} was built on {build.processor}, and this is {here}: delete that folder, and build here."
            )


def require_cores(threads: int) -> None:
    """Raises OtherMachineError where this process may use fewer cores than every system is to have."""
    available = len(os.sched_getaffinity(0))
    if threads > available:
        raise OtherMachineError(
            f"Every system is to have {threads} cores, and this process may use {available}: lower threads in the "
            "configuration, or give the job more."
        )


def _gpus() -> tuple[str, ...]:
    return tuple(f"{gpu.name}, driver {gpu.driver}" for gpu in find_gpus())
