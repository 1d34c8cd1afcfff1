"""What all parts of the CPU printer share: storage behind pointers, footprints as C expressions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from mononn_core.codegen.c import c_type
from mononn_core.codegen.cstyle import Pointer, Printer
from mononn_core.codegen.storage import Storage
from mononn_core.element import COMPUTE, itemsize
from mononn_core.errors import UnsupportedError
from mononn_core.program.ir import Buffer, Operand, Phase, Slot, Task
from mononn_core.program.template import get, operand

TILES = "mononn_tiles.hpp"
"""The vocabulary's header of what is computed in tile registers."""
BASES = {"arena": "call->arena", "weight": "call->weights"}


class CpuTemplate(ABC):
    """What the CPU printer asks of a template.

    Attributes:
        header: of the vocabulary, beside "mononn_cpu.hpp"; "" where it needs none.
    """

    header: ClassVar[str] = ""

    def headers(self, phase: Phase, code: CpuStorage) -> tuple[str, ...]:
        """Those that a phase needs, beside "mononn_cpu.hpp"."""
        return (self.header,) if self.header else ()

    def scratch_floats(self, task: Task, lanes: int) -> int:
        """What it keeps in a worker's memory for vectors of ``lanes``; the vocabulary's FLOATS are at most this."""
        return 0

    def gathers_bytes(self, task: Task) -> bool:
        """Whether it puts vectors together of bytes of others."""
        return False

    def write_state(self, phase: Phase, code: CpuStorage) -> None:  # noqa: B027 (most have none)
        """Declare what lives from one task of a phase to the next."""

    @abstractmethod
    def write_call(self, phase: Phase, printer: Printer, code: CpuStorage) -> None:
        """Print one task: its epilogue as a function, and the call that is handed it."""


def is_narrow(phase: Phase, code: CpuStorage, role: str = "b") -> bool:
    """Whether an operand's elements are narrower than a float."""
    return itemsize(code.buffer(operand(phase.task, role).buffer).dtype) < itemsize(COMPUTE)


def write_tiles(step: int, code: CpuStorage) -> None:
    """Declare what a worker's tile registers hold, where a phase multiplies in them."""
    if step:
        code.out.line("mn::Tiles tiles_;")


def cpu_template(phase: Phase) -> CpuTemplate:
    """The phase's template; raises UnsupportedError where it has no form for a CPU."""
    found = get(phase.task.template)
    if not isinstance(found, CpuTemplate):
        raise UnsupportedError(f"phase {phase.id!r}: template {phase.task.template!r} has no form for a CPU")
    return found


@dataclass(frozen=True)
class Place:
    """Where an operand lies: its buffer, or the slot of a loop's table, and C text of the offset.

    Attributes:
        fixed: whether the slot is looked up in the round that the phase is in.
    """

    which: str | Slot
    text: str
    fixed: bool


class CpuStorage(Storage):
    """A Program's storage in the generated code. ``out`` collects the source, ``places`` where the operands of the
    phase lie that is printed: it says ``at_[i]`` for each."""

    places: list[Place]

    def pointer(self, operand: Operand, prefix: str = "p_", row: str = "row_") -> Pointer:
        """Declare the pointer of an operand; ``row`` is the table row its slots are looked up in."""
        buffer = self.buffer(operand.buffer)
        kind = c_type(buffer.dtype)
        const = "" if operand.access == "write" or operand.access == "partial" else "const "
        name = prefix + operand.role
        self.out.line(f"{const}{kind} *const {name} = ({const}{kind} *){self.base(operand.buffer, buffer, row)};")
        return Pointer(name, buffer)

    def base(self, which: str | Slot, buffer: Buffer, row: str = "row_") -> str:
        if buffer.space == "local":
            return f"(call->scratch + (long)worker * {self.program.scratch_bytes} + {buffer.offset})"
        text = str(buffer.offset)
        if isinstance(which, Slot):
            table = next(t for t in self.program.tables if t.id == which.table)
            text = f"{row}[{table.columns.index(which.column)}]"
        at = f"at_[{len(self.places)}]"
        self.places.append(Place(which, text, isinstance(which, str) or row == "row_"))
        if buffer.space in ("input", "output"):
            return f"call->{buffer.space}s[{at}]"
        return f"({BASES[buffer.space]} + {at})"

    def choose(self, calls: list[tuple[str, int, str]], may_be_empty: bool) -> None:
        """One call a possible size; a branch where there are several."""
        if len(calls) == 1 and not may_be_empty:
            self.out.line(calls[0][2])
            return
        for text, size, call in calls:
            self.out.line(f"if ({text} == {size}) {call}")

    def scratch(self, phase: Phase) -> Buffer:
        """The local buffer that the phase's template works in; raises UnsupportedError where none is listed."""
        if not phase.task.local:
            raise UnsupportedError(
                f"phase {phase.id!r}: template {phase.task.template!r} has no local buffer to work in"
            )
        return self.buffers[phase.task.local[-1]]

    def write_scratch(self, phase: Phase) -> None:
        """Declare ``local_``, where :meth:`scratch` starts."""
        scratch = self.scratch(phase)
        self.out.line(f"float *local_ = (float *){self.base(scratch.id, scratch)};")

    def assert_fits(self, phase: Phase, kernel: str) -> None:
        """Have the compiler check that a kernel's FLOATS fit :meth:`scratch`."""
        self.out.line(f"static_assert({kernel}::FLOATS * {itemsize(COMPUTE)} <= {self.scratch(phase).nbytes});")

    def slots(self) -> dict[tuple[str, str], str]:
        """(phase, role) -> the local buffer where its first task finds the operand."""
        found: dict[tuple[str, str], str] = {}
        for phase in self.program.phases():
            for p in (p for p in phase.prefetches if p.into):
                if found.setdefault((p.phase, p.role), p.into) != p.into:
                    raise AssertionError(f"operand {p.role!r} of phase {p.phase!r} is fetched into two slots")
        return found
