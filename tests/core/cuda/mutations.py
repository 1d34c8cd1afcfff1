"""What CUDA Programs have beyond a CPU's, made wrong on purpose: filled left sides, guarded stores, ragged results,
sums in parts, rows held in a block's own memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from mononn_core.program.expr import Const, Expr, Op, Var, op
from mononn_core.program.ir import Axis, For, Loop, Phase, Program, Result, Statement, Store, Task

Sites = Iterator[tuple[str, Program]]
MUTATIONS: dict[str, Callable[[Program], Sites]] = {}


def mutation(sites: Callable[[Program], Sites]) -> Callable[[Program], Sites]:
    """Register a function that yields (phase, broken Program)."""
    MUTATIONS[sites.__name__] = sites
    return sites


def _changed(program: Program, old: Phase, new: Phase) -> Program:
    def swap(item: object) -> object:
        if isinstance(item, Loop):
            return replace(item, body=tuple(swap(i) for i in item.body))  # type: ignore[misc]
        return new if item is old else item

    return replace(program, body=tuple(swap(i) for i in program.body))  # type: ignore[arg-type]


def _tasks(program: Program, change: Callable[[Task], Task | None]) -> Sites:
    """Every phase whose task ``change`` changes."""
    for phase in program.phases():
        task = change(phase.task)
        if task is not None and task != phase.task:
            yield phase.id, _changed(program, phase, replace(phase, task=task))


def _filled(task: Task) -> bool:
    return bool(task.body and task.results)


def _loops(body: tuple[Statement, ...], change: Callable[[For], Statement]) -> tuple[Statement, ...]:
    """``change`` on every loop, from the inside."""
    return tuple(change(replace(s, body=_loops(s.body, change))) if isinstance(s, For) else s for s in body)


def _results(task: Task, change: Callable[[Result], Result]) -> Task:
    return replace(task, results=tuple(change(r) for r in task.results))


def _stores(loop: For, role: str) -> bool:
    return any(isinstance(s, Store) and s.operand == role for s in loop.body)


@mutation
def left_side_not_filled(program: Program) -> Sites:
    """The template reads what nothing computed."""
    return _tasks(program, lambda t: replace(t, body=()) if _filled(t) else None)


@mutation
def left_side_filled_short(program: Program) -> Sites:
    """The last column of the left side is not computed."""

    def shorter(loop: For) -> For:
        return replace(loop, extent=loop.extent - 1) if _stores(loop, "fill") and loop.extent > 1 else loop

    return _tasks(program, lambda t: replace(t, body=_loops(t.body, shorter)) if _filled(t) else None)


@mutation
def left_side_filled_ragged(program: Program) -> Sites:
    """Rows past the end are left out, but the template reads them."""

    def bounded(loop: For) -> For:
        return replace(loop, bound=Const(loop.extent - 1)) if loop.var == "y" and loop.extent > 1 else loop

    return _tasks(program, lambda t: replace(t, body=_loops(t.body, bounded)) if _filled(t) else None)


@mutation
def kept_by_every_panel(program: Program) -> Sites:
    """Tasks of all panels store the rows that one of them should."""

    def unguarded(loop: For) -> For:
        return replace(loop, bound=None) if loop.var == "g" else loop

    return _tasks(program, lambda t: replace(t, body=_loops(t.body, unguarded)))


@mutation
def kept_by_two_panels(program: Program) -> Sites:
    """The guard lets one panel too many through."""

    def wider(loop: For) -> For:
        return replace(loop, bound=loop.bound + 1) if loop.var == "g" and loop.bound is not None else loop

    return _tasks(program, lambda t: replace(t, body=_loops(t.body, wider)))


@mutation
def kept_by_nobody(program: Program) -> Sites:
    """The rows that others read are not stored."""

    def closed(loop: For) -> For:
        return replace(loop, bound=Const(0)) if loop.var == "g" else loop

    return _tasks(program, lambda t: replace(t, body=_loops(t.body, closed)))


@mutation
def bounds_dropped(program: Program) -> Sites:
    """A ragged tile stores rows past the end."""
    return _tasks(program, lambda t: _results(t, lambda r: replace(r, bounds=())))


@mutation
def bounds_widened(program: Program) -> Sites:
    """A ragged tile stores a row too many."""
    return _tasks(program, lambda t: _results(t, lambda r: replace(r, bounds=_plus(r.bounds, 1))))


@mutation
def bounds_narrowed(program: Program) -> Sites:
    """A ragged tile stores a row too few."""
    return _tasks(program, lambda t: _results(t, lambda r: replace(r, bounds=_plus(r.bounds, -1))))


def _plus(bounds: tuple[Expr | None, ...], more: int) -> tuple[Expr | None, ...]:
    return tuple(None if b is None else b + more for b in bounds)


@mutation
def bounds_of_too_many_axes(program: Program) -> Sites:
    """There are more bounds than axes."""
    return _tasks(program, lambda t: _results(t, lambda r: replace(r, bounds=(*r.bounds, None)) if r.bounds else r))


@mutation
def bounds_from_a_result_axis(program: Program) -> Sites:
    """A bound uses a variable that is only bound inside the tile."""
    return _tasks(program, lambda t: _results(t, lambda r: replace(r, bounds=(Var("n"), None)) if r.bounds else r))


@mutation
def part_missing(program: Program) -> Sites:
    """One of the parts that the consumer adds is never computed."""
    for phase in program.phases():
        for n, axis in enumerate(phase.domain):
            if axis.var == "s":
                domain = (*phase.domain[:n], Axis("s", axis.extent - 1), *phase.domain[n + 1 :])
                yield phase.id, _changed(program, phase, replace(phase, domain=domain))


@mutation
def parts_on_each_other(program: Program) -> Sites:
    """All parts are stored where the first belongs."""
    for phase in program.phases():
        if any(a.var == "s" for a in phase.domain):
            results = tuple(
                replace(r, index=tuple(_without(e, "s") for e in r.index), value=r.value) for r in phase.task.results
            )
            yield phase.id, _changed(program, phase, replace(phase, task=replace(phase.task, results=results)))


def _without(e: Expr, name: str) -> Expr:
    match e:
        case Var(n) if n == name:
            return Const(0)
        case Op(operation, args):
            return op(operation, *(_without(a, name) for a in args))
        case _:
            return e


@mutation
def held_rows_read_too_early(program: Program) -> Sites:
    """The rows of a norm are read before the parts are added."""

    def late(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        first = [s for s in body if isinstance(s, For) and _stores(s, "hold")]
        if first:
            return (*(s for s in body if s is not first[0]), first[0])
        return tuple(replace(s, body=late(s.body)) if isinstance(s, For) else s for s in body)

    return _tasks(program, lambda t: replace(t, body=late(t.body)) if t.template == "nest" else None)


@mutation
def held_rows_not_all_added(program: Program) -> Sites:
    """The last column of a held row is not computed."""

    def shorter(loop: For) -> For:
        return replace(loop, extent=loop.extent - 1) if _stores(loop, "hold") else loop

    return _tasks(program, lambda t: replace(t, body=_loops(t.body, shorter)))


@mutation
def product_reads_another_blocks_memory(program: Program) -> Sites:
    """The right-hand side, which nothing fills, is said to be worker-local."""

    def local(task: Task) -> Task | None:
        if not _filled(task):
            return None
        left = next(o for o in task.operands if o.role == "a")
        changed = (replace(left, role="b") if o.role == "b" else o for o in task.operands)
        return replace(task, operands=tuple(changed))

    return _tasks(program, local)


@mutation
def local_buffer_out_of_its_space(program: Program) -> Sites:
    """A worker-local buffer does not fit the memory that a worker has."""
    held = [b.nbytes for b in program.buffers if b.space == "local"]
    if held:
        yield "scratch_bytes", replace(program, scratch_bytes=max(held) - 8)


@mutation
def split_not_declared_partial(program: Program) -> Sites:
    """Raw sums are stored as if they were results."""

    def plain(task: Task) -> Task | None:
        if task.split is None:
            return None
        return replace(
            task, operands=tuple(replace(o, access="write") if o.role == "out" else o for o in task.operands)
        )

    return _tasks(program, plain)


@mutation
def parts_of_other_terms(program: Program) -> Sites:
    """The parts of both sides start a step further on: the first terms are left out."""

    def moved(task: Task) -> Task | None:
        if task.split is None:
            return None
        operands = list(task.operands)
        for n, o in enumerate(operands):
            if o.role in ("a", "b"):
                d = 1 if o.role == "a" else 0
                offset = tuple(e + 16 if k == d else e for k, e in enumerate(o.box.offset))
                operands[n] = replace(o, box=replace(o.box, offset=offset))
        return replace(task, operands=tuple(operands))

    return _tasks(program, moved)


@mutation
def part_not_read(program: Program) -> Sites:
    """The consumer adds one part twice and another not at all."""
    scratch = [p.task.split.scratch for p in program.phases() if p.task.split is not None]

    def doubled(task: Task) -> Task | None:
        parts = [o for o in task.operands if o.buffer in scratch and o.access == "read"]
        if len(parts) < 2:
            return None
        operands = (replace(parts[0], role=o.role) if o == parts[-1] else o for o in task.operands)
        return replace(task, operands=tuple(operands))

    return _tasks(program, doubled)
