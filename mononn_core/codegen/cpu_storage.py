"""What all parts of the CPU printer share: storage behind pointers, footprints as C expressions."""

from __future__ import annotations

from mononn_core.codegen.cstyle import Pointer, c_type
from mononn_core.codegen.storage import Storage
from mononn_core.program import winograd
from mononn_core.program.ir import Buffer, Operand, Phase, Program, Slot
from mononn_core.program.windows import Windows

BASES = {"arena": "call->arena", "weight": "call->weights"}


def worker_bytes(program: Program, vector_bytes: int) -> int:
    """Scratch a worker needs: the Program's own local buffers, then what its templates pack (whole pages)."""
    most = max((_template_floats(p, vector_bytes // 4) for p in program.phases()), default=0)
    return -(-(template_base(program) + most * 4) // 4096) * 4096


def template_base(program: Program) -> int:
    return -(-program.scratch_bytes // 64) * 64


def _template_floats(phase: Phase, lanes: int) -> int:
    """What a template keeps in a worker's memory; the vocabulary's FLOATS are at most this. Attention: packed K and V
    of a head and the scores of a row block. Winograd's convolution: transformed windows, and the products of 16 tiles.
    """
    sizes = {o.role: o.box.size for o in phase.task.operands}
    if phase.task.template == "winograd":
        windows = Windows.of(phase.task.params)
        values = winograd.tiles(windows.rows, windows.width) * (sizes["a"][1] + 16)
        return winograd.PRODUCTS * (values + 16 * int(phase.task.params["panel"]))
    if phase.task.template != "attention":
        return 0
    (rows, depth), (keys, _), (_, width) = sizes["q"], sizes["k"], sizes["v"]
    panel = 2 * lanes
    padded = -(-keys // panel) * panel
    return padded * depth + keys * -(-width // panel) * panel + min(rows, 16) * padded


class CpuStorage(Storage):
    """A Program's storage in the generated code. ``out`` collects the source."""

    def __init__(self, program: Program, vector_bytes: int) -> None:
        super().__init__(program)
        self.scratch = worker_bytes(program, vector_bytes)

    def pointer(self, operand: Operand, prefix: str = "p_", row: str = "row_") -> Pointer:
        """Declare the pointer of an operand; ``row`` is the table row its slots are looked up in."""
        buffer = self.buffer(operand.buffer)
        kind = c_type(buffer.dtype)
        const = "" if operand.access == "write" or operand.access == "partial" else "const "
        name = prefix + operand.role
        self.out.line(f"{const}{kind} *const {name} = ({const}{kind} *){self.base(operand.buffer, buffer, row)};")
        return Pointer(name, buffer)

    def base(self, which: str | Slot, buffer: Buffer, row: str = "row_") -> str:
        at = str(buffer.offset)
        if isinstance(which, Slot):
            table = next(t for t in self.program.tables if t.id == which.table)
            at = f"{row}[{table.columns.index(which.column)}]"
        if buffer.space in ("input", "output"):
            return f"call->{buffer.space}s[{at}]"
        if buffer.space == "local":
            return f"(call->scratch + (long)worker * {self.scratch} + {at})"
        return f"({BASES[buffer.space]} + {at})"

    def choose(self, calls: list[tuple[str, int, str]], may_be_empty: bool) -> None:
        """One call a possible size; a branch where there are several."""
        if len(calls) == 1 and not may_be_empty:
            self.out.line(calls[0][2])
            return
        for text, size, call in calls:
            self.out.line(f"if ({text} == {size}) {call}")

    def local_floats(self) -> str:
        """Declares the part of a worker's scratch that is its template's."""
        base = f"(long)worker * {self.scratch} + {template_base(self.program)}"
        return f"float *local_ = (float *)(call->scratch + {base});"

    def slots(self) -> dict[tuple[str, str], str]:
        """(phase, role) -> the local buffer where its first task finds the operand."""
        found: dict[tuple[str, str], str] = {}
        for phase in self.program.phases():
            for p in (p for p in phase.prefetches if p.into):
                if found.setdefault((p.phase, p.role), p.into) != p.into:
                    raise AssertionError(f"operand {p.role!r} of phase {p.phase!r} is fetched into two slots")
        return found
