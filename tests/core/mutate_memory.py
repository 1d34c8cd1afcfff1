"""Programs made wrong in their memory: buffers, layouts, tables, boxes, worker-local slots."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import Any

from mononn_core.program.expr import Const, variables
from mononn_core.program.ir import Buffer, Layout, Loop, Phase, Prefetch, Program, Slot
from tests.core.mutate import Sites, buffer_of, mutation, operands, phases, tasks, with_buffer, with_dim


def _arena(program: Program) -> list[Buffer]:
    return [b for b in program.buffers if b.space == "arena"]


# -- buffers --------------------------------------------------------------------------


@mutation("a buffer lies on another one while both are alive", ask=True)
def arena_offset_on_another_buffer(program: Program) -> Sites:
    for b in _arena(program):
        for other in _arena(program):
            if other.offset != b.offset and other.offset + b.nbytes <= program.arena_bytes:
                yield f"{b.id} onto {other.id}", with_buffer(program, replace(b, offset=other.offset))


@mutation("a buffer reaches into its neighbour while both are alive", ask=True)
def arena_offset_shifted(program: Program) -> Sites:
    for b in _arena(program):
        for step in (-b.align, b.align):
            if 0 <= b.offset + step <= program.arena_bytes - b.nbytes:
                yield f"{b.id} by {step}", with_buffer(program, replace(b, offset=b.offset + step))


@mutation("the buffer ends behind its space")
def buffer_out_of_space(program: Program) -> Sites:
    sizes = {"arena": program.arena_bytes, "weight": program.weight_bytes, "local": program.scratch_bytes}
    for b in program.buffers:
        if b.space in sizes:
            past = -(-(sizes[b.space] - b.nbytes + 1) // b.align) * b.align
            yield b.id, with_buffer(program, replace(b, offset=past))


@mutation("the arena is smaller than its buffers")
def space_shrunk(program: Program) -> Sites:
    if arena := _arena(program):
        yield "arena", replace(program, arena_bytes=max(b.offset + b.nbytes for b in arena) - 1)
    if weights := [b for b in program.buffers if b.space == "weight"]:
        yield "weights", replace(program, weight_bytes=max(b.offset + b.nbytes for b in weights) - 1)
    if local := [b for b in program.buffers if b.space == "local"]:
        yield "local", replace(program, scratch_bytes=max(b.offset + b.nbytes for b in local) - 1)


@mutation("elements do not start at multiples of their size")
def buffer_misaligned(program: Program) -> Sites:
    for b in program.buffers:
        if b.space in ("arena", "weight", "local") and b.itemsize > 1:
            yield b.id, with_buffer(program, replace(b, offset=b.offset + 1))


@mutation("two weights share bytes")
def weights_overlap(program: Program) -> Sites:
    weights = sorted((b for b in program.buffers if b.space == "weight"), key=lambda b: b.offset)
    for a, b in pairwise(weights):
        if a.nbytes != b.nbytes and a.offset + b.nbytes <= program.weight_bytes and a.offset % b.align == 0:
            yield f"{b.id} onto {a.id}", with_buffer(program, replace(b, offset=a.offset))


@mutation("different elements of the buffer share a place")
def layout_not_injective(program: Program) -> Sites:
    for b in program.buffers:
        for d, dim in enumerate(b.layout.dims):
            if b.shape[d] > 1 and prod(b.shape) < 4096:
                squeezed = tuple((f, 0) for f, _ in dim)
                dims = (*b.layout.dims[:d], squeezed, *b.layout.dims[d + 1 :])
                yield f"{b.id} dim {d}", _column(program, b, Layout(dims, b.layout.size))


@mutation("the last element lies behind the layout's size")
def layout_size_shrunk(program: Program) -> Sites:
    for b in program.buffers:
        if prod(b.shape) < 4096:
            yield b.id, _column(program, b, Layout(b.layout.dims, int(b.layout.offsets(b.shape).max())))


def _column(program: Program, b: Buffer, layout: Layout) -> Program:
    """The Program with this layout for ``b`` and everything of its shape, so that table columns stay uniform."""
    same = {c.id for c in program.buffers if (c.layout, c.shape, c.space) == (b.layout, b.shape, b.space)}
    return replace(program, buffers=tuple(replace(c, layout=layout) if c.id in same else c for c in program.buffers))


@mutation("callers' arrays are C-contiguous")
def edge_not_contiguous(program: Program) -> Sites:
    for b in program.buffers:
        if b.space in ("input", "output") and len(b.shape) > 1 and min(b.shape) > 1:
            yield b.id, with_buffer(program, replace(b, layout=Layout.row_major(b.shape, pad=1)))


@mutation("a buffer that nobody wrote, or an earlier value of it, is read", ask=True)
def operand_reads_another_buffer(program: Program) -> Sites:
    for site, _, o, put in operands(program):
        here = buffer_of(program, o)
        if o.access != "read" or here.space != "arena" or isinstance(o.buffer, Slot):
            continue
        for other in _arena(program):
            if other.id != here.id and (other.shape, other.dtype) == (here.shape, here.dtype):
                yield f"{site} from {other.id}", put(replace(o, buffer=other.id))


@mutation("what the readers need is written elsewhere", ask=True)
def operand_writes_another_buffer(program: Program) -> Sites:
    for site, _, o, put in operands(program):
        here = buffer_of(program, o)
        if o.access == "read" or isinstance(o.buffer, Slot):
            continue
        for other in program.buffers:
            alike = (other.shape, other.dtype) == (here.shape, here.dtype)
            if other.space in ("arena", "output") and other.id != here.id and alike:
                yield f"{site} to {other.id}", put(replace(o, buffer=other.id))


@mutation("a task writes a constant")
def constant_written(program: Program) -> Sites:
    for site, _, o, put in operands(program):
        if buffer_of(program, o).space in ("weight", "input"):
            yield site, put(replace(o, access="write", stable=False))


@mutation("an operand is called stable that phases write")
def stable_but_written(program: Program) -> Sites:
    for site, _, o, put in operands(program):
        if buffer_of(program, o).space in ("arena", "output", "local"):
            yield site, put(replace(o, stable=True))


# -- tables ---------------------------------------------------------------------------


@mutation("an iteration gets a buffer of another shape or space")
def table_entry_of_wrong_shape(program: Program) -> Sites:
    for n, table in enumerate(program.tables):
        if len(table.rows) < 2:
            continue
        for c, column in enumerate(table.columns):
            for r, row in enumerate(table.rows):
                have = program.buffer(row[c])
                kind = (have.shape, have.dtype, have.space, have.layout)
                wrong = [b for b in program.buffers if (b.shape, b.dtype, b.space, b.layout) != kind]
                if wrong:
                    rows = [list(x) for x in table.rows]
                    rows[r][c] = wrong[(r + c) % len(wrong)].id
                    changed = replace(table, rows=tuple(map(tuple, rows)))
                    tables = (*program.tables[:n], changed, *program.tables[n + 1 :])
                    yield f"{table.id}[{r}].{column}", replace(program, tables=tables)


@mutation("an iteration has no row, or names a buffer that does not exist")
def table_row_missing(program: Program) -> Sites:
    for n, table in enumerate(program.tables):
        if any(isinstance(i, Loop) and i.table == table.id for i in program.body) and table.rows:
            for name, rows in (
                ("short", table.rows[:-1]),
                ("long", (*table.rows, table.rows[0])),
                ("unknown", (*table.rows[:-1], tuple(name + "?" for name in table.rows[-1]))),
            ):
                if rows != table.rows:
                    tables = (*program.tables[:n], replace(table, rows=rows), *program.tables[n + 1 :])
                    yield f"{table.id} {name}", replace(program, tables=tables)


@mutation("an iteration works on another iteration's activations", ask=True)
def table_rows_swapped(program: Program) -> Sites:
    for n, table in enumerate(program.tables):
        for r in range(len(table.rows) - 1):
            rows = list(table.rows)
            rows[r], rows[r + 1] = rows[r + 1], rows[r]
            tables = (*program.tables[:n], replace(table, rows=tuple(rows)), *program.tables[n + 1 :])
            yield f"{table.id} rows {r}, {r + 1}", replace(program, tables=tables)


@mutation("a slot names a column that is not there, or stands outside its loop")
def slot_unresolved(program: Program) -> Sites:
    for site, _, o, put in operands(program):
        if isinstance(o.buffer, Slot):
            yield site, put(replace(o, buffer=replace(o.buffer, column=o.buffer.column + "?")))
        elif program.tables and program.tables[0].columns and not _in_loop(program, site):
            yield site, put(replace(o, buffer=Slot(program.tables[0].id, program.tables[0].columns[0])))


def _in_loop(program: Program, site: str) -> bool:
    names = {p.id for i in program.body if isinstance(i, Loop) for p in i.body if isinstance(p, Phase)}
    return site.rsplit(".", 1)[0] in names


# -- boxes ----------------------------------------------------------------------------


@mutation("the box lies beyond the buffer")
def box_shifted_out(program: Program) -> Sites:
    for site, _, o, put in operands(program):
        shape = buffer_of(program, o).shape
        for d, extent in enumerate(shape):
            high = with_dim(o.box, d, o.box.offset[d] + extent, bound=o.box.bound[d] + extent)
            yield f"{site} dim {d} up", put(replace(o, box=high))
            yield f"{site} dim {d} down", put(replace(o, box=with_dim(o.box, d, o.box.offset[d] - extent)))


@mutation("the read reaches beyond the buffer")
def read_box_grown(program: Program) -> Sites:
    for site, _, o, put in operands(program):
        shape = buffer_of(program, o).shape
        for d, extent in enumerate(shape):
            if o.access == "read":
                yield f"{site} dim {d}", put(replace(o, box=with_dim(o.box, d, size=extent + 1, bound=extent + 1)))


@mutation("the task accesses elements outside the smaller box, or what it contracts does not agree", ask=True)
def box_shrunk(program: Program) -> Sites:
    for site, _, o, put in operands(program):
        for d, size in enumerate(o.box.size):
            if size > 1:
                yield f"{site} dim {d}", put(replace(o, box=with_dim(o.box, d, size=size - 1)))


@mutation("the task accesses elements behind the earlier bound, or leaves them out", ask=True)
def box_bound_lowered(program: Program) -> Sites:
    for site, _, o, put in operands(program):
        for d, bound in enumerate(o.box.bound):
            if bound > 1:
                yield f"{site} dim {d}", put(replace(o, box=with_dim(o.box, d, bound=bound - 1)))


@mutation("the task accesses elements outside the box, or several tasks store the same ones", ask=True)
def box_does_not_follow_task(program: Program) -> Sites:
    for site, phase, o, put in operands(program):
        extents = {a.var: a.extent for a in phase.domain}
        for d, e in enumerate(o.box.offset):
            moving = [v for v in variables(e) if extents.get(v, 1) > 1]
            if moving:
                yield f"{site} dim {d}", put(replace(o, box=with_dim(o.box, d, Const(0))))


# -- worker-local ---------------------------------------------------------------------


def _prefetches(program: Program) -> Iterator[tuple[Phase, Prefetch, Callable[[tuple[Prefetch, ...]], Program]]]:
    for phase, put in phases(program):
        for n, p in enumerate(phase.prefetches):

            def change(new: tuple[Prefetch, ...], phase: Phase = phase, n: int = n, put: Any = put) -> Program:
                return put(replace(phase, prefetches=(*phase.prefetches[:n], *new, *phase.prefetches[n + 1 :])))

            yield phase, p, change


@mutation("an operand that phases write is fetched before they have")
def prefetch_of_unstable(program: Program) -> Sites:
    for phase, p, change in _prefetches(program):
        target = next(t for t in program.phases() if t.id == p.phase)
        for o in target.task.operands:
            if buffer_of(program, o).space in ("arena", "output"):
                yield f"{phase.id}: {o.role}", change((Prefetch(p.phase, o.role),))
    for site, phase, o, put in operands(program):
        users = [p for q in program.phases() for p in q.prefetches if (p.phase, p.role) == (phase.id, o.role)]
        if users:
            yield f"{site} no longer stable", put(replace(o, stable=False))


@mutation("nobody reads what is fetched")
def prefetch_for_nobody(program: Program) -> Sites:
    for phase, p, change in _prefetches(program):
        yield f"{phase.id}: phase", change((replace(p, phase=p.phase + "?"),))
        yield f"{phase.id}: role", change((replace(p, role=p.role + "?"),))


@mutation("a slot of the wrong shape or space")
def prefetch_into_wrong_slot(program: Program) -> Sites:
    for phase, p, change in _prefetches(program):
        for b in program.buffers:
            if p.into and (b.space != "local" or b.shape != program.buffer(p.into).shape):
                yield f"{phase.id}: {b.id}", change((replace(p, into=b.id),))


@mutation("a slot is fetched into while it still holds another operand")
def slot_reused_while_live(program: Program) -> Sites:
    slots = [b for b in program.buffers if any(b.id == p.into for q in program.phases() for p in q.prefetches)]
    if len(slots) < 2:
        return
    for phase, p, change in _prefetches(program):
        for b in slots:
            if p.into and b.id != p.into and b.shape == program.buffer(p.into).shape:
                yield f"{phase.id}: {b.id}", change((replace(p, into=b.id),))
        if p.into:
            yield f"{phase.id} twice", change((p, p))
    for b in slots:
        for other in slots:
            if b.id != other.id:
                yield f"{b.id} onto {other.id}", with_buffer(program, replace(b, offset=other.offset))


@mutation("a task's temporary lies on a slot that holds a prefetched operand")
def temporary_on_live_slot(program: Program) -> Sites:
    for phase, put in tasks(program):
        for p in phase.prefetches:
            if p.into and phase.task.template != "nest":
                yield f"{phase.id} uses {p.into}", put(replace(phase.task, local=(p.into,)))
