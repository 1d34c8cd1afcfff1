"""How far apart in memory the neighbours along a variable lie."""

from __future__ import annotations

from mononn_core.program.expr import Const, Expr, Op, Var, variables
from mononn_core.program.simplify import linear

WIDEST = 16
"""Lanes of the widest vector; those of others divide them."""


RUNS = (8, 4)


def step_along(offset: Expr, var: str, *, aligned: bool, lanes: int = WIDEST) -> int | None:
    """Elements between neighbours along ``var``, or None where they are not evenly spaced. ``aligned``: of those alone
    that are one vector, which begins at a multiple of its ``lanes``."""
    terms, _ = linear(offset)
    own, step = Var(var), 0
    for term, factor in terms.items():
        if var not in variables(term):
            continue
        each = 1 if term == own else _of_vector(term, var, lanes) if aligned else None
        if each is None:
            return None
        step += factor * each
    return step


def run_along(offset: Expr, var: str) -> str:
    """For the vocabulary: so many lanes, from each multiple of that number on, lie side by side; "" where none do."""
    found = (lanes for lanes in RUNS if step_along(offset, var, aligned=True, lanes=lanes) == 1)
    return next((f", {lanes}" for lanes in found), "")


def _of_vector(term: Expr, var: str, lanes: int) -> int | None:
    """Of a quotient or a remainder by a number of whole vectors: each multiple lies before or behind all of it; 0 of
    those of something that is the same in all of it."""
    match term:
        case Op("floordiv" | "mod", (inner, Const())) if step_along(inner, var, aligned=True, lanes=lanes) == 0:
            return 0
        case Op("floordiv" | "mod" as name, (inner, Const() as divisor)) if int(divisor.value) % lanes == 0:
            terms, first = linear(inner)
            others = {e: k for e, k in terms.items() if e != Var(var)}
            whole = first % lanes == 0 and all(k % lanes == 0 and var not in variables(e) for e, k in others.items())
            if whole and terms.get(Var(var)) == 1:
                return int(name == "mod")
    return None
