"""Generated loops: what no hand-written kernel computes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil

from mononn_core.codegen.cpu_storage import CpuStorage, CpuTemplate
from mononn_core.codegen.cstyle import Printer
from mononn_core.codegen.cuda_expressions import CudaPrinter
from mononn_core.codegen.cuda_nests import NestWriter
from mononn_core.codegen.cuda_storage import CudaStorage, CudaTemplate
from mononn_core.codegen.loops import write_statements
from mononn_core.element import COMPUTE, itemsize
from mononn_core.ops import registry
from mononn_core.program.expr import Const, Expr, Ranges, Var
from mononn_core.program.ir import Box, For, Let, Operand, Phase, Statement, Store, Task
from mononn_core.program.template import NEST, Array, Elements, Extent, NoParams, Running, Template
from mononn_core.schedule.binder import OperandBinder
from mononn_core.schedule.cuda.builder import CudaBuilder
from mononn_core.schedule.cuda.parts import HeldViews, PartsViews
from mononn_core.schedule.cuda.schedule import CudaGroup
from mononn_core.schedule.cuda.template import SUM, CudaScheduled, PlannedPhase
from mononn_core.schedule.nests import build_nest, has_pieces
from mononn_core.schedule.operands import axis
from mononn_core.schedule.phases import PhaseBuilder
from mononn_core.schedule.schedule import GroupSchedule, Partition
from mononn_core.schedule.shares import rows_of_an_owner
from mononn_core.schedule.stages import FusionGroup
from mononn_core.schedule.template import CpuScheduled, Ways
from mononn_core.schedule.views import matrix_index, matrix_shape

OPERATIONS = 8
"""Scalar operations an element, about."""
HELD_BYTES = 32 << 10
"""Most memory that the rows of a norm over parts take on a GPU."""


class Nest(Template[NoParams], CpuTemplate, CpuScheduled, CudaTemplate, CudaScheduled):
    """A task is its body, and stores no results."""

    name = NEST
    parameters = NoParams
    efficiency = 0.1

    def ways(self, stage: FusionGroup, builder: PhaseBuilder, owners: int) -> Ways:
        rows, columns = matrix_shape(builder.types[stage.root.outputs[0] if stage.root else stage.stored].shape)
        found = [Partition("rows", owners)] if rows >= owners else []
        whole_row = stage.root is not None and registry.get(stage.root.op).kind == "row"
        vectors = 2 if found or stage.root is None else 1
        if not whole_row and columns >= vectors * builder.lanes * owners and not (found and has_pieces(builder, stage)):
            found.append(Partition("columns", owners))
        return Ways(tuple(found), rows * columns * OPERATIONS)

    def build(self, builder: PhaseBuilder, stage: FusionGroup, decided: GroupSchedule, name: str) -> Phase:
        return build_nest(builder, stage, decided.partition, name, lanes=builder.lanes, counters=True)

    def contraction(self, task: Task, extent: Extent) -> str:
        return ""

    def elements(self, task: Task, axes: tuple[str, ...], prologue: str = "") -> Elements:
        raise AssertionError("a nest has no tile")

    def compute(self, task: Task, running: Running) -> Array:
        raise AssertionError("a nest is computed by its body")

    def write_call(self, phase: Phase, printer: Printer, code: CpuStorage) -> None:
        write_statements(code.out, phase.task.body, printer)

    # -- on a GPU ---------------------------------------------------------------------------------------------------

    def decided(self, builder: CudaBuilder, planned: PlannedPhase) -> CudaGroup:
        dealt = norm_tasks(builder, planned.stage) if planned.adds else nest_tasks(builder, planned.stage)
        name = SUM if planned.sums else self.name
        return CudaGroup(planned.stage.own, name, tasks=dealt.owners, by=dealt.kind, adds=planned.adds)

    def problem_cuda(self, builder: CudaBuilder, stage: FusionGroup, group: CudaGroup) -> str:
        rows, columns = matrix_shape(builder.types[stage.root.outputs[0] if stage.root else stage.stored].shape)
        if group.by == "single":
            return "" if group.tasks == 1 else f"a single task is not {group.tasks}"
        if group.by not in ("rows", "columns") or (group.by == "columns" and stage.root is not None):
            return f"it cannot be dealt by {group.by or 'nothing'}"
        most = rows if group.by == "rows" else columns
        if not 1 < group.tasks <= most:
            return f"{group.tasks} tasks by {group.by} are not 2 to {most}"
        each = ceil(most / group.tasks)
        held = each * columns * itemsize(COMPUTE)
        if group.adds and held > HELD_BYTES and group.tasks < norm_tasks(builder, stage).owners:
            return f"{each} rows of sums are more than a task holds"
        return ""

    def alternatives(self, builder: CudaBuilder, stage: FusionGroup, group: CudaGroup) -> Iterator[CudaGroup]:
        """Tasks for half, all, and twice the blocks, along rows and along columns."""
        blocks = builder.target.blocks
        yield replace(group, tasks=1, by="single")
        for by in ("rows", "columns"):
            yield from (replace(group, tasks=tasks, by=by) for tasks in (blocks // 2, blocks, 2 * blocks))

    def build_cuda(self, builder: CudaBuilder, planned: PlannedPhase, group: CudaGroup, name: str) -> Phase:
        partition = Partition(group.by, group.tasks)
        if planned.adds:
            return _sum_norm(builder, planned.stage, name, planned.adds, planned.also, partition)
        return build_nest(builder, planned.stage, partition, name)

    def write_cuda(self, phase: Phase, printer: CudaPrinter, code: CudaStorage) -> None:
        NestWriter(code.out, printer, code.threads).task(phase.task.body, printer)


def nest_tasks(builder: CudaBuilder, stage: FusionGroup) -> Partition:
    """Rows dealt to as many tasks as there are blocks; columns where there are too few rows."""
    rows, columns = matrix_shape(builder.types[stage.root.outputs[0] if stage.root else stage.stored].shape)
    blocks, threads = builder.target.blocks, builder.target.threads
    whole_row = stage.root is not None
    if rows > 1 and (whole_row or rows * columns <= blocks * threads or rows * 4 >= blocks):
        tasks = _even(builder, rows, columns if not whole_row else threads)
        return Partition("rows" if tasks > 1 else "single", tasks)
    if not whole_row and columns >= 2 * threads:
        tasks = min(blocks, ceil(columns / threads))
        columns_each = ceil(columns / tasks)
        return Partition("columns", ceil(columns / columns_each))
    return Partition("single", 1)


def _even(builder: CudaBuilder, rows: int, columns: int) -> int:
    """Tasks of equally many rows, as many as blocks, but none with less than an element a thread."""
    least = max(1, builder.target.threads // max(columns, 1))
    each = max(least, ceil(rows / builder.target.blocks))
    return ceil(rows / each)


def norm_tasks(builder: CudaBuilder, stage: FusionGroup) -> Partition:
    """Of a norm over parts: as many as there are blocks, more where the rows they hold would take too much."""
    rows, columns = matrix_shape(builder.types[stage.stored].shape)
    tasks = ceil(rows / max(1, min(ceil(rows / builder.target.blocks), HELD_BYTES // (itemsize(COMPUTE) * columns))))
    return Partition("rows" if tasks > 1 else "single", tasks)


def _sum_norm(
    builder: CudaBuilder, stage: FusionGroup, name: str, tensor: str, also: bool, partition: Partition
) -> Phase:
    """A norm of ``tensor``, whose product lies in parts: a task adds the parts of its rows once, into its own
    memory, and stores the sums as well where others read them."""
    shape = builder.types[stage.stored].shape
    columns = matrix_shape(shape)[1]
    each = rows_of_an_owner(shape, partition.owners)
    held = builder.local((each, columns), COMPUTE, "held")
    plain = PartsViews(builder.views.graph, builder.views.stored - {tensor}, builder.views.parts)
    other = builder.seeing(HeldViews(plain, tensor, held.id, (each, columns)))
    whole = Box((Const(0), Const(0)), held.shape, held.shape)

    def first(binder: OperandBinder, index: tuple[Expr, ...], inner: Ranges) -> tuple[Statement, ...]:
        binder.operands.append(Operand("hold", held.id, whole, "write"))
        value, x = binder.bind(plain.element(tensor, index), inner), axis("x", columns)
        body: tuple[Statement, ...] = (Store("hold", (axis("y", each), x), value),)
        if also:
            total = Var("sum_of_parts", COMPUTE)
            where = binder.output(tensor, matrix_index(builder.types[tensor].shape, index), inner, "also")
            body = (
                Let(total.name, value),
                Store("hold", (axis("y", each), x), total),
                Store("also", where, binder.stored(tensor, total)),
            )
        return (For("x", columns, body, "vector"),) if columns > 1 else body

    return build_nest(other, stage, partition, name, first)


TEMPLATE = Nest()
