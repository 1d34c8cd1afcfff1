"""A slow, plain second opinion on the memory rules of a Program: every task alone, every pair of tasks compared.

Elements are found one by one in Python; the order of tasks is a graph of single tasks; races are pairs of unordered
tasks whose bytes meet. It shares no code with the verifier but the evaluation of one index expression.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Any

from mononn_core.program.expr import Expr, Load, Select, children, evaluate_index
from mononn_core.program.ir import Barrier, Buffer, For, Let, Operand, Phase, Program, Reduce, Store, Task

Values = dict[str, int]
CONVOLUTIONS = ("conv", "winograd", "winograd4", "depthwise")


@dataclass
class Access:
    """Bytes (bit sets) that a task reads and writes, by buffer id."""

    reads: dict[str, int] = field(default_factory=dict)
    writes: dict[str, int] = field(default_factory=dict)
    fault: str = ""

    def touched(self, which: Mapping[str, int]) -> int:
        total = 0
        for mask in which.values():
            total |= mask
        return total


class Oracle:
    """Judges Programs; what phases touch is remembered, so judging a small change of a Program is cheap."""

    def __init__(self) -> None:
        self.memo: dict[Any, tuple[Any, list[tuple[Values, Access]]]] = {}

    def wrong(self, program: Program) -> str:
        """Why the Program's memory is not right; "" when it is."""
        tasks: list[tuple[int, Access]] = []
        before: list[int] = []
        owners: dict[tuple[str, int], int] = {}
        arrived: dict[tuple[Any, ...], int] = {}
        fence = 0
        for position, (item, loop) in enumerate(program.trace()):
            if isinstance(item, Barrier):
                fence = (1 << len(tasks)) - 1
                continue
            first = len(tasks)
            later: list[tuple[dict[Any, int], Any, int]] = []
            for values, access in self._tasks(program, item, loop):
                if access.fault:
                    return f"{item.id} {access.fault}"
                mask = fence
                if item.assign.owner is not None:
                    owner = (item.assign.group, evaluate_index(item.assign.owner, values))
                    mask |= owners.get(owner, 0)
                    later.append((owners, owner, len(tasks)))
                for w in item.waits:
                    mask |= arrived.get((w.counter, *(evaluate_index(i, values) for i in w.index)), 0)
                for s in item.signals:
                    key = (s.counter, *(evaluate_index(i, values) for i in s.index))
                    later.append((arrived, key, len(tasks)))
                tasks.append((position, access))
                before.append(mask)
            for table, key, number in later:
                table[key] = table.get(key, 0) | before[number] | 1 << number
            if reason := self._races(item, tasks, before, first):
                return reason
        return self._stale(program, [access for _, access in tasks], [position for position, _ in tasks])

    def _races(self, phase: Phase, tasks: list[tuple[int, Access]], before: list[int], first: int) -> str:
        """Conflicts of the tasks from ``first`` on with every task that is not ordered before them."""
        sets = [(a.touched(a.reads), a.touched(a.writes)) for _, a in tasks]
        for t in range(first, len(tasks)):
            reads, writes = sets[t]
            unordered = ((1 << t) - 1) & ~before[t]
            while unordered:
                u = unordered.bit_length() - 1
                unordered ^= 1 << u
                if writes & (sets[u][0] | sets[u][1]) or reads & sets[u][1]:
                    return f"tasks {u} and {t} (of {phase.id}) race"
            if reads & writes:
                return f"a task of {phase.id} reads what it writes"
        return ""

    def _stale(self, program: Program, tasks: list[Access], positions: list[int]) -> str:
        """Reads, in trace order, of bytes that the buffer's present generation has not written."""
        valid: dict[str, int] = {}
        taken: set[str] = set()
        for position in sorted(set(positions)):
            group = [a for a, p in zip(tasks, positions, strict=True) if p == position]
            for access in group:
                for name, mask in access.reads.items():
                    if mask & ~valid.get(name, 0):
                        return f"buffer {name} is read where it holds nothing"
            written: dict[str, int] = {}
            for access in group:
                for name, mask in access.writes.items():
                    written[name] = written.get(name, 0) | mask
            for name, mask in written.items():
                taken |= {n for n, m in valid.items() if n != name and m & mask}
                valid = {n: m & ~mask for n, m in valid.items() if n != name} | {name: valid.get(name, 0)}
                anew = name in taken or valid[name] & mask
                valid[name] = mask if anew else valid[name] | mask
                taken.discard(name)
        for b in program.buffers:
            if b.space == "output":
                whole = _bytes(program, b, product(*(range(n) for n in b.shape)))
                if whole & ~valid.get(b.id, 0):
                    return f"output {b.id} is not complete"
        return ""

    def _tasks(self, program: Program, phase: Phase, loop: Values) -> list[tuple[Values, Access]]:
        buffers = [program.buffer(program.resolve(o.buffer, loop)) for o in phase.task.operands]
        places = [_place(program, b) for b in buffers]
        key = (id(phase), tuple(loop.items()), tuple(id(b) for b in buffers), tuple(places))
        if key not in self.memo:
            points = product(*(range(a.extent) for a in phase.domain))
            names = [a.var for a in phase.domain]
            found = []
            for point in points:
                values = dict(zip(names, point, strict=True)) | loop
                operands = dict(zip(phase.task.operands, buffers, strict=True))
                found.append((values, _access(program, phase, values, operands)))
            self.memo[key] = ((phase, buffers), found)
        return self.memo[key][1]


