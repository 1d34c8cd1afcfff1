"""Programs made wrong in their tasks: domains, stores, loads, types, nests, splits, names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from mononn_core.program.expr import Acc, Const, Expr, Load, Op, Var, op, transform, walk
from mononn_core.program.ir import Axis, For, Let, Loop, Phase, Program, Reduce, Statement, Store, Task
from tests.core.mutate import Sites, mutation, operands, phases, tasks


def _results(program: Program) -> Iterator[tuple[str, Any, Callable[..., Program]]]:
    """(site, a Result or Store, function that puts others in its place): everything that stores."""
    for phase, put in tasks(program):
        task = phase.task
        for n, result in enumerate(task.results):

            def change(*new: Any, task: Task = task, n: int = n, put: Any = put) -> Program:
                return put(replace(task, results=(*task.results[:n], *new, *task.results[n + 1 :])))

            yield f"{phase.id} result {n}", result, change
        for site, statement, rebuild in _statements(task.body):
            if isinstance(statement, Store):

                def change_store(*new: Any, task: Task = task, put: Any = put, rebuild: Any = rebuild) -> Program:
                    return put(replace(task, body=rebuild(new)))

                yield f"{phase.id} store {site}", statement, change_store


def _statements(
    body: tuple[Statement, ...], path: str = ""
) -> Iterator[tuple[str, Statement, Callable[[tuple[Statement, ...]], tuple[Statement, ...]]]]:
    """(path, statement, function that gives the body with others in its place), depth first."""
    for n, s in enumerate(body):

        def here(new: tuple[Statement, ...], n: int = n) -> tuple[Statement, ...]:
            return (*body[:n], *new, *body[n + 1 :])

        yield f"{path}{n}", s, here
        if isinstance(s, For):
            for inner, statement, rebuild in _statements(s.body, f"{path}{n}."):
                yield (
                    inner,
                    statement,
                    lambda new, s=s, here=here, rebuild=rebuild: here((replace(s, body=rebuild(new)),)),
                )


def _bodies(program: Program) -> Iterator[tuple[str, Statement, Callable[..., Program]]]:
    """(site, statement, function that puts others in its place), over all nests."""
    for phase, put in tasks(program):
        for path, statement, rebuild in _statements(phase.task.body):

            def change(*new: Any, task: Task = phase.task, put: Any = put, rebuild: Any = rebuild) -> Program:
                return put(replace(task, body=rebuild(new)))

            yield f"{phase.id} {path}", statement, change


def _replace_load(e: Expr, change: Callable[[Load], Load]) -> Expr:
    return transform(e, lambda n: change(n) if isinstance(n, Load) else n)


# -- domains and stores ---------------------------------------------------------------


@mutation("the last tasks' elements are never written", ask=True)
def domain_shrunk(program: Program) -> Sites:
    for phase, put in phases(program):
        for n, axis in enumerate(phase.domain):
            if axis.extent > 1:
                domain = (*phase.domain[:n], Axis(axis.var, axis.extent - 1), *phase.domain[n + 1 :])
                yield f"{phase.id}.{axis.var}", put(replace(phase, domain=domain))


@mutation("the store leaves its box, or two tasks store one element", ask=True)
def store_index_shifted(program: Program) -> Sites:
    for site, store, change in _results(program):
        for d, e in enumerate(store.index):
            for step in (1, -1):
                index = (*store.index[:d], e + step, *store.index[d + 1 :])
                yield f"{site} dim {d} by {step}", change(replace(store, index=index))


@mutation("different iterations store the same element", ask=True)
def store_index_constant(program: Program) -> Sites:
    for site, store, change in _results(program):
        for d in range(len(store.index)):
            index = (*store.index[:d], Const(0), *store.index[d + 1 :])
            yield f"{site} dim {d}", change(replace(store, index=index))


@mutation("the windows read other pixels than the box declares", ask=True)
def windows_changed(program: Program) -> Sites:
    for phase, put in tasks(program):
        params = dict(phase.task.params)
        for key in ("pitch", "width", "rows"):
            for step in (1, -1) if key in params else ():
                yield (
                    f"{phase.id} {key} by {step}",
                    put(replace(phase.task, params={**params, key: params[key] + step})),
                )
        for key in ("kernel", "strides", "dilations"):
            for d, step in ((0, 1), (0, -1), (1, 1), (1, -1)) if key in params else ():
                pair = tuple(n + step if i == d else n for i, n in enumerate(params[key]))
                yield f"{phase.id} {key}[{d}] by {step}", put(replace(phase.task, params={**params, key: pair}))


@mutation("an element of shared memory is stored twice by one task")
def store_doubled(program: Program) -> Sites:
    local = {role for phase in program.phases() for role in _private(program, phase)[0]}
    for site, store, change in _results(program):
        if store.operand not in local:
            yield site, change(store, store)


@mutation("elements are never written", ask=True)
def loop_shortened(program: Program) -> Sites:
    for site, s, change in _bodies(program):
        if isinstance(s, For) and s.extent > 1:
            yield site, change(replace(s, extent=s.extent - 1))


@mutation("the loop runs past the box", ask=True)
def loop_lengthened(program: Program) -> Sites:
    for site, s, change in _bodies(program):
        if isinstance(s, For) and s.bound is None:
            yield site, change(replace(s, extent=s.extent + 1))


@mutation("a ragged tile runs past its end", ask=True)
def loop_bound_dropped(program: Program) -> Sites:
    for site, s, change in _bodies(program):
        if isinstance(s, For) and s.bound is not None:
            yield site, change(replace(s, bound=None))
            yield f"{site} + 1", change(replace(s, bound=s.bound + 1, extent=s.extent + 1))


@mutation("the reduction runs past the box", ask=True)
def reduction_lengthened(program: Program) -> Sites:
    for site, s, change in _bodies(program):
        if isinstance(s, Reduce):
            yield site, change(replace(s, extent=s.extent + 1))


@mutation("a load leaves its box", ask=True)
def load_index_shifted(program: Program) -> Sites:
    for site, s, change in [*_results(program), *_bodies(program)]:
        value = getattr(s, "value", None)
        roles = sorted({n.operand for n in walk(value) if isinstance(n, Load)}) if value is not None else []
        for role in roles:
            for d in range(len(next(n for n in walk(value) if isinstance(n, Load) and n.operand == role).index)):

                def shift(n: Load, role: str = role, d: int = d) -> Load:
                    if n.operand != role:
                        return n
                    return replace(n, index=(*n.index[:d], n.index[d] + 1, *n.index[d + 1 :]))

                yield f"{site} {role} dim {d}", change(replace(s, value=_replace_load(value, shift)))


@mutation("an index from data is checked against the wrong extent")
def data_index_unchecked(program: Program) -> Sites:
    def wider(n: Expr) -> Expr:
        match n:
            case Op("index", (x, Const(value=extent))):
                return op("index", x, Const(int(extent) + 1))
            case _:
                return n

    def unchecked(n: Expr) -> Expr:
        return n.args[0] if isinstance(n, Op) and n.name == "index" else n

    for site, s, change in _bodies(program):
        value = getattr(s, "value", None)
        if value is not None and any(isinstance(n, Op) and n.name == "index" for n in walk(value)):
            yield f"{site} wider", change(replace(s, value=transform(value, wider)))
            yield f"{site} unchecked", change(replace(s, value=transform(value, unchecked)))


# -- names, types, roles --------------------------------------------------------------


@mutation("an expression of another type is stored")
def store_of_wrong_type(program: Program) -> Sites:
    for site, store, change in _results(program):
        other = "float64" if store.value.dtype != "float64" else "float32"
        yield site, change(replace(store, value=Const(0, other)))


@mutation("a variable is used that nothing binds")
def variable_unbound(program: Program) -> Sites:
    for site, store, change in _results(program):
        yield site, change(replace(store, index=(store.index[0] + Var("nobody"), *store.index[1:])))
    for site, s, change in _bodies(program):
        if isinstance(s, (Let, Reduce)):
            yield f"{site} dropped", change() if _used(program, s.name) else change(replace(s, name=""), s, s)


def _used(program: Program, name: str) -> bool:
    return any(
        isinstance(n, Var) and n.name == name
        for p in program.phases()
        for _, s, _ in _statements(p.task.body)
        if isinstance(s, (Store, Let, Reduce))
        for n in walk(s.value)
    )


@mutation("a task loads what it may only write, or an operand that is not there")
def role_confused(program: Program) -> Sites:
    for site, s, change in [*_results(program), *_bodies(program)]:
        value = getattr(s, "value", None)
        if value is not None and any(isinstance(n, Load) for n in walk(value)):
            yield f"{site} missing", change(replace(s, value=_replace_load(value, _rename)))
    for site, store, change in _results(program):
        yield f"{site} stores", change(replace(store, operand=store.operand + "?"))
    for site, phase, o, put in operands(program):
        if o.access != "read" and any(r.operand == o.role for r in phase.task.results):
            yield f"{site} as read", put(replace(o, access="read"))


def _rename(n: Load) -> Load:
    return replace(n, operand=n.operand + "?")


@mutation("the accumulator stands where there is none")
def accumulator_in_nest(program: Program) -> Sites:
    for site, s, change in _bodies(program):
        if isinstance(s, Store):
            yield site, change(replace(s, value=op("add", s.value, Acc(s.value.dtype))))


@mutation("a template lacks an operand, or contracts one with another tensor")
def template_operand_missing(program: Program) -> Sites:
    for phase, put in tasks(program):
        if phase.task.template != "nest":
            yield phase.id, put(replace(phase.task, operands=phase.task.operands[1:]))
            yield f"{phase.id} twice", put(replace(phase.task, operands=(*phase.task.operands, phase.task.operands[0])))
            yield f"{phase.id} nest", put(replace(phase.task, template="nest"))


@mutation("one name stands for two things")
def names_collide(program: Program) -> Sites:
    for phase, put in phases(program):
        if len(phase.domain) > 1:
            domain = (phase.domain[0], Axis(phase.domain[0].var, phase.domain[1].extent), *phase.domain[2:])
            yield f"{phase.id} domain", put(replace(phase, domain=domain))
        others = [p.id for p in program.phases() if p.id != phase.id]
        if others:
            yield f"{phase.id} id", put(replace(phase, id=others[0]))
    for n, b in enumerate(program.buffers[1:], 1):
        twin = replace(b, id=program.buffers[0].id)
        yield f"buffer {b.id}", replace(program, buffers=(*program.buffers[:n], twin, *program.buffers[n + 1 :]))


@mutation("a rolled loop runs more or fewer rounds than its table has rows")
def loop_count_changed(program: Program) -> Sites:
    for n, item in enumerate(program.body):
        if isinstance(item, Loop):
            for count in (item.count - 1, item.count + 1):
                body = (*program.body[:n], replace(item, count=count), *program.body[n + 1 :])
                yield f"{item.var} {count}", replace(program, body=body)


# -- worker-local temporaries ---------------------------------------------------------


def _private(program: Program, phase: Phase) -> tuple[set[str], set[str]]:
    """Roles of the phase's worker-local operands: (written, read)."""
    local = {b.id for b in program.buffers if b.space == "local"}
    mine = [o for o in phase.task.operands if o.buffer in local]
    return {o.role for o in mine if o.access != "read"}, {o.role for o in mine if o.access == "read"}


