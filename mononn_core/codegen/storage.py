"""Storage and footprints of a Program as C expressions: what the CPU and CUDA printers share."""

from __future__ import annotations

from itertools import product as cartesian
from math import prod

from mononn_core.codegen.cstyle import Printer
from mononn_core.codegen.writer import Writer
from mononn_core.program.expr import Const, Expr, add, evaluate_index, minimum, mul, variables
from mononn_core.program.ir import Buffer, Operand, Program, Slot
from mononn_core.program.simplify import simplify


class Storage:
    """A Program's buffers and boxes in the generated code. ``out`` collects the source."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.buffers = program.buffer_map
        self.out = Writer()

    def buffer(self, which: str | Slot) -> Buffer:
        """The buffer, or for a slot the first iteration's (all of a column lie alike)."""
        if isinstance(which, str):
            return self.buffers[which]
        table = next(t for t in self.program.tables if t.id == which.table)
        return self.buffers[table.rows[0][table.columns.index(which.column)]]

    def corner(self, printer: Printer, operand: Operand) -> str:
        pointer = printer.pointers[operand.role]
        offset = pointer.address(operand.box.offset, printer.ranges)
        return f"{pointer.name} + {printer.index(offset)}"

    def extents(self, operand: Operand, dim: int, printer: Printer) -> tuple[tuple[int, ...], str]:
        """Sizes that dimension ``dim`` of the operand's box takes over domain and loop, and the C expression of it."""
        box = operand.box
        size, bound, offset = box.size[dim], box.bound[dim], box.offset[dim]
        names = sorted(variables(offset))
        found = set()
        for point in cartesian(*(range(low, high + 1) for low, high in (printer.ranges[n] for n in names))):
            found.add(max(0, min(size, bound - evaluate_index(offset, dict(zip(names, point, strict=True))))))
        text = printer.index(simplify(minimum(Const(size), add(Const(bound), mul(offset, -1))), printer.ranges))
        return tuple(sorted(found, reverse=True)), text

    def element_printer(self, printer: Printer, axes: tuple[str, ...], extents: tuple[int, ...]) -> Printer:
        more = {a: (0, e - 1) for a, e in zip(axes, extents, strict=True)}
        return Printer(printer.pointers, {**printer.ranges, **more})

    def counter_index(self, counter: str, index: tuple[Expr, ...], printer: Printer) -> str:
        """C expression of a counter element's position among all counters."""
        base = 0
        for known in self.program.counters:
            if known.id == counter:
                linear: Expr = Const(0)
                for e, extent in zip(index, known.shape, strict=True):
                    linear = add(mul(linear, extent), e)
                return printer.index(simplify(add(linear, base), printer.ranges))
            base += prod(known.shape)
        raise AssertionError(f"counter {counter!r} is not declared")


def row_stride(buffer: Buffer) -> int:
    """Elements between neighbouring rows of a matrix, the last two dimensions."""
    return buffer.layout.dims[-2][-1][1]
