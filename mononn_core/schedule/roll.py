"""Repeated layers become loops: one piece of code over a table of buffers.

Two phases are the same code when they differ only in which buffers they touch, and those have equal type, shape, layout
and space. The longest run of repetitions is rolled first, then what is left before and after it.
"""

from __future__ import annotations

from dataclasses import replace

from mononn_core.program.tile import Barrier, Buffer, Item, Loop, Operand, Phase, Program, Slot, Table


def roll(program: Program) -> Program:
    """The same Program with repeated runs of phases as Loops; returns the same object when nothing repeats."""
    tables: list[Table] = []
    body = _roll(list(program.body), program.buffer_map, tables)
    return replace(program, body=tuple(body), tables=(*program.tables, *tables)) if tables else program


def _roll(items: list[Item], buffers: dict[str, Buffer], tables: list[Table]) -> list[Item]:
    keys = [_key(item, buffers) for item in items]
    found = _longest(keys)
    if found is None:
        return items
    start, period, count = found
    end = start + period * count
    before = _roll(items[:start], buffers, tables)
    loop = _loop(items[start:end], period, count, tables)
    after = _roll(items[end:], buffers, tables)
    return [*before, loop, *after]


def _longest(keys: list[object]) -> tuple[int, int, int] | None:
    """(start, period, count) of the repetition that saves most items; a period must hold a phase."""
    best: tuple[int, int, int, int] | None = None
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


def _key(item: Item, buffers: dict[str, Buffer]) -> object:
    """Equal for phases that are the same code; None for a barrier."""
    if not isinstance(item, Phase):
        return None if isinstance(item, Barrier) else object()
    operands = tuple((o.role, o.box, o.access, o.stable, _storage(buffers[str(o.buffer)])) for o in item.task.operands)
    task = item.task
    rest = (task.template, task.results, task.body, task.mainloop, task.split, task.local)
    maps = (tuple(sorted(task.params.items())), tuple(sorted(task.prologue.items())))
    return (item.domain, item.assign, item.waits, item.signals, item.prefetches, item.flops, operands, rest, maps)


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
            rows = tuple(str(p.task.operands[which].buffer) for p in peers if isinstance(p, Phase))
            if len(set(rows)) == 1:
                operands.append(operand)
            else:
                column = columns.setdefault(rows, f"c{len(columns)}")
                operands.append(replace(operand, buffer=Slot(name, column)))
        body.append(replace(first, task=replace(first.task, operands=tuple(operands))))
    iterations = tuple(zip(*columns, strict=True)) if columns else ((),) * count
    tables.append(Table(name, tuple(columns.values()), tuple(tuple(r) for r in iterations)))
    return Loop(f"i{name}", count, tuple(body), name)