def _loads(s: Statement, roles: set[str]) -> bool:
    if isinstance(s, For):
        return any(_loads(inner, roles) for inner in s.body)
    return any(isinstance(n, Load) and n.operand in roles for n in walk(s.value))


def _stores(s: Statement, roles: set[str]) -> bool:
    if isinstance(s, For):
        return any(_stores(inner, roles) for inner in s.body)
    return isinstance(s, Store) and s.operand in roles


@mutation("a worker-local element is read before the task has written it")
def temporary_read_too_early(program: Program) -> Sites:
    for phase, _ in phases(program):
        written, read = _private(program, phase)
        if not written or not read:
            continue
        for site, s, change in _bodies(program):
            if site.startswith(phase.id + " ") and _stores(s, written) and not _loads(s, read):
                yield f"{site} dropped", change()
                if isinstance(s, For):
                    yield f"{site} shorter", change(replace(s, extent=s.extent - 1))


@mutation("vector lanes share a worker-local buffer that is stored and loaded inside")
def dependent_lanes(program: Program) -> Sites:
    for phase, _ in phases(program):
        written, read = _private(program, phase)
        for site, s, change in _bodies(program):
            if site.startswith(phase.id + " ") and isinstance(s, For) and _stores(s, written) and _loads(s, read):
                yield site, change(replace(s, kind="vector"))


