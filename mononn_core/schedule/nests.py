"""Stages without a template: generated loops over the rows and columns of what they store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod

from mononn_core.program.expr import (
    Const,
    Expr,
    Op,
    Ranges,
    Select,
    Var,
    children,
    substitute,
    variables,
    walk,
)
from mononn_core.program.hoist import hoist
from mononn_core.program.ir import Box, For, Let, Phase, Reduce, Statement, Store, Task
from mononn_core.program.rules import body_expressions
from mononn_core.program.simplify import linear, simplify
from mononn_core.program.template import NEST
from mononn_core.schedule.alike import Element, once
from mononn_core.schedule.binder import OWNER, OperandBinder, TaskBuilder
from mononn_core.schedule.operands import axis
from mononn_core.schedule.rows import group_body
from mononn_core.schedule.schedule import Partition
from mononn_core.schedule.shares import Share, inner_axes, owners_of, run_of, share_of
from mononn_core.schedule.stages import FusionGroup, run_chain
from mononn_core.schedule.views import matrix_index, matrix_shape, tensor_index

CHANGES = {"lt": 0, "ge": 0, "le": 1, "gt": 1}
"""Comparison with a constant n -> how far from n it changes."""
PIECES = 64
"""Most pieces a row is cut into."""


First = Callable[[OperandBinder, tuple[Expr, ...], Ranges], tuple[Statement, ...]]
"""Statements that start a row: from the index of its elements and the ranges of its loops' variables y and x."""


def build_nest(
    builder: TaskBuilder,
    stage: FusionGroup,
    partition: Partition,
    name: str,
    first: First | None = None,
    lanes: int = 1,
    counters: bool = False,
) -> Phase:
    """Rows (or columns) of the root's output dealt to owners; a task is all of an owner's rows. Neighbouring pixels of
    an image are computed side by side where it has fewer channels than a vector ``lanes``. With ``counters`` a loop
    over rows whose number would be divided becomes one for every axis, and one over columns whose number would be
    divided one over runs of them."""
    phase = _build(builder, stage, partition, name, _Loops(), first, lanes)
    if not counters or first:
        return phase
    shape = _shape(builder, stage)
    share, body = share_of(shape, partition), phase.task.body
    parts = partition.bands is None  # what a band reads is found in runs of whole axes
    axes = inner_axes(shape, share, parts) if _divisors(body, "y") else ()
    loops = _Loops(axes, run_of(share, _divisors(body, "x"), lanes))
    return phase if loops == _Loops() else _build(builder, stage, partition, name, loops, first, lanes)


@dataclass(frozen=True)
class _Loops:
    """Which loops there are beside those over rows and columns: for the inner ``axes`` of rows, and for each ``run`` of
    columns (0: none)."""

    axes: tuple[int, ...] = ()
    run: int = 0


