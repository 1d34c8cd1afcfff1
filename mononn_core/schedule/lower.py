"""Graph to Program: fuse into stages, choose owners, place buffers, roll repeated layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import gcd

import numpy as np

from mononn_core.cost.analytic import Cost
from mononn_core.graph import Graph, Node, TensorType
from mononn_core.machine import Machine
from mononn_core.ops import registry
from mononn_core.options import Options
from mononn_core.program.tile import Barrier, Buffer, Item, Layout, Phase, Program
from mononn_core.schedule import memory, ownership
from mononn_core.schedule.convolution import Conv, build_border, build_conv
from mononn_core.schedule.decisions import Partition, row_stride
from mononn_core.schedule.fuse import Stage, fuse
from mononn_core.schedule.nests import build_nest
from mononn_core.schedule.operands import Product
from mononn_core.schedule.parts import with_parts
from mononn_core.schedule.phases import PhaseBuilder, rows_stand_alone
from mononn_core.schedule.prepare import is_template, prepare
from mononn_core.schedule.roll import roll
from mononn_core.schedule.views import Views, matrix_shape

SMALL_FLOPS = 200_000
"""Below this one owner may do a stage alone: a barrier costs as much as the work."""


@dataclass(frozen=True)
class Lowered:
    """A Program and the constants its weight buffers hold: buffer id -> logical matrix in the buffer's shape."""

    program: Program
    weights: Mapping[str, np.ndarray]


def lower(graph: Graph, options: Options, machine: Machine) -> Lowered:
    """The network as one Program, balanced for ``options.threads`` workers.

    Raises:
        UnsupportedError: an operator has no generated form; the message names the node.
    """
    graph = prepare(graph)
    stages, views = fuse(graph, options.fuse, options.epilogues, joined=True)
    weight_bytes = sum(c.nbytes for c in graph.constants.values())
    builder = PhaseBuilder(views, machine)
    cost = Cost(machine, weight_bytes)
    chosen: dict[str, tuple[ownership.Candidate, ...]] = {}
    for number, stage in enumerate(stages):
        name = f"{number:03d}_{stage.root.op if stage.root else stage.chain[-1].op}"
        shape = matrix_shape(graph.types[stage.stored].shape)
        chosen[stage.own] = tuple(
            ownership.candidate(p, build_phases(builder, stage, p, name), shape, cost)
            for p in partitions(stage, views, options.threads, machine)
        )
    plan = ownership.plan(stages, with_parts(stages, chosen, builder, cost), cost)
    return _assemble(graph, plan, builder, machine)


def build_phases(builder: PhaseBuilder, stage: Stage, partition: Partition, name: str) -> tuple[Phase, ...]:
    """The phases of ``stage`` under ``partition``: its own, and one for the border of the image it stores."""
    phase = build_phase(builder, stage, partition, name)
    border = build_border(builder, stage, partition, phase)
    return (phase,) if border is None else (phase, border)


def build_phase(builder: PhaseBuilder, stage: Stage, partition: Partition, name: str) -> Phase:
    """The phase of ``stage`` under ``partition``; its operands name tensors (or packed weights)."""
    template = stage.root is not None and is_template(stage.root, builder.views.graph)
    match stage.root.op if stage.root and template else "":
        case "matmul":
            return builder.matmul(stage, partition, name)
        case "attention":
            return builder.attention(stage, partition, name)
        case "conv":
            return build_conv(builder, stage, partition, name)
        case _:
            return build_nest(builder, stage, partition, name)


def partitions(stage: Stage, views: Views, owners: int, machine: Machine) -> tuple[Partition, ...]:
    """Ways of dealing a stage to ``owners`` owners, the preferred first."""
    types = views.graph.types
    single = Partition("single", owners)
    if owners == 1:
        return (single,)
    op = stage.root.op if stage.root and is_template(stage.root, views.graph) else ""
    if op == "matmul":
        assert stage.root is not None
        found, flops = _matmul_partitions(stage, views, owners, machine)
    elif op == "conv":
        assert stage.root is not None
        found, flops = _conv_partitions(stage.root, types, owners, machine)
    elif op == "attention":
        assert stage.root is not None
        batch, heads, rows, depth = types[stage.root.inputs[0]].shape
        flops = 4 * batch * heads * rows * depth * types[stage.root.inputs[1]].shape[2]
        found = [Partition("heads", owners)] if (batch * heads) % owners == 0 else []
        exact = rows % owners == 0 or rows_stand_alone(stage.root, views)
        found += [Partition("rows", owners)] if exact and rows >= 8 * owners else []
    else:
        rows, columns = matrix_shape(types[stage.root.outputs[0] if stage.root else stage.stored].shape)
        flops = rows * columns * 8
        found = [Partition("rows", owners)] if rows >= owners else []
        whole_row = stage.root is not None and registry.get(stage.root.op).kind == "row"
        lanes = machine.vector_bytes // 4
        if not whole_row and columns >= 2 * lanes * owners:
            found.append(Partition("columns", owners))
    return (*found, single) if flops < SMALL_FLOPS or not found else tuple(found)


