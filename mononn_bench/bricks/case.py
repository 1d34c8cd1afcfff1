"""A model cut at several lengths, and each of its bricks measured that a system's database lacks."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import onnx

from mononn_bench.bricked import EMPTY, LAYERS, WHOLE, Brick, BrickedModel, Cut, SystemBricks
from mononn_bench.bricks.cut import Network, key_of
from mononn_bench.bricks.measure import Contender, Ground, Say, measure_bricks
from mononn_bench.bricks.pad import padded
from mononn_bench.codec import read_record
from mononn_bench.errors import ModelError, RecordError
from mononn_bench.measure.case import source_revision
from mononn_bench.measure.environment import describe_machine
from mononn_bench.measure.exclusive import LOCK, exclusive_machine
from mononn_bench.measure.process import Worker, WorkerFailedError
from mononn_bench.measure.sentinel import make_sentinel
from mononn_bench.models.arithmetic import count_arithmetic
from mononn_bench.models.folder import ONNX, RECORD
from mononn_bench.models.user import identity_model
from mononn_bench.models.zoo import IDENTITY
from mononn_bench.record import ModelRecord

READINGS = 3
"""Of the sentinel, before a model's bricks are measured."""
Makers = dict[str, Callable[[], onnx.ModelProto]]


@dataclass(frozen=True)
class Entrant:
    """A system that is to measure bricks: its interpreter, and `identity` as in SystemBricks."""

    system: str
    python: Path
    identity: str


def brick_case(
    model_folder: Path, entrants: Sequence[Entrant], lengths: Sequence[int], ground: Ground, *, precision: str,
    machine_name: str, database: Path, command: str, say: Say, lock: Path = LOCK,
) -> BrickedModel:  # fmt: skip
    """Cut a model whole, into layers and into bricks of `lengths`, and measure with each entrant what its file in the
    folder `database` lacks. A system or brick that fails is a status in the record.
    """
    model = read_record(ModelRecord, model_folder / RECORD)
    network = Network(model_folder / ONNX)
    cuts, bricks, makers = cut_model(network, lengths)
    say(f"{model.name}: {len(makers)} different bricks of {', '.join(str(c.length) for c in cuts[1:])} layers")
    with exclusive_machine(say, lock):
        ground.scratch.mkdir(parents=True, exist_ok=True)
        try:
            sentinel = make_sentinel(ground.scratch, ground.cores, describe_machine().caches_kib)
            ceilings = sentinel.ceilings([sentinel.read() for _ in range(READINGS)])
            found = [_contender(entrant, database, machine_name, precision, ground) for entrant in entrants]
            measure_bricks(makers, [c for c in found if not c.record.reason], ground, say)
        finally:
            shutil.rmtree(ground.scratch, ignore_errors=True)
    return BrickedModel(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        model=model.name if model.batch == 1 else f"{model.name}-b{model.batch}",
        model_digest=model.digest,
        precision=precision,
        machine=machine_name,
        cores=ground.cores,
        ceilings=ceilings,
        layers=network.described(),
        bricks=bricks,
        cuts=cuts,
        systems=tuple(_only(contender.record, makers) for contender in found),
        command=command,
        source_revision=source_revision(),
    )


def cut_model(network: Network, lengths: Sequence[int]) -> tuple[tuple[Cut, ...], tuple[Brick, ...], Makers]:
    """The cuts, each different brick, and what makes it by its key, and the empty one and padded products too. Raises
    ModelError where there are no layers.
    """
    if not network.layers:
        raise ModelError(
            "This model computes nothing from its inputs, so there are no layers to cut: give another one."
        )
    cuts = tuple(network.cut(length) for length in sorted({WHOLE, LAYERS, *lengths}))
    runs: dict[str, range] = {}
    for cut in cuts:
        for key, run in cut.runs:
            runs.setdefault(key, run)
    bricks = tuple(_brick(key, network.model(run, weights=False)) for key, run in runs.items())
    makers: Makers = {EMPTY: lambda: identity_model(IDENTITY.inputs[0], IDENTITY.outputs[0])}
    for key, run in runs.items():
        makers[key] = lambda run=run: network.model(run)  # type: ignore[misc]
    for brick in bricks:
        if brick.padded:
            makers.setdefault(brick.padded, lambda run=runs[brick.key]: padded(network.model(run)))  # type: ignore[misc]
    return cuts, bricks, makers


def _brick(key: str, model: onnx.ModelProto) -> Brick:
    counted = count_arithmetic(model)
    wider = padded(model)
    return Brick(key, counted.flops, counted.weight_bytes, counted.compulsory_bytes, key_of(wider) if wider else "")


def _contender(entrant: Entrant, database: Path, machine: str, precision: str, ground: Ground) -> Contender:
    """What is known of a system's times; none, and why, where it cannot be had."""
    path = database / f"{entrant.system}-{entrant.identity}.json"
    try:
        return Contender(entrant.python, path, precision, read_record(SystemBricks, path))
    except RecordError:
        record = SystemBricks(entrant.system, "", entrant.identity, machine, {})
    try:
        with Worker(entrant.system, entrant.python, cores=ground.cores, scratch=ground.scratch / "probe") as worker:
            versions = worker.ask("probe", ground.limits)["versions"]
            record = replace(record, version=next(iter(versions.values())))
    except WorkerFailedError as error:
        record = replace(record, reason=error.reason)
    return Contender(entrant.python, path, precision, record)


def _only(record: SystemBricks, keys: Makers) -> SystemBricks:
    return replace(record, times={key: record.times[key] for key in keys if key in record.times})
