"""Images stored in parts, one an owner: each computes all the pixels that its own windows reach.

A convolution dealt by image rows reads some rows that its neighbours own (the halo). Where a map produces its image,
each owner computes those rows as well, into a part of the buffer that is its own, and no barrier stands between the
two: overlapped tiling (Krishnamoorthy et al., PLDI 2007).
"""

from __future__ import annotations

from dataclasses import replace

from mononn_core.cost.analytic import Cost
from mononn_core.ops import registry
from mononn_core.program.expr import Var
from mononn_core.program.rules import WINDOWED
from mononn_core.program.simplify import simplify
from mononn_core.program.tile import Box, Phase
from mononn_core.program.windows import Windows
from mononn_core.schedule.decisions import Parts
from mononn_core.schedule.fuse import Stage
from mononn_core.schedule.nests import build_nest
from mononn_core.schedule.ownership import Candidate, candidate, owner_boxes
from mononn_core.schedule.phases import PhaseBuilder
from mononn_core.schedule.views import Views, matrix_shape

Chosen = dict[str, tuple[Candidate, ...]]


def with_parts(stages: tuple[Stage, ...], chosen: Chosen, builder: PhaseBuilder, cost: Cost) -> Chosen:
    """``chosen`` (a stage's own tensor -> its candidates), and for every map that one convolution reads a candidate
    of each that meet in parts."""
    by_root = {stage.root.output: stage for stage in stages if stage.root is not None}
    found = dict(chosen)
    for image in stages:
        reader = _reader(image, builder.views)
        reading = by_root.get(reader) if reader else None
        if reading is None:
            continue
        for plain in chosen[reading.own]:
            moved = _moved(plain.phases[0], image.stored, builder) if plain.partition.kind == "rows" else None
            if moved is None:
                continue
            parts, phase = moved
            partition = replace(plain.partition, parts=parts)
            writing = build_nest(builder, image, partition, chosen[image.stored][0].phases[0].id)
            shape = (parts.size * partition.owners, matrix_shape(builder.types[image.stored].shape)[1])
            found[image.stored] += (candidate(partition, (writing,), shape, cost),)
            shape = matrix_shape(builder.types[reading.stored].shape)
            found[reading.own] += (candidate(partition, (phase, *plain.phases[1:]), shape, cost),)
    return found


def _reader(image: Stage, views: Views) -> str | None:
    """The convolution (its output) that alone reads what ``image`` stores, where ``image`` is a map."""
    name, consumers = image.stored, views.graph.consumers()
    shape = views.type(name).shape
    if image.root is not None or len(shape) != 4 or shape[0] != 1:
        return None
    while name not in views.graph.outputs and len(consumers[name]) == 1:
        (node,) = consumers[name]
        if node.op == "conv":
            return node.output if node.inputs[0] == name else None
        if views.is_stored(node.output) or registry.get(node.op).kind != "movement":
            return None
        name = node.output
    return None


def _moved(phase: Phase, tensor: str, builder: PhaseBuilder) -> tuple[Parts, Phase] | None:
    """Parts of ``tensor``, whole image rows, that hold what the owners of ``phase`` read of it, and ``phase`` reading
    them; None where it does not read the tensor in place, the last owner has no rows, or no two read the same."""
    if phase.task.template not in WINDOWED:
        return None
    a = next(o for o in phase.task.operands if o.role == "a")
    if a.buffer != tensor:
        return None
    spans = [(min(r0 for r0, *_ in mine), max(r1 for _, r1, *_ in mine)) for mine in owner_boxes(phase, a)]
    owners, pitch = phase.assign.owners, builder.types[tensor].shape[2]
    if owners < 2 or not Windows.of(phase.task.params).rows_in(spans[-1][1] - spans[-1][0]):
        return None  # where the last owner has rows, all before it have all of theirs
    first, step = spans[0][0] // pitch * pitch, spans[1][0] - spans[0][0]
    size = max(-(-(end - first - o * step) // pitch) * pitch for o, (_, end) in enumerate(spans))
    if size <= step:
        return None
    parts = Parts(f"{tensor}@parts", first, step, size)
    move = Var("o") * (size - step) + -first
    offset = simplify(a.box.offset[0] + move, {x.var: (0, x.extent - 1) for x in phase.domain})
    last = spans[-1][1] + (owners - 1) * (size - step) - first
    box = Box((offset, a.box.offset[1]), a.box.size, (last, a.box.bound[1]))
    moved = replace(a, buffer=parts.buffer, box=box)
    operands = tuple(moved if o is a else o for o in phase.task.operands)
    return parts, replace(phase, task=replace(phase.task, operands=operands))


__all__ = ["with_parts"]
