"""What of an expression a loop need not compute again."""

from __future__ import annotations

from mononn_core.element import NARROW
from mononn_core.program.expr import Cast, Expr, Load, Select, Var, children, rebuild, variables, walk
from mononn_core.program.ir import For, Let, Statement, Store


def hoist(e: Expr, var: str, prefix: str = "h") -> tuple[tuple[Statement, ...], Expr]:
    """Bind every largest loading subexpression that does not depend on ``var``, so that a loop over ``var`` reads it
    once. What a Select guards stays behind its guard: it may be out of range elsewhere."""
    bound: dict[Expr, Var] = {}

    def visit(n: Expr) -> Expr:
        if var not in variables(n) and not (isinstance(n, Cast) and n.dtype in NARROW):
            if not any(isinstance(m, Load) for m in walk(n)):
                return n
            return bound.setdefault(n, Var(f"{prefix}{len(bound)}", n.dtype))
        parts = children(n)
        if isinstance(n, Select):
            return Select(visit(n.condition), n.then, n.otherwise)
        new = tuple(visit(p) for p in parts)
        return rebuild(n, new) if any(a is not b for a, b in zip(parts, new, strict=True)) else n

    value = visit(e)
    return tuple(Let(v.name, n) for n, v in bound.items()), value


def unswitched(loop: For) -> tuple[Expr, tuple[Statement, ...], tuple[Statement, ...]] | None:
    """A loop that stores one of two values, by a condition that does not depend on its variable, as that condition,
    what to do where it holds, and what elsewhere; None unless less is then computed again."""
    (store, *more), cast = loop.body, None
    if more or not isinstance(store, Store):
        return None
    chosen = store.value
    if isinstance(chosen, Cast):
        cast, chosen = chosen.dtype, chosen.value
    if not isinstance(chosen, Select) or loop.var in variables(chosen.condition):
        return None
    prefix = "g"
    while any(name.startswith(prefix) for name in variables(store.value)):
        prefix += "_"

    def only(value: Expr) -> tuple[Statement, ...]:
        lets, rest = hoist(value if cast is None else Cast(value, cast), loop.var, prefix)
        return (*lets, For(loop.var, loop.extent, (Store(store.operand, store.index, rest),), loop.kind, loop.bound))

    then, otherwise = only(chosen.then), only(chosen.otherwise)
    return (chosen.condition, then, otherwise) if len(then) + len(otherwise) > 2 else None