def _place(program: Program, buffer: Buffer) -> int:
    """Number of the buffer's first byte: outputs lie one after the other behind the arena."""
    if buffer.space != "output":
        return buffer.offset
    outputs = [b for b in program.buffers if b.space == "output"]
    return program.arena_bytes + sum(b.nbytes for b in outputs[: outputs.index(buffer)])


def _bytes(program: Program, buffer: Buffer, elements: Iterator[tuple[int, ...]]) -> int:
    """Bit set of the bytes below logical elements."""
    base, mask = _place(program, buffer), 0
    ones = (1 << buffer.itemsize) - 1
    for index in elements:
        place = 0
        for dim, i in zip(buffer.layout.dims, index, strict=True):
            for factor, stride in reversed(dim):
                place += i % factor * stride
                i //= factor
        mask |= ones << (base + place * buffer.itemsize)
    return mask


def _access(program: Program, phase: Phase, values: Values, buffers: dict[Operand, Buffer]) -> Access:
    access = Access()
    boxes: Boxes = {}
    for operand, buffer in buffers.items():
        lows = [evaluate_index(e, values) for e in operand.box.offset]
        ends = zip(lows, operand.box.size, operand.box.bound, strict=True)
        boxes[operand.role] = [range(low, min(low + size, bound)) for low, size, bound in ends]
        if any(r and not (r[0] >= 0 and r[-1] < n) for r, n in zip(boxes[operand.role], buffer.shape, strict=True)):
            access.fault = f"has a box of {operand.role} beyond its buffer"
            return access
        if operand.access == "read" and buffer.space in ("arena", "output"):
            mask = _bytes(program, buffer, product(*boxes[operand.role]))
            access.reads[buffer.id] = access.reads.get(buffer.id, 0) | mask
    by_role = {o.role: b for o, b in buffers.items()}
    access.fault = _contraction(phase, boxes)
    for role, index, is_store in _accesses(phase, values, boxes):
        if role not in boxes or any(i not in r for i, r in zip(index, boxes[role], strict=True)):
            access.fault = f"accesses {role}{index} outside its box"
            return access
        if is_store and by_role[role].space in ("arena", "output"):
            mask = _bytes(program, by_role[role], iter([index]))
            have = access.writes.get(by_role[role].id, 0)
            if have & mask:
                access.fault = "stores an element twice"
            access.writes[by_role[role].id] = have | mask
    return access


Boxes = dict[str, list[range]]
Touch = tuple[str, tuple[int, ...], bool]
"""(role, index, whether it is a store)"""


