"""One system's build of one model, in a process of its own. Whatever goes wrong in a rival becomes a record, not an
error.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from mononn_bench.codec import from_plain, read_record, write_record
from mononn_bench.measure.environment import describe_machine, processor_name
from mononn_bench.measure.exclusive import LOCK, exclusive_machine
from mononn_bench.measure.process import Limits, Worker, WorkerFailedError
from mononn_bench.models.zoo import IDENTITY
from mononn_bench.record import BuildRecord, EnvironmentRecord, ModelRecord, Option, Tuning
from mononn_bench.systems import get_system

RECORD = "build.json"


def read_environment(folder: Path) -> EnvironmentRecord:
    """The record of the environment in `folder`; RecordError when it was never built."""
    return read_record(EnvironmentRecord, folder / "environment.json")


def build_system(
    system: str,
    *,
    environment: Path,
    model_folder: Path,
    output: Path,
    threads: int,
    precision: str,
    target: str,
    limits: Limits,
    defaults: bool = False,
    say: Callable[[str], None] = print,
    lock: Path = LOCK,
) -> BuildRecord:
    """Build the model and the one-node Identity model into `output`/model and `output`/identity; write build.json
    last. A system that tunes by timing is alone on this machine; others may be built beside each other.
    """
    model = read_record(ModelRecord, model_folder / "model.json")
    record = BuildRecord(
        system=system, model=model.name, model_digest=model.digest, precision=precision, target=target, threads=threads,
        status="ok", reason="", version="", versions={}, options=(), build_s=None, artifact_mb=None, peak_mb=None,
        tuning=None, details={}, defaults=defaults, processor=processor_name(describe_machine()),
    )  # fmt: skip
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    kept = str(environment / "kept" / f"{target}-{system}")
    common = {"threads": threads, "precision": precision, "target": target, "defaults": defaults, "kept": kept}
    found = read_environment(environment)
    if found.status != "ok":
        record = replace(record, status="unavailable", reason=found.reason)
    else:
        with exclusive_machine(say, lock, shared=not get_system(system).tunes_by_timing):
            record = _built(record, Path(found.interpreter), model_folder, output, common, limits)
        record = replace(record, versions={**record.versions, **found.packages})
    write_record(record, output / RECORD)
    return record


def _built(
    record: BuildRecord, python: Path, model_folder: Path, output: Path, common: dict[str, Any], limits: Limits
) -> BuildRecord:
    scratch = output / "temporary"
    cores = sorted(os.sched_getaffinity(0))[: record.threads]

    def started(stack: ExitStack) -> tuple[Worker, dict[str, str]]:
        worker = stack.enter_context(
            Worker(record.system, python, cores=cores, scratch=scratch, defaults=record.defaults)
        )
        return worker, worker.ask("probe", limits)["versions"]

    try:
        with ExitStack() as stack:
            worker, versions = started(stack)
            record = replace(record, versions=versions, version=next(iter(versions.values())))
            if not _build_identity(worker, model_folder, output, common, limits):
                worker.kill()
                worker, _ = started(stack)
            base = worker.resident_bytes()
            folders = {"model_folder": str(model_folder), "build_folder": str(output / "model")}
            built = worker.ask("build", limits, **folders, **common)
            worker.note_memory()
            record = replace(
                record,
                options=tuple(from_plain(Option, option) for option in built["options"]),
                build_s=built["build_s"],
                artifact_mb=size_mb(output / "model"),
                peak_mb=(worker.peak_bytes - base) / 1e6,
                tuning=from_plain(Tuning, built["tuning"]) if built["tuning"] else None,
                details=built["details"],
                status="undertuned" if built["undertuned"] else "ok",
                reason=built["undertuned"],
            )
    except WorkerFailedError as error:
        record = replace(record, status=error.status, reason=error.reason)
    finally:
        keep_log(scratch, record.system, output)
    return record


def _build_identity(worker: Worker, model_folder: Path, output: Path, common: dict[str, Any], limits: Limits) -> bool:
    """Before the model, so that what a compiler does once a process or once a machine is not in the model's seconds.

    False where the system cannot: then it has no value in the column of what a call costs.
    """
    folders = {"model_folder": str(model_folder / IDENTITY.name), "build_folder": str(output / IDENTITY.name)}
    try:
        worker.ask("build", limits, **folders, **common)
    except WorkerFailedError:
        shutil.rmtree(output / IDENTITY.name, ignore_errors=True)
        return False
    return True


def keep_log(scratch: Path, system: str, output: Path) -> None:
    """Keep what a build said, and nothing else of its temporary folder."""
    log = scratch / f"{system}.log"
    if log.exists():
        log.replace(output / "log.txt")
    shutil.rmtree(scratch, ignore_errors=True)


def size_mb(folder: Path) -> float:
    """Of all files below a folder, in 10^6 bytes."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6
