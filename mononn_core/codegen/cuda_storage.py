"""Storage of CUDA code: pointers and their alignment, and the block's shared memory planned over phases."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from itertools import pairwise
from math import gcd
from typing import ClassVar

from mononn_core.codegen.c import c_type
from mononn_core.codegen.cstyle import Printer
from mononn_core.codegen.cuda_expressions import CudaPointer, CudaPrinter, divisor
from mononn_core.codegen.cuda_functions import Place, mark
from mononn_core.codegen.storage import Storage, row_stride
from mononn_core.errors import UnsupportedError
from mononn_core.program.abi import GPU_ALIGN
from mononn_core.program.expr import Const, Expr, add, minimum, mul
from mononn_core.program.ir import Buffer, Loop, Operand, Phase, Program, Slot, Table
from mononn_core.program.memory import PRIVATE
from mononn_core.program.simplify import linear, simplify
from mononn_core.program.template import get


def up(n: int, step: int) -> int:
    return -(-n // step) * step


class CudaTemplate(ABC):
    """What the CUDA printer asks of a template.

    Attributes:
        cuda_header: of the vocabulary, beside what every source includes; "" where it needs none.
        early: the operand whose first steps an earlier phase may fetch into shared memory, or "".
    """

    cuda_header: ClassVar[str] = ""
    early: ClassVar[str] = ""

    def shared_bytes(self, phase: Phase, code: CudaStorage) -> int:
        """Shared memory that a task stages operands in; raises UnsupportedError where the block cannot compute it."""
        return 0

    def stages(self, phase: Phase, code: CudaStorage) -> bool:
        """Whether the vocabulary's stages bring operands."""
        return False

    @abstractmethod
    def write_cuda(self, phase: Phase, printer: CudaPrinter, code: CudaStorage) -> None:
        """Print one task; one whose ``early`` operand may have been fetched finds the bool ``early_``."""

    def write_fetch(self, phase: Phase, printer: CudaPrinter, code: CudaStorage) -> None:
        """Print the fetch of the ``early`` operand's first steps."""
        raise AssertionError("nothing of it is fetched early")


def cuda_template(phase: Phase) -> CudaTemplate:
    """The phase's template; raises UnsupportedError where it has no form for a GPU."""
    found = get(phase.task.template)
    if not isinstance(found, CudaTemplate):
        where = f" of {phase.origin[0]}" if phase.origin else ""
        raise UnsupportedError(
            f"phase {phase.id!r}{where}: template {phase.task.template!r} has no CUDA form; compile this model for the "
            "CPU"
        )
    return found


