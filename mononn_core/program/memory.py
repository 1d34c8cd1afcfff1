"""The virtual machine's memory: flat bytes with a shadow that remembers who wrote what and when.

Every buffer's logical element lies where its Layout and offset put it, so buffers that overlap by mistake really
overwrite each other. Each unit of the writable spaces carries the buffer it was last written as and the time stamp
(trace position for shared memory, task serial for worker-local memory) of that write.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np

from mononn_core.errors import InputError, VerifyError
from mononn_core.program.ir import Buffer, Layout, Program

Array = np.ndarray[Any, Any]
PRIVATE = "local"
"""The space of which each worker has its own copy: one slice of ``Program.scratch_bytes`` bytes."""
CONSTANT = ("input", "weight")
"""Spaces that nothing writes during a run."""
NOBODY = -1


def dim_tables(layout: Layout, shape: tuple[int, ...]) -> tuple[Array, ...]:
    """Per dimension the element offset each index contributes; an element's offset is the sum over its dimensions."""
    return tuple(Layout((dim,), layout.size).offsets((extent,)) for dim, extent in zip(layout.dims, shape, strict=True))


def shadow_unit(buffers: tuple[Buffer, ...]) -> int:
    """Bytes per shadow element: divides the item size and, but in an illegal Program, the offset of each buffer."""
    unit = 0
    for b in buffers:
        unit = gcd(unit, b.itemsize)
    return unit or 1


