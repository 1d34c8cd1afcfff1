"""Repeated layers become loops: one piece of code over a table of buffers.

Two phases are the same code when they differ only in which buffers they touch, and those have equal type, shape, layout
and space. The longest run of repetitions is rolled first, then what is left before and after it. Matrices that a
template multiplies may start further on with every repetition (a decoder's layers each take their columns of one
product): the start becomes an expression of the loop's variable.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from mononn_core.program.expr import Expr, Var
from mononn_core.program.ir import Barrier, Box, Buffer, Item, Loop, Operand, Phase, Program, Slot, Table
from mononn_core.program.simplify import from_linear, linear

MATRICES = ("a", "b", "q", "k", "v")


def roll(program: Program) -> Program:
    """The same Program with repeated runs of phases as Loops; returns the same object when nothing repeats."""
    tables: list[Table] = []
    body = _roll(list(program.body), program.buffer_map, tables)
    return replace(program, body=tuple(body), tables=(*program.tables, *tables)) if tables else program


def _roll(items: list[Item], buffers: Mapping[str, Buffer], tables: list[Table]) -> list[Item]:
    found = _longest([_key(item, buffers, True) for item in items])
    if found is not None and not _steady(items, *found):
        found = _longest([_key(item, buffers, False) for item in items])
    if found is None:
        return items
    start, period, count = found
    end = start + period * count
    before = _roll(items[:start], buffers, tables)
    loop = _loop(items[start:end], period, count, tables)
    after = _roll(items[end:], buffers, tables)
    return [*before, loop, *after]


def _longest(items: list[Hashable]) -> tuple[int, int, int] | None:
    """(start, period, count) of the repetition that saves most items; a period must hold a phase."""
    best: tuple[int, int, int, int] | None = None
    numbers: dict[Hashable, int] = {}
    keys = [None if item is None else numbers.setdefault(item, len(numbers)) for item in items]
    n = len(keys)
    for period in range(1, n // 2 + 1):
        start = 0
        while start + 2 * period <= n:
            end = start + period
            while end < n and keys[end] == keys[end - period]:
                end += 1
            count = (end - start) // period
            if count > 1 and any(k is not None for k in keys[start : start + period]):
                saved = (count - 1) * period
                if best is None or saved > best[0]:
                    best = (saved, start, period, count)
            start = max(start + 1, end - period + 1)
    return best[1:] if best else None


def _key(item: Item, buffers: Mapping[str, Buffer], moving: bool) -> Hashable:
    """Equal for phases that are the same code, where wanted up to constant starts of matrices (``moving``); None for a
    barrier."""
    if not isinstance(item, Phase):
        return None if isinstance(item, Barrier) else object()
    task = item.task
    operands = tuple(
        (o.role, _form(o, moving), o.access, o.stable, _storage(buffers[str(o.buffer)])) for o in task.operands
    )
    split = task.split and replace(task.split, scratch="")
    rest = (task.template, task.results, task.body, task.mainloop, split, task.local)
    maps = (tuple(sorted(task.params.items())), tuple(sorted(task.prologue.items())))
    return (item.domain, item.assign, item.waits, item.signals, item.prefetches, item.flops, operands, rest, maps)


def _form(operand: Operand, moving: bool) -> object:
    """An operand's box; of a matrix that may move, without the constant parts of its starts."""
    box = operand.box
    if not moving or operand.role not in MATRICES or operand.stable:
        return box
    return (tuple(from_linear(linear(e)[0], 0) for e in box.offset), box.size, box.bound)


def _steady(items: list[Item], start: int, period: int, count: int) -> bool:
    """Whether every box of the repetitions starts equally much further than in the one before."""
    for position in range(start, start + period):
        peers = [items[position + i * period] for i in range(count)]
        boxes = [[o.box for o in p.task.operands] for p in peers if isinstance(p, Phase)]
        if any(_start(dims) is None for same in zip(*boxes, strict=True) for dims in _offsets(same)):
            return False
    return True


def _offsets(boxes: Sequence[Box]) -> Iterator[tuple[Expr, ...]]:
    """Per dimension, where the boxes start."""
    return zip(*(box.offset for box in boxes), strict=True)


def _start(offsets: tuple[Expr, ...], var: str = "") -> Expr | None:
    """The start in round ``var``; None where the rounds are not evenly spaced."""
    if len(set(offsets)) == 1:
        return offsets[0]
    (terms, first), *rest = (linear(e) for e in offsets)
    values = [first, *(constant for _, constant in rest)]
    steps = {b - a for a, b in pairwise(values)}
    if any(other != terms for other, _ in rest) or len(steps) > 1:
        return None
    return Var(var) * steps.pop() + from_linear(terms, first)


def _storage(buffer: Buffer) -> object:
    return (buffer.dtype, buffer.shape, buffer.layout, buffer.space)


def _loop(items: list[Item], period: int, count: int, tables: list[Table]) -> Loop:
    name = f"t{len(tables)}"
    columns: dict[tuple[str, ...], str] = {}
    body: list[Phase | Barrier] = []
    for position in range(period):
        first = items[position]
        if not isinstance(first, Phase):
            assert isinstance(first, Barrier)
            body.append(first)
            continue
        peers = [items[position + i * period] for i in range(count)]
        operands: list[Operand] = []
        for which, operand in enumerate(first.task.operands):
            boxes = [p.task.operands[which].box for p in peers if isinstance(p, Phase)]
            starts = tuple(e for dims in _offsets(boxes) if (e := _start(dims, f"i{name}")) is not None)
            operand = replace(operand, box=replace(operand.box, offset=starts))
            rows = tuple(str(p.task.operands[which].buffer) for p in peers if isinstance(p, Phase))
            if len(set(rows)) == 1:
                operands.append(operand)
            else:
                column = columns.setdefault(rows, f"c{len(columns)}")
                operands.append(replace(operand, buffer=Slot(name, column)))
        split = first.task.split
        if split is not None:
            split = replace(split, scratch=next(o.buffer for o in operands if o.access == "partial"))
        rounds = tuple(p.origin for p in peers if isinstance(p, Phase))
        body.append(replace(first, task=replace(first.task, operands=tuple(operands), split=split), rounds=rounds))
    iterations = tuple(zip(*columns, strict=True)) if columns else ((),) * count
    tables.append(Table(name, tuple(columns.values()), tuple(tuple(r) for r in iterations)))
    return Loop(f"i{name}", count, tuple(body), name)
