"""What threads load ahead of its use, and which points of a nest neighbouring threads take."""

from __future__ import annotations

from collections.abc import Iterable

from mononn_core.codegen.cuda_expressions import CudaPrinter, guarded_loads, loadable, unguarded_loads
from mononn_core.codegen.cuda_teams import inside
from mononn_core.element import itemsize
from mononn_core.program.expr import Const, Expr, Load, substitute, variables, walk
from mononn_core.program.ir import For, Let, Reduce, Statement, Store
from mononn_core.program.simplify import simplify

FAR = 1 << 62
"""Of an order of threads that has nothing side by side."""


def words_of(loads: Iterable[Expr], width: int) -> int:
    """Registers that ``width`` neighbours of each load take."""
    return sum(max(1, width * itemsize(e.dtype) // 4) for e in loads)


def coalesced(loops: tuple[For, ...], printer: CudaPrinter) -> tuple[For, ...]:
    """``loops`` in the order in which their points are dealt to threads: neighbouring threads load what lies nearest
    in global memory. Every order stores the same."""
    values = [t.value for t in loops[-1].body if isinstance(t, (Let, Store))]
    loads = [n for value in values for n in walk(value) if isinstance(n, Load)]
    steps = [min((_step(e, loop.var, printer) for e in loads), default=0) for loop in loops]
    best = min(range(len(loops)), key=lambda n: (steps[n] or FAR, -n))
    return (*loops[:best], *loops[best + 1 :], loops[best])


def _step(e: Load, var: str, printer: CudaPrinter) -> int:
    """Elements between what a load reads at the first two values of ``var``, all else being 0; 0 where that is loaded
    itself, or the same."""
    if any(isinstance(n, Load) for i in e.index for n in walk(i)):
        return 0
    names = {n for i in e.index for n in variables(i)}
    places = []
    for value in (0, 1):
        at = {name: Const(value if name == var else 0) for name in names}
        offset = printer.pointers[e.operand].address(tuple(simplify(substitute(i, at), {}) for i in e.index), {})
        offset = simplify(offset, {})
        if not isinstance(offset, Const):
            return 0
        places.append(int(offset.value))
    return abs(places[1] - places[0])


def is_weight(e: Load, printer: CudaPrinter) -> bool:
    """Whether a load reads what no phase writes."""
    return printer.pointers[e.operand].buffer.space == "weight"


def ready(body: tuple[Statement, ...], loads: Iterable[Load], printer: CudaPrinter) -> list[Load]:
    """Those of ``loads`` that need nothing of what ``body`` binds, or stores under whatever role."""
    inner = [s for outer in body for s in inside(outer)]
    bound = {s.name for s in inner if isinstance(s, (Let, Reduce))}
    stored = {printer.pointers[s.operand].buffer.id for s in inner if isinstance(s, Store)}
    free = (e for e in loads if printer.pointers[e.operand].buffer.id not in stored)
    return [e for e in free if bound.isdisjoint(variables(e))]


def loads_ahead(loop: For, bound: frozenset[str], width: int, printer: CudaPrinter) -> dict[Load, Expr | None]:
    """What the body of ``loop`` loads, ``width`` neighbours at once, that needs nothing of what it and ``bound`` bind,
    each with the one condition that it stands under."""
    values = [s.value for s in loop.body if isinstance(s, (Let, Store))]
    found: dict[Load, Expr | None] = {}
    for value in values:
        found |= {e: None for e in unguarded_loads(value, printer.loaded) if loadable(e, loop.var, width, printer)}
    for value in values:
        guarded = guarded_loads(value, loop.var, width, printer)
        found |= {e: condition for e, condition in guarded.items() if e not in found}
    names = bound | {s.name for s in loop.body if isinstance(s, (Let, Reduce))}
    return {
        e: condition
        for e, condition in found.items()
        if names.isdisjoint(variables(e)) and (condition is None or names.isdisjoint(variables(condition)))
    }
