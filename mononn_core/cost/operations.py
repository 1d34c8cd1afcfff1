"""How many instructions expressions and loops take: what every cost model counts in."""

from __future__ import annotations

from mononn_core.program.expr import INDEX, Expr, Load, Op, Var, substitute, walk
from mononn_core.program.functions import FUNCTIONS
from mononn_core.program.ir import For, Let, Reduce, Statement, Store


def body_operations(body: tuple[Statement, ...]) -> float:
    """Scalar instructions of a nest, all iterations together. What loops over one row share is loaded and computed
    once; a loop of one guarded iteration is few tasks' work and counts nothing."""
    total = 0.0
    rows: dict[int, list[Expr]] = {}
    for s in body:
        match s:
            case For(extent=1, bound=bound) if bound is not None:
                continue
            case For(var=var, extent=extent, body=inner) if all(isinstance(i, Let | Store) for i in inner):
                values = [i.value for i in inner if isinstance(i, Let | Store)]
                rows.setdefault(extent, []).extend(substitute(v, {var: Var("x")}) for v in values)
                total += extent * sum(isinstance(i, Store) for i in inner)
            case For(body=inner, extent=extent):
                total += extent * body_operations(inner)
            case Reduce(var=var, extent=extent, value=value):
                rows.setdefault(extent, []).append(substitute(value, {var: Var("x")}))
                total += extent
            case Let(value=value):
                total += expr_operations(value)
            case Store(value=value):
                total += 1 + expr_operations(value)
    return total + sum(extent * expr_operations(*values) for extent, values in rows.items())


def expr_operations(*expressions: Expr) -> float:
    """Scalar instructions of expressions: equal parts are computed once, index arithmetic is hoisted, a load takes a
    share of a vector's and a conversion."""
    total = 0.0
    for n in {n for e in expressions for n in walk(e)}:
        if isinstance(n, Load):
            total += 1.25
        elif isinstance(n, Op) and n.dtype not in (INDEX, "bool"):
            total += FUNCTIONS[n.name].instructions
    return total