def _contraction(phase: Phase, boxes: Boxes) -> str:
    """Why the extents that a template contracts do not agree; "" if they do."""
    if phase.task.template in CONVOLUTIONS and (text := _geometry(phase)):
        return text
    if phase.task.template in ("matmul", "gemv"):
        pairs = [(_matrix(boxes["a"])[1], _matrix(boxes["b"])[0])]
    elif phase.task.template == "attention":
        q, k, v = (_matrix(boxes[role]) for role in "qkv")
        pairs = [(q[1], k[1]), (k[0], v[0])]
    elif phase.task.template in CONVOLUTIONS:
        (_, channels), (terms, outputs) = _matrix(boxes["a"]), _matrix(boxes["b"])
        kh, kw = phase.task.params["kernel"]
        taps = {"winograd": 16, "winograd4": 36}.get(phase.task.template, kh * kw)
        pairs = [(terms, taps * channels)]
        if phase.task.template == "depthwise":
            group, word = (phase.task.params.get(key, 1) for key in ("group", "together"))
            rows = taps * -(-group // word) * word if group > 1 else -(-kh // word) * word * kw
            pairs = [(terms, rows), (channels, outputs)]
    elif phase.task.template == "order":
        pairs = [(_matrix(boxes["x"])[1] % phase.task.params["length"], 0)]
    else:
        pairs = []
    return "contracts different extents" if any(a != b for a, b in pairs) else ""


def _accesses(phase: Phase, values: Values, boxes: Boxes) -> Iterator[Touch]:
    """Every load and store of one task whose index does not depend on data."""
    task = phase.task
    yield from _nest(task.body, dict(values))
    if task.template == "nest":
        return
    if task.template in CONVOLUTIONS:
        yield from _convolution(phase, values, boxes)
        return
    rows, columns = _tile(task, boxes)
    for result in task.results:
        for m, n in product(range(rows), range(columns)):
            ends = zip((m, n), result.bounds, strict=False)
            if all(end is None or i < evaluate_index(end, values) for i, end in ends):
                inner = values | dict(zip(result.axes, (m, n), strict=True))
                yield from _loads(result.value, inner)
                yield result.operand, tuple(evaluate_index(e, inner) for e in result.index), True
    for e in task.prologue.values():
        for i, j in product(range(_matrix(boxes["q"])[0]), range(_matrix(boxes["k"])[0])):
            yield from _loads(e, values | {"i": i, "j": j})


def _tile(task: Task, boxes: Boxes) -> tuple[int, int]:
    """Rows and columns of what the template of a task that is no convolution stores."""
    if task.template == "order":
        return prod(_matrix(boxes["x"])) // task.params["length"], task.params["k"]
    rows, columns = ("q", "v") if task.template == "attention" else ("a", "b")
    return _matrix(boxes[rows])[0], _matrix(boxes[columns])[1]


def _convolution(phase: Phase, values: Values, boxes: Boxes) -> Iterator[Touch]:
    """What a convolution's epilogue touches: image rows whose windows end within a's box, pixels, channels."""
    task, at = phase.task, phase.task.params
    (kh, kw), (sh, sw), (dh, dw) = at["kernel"], at["strides"], at["dilations"]
    pixels, outputs = _matrix(boxes["a"])[0], _matrix(boxes["b"])[1]
    for y, x, n in product(range(at["rows"]), range(at["width"]), range(outputs)):
        bottom = (y * sh + (kh - 1) * dh) * at["pitch"]
        if bottom + (at["width"] - 1) * sw + (kw - 1) * dw < pixels:
            for result in task.results:
                inner = values | dict(zip(result.axes, (y, x, n), strict=True))
                yield from _loads(result.value, inner)
                yield result.operand, tuple(evaluate_index(e, inner) for e in result.index), True


def _geometry(phase: Phase) -> str:
    """Why the windows of a convolution do not fit what it reads; "" if they do."""
    at = phase.task.params
    (kh, kw), (sh, sw), (dh, dw) = at["kernel"], at["strides"], at["dilations"]
    reach = (at["width"] - 1) * sw + (kw - 1) * dw + 1
    read = ((at["rows"] - 1) * sh + (kh - 1) * dh) * at["pitch"] + reach
    declared = next(o.box.size[0] for o in phase.task.operands if o.role == "a")
    positive = min(kh, kw, sh, sw, dh, dw, at["pitch"], at["width"], at["rows"]) > 0
    plain = phase.task.template not in ("winograd", "winograd4") or (kh, kw, sh, sw, dh) == (3, 3, 1, 1, dw)
    return "" if positive and plain and reach <= at["pitch"] and read == declared else "windows do not fit"


def _matrix(box: list[range]) -> tuple[int, int]:
    sizes = [len(r) for r in box]
    while len(sizes) > 2:
        sizes.remove(1)
    return sizes[0], sizes[1]


def _nest(body: tuple[Any, ...], values: Values) -> Iterator[Touch]:
    for s in body:
        match s:
            case Store(operand, index, value):
                yield from _loads(value, values)
                yield operand, tuple(evaluate_index(e, values) for e in index), True
            case Let(name, value):
                yield from _loads(value, values)
                if (known := _known(value, values)) is not None:
                    values = values | {name: known}
            case Reduce(var=var, extent=extent, value=value):
                for i in range(extent):
                    yield from _loads(value, values | {var: i})
            case For():
                end = s.extent if s.bound is None else min(s.extent, evaluate_index(s.bound, values))
                for i in range(end):
                    yield from _nest(s.body, values | {s.var: i})


def _known(e: Expr, values: Values) -> int | None:
    """The value of an index expression, None if it depends on data."""
    try:
        return evaluate_index(e, values)
    except KeyError:
        return None


def _loads(e: Expr, values: Values) -> Iterator[Touch]:
    if isinstance(e, Load):
        index = [_known(i, values) for i in e.index]
        if None not in index:
            yield e.operand, tuple(index), False  # type: ignore[arg-type]
    if isinstance(e, Select) and (chosen := _known(e.condition, values)) is not None:
        yield from _loads(e.then if chosen else e.otherwise, values)
        return
    for part in children(e):
        yield from _loads(part, values)