class CudaStorage(Storage):
    """A Program's storage in CUDA code for blocks of ``threads`` threads."""

    def __init__(self, program: Program, threads: int) -> None:
        super().__init__(program)
        self.places: list[Place] = []
        self.threads = threads
        self.warps = threads // 32
        for b in program.buffers:
            if b.layout.size >= 1 << 31:
                raise UnsupportedError(
                    f"buffer {b.id!r} has {b.layout.size} elements, more than 32-bit indices reach; use a smaller batch"
                )

    def template_place(self, phase: Phase) -> str:
        """C text of where the buffer that the phase's template stages operands in starts; raises UnsupportedError where
        none is listed."""
        if not phase.task.local:
            raise UnsupportedError(
                f"phase {phase.id!r}: template {phase.task.template!r} has no local buffer to work in"
            )
        return f"mn::shared_memory() + {self.buffers[phase.task.local[-1]].offset}"

    # -- pointers ---------------------------------------------------------------------------------------------------

    def pointer(
        self, operand: Operand, phase: Phase, loop: Loop | None, prefix: str = "p_", row: str = ""
    ) -> CudaPointer:
        """Declare the pointer of an operand; ``row`` is the iteration whose buffers its slots name."""
        buffer = self.buffer(operand.buffer)
        const = "" if operand.access in ("write", "partial") else "const "
        kind, name = c_type(buffer.dtype), prefix + operand.role
        base = self.base(operand.buffer, buffer, phase, row or (loop.var if loop else ""))
        self.out.line(f"{const}{kind} *const {name} = ({const}{kind} *){base};")
        if buffer.space != PRIVATE:
            self.out.line(f"MN_GLOBAL({name});")
        return CudaPointer(name, buffer, align=self.alignment(operand.buffer))

    def base(self, which: str | Slot, buffer: Buffer, phase: Phase, row: str) -> str:
        """C text of a buffer's address in bytes; where it lies in the arena or the weights is marked in it."""
        if buffer.space == PRIVATE:
            return f"(mn::shared_memory() + {buffer.offset})"
        if buffer.space in ("input", "output"):
            return f"call.{buffer.space}s[{buffer.offset}]"
        place = Place(buffer.offset)
        if isinstance(which, Slot):
            table = next(t for t in self.program.tables if t.id == which.table)
            place = self.offset(table, which.column, row)
        self.places.append(place)
        return f"({'arena_' if buffer.space == 'arena' else 'weights_'} + {mark(len(self.places) - 1)})"

    def offset(self, table: Table, column: str, row: str) -> Place:
        """A buffer's offset in the iteration ``row``: computed where its offsets allow that, else looked up, which
        takes a load in every phase."""
        if column in (uneven := self.uneven(table)):
            return Place(text=f"table_{table.id}[{row}][{uneven.index(column)}]")
        values = self.offsets(table, column)
        first, last = values[0], values[-1]
        if first == last:
            return Place(first)
        if len(values) > 2 and values[1] == last:
            return Place(text=f"(({row}) == 0 ? {first}ll : {last}ll)")
        return Place(first, values[1] - first, row)

    def offsets(self, table: Table, column: str) -> list[int]:
        """Of a column's buffers, iteration by iteration."""
        return [self.buffers[row[table.columns.index(column)]].offset for row in table.rows]

    def uneven(self, table: Table) -> list[str]:
        """Columns whose offsets neither grow evenly nor are all the same behind the first."""
        steps = {c: [b - a for a, b in pairwise(self.offsets(table, c))] for c in table.columns}
        return [c for c, s in steps.items() if len(set(s)) > 1 and any(s[1:])]

    def alignment(self, which: str | Slot) -> int:
        """Bytes that a buffer's start is aligned to, at most 128."""
        first = self.buffer(which)
        if first.space in ("input", "output"):
            return GPU_ALIGN
        if first.space == PRIVATE:
            return first.align
        names = [first.id]
        if isinstance(which, Slot):
            table = next(t for t in self.program.tables if t.id == which.table)
            names = [row[table.columns.index(which.column)] for row in table.rows]
        return gcd(128, *(self.buffers[n].offset for n in names))

    # -- footprints -------------------------------------------------------------------------------------------------

    def extent(self, operand: Operand, dim: int, printer: Printer) -> str:
        """C expression of how many elements the operand's box has along ``dim``; a constant where it is one."""
        return clipped(operand.box.size[dim], add(operand.box.bound[dim], mul(operand.box.offset[dim], -1)), printer)

    def row_alignment(self, operand: Operand, printer: CudaPrinter) -> int:
        """Bytes that the box's first element and its rows are aligned to."""
        pointer = printer.pointers[operand.role]
        assert isinstance(pointer, CudaPointer)
        terms, constant = linear(pointer.address(operand.box.offset, printer.ranges))
        size = pointer.buffer.itemsize
        steps = (constant, row_stride(pointer.buffer), *(k * divisor(t) for t, k in terms.items()))
        return gcd(pointer.align, *(s * size for s in steps))


def clipped(size: int, limit: Expr | int, printer: Printer) -> str:
    """C expression of min(size, limit), at least 0."""
    value = simplify(minimum(Const(size), limit if not isinstance(limit, int) else Const(limit)), printer.ranges)
    return printer.index(value)


def inner_axes(printer: CudaPrinter, axes: tuple[str, ...], extents: tuple[int, ...]) -> CudaPrinter:
    """The scope of an epilogue."""
    more = {a: (0, e - 1) for a, e in zip(axes, extents, strict=True)}
    return replace(printer, ranges={**printer.ranges, **more})