def _matmul_partitions(stage: Stage, views: Views, owners: int, machine: Machine) -> tuple[list[Partition], int]:
    assert stage.root is not None
    p = Product.of(stage.root, views.graph.types)
    lanes = machine.vector_bytes // 4
    flops = 2 * p.batch * p.m * p.n * p.k
    if p.batch > 1:
        found = [Partition("batch", owners)] if p.batch % owners == 0 else []
    else:
        found = [Partition("rows", owners)] if p.m >= 4 * owners else []
    if p.n >= owners * lanes:
        found.append(Partition("columns", owners))
    segments = _segments(stage, views)
    if segments > 1 and p.n % segments == 0 and (p.n // segments) % (owners * lanes) == 0:
        found.append(Partition("columns", owners, segments))
    return found, flops


def _conv_partitions(
    node: Node, types: Mapping[str, TensorType], owners: int, machine: Machine
) -> tuple[list[Partition], int]:
    lanes = machine.vector_bytes // 4
    conv = Conv.of(node, types, lanes)
    n, height, _, channels = conv.out
    found = [Partition("batch", owners)] if n % owners == 0 else []
    if (n == 1 and height >= owners) or height % owners == 0:
        found.append(Partition("rows", owners))
    if conv.panel // lanes % owners == 0 if conv.depthwise else channels > conv.panel * (owners - 1):
        found.append(Partition("columns", owners))
    return found, conv.flops


def _segments(stage: Stage, views: Views) -> int:
    """How many equal runs of columns the readers of a merged product cut it into (Q, K and V: three)."""
    graph = views.graph
    width = matrix_shape(graph.types[stage.stored].shape)[1]
    cuts = []
    for reader in graph.consumers()[stage.stored]:
        if reader.op == "slice":
            cuts.append(graph.types[reader.outputs[0]].shape[-1])
    common = 0
    for cut in cuts:
        common = gcd(common, cut)
    return width // common if common else 1


def _assemble(graph: Graph, plan: ownership.Plan, builder: PhaseBuilder, machine: Machine) -> Lowered:
    items: list[Item] = []
    for number, interval in enumerate(plan.intervals):
        if number:
            items.append(Barrier(number - 1))
        items.extend(p for _, c in interval for p in c.phases)
    tensors = {o.buffer: o for i in items if isinstance(i, Phase) for o in i.task.operands}
    spans: dict[str, memory.Span] = {}
    for number, interval in enumerate(plan.intervals):
        for stage, chosen in interval:
            if stage.stored not in graph.outputs:
                buffer = _activation(chosen, graph.types[stage.stored].dtype, machine)
                known = spans.get(buffer.id, memory.Span(buffer, number, number))
                spans[buffer.id] = replace(known, last=number)
            for tensor, _ in chosen.reads:
                if tensor in spans:
                    spans[tensor] = replace(spans[tensor], last=number)
    arena, arena_bytes = memory.plan_arena(spans)
    weights, values, weight_bytes = _weights(graph, [str(t) for t in tensors], builder)
    edges = [
        Buffer(n, graph.types[n].dtype, s := matrix_shape(graph.types[n].shape), Layout.row_major(s), space, at)
        for space, names in (("input", graph.inputs), ("output", graph.outputs))
        for at, n in enumerate(names)
    ]
    buffers = (*edges, *(arena[n] for n in spans), *weights)
    program = Program(
        graph.name,
        buffers,
        tuple(items),
        inputs=graph.inputs,
        outputs=graph.outputs,
        arena_bytes=arena_bytes,
        weight_bytes=weight_bytes,
    )
    return Lowered(roll(program), values)


def _activation(chosen: ownership.Candidate, dtype: str, machine: Machine) -> Buffer:
    rows, columns = chosen.writes.shape
    stride = row_stride(columns, machine) if rows > 1 else columns
    layout = Layout((((rows, stride),), ((columns, 1),)), max(rows * stride, 1))
    return Buffer(chosen.stored, dtype, (rows, columns), layout, "arena")


def _weights(
    graph: Graph, tensors: list[str], builder: PhaseBuilder
) -> tuple[list[Buffer], dict[str, np.ndarray], int]:
    """Weight buffers in the order of their use, their logical matrices, and their total bytes."""
    buffers: list[Buffer] = []
    values: dict[str, np.ndarray] = {}
    for name in tensors:
        if name in builder.packed:
            buffer, values[name] = builder.packed[name]
        elif graph.is_constant(name):
            shape = matrix_shape(graph.types[name].shape)
            buffer = Buffer(name, graph.types[name].dtype, shape, Layout.row_major(shape), "weight")
            values[name] = graph.constants[name].reshape(shape)
        else:
            continue
        buffers.append(buffer)
    placed, total = memory.plan_weights(buffers)
    return placed, values, total


__all__ = ["Lowered", "build_phase", "lower", "partitions"]
