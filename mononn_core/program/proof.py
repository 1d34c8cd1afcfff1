"""Small proofs about index expressions: by intervals, of sums that guards bound as well, else by enumeration."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from math import inf, prod

import numpy as np

from mononn_core.program.expr import (
    INDEX,
    TRUE,
    Acc,
    Cast,
    Const,
    Expr,
    Load,
    Op,
    Ranges,
    Select,
    Var,
    children,
    op,
    variables,
    walk,
    with_parts,
)
from mononn_core.program.scalar import Array, Frame, evaluate
from mononn_core.program.simplify import bounds, from_linear, linear, simplify

ENUMERATION_LIMIT = 1 << 24
"""Most assignments that a proof enumerates; what needs more counts as not proven."""


def _no_loads(load: Load, index: tuple[Array, ...], mask: Array | None) -> Array:
    raise AssertionError("a guard or goal without free variables loads")


def guarded_loads(e: Expr, guards: tuple[Expr, ...] = ()) -> Iterator[tuple[Load, tuple[Expr, ...]]]:
    """Every Load in ``e`` with the conditions under which lazy Selects evaluate it."""
    if isinstance(e, Load):
        yield e, guards
    if isinstance(e, Select):
        yield from guarded_loads(e.condition, guards)
        yield from guarded_loads(e.then, (*guards, e.condition))
        yield from guarded_loads(e.otherwise, (*guards, op("not", e.condition)))
        return
    for part in children(e):
        yield from guarded_loads(part, guards)


def abstract(e: Expr, ranges: dict[str, tuple[float, float]], changing: Collection[str] = ()) -> Expr:
    """``e`` with everything that depends on data replaced by variables whose ranges are added to ``ranges``: a checked
    index lies in its extent, of anything else nothing is known. What is equal has one value, and one variable, but for
    what is loaded from ``changing`` operands: a name given before the task stored there keeps the old value."""
    found: dict[Expr, Var] = {}

    def variable(n: Expr, low: float, high: float) -> Var:
        known = found.get(n)
        if known is None or (isinstance(n, Load) and n.operand in changing):
            known = found[n] = Var(f"?{len(ranges)}", n.dtype)
            ranges[known.name] = (low, high)
        return known

    def change(n: Expr) -> Expr:
        match n:
            case Op("index" | "known_index", (_, Const(value=extent))):
                return variable(n, 0, extent - 1)
            case Load() | Acc():
                return variable(n, -inf, inf)
            case Cast(value, _) if any(v.startswith("?") for v in variables(value)):
                return variable(n, -inf, inf)
            case _:
                return n

    def changed(e: Expr) -> Expr:  # each for itself, where it stands twice
        parts = children(e)
        return change(with_parts(e, parts, tuple(map(changed, parts))))

    return changed(e)


def _bounded(goal: Expr, ranges: Ranges, guards: tuple[Expr, ...]) -> bool:
    """Whether ``goal``, a comparison of index expressions, follows from intervals of its terms once each sum of terms
    that guards bound, and that stands in the goal as a multiple of itself, counts as one term."""
    found = _difference(goal)
    if found is None:
        return False
    (terms, constant), least = found
    spans: dict[tuple[tuple[Expr, int], ...], float] = {}
    for part in (p for guard in guards for p in _conjuncts(guard)):
        bound = _difference(part)
        if bound is not None:
            (sums, offset), smallest = bound
            key = tuple(sums.items())
            spans[key] = max(spans.get(key, -inf), smallest - offset)
    low, rest = float(constant), dict(terms)
    for key, reached in sorted(spans.items(), key=lambda s: -len(s[0])):
        times = {rest.get(atom, 0) / k for atom, k in key}
        if len(times) == 1 and (many := times.pop()) > 0 and many == int(many):
            low += many * max(reached, bounds(from_linear(dict(key), 0), ranges)[0])
            rest = {atom: k for atom, k in rest.items() if atom not in dict(key)}
    return low + bounds(from_linear(rest, 0), ranges)[0] >= least


def _conjuncts(e: Expr) -> Iterator[Expr]:
    if isinstance(e, Op) and e.name == "and":
        for part in e.args:
            yield from _conjuncts(part)
    else:
        yield e


def _difference(e: Expr) -> tuple[tuple[dict[Expr, int], int], int] | None:
    """Of a comparison of index expressions: a sum (terms, constant) and the least that it is where ``e`` holds."""
    if not isinstance(e, Op) or e.name not in ("ge", "gt", "lt", "le") or e.args[0].dtype != INDEX:
        return None
    a, b = e.args if e.name in ("ge", "gt") else reversed(e.args)
    terms, constant = linear(op("sub", a, b))
    return (dict(sorted(terms.items(), key=lambda t: str(t[0]))), constant), int(e.name in ("gt", "lt"))


def provable(goal: Expr, ranges: Mapping[str, tuple[float, float]], guards: tuple[Expr, ...] = ()) -> bool:
    """Whether the condition ``goal`` holds for every assignment of its variables within ``ranges`` (inclusive) that
    satisfies all ``guards``. Guards over variables without a finite range are ignored, which is safe."""
    finite: Ranges = {n: (int(a), int(b)) for n, (a, b) in ranges.items() if a > -inf and b < inf}
    if simplify(goal, finite) == TRUE or _bounded(goal, finite, guards):
        return True
    names = set(variables(goal))
    if not names <= finite.keys():
        return False
    usable = [g for g in guards if variables(g) <= finite.keys() and not any(isinstance(n, Load) for n in walk(g))]
    chosen: list[Expr] = []
    while more := [g for g in usable if g not in chosen and variables(g) & names]:
        chosen += more
        names |= {n for g in more for n in variables(g)}
    ordered = sorted(names)
    if prod(finite[n][1] - finite[n][0] + 1 for n in ordered) > ENUMERATION_LIMIT:
        return False
    frame = Frame()
    for n in ordered:
        low, high = finite[n]
        frame = frame.loop(n, high - low + 1)
        frame.values[n] = frame.values[n] + low
    met = evaluate(goal, frame, _no_loads).astype(bool)
    for guard in chosen:
        met = met | ~evaluate(guard, frame, _no_loads).astype(bool)
    return bool(np.all(met))
