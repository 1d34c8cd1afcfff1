"""The rules of a Program that can be read off its pieces: names, buffers, tables, types, scopes, templates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from mononn_core.element import COMPUTE, itemsize
from mononn_core.errors import VerifyError
from mononn_core.program.expr import (
    COMPARISONS,
    INDEX,
    Acc,
    Cast,
    Const,
    Expr,
    Load,
    LookupTable,
    Op,
    Select,
    Var,
    children,
)
from mononn_core.program.functions import FUNCTIONS
from mononn_core.program.ir import (
    ACCESSES,
    SPACES,
    Buffer,
    For,
    Layout,
    Let,
    Loop,
    Operand,
    Phase,
    Program,
    Reduce,
    Slot,
    Statement,
    Store,
)
from mononn_core.program.memory import CONSTANT, PRIVATE, dim_tables
from mononn_core.program.rules import matrix_dims, phases_with_loops, refuse
from mononn_core.program.template import Template, get

MECHANISMS = ("none", "prefetch", "cp_async", "tma")
INJECTIVE_LIMIT = 1 << 26


def check(program: Program) -> None:
    """Refuse the first malformed piece."""
    _check_names(program)
    for buffer in program.buffers:
        _check_buffer(program, buffer)
    _check_weights(program)
    _check_tables(program)
    groups: dict[str, int] = {}
    for phase, loop in phases_with_loops(program):
        _check_assign(phase, groups)
        PhaseRules(program, phase, loop).check()


def _unique(kind: str, names: Iterable[str]) -> None:
    seen = set[str]()
    for name in names:
        if name in seen or not name:
            raise refuse("names are unique", f"{kind} {name!r} is defined twice or has no name")
        seen.add(name)


def _check_names(program: Program) -> None:
    _unique("buffer", (b.id for b in program.buffers))
    _unique("table", (t.id for t in program.tables))
    _unique("counter", (c.id for c in program.counters))
    _unique("phase", (p.id for p, _ in phases_with_loops(program)))
    for space, names in (("input", program.inputs), ("output", program.outputs)):
        found = sorted((b.offset, b.id) for b in program.buffers if b.space == space)
        if [n for _, n in found] != list(names) or [o for o, _ in found] != list(range(len(names))):
            raise refuse("names are unique", f"the {space} buffers at positions {found} are not {list(names)}")
    for counter in program.counters:
        if any(n < 1 for n in counter.shape):
            raise refuse("counters exist", f"counter {counter.id!r} has shape {counter.shape}")


def _check_buffer(program: Program, b: Buffer) -> None:
    if b.space not in SPACES:
        raise refuse("buffers lie in their space", f"buffer {b.id!r} has unknown space {b.space!r}")
    if any(n < 0 for n in b.shape) or len(b.layout.dims) != len(b.shape):
        raise refuse("layouts are injective", f"buffer {b.id!r} of shape {b.shape} has {len(b.layout.dims)} dims")
    for dim, extent in zip(b.layout.dims, b.shape, strict=True):
        if prod(f for f, _ in dim) < extent:
            raise refuse("layouts are injective", f"a layout dim of buffer {b.id!r} holds fewer than {extent} indices")
    if prod(b.shape) and not _injective(b.layout, b.shape):
        raise refuse("layouts are injective", f"buffer {b.id!r} puts two elements at one place, or outside its size")
    if b.space in ("input", "output"):
        if not _contiguous(b):
            raise refuse(
                "buffers lie in their space", f"{b.space} {b.id!r} is not C-contiguous, as callers' arrays are"
            )
        return
    size = {"arena": program.arena_bytes, "weight": program.weight_bytes}.get(b.space, program.scratch_bytes)
    if b.offset < 0 or b.offset + b.nbytes > size:
        text = f"buffer {b.id!r} at bytes {b.offset} to {b.offset + b.nbytes} leaves its {b.space} space of {size}"
        raise refuse("buffers lie in their space", text)
    if b.align < 1 or b.offset % b.itemsize or b.align % b.itemsize or b.offset % b.align:
        raise refuse("buffers lie in their space", f"buffer {b.id!r} at byte {b.offset} is not aligned to {b.align}")


def _contiguous(b: Buffer) -> bool:
    """Whether the elements lie in C order without gaps."""
    plain = Layout.row_major(b.shape)
    tables = zip(dim_tables(b.layout, b.shape), dim_tables(plain, b.shape), strict=True)
    return b.layout.size == plain.size and all(np.array_equal(t, p) for t, p in tables)


def _injective(layout: Layout, shape: tuple[int, ...]) -> bool:
    """Whether different elements have different offsets in [0, size): by nested strides, else by enumeration."""
    factors = [(s, f) for dim in layout.dims for f, s in dim if f > 1]
    if any(s < 0 for s, _ in factors) or sum(s * (f - 1) for s, f in factors) >= layout.size:
        return False
    reach = 0
    for stride, factor in sorted(factors):
        if stride <= reach:
            break
        reach += stride * (factor - 1)
    else:
        return True
    if prod(shape) > INJECTIVE_LIMIT:
        return False
    return int(np.bincount(layout.offsets(shape).reshape(-1)).max()) == 1


def _check_weights(program: Program) -> None:
    """Weights may share bytes only as equal views of one constant."""
    weights = sorted((b for b in program.buffers if b.space == "weight"), key=lambda b: b.offset)
    for a, b in pairwise(weights):
        same = (a.offset, a.nbytes, a.dtype) == (b.offset, b.nbytes, b.dtype)
        if b.offset < a.offset + a.nbytes and not same:
            raise refuse("live buffers do not overlap", f"weights {a.id!r} and {b.id!r} share bytes")


def _check_tables(program: Program) -> None:
    buffers = program.buffer_map
    for table in program.tables:
        _unique(f"column of table {table.id!r}", table.columns)
        for row in table.rows:
            if len(row) != len(table.columns) or any(n not in buffers for n in row):
                raise refuse("table columns are uniform", f"table {table.id!r} has a row {row} that names no buffers")
        for c, column in enumerate(table.columns):
            kinds = {(b.dtype, b.shape, b.layout, b.space) for b in (buffers[row[c]] for row in table.rows)}
            if len(kinds) > 1:
                text = f"column {column!r} of table {table.id!r} mixes buffers of different type, layout or space"
                raise refuse("table columns are uniform", text)
    tables = {t.id: t for t in program.tables}
    for item in program.body:
        if isinstance(item, Loop):
            if item.count < 1 or (item.table and item.table not in tables):
                raise refuse("slots resolve", f"a loop over {item.var!r} runs {item.count} times over {item.table!r}")
            if item.table and len(tables[item.table].rows) != item.count:
                raise refuse("slots resolve", f"table {item.table!r} has not one row for each of {item.count} rounds")


def _check_assign(phase: Phase, groups: dict[str, int]) -> None:
    assign, names = phase.assign, [a.var for a in phase.domain]
    _unique(f"domain variable of phase {phase.id!r}", names)
    if any(a.extent < 1 for a in phase.domain):
        raise refuse("domains are not empty", "has a domain axis without tasks", phase)
    if assign.order and sorted(assign.order) != sorted(names):
        raise refuse("assignments are complete", f"is ordered by {assign.order}, not by its variables {names}", phase)
    if assign.kind not in ("strided", "owned"):
        raise refuse("assignments are complete", f"has unknown assignment {assign.kind!r}", phase)
    if (assign.kind == "owned") != (assign.owner is not None and bool(assign.group) and assign.owners > 0):
        raise refuse("assignments are complete", "owned phases, and they alone, have group, owner and owners", phase)
    if assign.owner is not None and groups.setdefault(assign.group, assign.owners) != assign.owners:
        text = f"has {assign.owners} owners, but group {assign.group!r} has {groups[assign.group]}"
        raise refuse("groups agree in their owners", text, phase)


class PhaseRules:
    """Operands, types and scopes of one phase."""

    def __init__(self, program: Program, phase: Phase, loop: Loop | None) -> None:
        self.program, self.phase, self.loop = program, phase, loop
        self.scope = {a.var: INDEX for a in phase.domain}
        if loop is not None:
            if loop.var in self.scope:
                raise self.refuse("names are unique", f"the domain variable {loop.var!r} is the loop's")
            self.scope[loop.var] = INDEX
        self.operands: dict[str, tuple[Operand, Buffer]] = {}

    def refuse(self, rule: str, text: str) -> VerifyError:
        return refuse(rule, text, self.phase)

    def check(self) -> None:
        """Refuse the first broken rule of the phase."""
        for operand in self.phase.task.operands:
            self._check_operand(operand)
        self._check_counters()
        if self.phase.assign.owner is not None:
            self._index(self.phase.assign.owner, self.scope)
        self._check_template()
        self._check_body(self.phase.task.body, dict(self.scope))

    def buffer(self, name: str | Slot) -> Buffer:
        """The buffer that an operand names (of the first iteration: columns are uniform)."""
        if isinstance(name, Slot):
            table = next((t for t in self.program.tables if t.id == name.table), None)
            if self.loop is None or self.loop.table != name.table or table is None or name.column not in table.columns:
                raise self.refuse("slots resolve", f"names column {name.column!r} of table {name.table!r} in vain")
            name = table.rows[0][table.columns.index(name.column)]
        found = self.program.buffer_map.get(name)
        if found is None:
            raise self.refuse("slots resolve", f"names buffer {name!r}, which does not exist")
        return found

    def _check_operand(self, o: Operand) -> None:
        buffer, box = self.buffer(o.buffer), o.box
        if o.role in self.operands or o.access not in ACCESSES:
            raise self.refuse("roles fit", f"operand {o.role!r} stands there twice or has access {o.access!r}")
        rank = len(buffer.shape)
        if not len(box.offset) == len(box.size) == len(box.bound) == rank or any(n < 1 for n in box.size):
            raise self.refuse("boxes stay in bounds", f"the box of operand {o.role!r} does not fit rank {rank}")
        for e in box.offset:
            self._index(e, self.scope)
        if buffer.space in CONSTANT and o.access != "read":
            raise self.refuse("constants are read only", f"operand {o.role!r} writes {buffer.space} {buffer.id!r}")
        if o.stable and buffer.space not in CONSTANT:
            raise self.refuse("stable operands are never written", f"operand {o.role!r} calls {buffer.id!r} stable")
        self.operands[o.role] = (o, buffer)

    def _check_counters(self) -> None:
        ranks = {c.id: len(c.shape) for c in self.program.counters}
        uses = [(w.counter, w.index) for w in self.phase.waits] + [(s.counter, s.index) for s in self.phase.signals]
        for counter, index in uses:
            if ranks.get(counter) != len(index):
                raise self.refuse("counters exist", f"uses counter {counter!r}, which has another rank or is none")
            for e in index:
                self._index(e, self.scope)
        for w in self.phase.waits:
            self._index(w.at_least, self.scope)
        if any(s.add < 1 for s in self.phase.signals):
            raise self.refuse("counters exist", "adds less than 1 to a counter")

    def _check_template(self) -> None:
        task, template = self.phase.task, self._template()
        if bool(template.roles) != bool(task.results):
            raise self.refuse("roles fit", f"is no complete {task.template!r}: a body, or a template with results")
        local = [o.role for o, b in self.operands.values() if b.space == PRIVATE and o.access == "read"]
        filled = not template.roles or (template.filled and local == [template.filled])
        if bool(task.body) != bool(filled) or (local and not filled):
            text = "has a body without a worker-local left side, or worker-local operands without a body"
            raise self.refuse("roles fit", text)
        for role in template.roles:
            if role not in self.operands or self.operands[role][0].access != "read":
                raise self.refuse("roles fit", f"template {task.template!r} has no operand {role!r} to read")
            if len(matrix_dims(self.operands[role][0].box.size)) != 2:
                raise self.refuse("roles fit", f"the box of operand {role!r} is not a matrix")
        for name, e in task.prologue.items():
            if name not in template.prologues:
                raise self.refuse("roles fit", f"has a prologue {name!r} that its template does not know")
            scope = dict(self.scope)
            for axis in template.prologues[name]:
                scope = self._bind(scope, axis, INDEX)
            self._value(e, scope, COMPUTE, accumulators=1)
        if problem := template.mismatch(task):
            raise self.refuse("parameters fit", problem)
        for result in task.results:
            if len(result.axes) != template.axes:
                raise self.refuse("roles fit", f"a result has axes {result.axes}, not those of a tile")
            if len(result.bounds) not in (0, len(result.axes)):
                raise self.refuse("roles fit", f"a result has bounds for {len(result.bounds)} axes")
            for bound in result.bounds:
                if bound is not None:
                    self._index(bound, self.scope)
            scope = dict(self.scope)
            for axis in result.axes:
                scope = self._bind(scope, axis, INDEX)
            self._store(result.operand, result.index, result.value, scope, template.parts(task))
        loop = task.mainloop
        if loop is not None and (loop.step < 1 or loop.stages < 1 or loop.mechanism not in MECHANISMS):
            raise self.refuse("roles fit", f"has a main loop {loop}")
        for name in task.local:
            if self.buffer(name).space != PRIVATE:
                raise self.refuse("roles fit", f"lists {name!r} as local, but it is not worker-local")

    def _template(self) -> Template[Any]:
        """The task's template, which knows its parameters."""
        task = self.phase.task
        try:
            template = get(task.template)
            template.params(task)
        except KeyError as error:
            raise self.refuse("roles fit", f"has an unknown template {task.template!r}") from error
        except ValueError as error:
            raise self.refuse("parameters fit", str(error)) from error
        return template

    def _bind(self, scope: Mapping[str, str], name: str, dtype: str) -> dict[str, str]:
        if name in scope:
            raise self.refuse("names are unique", f"binds {name!r} again")
        return {**scope, name: dtype}

    def _check_body(self, body: tuple[Statement, ...], scope: dict[str, str]) -> None:
        for s in body:
            match s:
                case For():
                    if s.extent < 1 or s.kind not in ("serial", "vector"):
                        raise self.refuse("domains are not empty", f"has a loop over {s.var!r} of {s.extent} {s.kind}")
                    if s.bound is not None:
                        self._index(s.bound, scope)
                    self._check_body(s.body, self._bind(scope, s.var, INDEX))
                case Let():
                    self._value(s.value, scope, s.value.dtype)
                    scope = self._bind(scope, s.name, s.value.dtype)
                case Reduce():
                    if s.op not in ("add", "mul", "max", "min") or s.extent < 1:
                        raise self.refuse("roles fit", f"has a reduction {s.name!r} that makes no sense")
                    self._value(s.value, self._bind(scope, s.var, INDEX), s.value.dtype)
                    scope = self._bind(scope, s.name, s.value.dtype)
                case Store():
                    self._store(s.operand, s.index, s.value, scope)

    def _store(
        self, role: str, index: tuple[Expr, ...], value: Expr, scope: Mapping[str, str], accumulators: int = 0
    ) -> None:
        operand, buffer = self.operands.get(role, (None, None))
        if operand is None or buffer is None or operand.access == "read":
            raise self.refuse("roles fit", f"stores to operand {role!r}, which is none to write")
        if len(index) != len(buffer.shape):
            raise self.refuse("roles fit", f"stores to operand {role!r} with {len(index)} indices")
        for e in index:
            self._index(e, scope)
        self._value(value, scope, buffer.dtype, accumulators)

    def _index(self, e: Expr, scope: Mapping[str, str]) -> None:
        self._value(e, scope, INDEX)

    def _value(self, e: Expr, scope: Mapping[str, str], dtype: str, accumulators: int = 0) -> None:
        """Types and scopes of an expression whose dtype must be ``dtype``; it may use so many accumulators."""
        if e.dtype != dtype:
            raise self.refuse("types agree", f"an expression is {e.dtype} where {dtype} is stored or needed")
        match e:
            case Var(name):
                if scope.get(name) != e.dtype:
                    raise self.refuse("names are bound", f"uses {name!r} as {e.dtype}, which is not bound so here")
            case Acc(part=number) if not 0 <= number < accumulators:
                raise self.refuse("names are bound", f"uses accumulator {number}; there are {accumulators}")
            case Load(role, index):
                self._check_load(role, index, e.dtype)
            case Op(name, args):
                if len(args) != FUNCTIONS[name].arity or len({a.dtype for a in args}) > 1:
                    raise self.refuse("types agree", f"{name!r} of {[a.dtype for a in args]}")
                same = itemsize(e.dtype) == itemsize(args[0].dtype) if name == "bits" else e.dtype == args[0].dtype
                if not (e.dtype == "bool" if name in COMPARISONS else same):
                    raise self.refuse("types agree", f"{name!r} of {args[0].dtype} gives {e.dtype}")
            case Select(condition, then, otherwise):
                if condition.dtype != "bool" or then.dtype != otherwise.dtype:
                    raise self.refuse("types agree", "a Select mixes types")
            case Const() | Cast() | Acc() | LookupTable():
                pass
        for part in children(e):
            self._value(part, scope, part.dtype, accumulators)

    def _check_load(self, role: str, index: tuple[Expr, ...], dtype: str) -> None:
        operand, buffer = self.operands.get(role, (None, None))
        if operand is None or buffer is None or operand.access != "read":
            raise self.refuse("roles fit", f"loads from operand {role!r}, which is none to read")
        if len(index) != len(buffer.shape) or buffer.dtype != dtype:
            raise self.refuse("types agree", f"loads {dtype} from operand {role!r} with {len(index)} indices")
        if any(e.dtype != INDEX for e in index):
            raise self.refuse("types agree", f"loads from operand {role!r} with an index that is no {INDEX}")
