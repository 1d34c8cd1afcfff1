"""A model's first answers: every system's programs built, started in turn, checked, and their memory read."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from mononn_bench.codec import from_plain, read_record
from mononn_bench.errors import BadOptionError
from mononn_bench.measure.case import judge, source_revision
from mononn_bench.measure.environment import available_bytes, describe_machine
from mononn_bench.measure.exclusive import LOCK, exclusive_machine
from mononn_bench.measure.filecache import CacheState, drop_files, files_below, read_files
from mononn_bench.measure.order import balanced_orders
from mononn_bench.measure.process import Limits, Worker, WorkerFailedError, worker_command, worker_variables
from mononn_bench.measure.runner import Contestant, Course, Tally
from mononn_bench.models.folder import package_versions
from mononn_bench.record import ModelRecord, ReferenceRecord, Tensor
from mononn_bench.start.process import Command, Started, mapped_files
from mononn_bench.start.programs import Program
from mononn_bench.started import FirstAnswer, Starter, StartRecord, StartSettings

SERVER = "mononn_bench.start.server"
DESCRIPTOR = "DESCRIPTOR"
ATTEMPTS = 4
"""Most starts in place of one that others disturbed."""
MEMORY_SHARE = 0.7
"""Of the available memory: processes that would hold more together are not started."""
BY_ADAPTER = "the adapter of the comparison, its interpreter included"
Say = Callable[[str], None]


@dataclass
class Entrant:
    """One way of starting one system, and what is known of it; `failure` is set once and ends its part."""

    contestant: Contestant
    command: Command
    starter: Starter
    tally: Tally = field(default_factory=Tally)
    starts: list[FirstAnswer] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    one_mb: float = 0.0


def start_case(
    contestants: Sequence[Contestant], course: Course, settings: StartSettings, *, machine_name: str, command: str,
    say: Say, lock: Path = LOCK,
) -> StartRecord:  # fmt: skip
    """Start each system's processes, alone on this machine. What fails is a status in the record."""
    begun = time.perf_counter()
    model = read_record(ModelRecord, course.model_folder / "model.json")
    reference = read_record(ReferenceRecord, course.reference.with_suffix(".json"))
    if course.defaults or course.target != "cpu":
        raise BadOptionError("First answers are measured on the CPU with every system's options set.")
    machine = describe_machine(machine_name)
    shutil.rmtree(course.scratch, ignore_errors=True)
    _write_inputs(course, model)
    try:
        with exclusive_machine(say, lock), _on_cores(course.cores):
            made = [one for contestant in contestants for one in _ways(contestant, course, model, say)]
            entrants = [one for one in made if isinstance(one, Entrant)]
            _first(entrants, course, model, say)
            _rounds(entrants, course, settings, model, say)
            _together(entrants, course, settings, model, say)
        judged = _judged(entrants, course, model, reference)
    finally:
        shutil.rmtree(course.scratch, ignore_errors=True)
    return StartRecord(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        model=model.name,
        batch=model.batch,
        model_digest=model.digest,
        precision=course.precision,
        machine=machine,
        cores=course.cores,
        settings=replace(settings, threads=course.settings.threads),
        starters=tuple(judged[one.starter.label] if isinstance(one, Entrant) else one for one in made),
        command=command,
        source_revision=source_revision(),
        versions={"python": sys.version.split()[0], **package_versions(("mononn", "numpy", "onnx"))},
        wall_s=time.perf_counter() - begun,
    )


@contextmanager
def _on_cores(cores: Sequence[int]) -> Iterator[None]:
    """What this process starts meanwhile runs on these cores, as it does itself."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _limits(course: Course) -> Limits:
    return Limits(course.settings.answer_limit_s, course.settings.memory_limit_mb)


def _files(course: Course, kind: str, tensors: Sequence[Tensor]) -> dict[str, str]:
    """Where each tensor's raw bytes lie, by name."""
    return {tensor.name: str(course.scratch / f"{kind}-{place}") for place, tensor in enumerate(tensors)}


