"""Where a block's own buffers, and what its templates stage, lie in shared memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mononn_core.codegen.cuda_storage import CudaStorage, cuda_template
from mononn_core.errors import UnsupportedError
from mononn_core.lower.memory import round_up
from mononn_core.program.ir import Buffer, Layout, Phase, Program
from mononn_core.program.memory import PRIVATE
from mononn_core.program.rules import changed

FIXED_BYTES = 256 + 128
"""What the vocabulary's block reductions use, at the start of shared memory, and the words that stages land on."""
ALIGN = 128


@dataclass(frozen=True)
class SharedPlace:
    """A phase's part of shared memory: where its own buffers start, then what its template stages, and the end; in
    bytes."""

    buffers: Mapping[str, int]
    staged: int
    end: int


def place(program: Program, threads: int) -> Program:
    """``program`` with the local buffers of blocks of ``threads`` threads laid out and placed, and with a buffer for
    what the template of a task stages, the last that ``Task.local`` lists.

    Raises:
        UnsupportedError: the block cannot compute a tile, or early copies wait for one another.
    """
    program = replace(program, buffers=tuple(_banked(b) if b.space == PRIVATE else b for b in program.buffers))
    places = _places(program, CudaStorage(program, threads))
    placed: dict[str, Buffer] = {}

    def renamed(name: str, offset: int) -> str:
        """The buffer at its place; one that lies elsewhere in other phases has a name of its own there."""
        for known in (name, f"{name}@{offset}"):
            buffer = placed.setdefault(known, replace(program.buffer_map[name], id=known, offset=offset))
            if buffer.offset == offset:
                return known
        raise AssertionError(f"two buffers {name!r} at {offset}")

    def moved(phase: Phase) -> Phase:
        found, task = places[phase.id], phase.task
        names = {name: renamed(name, offset) for name, offset in found.buffers.items()}
        operands = tuple(replace(o, buffer=names.get(str(o.buffer), o.buffer)) for o in task.operands)
        local = tuple(names.get(name, name) for name in task.local)
        if (nbytes := found.end - found.staged) > 0:
            name = f"@staged[{nbytes}]@{found.staged}"
            shape = (nbytes,)
            placed[name] = Buffer(name, "uint8", shape, Layout.row_major(shape), PRIVATE, found.staged, ALIGN)
            local += (name,)
        return replace(phase, task=replace(task, operands=operands, local=local))

    whole = changed(program, moved)
    others = tuple(b for b in program.buffers if b.space != PRIVATE)
    nbytes = max((p.end for p in places.values()), default=FIXED_BYTES)
    return replace(whole, buffers=(*others, *placed.values()), scratch_bytes=nbytes)


def _places(program: Program, code: CudaStorage) -> dict[str, SharedPlace]:
    """Of every phase. What runs between a phase that fetches early and the one that takes it up lies behind what was
    fetched."""
    phases = {p.id: p for p in program.phases()}
    order = [i.id for i, _ in program.trace() if isinstance(i, Phase)]
    start = dict.fromkeys(phases, FIXED_BYTES)
    for _ in range(len(phases) + 1):  # what was fetched may itself lie behind something
        before = dict(start)
        places = {name: _place(phase, start[name], code) for name, phase in phases.items()}
        for at, name in enumerate(order):
            for fetch in phases[name].prefetches:
                taken = next((k for k in range(at + 1, len(order)) if order[k] == fetch.phase), at)
                for between in order[at + 1 : taken]:
                    start[between] = max(start[between], places[fetch.phase].end)
        if start == before:
            return places
    raise UnsupportedError("early copies lie behind one another in a circle; fetch in the phase before the use")


def _place(phase: Phase, start: int, code: CudaStorage) -> SharedPlace:
    own: dict[str, int] = {}
    for operand in phase.task.operands:
        buffer = code.buffer(operand.buffer)
        if buffer.space == PRIVATE and buffer.id not in own:
            own[buffer.id] = start
            start = round_up(start + buffer.nbytes, ALIGN)
    return SharedPlace(own, start, round_up(start + cuda_template(phase).shared_bytes(phase, code), ALIGN))


def _banked(buffer: Buffer) -> Buffer:
    """A buffer with rows that lie in different banks; zeros fit behind its last columns."""
    if len(buffer.shape) < 2:
        return replace(buffer, layout=Layout.row_major(buffer.shape), align=ALIGN)
    columns, chunk = buffer.shape[-1], 16 // buffer.itemsize
    return replace(
        buffer, layout=Layout.row_major(buffer.shape, pad=round_up(columns, 64) + chunk - columns), align=ALIGN
    )