# -- splits ---------------------------------------------------------------------------


@mutation("part of the contraction is missing from the sum")
def split_part_dropped(program: Program) -> Sites:
    for phase, put in phases(program):
        split = phase.task.split
        if split is None:
            continue
        domain = tuple(Axis(a.var, a.extent - 1) if a.var == split.axis else a for a in phase.domain)
        fewer = replace(phase.task, split=replace(split, parts=split.parts - 1))
        yield f"{phase.id} domain", put(replace(phase, domain=domain))
        yield f"{phase.id} parts", put(replace(phase, task=fewer))
        yield f"{phase.id} both", put(replace(phase, domain=domain, task=fewer))
    scratch = {p.task.split.scratch for p in program.phases() if p.task.split is not None}
    for site, _, o, put_operand in operands(program):
        if o.buffer in scratch and o.access == "read":
            box = replace(o.box, size=(o.box.size[0] - 1, *o.box.size[1:]))
            yield f"{site} reads fewer", put_operand(replace(o, box=box))


@mutation("a nonlinear epilogue is applied to partial sums, or they are not declared as such")
def split_epilogue(program: Program) -> Sites:
    for phase, put in tasks(program):
        if phase.task.split is not None:
            results = tuple(replace(r, value=op("max", r.value, Const(0.0, "float32"))) for r in phase.task.results)
            yield phase.id, put(replace(phase.task, results=results))
            plain = tuple(replace(o, access="write") if o.access == "partial" else o for o in phase.task.operands)
            yield f"{phase.id} as write", put(replace(phase.task, operands=plain))
            axis = replace(phase.task.split, axis=phase.task.split.axis + "?")
            yield f"{phase.id} axis", put(replace(phase.task, split=axis))


@mutation("the parts overlap, or leave terms out")
def split_misaligned(program: Program) -> Sites:
    for site, phase, o, put in operands(program):
        if phase.task.split is not None and o.role in ("a", "b"):
            d = 1 if o.role == "a" else 0
            offset = (*o.box.offset[:d], o.box.offset[d] + 1, *o.box.offset[d + 1 :])
            yield site, put(replace(o, box=replace(o.box, offset=offset)))