def _write_inputs(course: Course, model: ModelRecord) -> None:
    """The first input set."""
    course.scratch.mkdir(parents=True)
    with np.load(course.reference) as stored:
        for name, file in _files(course, "in", model.inputs).items():
            np.ascontiguousarray(stored[f"0/in/{name}"]).tofile(file)


def _ways(contestant: Contestant, course: Course, model: ModelRecord, say: Say) -> Iterator[Entrant | Starter]:
    """The ways of starting a system, its programs first; one that cannot take part with its reason."""
    build, name = contestant.build, contestant.label
    known = Starter(name, contestant.system, "native", build.status, build.reason, build.version, "")
    known = replace(known, artifact_mb=build.artifact_mb)
    if not build.stands:
        yield known
        return
    say(f"{model.name}: building the program of {name}")
    try:
        for kind, program in _programs(contestant, course).items():
            native = replace(known, label=" ".join(filter(None, [name, "native", kind])), how=program.how)
            yield _entrant(contestant, _native(contestant, program, course, model), native)
    except WorkerFailedError as error:
        yield replace(known, label=f"{name} native", status=error.status, reason=error.reason)
    by_adapter = replace(known, label=f"{name} Python", host="Python", how=BY_ADAPTER)
    yield _entrant(contestant, _python(contestant, course, model), by_adapter)


def _entrant(contestant: Contestant, command: Command, starter: Starter) -> Entrant:
    return Entrant(replace(contestant, label=starter.label), command, starter)


def _programs(contestant: Contestant, course: Course) -> dict[str, Program]:
    scratch = course.scratch / f"{contestant.label}-build"
    worker = Worker(contestant.system, contestant.python, cores=course.cores, scratch=scratch, server=SERVER)
    with worker:
        folder = str(course.scratch / f"{contestant.label}-programs")
        answer = worker.ask("programs", _limits(course), folder=folder, **_task(contestant, course))
    return {kind: from_plain(Program, plain) for kind, plain in answer["programs"].items()}


def _task(contestant: Contestant, course: Course) -> dict[str, Any]:
    return {
        "model_folder": str(course.model_folder), "build_folder": str(contestant.build_folder / "model"),
        "threads": course.settings.threads, "precision": course.precision, "target": course.target,
    }  # fmt: skip


def _native(contestant: Contestant, program: Program, course: Course, model: ModelRecord) -> Command:
    line = [program.program, DESCRIPTOR, str(course.settings.threads), program.model, program.setting]
    for kind, tensors in (("in", model.inputs), ("out", model.outputs)):
        files = _files(course, kind, tensors)
        line.append(str(len(tensors)))
        for tensor in tensors:
            line += [tensor.name, tensor.dtype, "x".join(map(str, tensor.shape)) or "-", files[tensor.name]]
    stored = [path for path in (Path(program.program), Path(program.model)) if path.exists()]
    return _command(line, 1, contestant, course, stored)


def _python(contestant: Contestant, course: Course, model: ModelRecord) -> Command:
    once = {
        **_task(contestant, course),
        "inputs": _files(course, "in", model.inputs),
        "outputs": _files(course, "out", model.outputs),
    }
    line = worker_command(contestant.system, contestant.python, SERVER, {"once": once})
    whole = json.loads(line[-1])
    line[-1] = json.dumps({**whole, "descriptor": 0}).replace('"descriptor": 0', f'"descriptor": {DESCRIPTOR}')
    return _command(line, len(line) - 1, contestant, course, [])


def _command(line: Sequence[str], at: int, contestant: Contestant, course: Course, stored: Sequence[Path]) -> Command:
    scratch = course.scratch / f"{contestant.label}-run"
    scratch.mkdir(parents=True, exist_ok=True)
    below = [contestant.build_folder / "model", course.model_folder, *(path for path in stored if path.is_dir())]
    files = {*files_below(below), *(path for path in stored if path.is_file())}
    variables = worker_variables(contestant.system, scratch)
    return Command(line, at, variables, scratch / "log", tuple(sorted(files)))