@dataclass(frozen=True)
class _Rows:
    """A task's rows: one loop over all of them, or one over ``count`` runs of those of the ``inner`` axes, and one for
    each of these."""

    count: int
    inner: tuple[int, ...] = ()

    @property
    def loops(self) -> tuple[tuple[str, int], ...]:
        """(variable, extent), the outermost first."""
        return (("y", self.count), *((f"y{number}", extent) for number, extent in enumerate(self.inner, start=1)))

    @property
    def number(self) -> Expr:
        """Which of the rows it is."""
        total: Expr = Const(0)
        for variable, extent in self.loops:
            total = total * extent + axis(variable, extent)
        return total

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        return {variable: (0, extent - 1) for variable, extent in self.loops}

    def around(self, body: tuple[Statement, ...], bound: Expr | None) -> tuple[Statement, ...]:
        """The loops around what is done for a row; ``bound``: how many rows there are for the task at hand."""
        for variable, extent in reversed(self.loops[1:]):
            body = (For(variable, extent, body, "serial"),) if extent > 1 else body
        end = None if bound is None else simplify(bound // prod(self.inner), {})
        return (For("y", self.count, body, "serial", end),) if self.count > 1 or end is not None else body


def _divisors(body: tuple[Statement, ...], var: str) -> set[int]:
    """What ``var``, or a sum with it, is divided by in quotients and remainders; 1 stands for what is not known."""
    parts = (n for e in body_expressions(body) for n in walk(e))
    divided = [n.args for n in parts if isinstance(n, Op) and n.name in ("floordiv", "mod")]
    return {int(by.value) if isinstance(by, Const) else 1 for number, by in divided if _in_sum(number, var)}


def _in_sum(e: Expr, var: str) -> bool:
    """Whether ``e`` has ``var`` elsewhere than in a quotient or remainder, which are counted for themselves."""
    if isinstance(e, Op) and e.name in ("floordiv", "mod"):
        return False
    return e == Var(var) or any(_in_sum(child, var) for child in children(e))


def _build(
    builder: TaskBuilder,
    stage: FusionGroup,
    partition: Partition,
    name: str,
    loops: _Loops,
    first: First | None,
    lanes: int,
) -> Phase:
    """As :func:`build_nest`, with these ``loops``."""
    shape = _shape(builder, stage)
    total, width = matrix_shape(shape)
    whole = (Var("row") if total > 1 else Const(0), Var("column") if width > 1 else Const(0))
    element = _element(builder, stage, whole)

    def make() -> Task:
        return _task(builder, stage, partition, loops, first, lanes, element)

    if first is None and partition.bands is None:
        form = (shape, partition, loops, lanes, stage.root is None)
        task = once(builder, form, stage.stored, element, make)
    else:
        task = make()
    flops = total * width * (1 + len(stage.chain))
    return builder.phase(name, stage, partition, {OWNER: owners_of(partition)}, task, flops)


def _task(
    builder: TaskBuilder,
    stage: FusionGroup,
    partition: Partition,
    loops: _Loops,
    first: First | None,
    lanes: int,
    element: Element,
) -> Task:
    """What an owner does: of each ``element``, at (row, column), what is said there."""
    shape = _shape(builder, stage)
    (total, width), owners = matrix_shape(shape), owners_of(partition)
    share, binder = share_of(shape, partition), builder.binder({OWNER: owners})
    count, columns = share.extents
    line = shape[2] if columns < lanes and _is_image(shape, share, stage, lanes) else 0
    rows, run = _Rows(count // prod(loops.axes), loops.axes), loops.run or columns
    inner = rows.ranges | {"x1": (0, columns // run - 1), "x": (0, run - 1)}
    y = rows.number
    if line:
        inner |= {"y": (0, count // line - 1), "w": (0, line - 1)}
        y = axis("y", count // line) * line + axis("w", line)
    binder.position("row", share.y0 + y, total)
    x = axis("x1", columns // run) * run + axis("x", run)
    column = binder.position("column", share.x0 + x, width)
    prelude, at, value = element
    matrix = matrix_index(builder.types[stage.stored].shape, at)
    whole_rows = partition.kind != "columns" and first is None and not line
    cuts = _cuts(prelude, value, width) if whole_rows else ()
    if partition.bands is not None:
        matrix = (Var(OWNER) * count + y, column)
    position = _output(binder, stage, matrix, inner, partition, (count, width))
    bounds = tuple(None if e is None else simplify(e, binder.outer) for e in share.ends)
    if cuts:
        value = binder.stored(stage.stored, value)
        body = rows.around(_pieces(binder, prelude, value, matrix, (rows.ranges, (*cuts, width))), bounds[0])
    else:
        bind = _bind_with(binder, inner)
        prelude = tuple(map_statement(st, bind) for st in prelude)
        store = Store("out", position, binder.stored(stage.stored, bind(value, {})))
        if line:
            body = _pixel_loops(store, (count // line, line, columns), bounds[0])
        else:
            body = rows.around(row_body(prelude, store, (columns // run, run), bounds[1]), bounds[0])
        body = body if first is None else _start_rows(body, first(binder, at, inner))
    return Task(NEST, tuple(binder.operands), body=body)


def _output(
    binder: OperandBinder,
    stage: FusionGroup,
    at: tuple[Expr, Expr],
    inner: Ranges,
    partition: Partition,
    share: tuple[int, int],
) -> tuple[Expr, ...]:
    """Declare what is stored: the stage's tensor, or its bands, ``share`` rows and columns of each owner. Gives the
    simplified (row, column)."""
    if partition.bands is None:
        return binder.output(stage.stored, at, inner)
    rows, width = share
    box = Box((Var(OWNER) * rows, Const(0)), share, (rows * owners_of(partition), width))
    binder.add("out", partition.bands.buffer, box, "write")
    return tuple(binder.simplify(e, inner) for e in at)


def _is_image(shape: tuple[int, ...], share: Share, stage: FusionGroup, lanes: int) -> bool:
    """Whether an owner has whole rows of one image, of at least ``lanes`` pixels, and elements stand for themselves."""
    alone = stage.root is None and share.x0 == Const(0) and share.ends[1] is None
    return alone and len(shape) == 4 and shape[0] == 1 and shape[2] >= lanes and share.extents[0] % shape[2] == 0


def _pixel_loops(store: Store, extents: tuple[int, int, int], bound: Expr | None) -> tuple[Statement, ...]:
    """For y, an image row of ``extents`` (rows, pixels, channels), for x, a channel: its pixels side by side."""
    rows, pixels, channels = extents
    lets, value = hoist(_guarded(store.value, "w"), "w")
    body: tuple[Statement, ...] = (*lets, For("w", pixels, (replace(store, value=value),), "vector"))
    body = (For("x", channels, body),) if channels > 1 else body
    ends = None if bound is None else simplify(bound // pixels, {})
    return (For("y", rows, body, "serial", ends),) if rows > 1 or ends is not None else body


def _guarded(value: Expr, var: str) -> Expr:
    """A choice by two conditions, one of which does not depend on ``var``, as two choices, that one outside."""
    if isinstance(value, Select) and isinstance(value.condition, Op) and value.condition.name == "and":
        outer, inner = sorted(value.condition.args, key=lambda e: var in variables(e))
        if var not in variables(outer):
            return Select(outer, _guarded(replace(value, condition=inner), var), value.otherwise)
    return value


def _start_rows(body: tuple[Statement, ...], first: tuple[Statement, ...]) -> tuple[Statement, ...]:
    """``first`` in front of what every row does."""
    match body:
        case (For(var="y", body=inner) as loop,):
            return (replace(loop, body=(*first, *inner)),)
        case _:
            return (*first, *body)


def has_pieces(builder: TaskBuilder, stage: FusionGroup) -> bool:
    """Whether the rows of a stage are computed in pieces, between columns at which a condition changes (those of a
    concatenation): loops over a part of the columns would ask it for each element."""
    prelude, _, value = _element(builder, stage, (Var("row"), Var("column")))
    return bool(_cuts(prelude, value, matrix_shape(_shape(builder, stage))[1]))


def _shape(builder: TaskBuilder, stage: FusionGroup) -> tuple[int, ...]:
    """Of what a stage's loops run over: the root's output, or what is stored where there is no root."""
    return builder.types[stage.root.outputs[0] if stage.root else stage.stored].shape


def _element(builder: TaskBuilder, stage: FusionGroup, at: tuple[Expr, Expr]) -> Element:
    """The element at (row, column)."""
    if (id(stage), at) not in builder.elements:
        index = tensor_index(_shape(builder, stage), *at)
        prelude, value = group_body(stage, builder.views, index)
        builder.elements[id(stage), at] = stage, (prelude, *run_chain(stage, builder.views, index, value))
    return builder.elements[id(stage), at][1]


def _cuts(prelude: tuple[Statement, ...], value: Expr, width: int) -> tuple[int, ...]:
    """Columns at which a condition on the column alone changes, as in a concatenation; 0 is not among them. None where
    a row's prelude serves all its columns."""
    if not all(_mentions(st, "column") for st in prelude):
        return ()
    found = set()
    parts = (*(st.value for st in prelude if isinstance(st, (Let, Reduce))), value)
    for e in (n for part in parts for n in walk(part)):
        if isinstance(e, Op) and e.name in CHANGES and isinstance(e.args[1], Const):
            terms, constant = linear(e.args[0])
            if terms == {Var("column"): 1}:
                found.add(int(e.args[1].value) - constant + CHANGES[e.name])
    return tuple(sorted(c for c in found if 0 < c < width)) if len(found) <= PIECES else ()


def _pieces(
    binder: OperandBinder,
    prelude: tuple[Statement, ...],
    value: Expr,
    matrix: tuple[Expr, ...],
    extents: tuple[Ranges, tuple[int, ...]],
) -> tuple[Statement, ...]:
    """For a row a loop over the columns of each piece, in which every condition on the column is settled; ``extents``:
    the ranges of the rows' variables, and where pieces end."""
    rows, ends = extents
    body: tuple[Statement, ...] = ()
    start = 0
    for number, end in enumerate(ends):
        inner = {**rows, "x": (0, end - start - 1)}
        here: dict[str, Expr] = {"column": axis("x", end - start) + start}
        index = tuple(binder.simplify(substitute(e, here), inner) for e in matrix)
        bind = _bind_with(binder, inner, here)
        inside = tuple(map_statement(st, bind) for st in prelude)
        lets, piece = ((), bind(value, {})) if inside else hoist(bind(value, {}), "x", f"h{number}_")
        column: tuple[Statement, ...] = (*inside, Store("out", index, piece))
        if inside or end - start > 1:
            column = (For("x", end - start, column, "vector"),)
        body += (*lets, *column)
        start = end
    return body


Bind = Callable[[Expr, Ranges], Expr]


def _bind_with(binder: OperandBinder, inner: Ranges, known: Mapping[str, Expr] | None = None) -> Bind:
    return lambda e, more: binder.bind(substitute(e, known or {}), {**inner, **more})


def map_statement(statement: Statement, bind: Bind) -> Statement:
    match statement:
        case Let():
            return Let(statement.name, bind(statement.value, {}))
        case Reduce():
            extra = {statement.var: (0, statement.extent - 1)}
            return Reduce(
                statement.name,
                statement.op,
                statement.var,
                statement.extent,
                bind(statement.value, extra),
            )
        case _:
            raise AssertionError("a row's prelude holds reductions and bindings only")


def row_loops(
    prelude: tuple[Statement, ...], store: Store, extents: tuple[int, int], bounds: tuple[Expr | None, Expr | None]
) -> tuple[Statement, ...]:
    """For y, what :func:`row_body` does."""
    return _Rows(extents[0]).around(row_body(prelude, store, (1, extents[1]), bounds[1]), bounds[0])


def row_body(
    prelude: tuple[Statement, ...], store: Store, extents: tuple[int, int], bound: Expr | None
) -> tuple[Statement, ...]:
    """Prelude, for x1: bindings, for x: store; ``extents``: (runs of columns, columns of a run). A prelude that needs
    the column goes inside the column loop, whose neighbouring columns are then reduced side by side, each in order."""
    runs, columns = extents
    needs_column = any(_mentions(s, v) for s in prelude for v in ("x", "x1"))
    inside = prelude if needs_column else ()
    lets, value = ((), store.value) if inside else hoist(store.value, "x")
    body: tuple[Statement, ...] = (*inside, Store(store.operand, store.index, value))
    if columns > 1 or bound is not None:
        body = (For("x", columns, body, "vector", bound),)
    body = (*lets, *body)
    return (*(() if needs_column else prelude), *((For("x1", runs, body),) if runs > 1 else body))


def _mentions(statement: Statement, var: str) -> bool:
    match statement:
        case Let() | Reduce():
            return var in variables(statement.value)
        case _:
            return True


__all__ = ["build_nest", "has_pieces", "map_statement", "row_loops"]
