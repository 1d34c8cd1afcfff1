"""A step of a recurrence: a's rows (the state) [M, H] times b [H, G H] gate by gate, result axes (row, unit), on a CPU.

A tile has an accumulator for every gate; the rest of the cell (:class:`mononn_core.ops.recurrent.Cell`) is an
expression of them. b is packed in blocks of units, their gates side by side. Steps follow one another in a loop;
owners meet behind every product only where they share the units of a direction, because one cache would not hold its
weights; directions then follow one another. Every other step walks the blocks backwards: what the cache still holds of
the weights is found there. A GRU whose reset gate multiplies the state in front of the last gate's product has two
products a step. Weights of 8 bits, and those that 16 bits hold exactly, are widened by each load where an owner reads
more of them in a step than its second-level cache would hold as float32.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from mononn_core.codegen.c import part_of
from mononn_core.codegen.cpu_storage import CpuStorage, CpuTemplate
from mononn_core.codegen.cstyle import Printer
from mononn_core.codegen.epilogues import write_elements
from mononn_core.codegen.storage import row_stride
from mononn_core.ops import registry
from mononn_core.program.expr import Acc, Const, Var, op
from mononn_core.program.ir import Item, Phase, Task
from mononn_core.program.rules import matrix_dims
from mononn_core.program.template import Array, Elements, Extent, Running, Template, operand
from mononn_core.schedule.phases import PhaseBuilder
from mononn_core.schedule.schedule import GroupSchedule, Partition
from mononn_core.schedule.stages import FusionGroup
from mononn_core.schedule.template import CpuScheduled, Ways
from mononn_core.templates.recurrence_steps import Shape, Steps


@dataclass(frozen=True)
class RecurrenceParams:
    """``gates`` of ``block`` units lie side by side in a panel of b; ``at_once`` rows' sums are in registers together;
    a step has ``rows`` rows of states."""

    gates: int
    block: int
    at_once: int
    rows: int


class Recurrence(Template[RecurrenceParams], CpuTemplate, CpuScheduled):
    """See the module."""

    name = op = "recurrence"
    roles = ("a", "b")
    parameters = RecurrenceParams
    weights = "b"
    header = "mononn_recurrence.hpp"
    efficiency = 0.3

    # -- meaning ----------------------------------------------------------------------------------------------------

    def mismatch(self, task: Task) -> str:
        params, out = self.params(task), operand(task, task.results[0].operand).box
        if params.gates < 1 or params.block < 1 or params.at_once < 1 or params.rows < 1:
            return f"it has no tile: {params}"
        columns = operand(task, "b").box.size[1]
        if columns % (params.gates * params.block) or columns < out.size[matrix_dims(out.size)[1]] * params.gates:
            return f"{columns} columns of operand 'b' are no blocks of {params.gates} times {params.block}"
        return ""

    def contraction(self, task: Task, extent: Extent) -> str:
        differ = (extent("a", 1) != extent("b", 0)).any()
        return "the extents that operands 'a' and 'b' contract differ" if differ else ""

    def elements(self, task: Task, axes: tuple[str, ...], prologue: str = "") -> Elements:
        box = operand(task, task.results[0].operand).box
        dims = matrix_dims(box.size)
        inside = (op("lt", box.offset[d] + Var(a), Const(box.bound[d])) for a, d in zip(axes, dims, strict=True))
        return Elements(tuple(box.size[d] for d in dims), tuple(inside))

    def parts(self, task: Task) -> int:
        return self.params(task).gates

    def compute(self, task: Task, running: Running) -> Array:
        params, out = self.params(task), task.results[0].operand
        box, sums = operand(task, out).box, self.products(task, running)
        d = matrix_dims(box.size)[1]
        units = max(0, min(box.size[d], box.bound[d] - running.corner(out)[d]))
        gates = sums.reshape(len(sums), -1, params.gates, params.block)
        return gates.transpose(2, 0, 1, 3).reshape(params.gates, len(sums), -1)[:, :, :units]

    def products(self, task: Task, running: Running) -> Array:
        """a b."""
        return np.asarray(running.matrix("a") @ running.matrix("b"))

    # -- how groups are dealt ---------------------------------------------------------------------------------------

    def preference(self, stage: FusionGroup, builder: PhaseBuilder) -> int | None:
        assert stage.root is not None
        return 0 if bool(self.rounded) == ("rounded" in stage.root.attrs) else None

    def ways(self, stage: FusionGroup, builder: PhaseBuilder, owners: int) -> Ways:
        assert stage.root is not None
        s, found = Shape.of(stage.root, builder), []
        if s.directions % owners == 0:
            found.append(Partition("batch", owners))
        if s.rows % owners == 0:
            found.append(Partition("rows", owners))
        if min(map(s.blocks, s.products)) >= owners:
            found.append(Partition("columns", owners))
        flops = registry.get(self.op).flops
        assert flops is not None
        types = builder.types
        inputs = [types[n] if n else None for n in stage.root.inputs]
        return Ways(tuple(found), flops(inputs, [types[stage.root.output]], stage.root.attrs), single=True)

    def build(self, builder: PhaseBuilder, stage: FusionGroup, decided: GroupSchedule, name: str) -> Phase:
        """The first product of the first step of the first direction."""
        steps = Steps(builder, stage, decided.partition, name)
        return steps.phase(steps.shape.products[0], 0, first=True)

    def items(self, builder: PhaseBuilder, stage: FusionGroup, decided: GroupSchedule, name: str) -> tuple[Item, ...]:
        steps = Steps(builder, stage, decided.partition, name)
        return tuple(item for directions in steps.together() for item in steps.run(directions))

    # -- C++ --------------------------------------------------------------------------------------------------------

    def write_call(self, phase: Phase, printer: Printer, code: CpuStorage) -> None:
        task, out, params = phase.task, code.out, self.params(phase.task)
        a, b, stored = (operand(task, role) for role in ("a", "b", task.results[0].operand))
        m, n = task.results[0].axes
        (rows, units), columns = (stored.box.size[d] for d in matrix_dims(stored.box.size)), 1
        inner = code.element_printer(printer, (m, n), (rows, units))
        sums = ", ".join(f"auto {part_of(inner.acc, Acc(part=g))}" for g in range(params.gates))
        many, text = code.extents(stored, columns, printer)
        out.line(f"const long units_ = {text};")
        with out.block(f"auto element_ = [&](long {m}, long {n}, {sums}) {{", "};"):
            write_elements(out, task.results, inner)
        tail = "element_"
        if any(units % params.block for units in many):
            tail, ranges = "tail_", {**inner.ranges, "units_": (0, units)}
            with out.block(f"auto tail_ = [&](long {m}, long {n}, {sums}) {{", "};"):
                write_elements(out, task.results, replace(inner, ranges=ranges), "units_")
        row = printer.index(stored.box.offset[0])
        left = f"{code.corner(printer, a)}, {row_stride(printer.pointers['a'].buffer)}"
        rest = f"units_, ({row}) / {params.rows} % 2"
        call = self.call(phase, code, rows, left, code.corner(printer, b), rest, f"element_, {tail}")
        out.line(f"if (units_ > 0) {call}" if min(many) == 0 else call)

    def call(self, phase: Phase, code: CpuStorage, rows: int, a: str, b: str, rest: str, cell: str) -> str:
        """Of the vocabulary, for so many rows; ``rest``: units, and whether the last block comes first; ``cell``: what
        takes whole vectors of units, and what their ends."""
        terms = operand(phase.task, "a").box.size[1]
        return f"mn::recurrence<{self.sizes(self.params(phase.task), rows)}>({a}, {b}, {terms}, {rest}, {cell});"

    @staticmethod
    def sizes(params: RecurrenceParams, rows: int) -> str:
        """What a kernel is made for."""
        return f"{params.gates}, {params.block}, {rows}, {params.at_once}"


TEMPLATE = Recurrence()