def _first(entrants: Sequence[Entrant], course: Course, model: ModelRecord, say: Say) -> None:
    """Each once, untimed: its answer, the files that it maps, what it holds by itself."""
    own = mapped_files("self")
    for entrant in entrants:
        say(f"{model.name}: {entrant.starter.label}")
        try:
            with Started(entrant.command, _limits(course)) as process:
                answers = _answers(course, model)
                mapped = process.mapped_files()
                entrant.one_mb, anonymous = process.memory()
        except WorkerFailedError as error:
            entrant.tally.failure = error
            continue
        lasting = {path for path in mapped if path.is_file()}  # what it unpacked for itself is gone with it
        entrant.files = sorted({*entrant.command.files, *lasting} - own)
        path = course.scratch / f"{entrant.starter.label}.npz"
        np.savez(path, **answers)  # type: ignore[arg-type]
        entrant.tally.answers.append((path, (0,), "before"))
        entrant.starter = replace(entrant.starter, one_mb=entrant.one_mb, own_mb=anonymous)


def _answers(course: Course, model: ModelRecord) -> dict[str, Any]:
    """What a process has left as its answer; gone afterwards, so that none is another's."""
    files, answers = _files(course, "out", model.outputs), {}
    for tensor in model.outputs:
        found = np.fromfile(files[tensor.name], tensor.dtype)
        Path(files[tensor.name]).unlink()
        whole = found.size == math.prod(tensor.shape)
        answers[f"0/out/{tensor.name}"] = found.reshape(tensor.shape) if whole else found
    return answers


def _rounds(entrants: Sequence[Entrant], course: Course, settings: StartSettings, model: ModelRecord, say: Say) -> None:
    """Every way once a round with warm files, and in the first rounds once more with cold ones, in balanced orders."""
    states: list[tuple[CacheState, int]] = [("warm", settings.warm), ("cold", settings.cold)]
    for files, count in states:
        by_label = {entrant.starter.label: entrant for entrant in entrants}
        orders = balanced_orders(list(by_label), count, f"{settings.seed}/{model.name}/{files}") if by_label else []
        for index, order in enumerate(orders):
            say(f"{model.name}: {files} files, round {index + 1} of {count}")
            for label in order:
                if by_label[label].tally.failure is None:
                    _timed(by_label[label], course, files, index)


def _timed(entrant: Entrant, course: Course, files: CacheState, index: int) -> None:
    """One start, again where others disturbed it."""
    for _ in range(ATTEMPTS):
        found = read_files(entrant.files) if files == "warm" else drop_files(entrant.files)
        try:
            with Started(entrant.command, _limits(course)) as process:
                quiet = not process.disturbed(course.settings.disturbed_share)
        except WorkerFailedError as error:
            entrant.tally.failure = error
            return
        if quiet:
            break
    entrant.starts.append(FirstAnswer(index, found, process.stood_ms, process.answered_ms, quiet))


def _together(
    entrants: Sequence[Entrant], course: Course, settings: StartSettings, model: ModelRecord, say: Say
) -> None:
    """So many processes of each way at once, and what they hold together; nothing where they do not all stand."""
    for entrant in entrants:
        room = MEMORY_SHARE * available_bytes() / 1e6
        if entrant.tally.failure or entrant.one_mb * settings.processes > room or settings.processes < 2:
            continue
        say(f"{model.name}: {settings.processes} processes of {entrant.starter.label}")
        held: list[Started] = []
        try:
            for _ in range(settings.processes):
                held.append(Started(entrant.command, _limits(course)))
            total = sum(process.memory()[0] for process in held)
            entrant.starter = replace(entrant.starter, all_mb=total)
        except WorkerFailedError as error:
            say(f"{model.name}: {entrant.starter.label}: {error.reason}")
        finally:
            for process in held:
                process.close()


def _judged(
    entrants: Sequence[Entrant], course: Course, model: ModelRecord, reference: ReferenceRecord
) -> dict[str, Starter]:
    """What is known of each, by label."""
    tallies = {entrant.starter.label: entrant.tally for entrant in entrants}
    verdicts = judge([entrant.contestant for entrant in entrants], course, model, reference, tallies)
    found = {}
    for entrant in entrants:
        verdict = verdicts[entrant.starter.label]
        starter = replace(entrant.starter, status=verdict.status, reason=verdict.reason, checks=verdict.checks)
        found[starter.label] = replace(starter, starts=tuple(entrant.starts))
    return found