@dataclass
class Region:
    """A stretch of bytes with its shadow: one shared space, or one worker's slice."""

    data: Array
    holder: Array
    stamp: Array

    @staticmethod
    def of(nbytes: int, unit: int) -> Region:
        """``nbytes`` of garbage that nobody has written."""
        units = -(-nbytes // unit)
        return Region(
            np.full(units * unit, 0xCD, dtype=np.uint8),
            np.full(units, NOBODY, dtype=np.int32),
            np.full(units, NOBODY, dtype=np.int64),
        )


@dataclass
class View:
    """One buffer in a region: typed elements, and per element the shadow units below it ([elements, units])."""

    buffer: Buffer
    number: int
    tables: tuple[Array, ...]
    data: Array
    holder: Array
    stamp: Array

    def offsets(self, index: tuple[Array, ...]) -> Array:
        """Element offsets of logical elements given by broadcasting index arrays."""
        total: Array = np.zeros((), dtype=np.int64)
        for table, i in zip(self.tables, index, strict=True):
            total = total + table[i]
        return total


class Memory:
    """All spaces of a Program for ``workers`` workers.

    Raises VerifyError when a buffer leaves its space, InputError for missing or wrongly shaped inputs and weights.
    """

    def __init__(self, program: Program, values: Mapping[str, Array], workers: int) -> None:
        self.program = program
        self.buffers = program.buffer_map
        self.names = [b.id for b in program.buffers]
        self.numbers = {name: n for n, name in enumerate(self.names)}
        self.unit = shadow_unit(tuple(b for b in program.buffers if b.space not in CONSTANT))
        self._arena = Region.of(program.arena_bytes, self.unit)
        self._slices = [Region.of(program.scratch_bytes, self.unit) for _ in range(workers)]
        self._weights = np.zeros(program.weight_bytes, dtype=np.uint8)
        self._views: dict[tuple[str, int], View] = {}
        self._tables = {b.id: dim_tables(b.layout, b.shape) for b in program.buffers}
        for buffer in program.buffers:
            if buffer.space in CONSTANT:
                self._place(buffer, values)
        self.opened: dict[str, list[int]] = {}
        """Where in the trace a generation of a buffer begins, but for its first."""
        self.closed: dict[str, list[int]] = {}
        """Where another buffer takes bytes of a buffer's."""

    def _place(self, buffer: Buffer, values: Mapping[str, Array]) -> None:
        """Put the value of an input or weight where its layout says."""
        kind = buffer.space
        if buffer.id not in values:
            raise InputError(f"{kind} {buffer.id!r} is missing; give an array of shape {buffer.shape}")
        value = np.asarray(values[buffer.id])
        if value.shape != buffer.shape or value.dtype != np.dtype(buffer.dtype):
            have = f"{value.dtype}{list(value.shape)}"
            raise InputError(f"{kind} {buffer.id!r} has type {have}, wanted {buffer.dtype}{list(buffer.shape)}")
        view = self.view(buffer.id, 0)
        view.data[view.offsets(tuple(np.ix_(*(np.arange(n) for n in buffer.shape))))] = value

    def view(self, name: str, worker: int) -> View:
        """The buffer ``name`` as ``worker`` sees it."""
        buffer = self.buffers[name]
        key = (name, worker if buffer.space == PRIVATE else 0)
        if key not in self._views:
            self._views[key] = self._make_view(buffer, worker)
        return self._views[key]

    def _make_view(self, b: Buffer, worker: int) -> View:
        number, tables = self.numbers[b.id], self._tables[b.id]
        if b.space in ("input", "output"):
            region, offset = Region.of(b.nbytes, self.unit), 0
        elif b.space == "weight":
            none = np.empty(0, dtype=np.int64)
            self._inside(b, len(self._weights))
            data = self._weights[b.offset : b.offset + b.nbytes].view(np.dtype(b.dtype))
            return View(b, number, tables, data, none, none)
        else:
            region, offset = (self._slices[worker] if b.space == PRIVATE else self._arena), b.offset
        self._inside(b, len(region.data), offset)
        data = region.data[offset : offset + b.nbytes].view(np.dtype(b.dtype))
        units = slice(offset // self.unit, (offset + b.nbytes) // self.unit)
        shape = (b.layout.size, b.itemsize // self.unit)
        if b.space == "input":
            return View(b, number, tables, data, region.holder[:0], region.stamp[:0])
        return View(b, number, tables, data, region.holder[units].reshape(shape), region.stamp[units].reshape(shape))

    def _inside(self, b: Buffer, nbytes: int, offset: int | None = None) -> None:
        offset = b.offset if offset is None else offset
        if offset < 0 or offset + b.nbytes > nbytes or offset % b.itemsize:
            raise VerifyError(
                f"buffer {b.id!r} lies at bytes {offset} to {offset + b.nbytes} of its {b.space} space of {nbytes} "
                "bytes, or is not aligned to its elements"
            )

    def read(self, view: View, offsets: Array, mask: Array | None, position: int, where: str) -> Array:
        """Elements at ``offsets``; refuses one that holds no value of this buffer's present generation."""
        if view.buffer.space not in CONSTANT:
            self._check(view, offsets if mask is None else offsets[mask], position, where)
        return view.data[offsets]

    def _check(self, view: View, offsets: Array, position: int, where: str) -> None:
        holder, stamp = view.holder[offsets], view.stamp[offsets]
        name = view.buffer.id
        if (holder != view.number).any():
            other = int(holder[holder != view.number][0])
            what = "nobody has written it" if other == NOBODY else f"buffer {self.names[other]!r} has overwritten it"
            raise VerifyError(f"{where} reads an element of buffer {name!r}, but {what}")
        if view.buffer.space == PRIVATE:
            if (stamp != position).any():
                raise VerifyError(f"{where} reads worker-local buffer {name!r} before this task wrote it")
            return
        if (stamp >= position).any():
            raise VerifyError(f"{where} reads an element of buffer {name!r} that a later or the same phase wrote")
        if (stamp < _latest(self.opened, name, position)).any():
            raise VerifyError(f"{where} reads an element of buffer {name!r} left over from an earlier generation")

    def write(self, view: View, offsets: Array, values: Array, position: int, where: str) -> None:
        """Store elements. Writing one again, or after another buffer took some, opens a new generation of the buffer
        (see :meth:`read`)."""
        if view.buffer.space in CONSTANT:
            raise VerifyError(f"{where} writes buffer {view.buffer.id!r}, which is read only")
        private = view.buffer.space == PRIVATE
        before = view.stamp[offsets]
        if private and (before < NOBODY).any():
            raise VerifyError(f"{where} writes worker-local buffer {view.buffer.id!r} over a prefetched operand")
        if not private:
            name, holder = view.buffer.id, view.holder[offsets]
            mine = holder == view.number
            if (before[mine] == position).any():
                raise VerifyError(f"{where} writes an element of buffer {name!r} twice in one phase")
            opened = _latest(self.opened, name, position)
            if (before[mine] >= opened).any() or _latest(self.closed, name, position) > opened:
                _note(self.opened, name, position)
            for other in np.unique(holder[~mine & (holder != NOBODY)]).tolist():
                taken = self.names[other]
                if (before[holder == other] >= _latest(self.opened, taken, position)).any():
                    _note(self.closed, taken, position)
        view.data[offsets] = values
        view.holder[offsets] = view.number
        view.stamp[offsets] = position


def _latest(positions: Mapping[str, list[int]], name: str, before: int) -> int:
    return max((p for p in positions.get(name, ()) if p < before), default=NOBODY)


def _note(positions: dict[str, list[int]], name: str, position: int) -> None:
    if position not in positions.setdefault(name, []):
        positions[name].append(position)
