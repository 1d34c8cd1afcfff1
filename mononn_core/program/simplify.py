"""The simplifier of index expressions: bounds, linear forms, and the canonical form that is printed.

:func:`simplify` is applied once the ranges of an expression's variables are known, before anything is printed or
compared.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import gcd

from mononn_core.element import COMPUTE, SHORT
from mononn_core.program.expr import (
    FALSE,
    INDEX,
    TRUE,
    Cast,
    Const,
    Expr,
    Op,
    Ranges,
    Select,
    Var,
    add,
    children,
    mul,
    with_parts,
)

Linear = dict[Expr, int]
SUMS = ("add", "sub", "mul", "neg")
"""Operations of which a linear form consists."""


def bounds(e: Expr, ranges: Ranges) -> tuple[float, float]:
    """Inclusive interval an index expression lies in; infinite where nothing is known."""
    match e:
        case Const():
            return (e.value, e.value)
        case Var():
            return ranges.get(e.name, (float("-inf"), float("inf")))
        case Op("add", (a, b)):
            (al, ah), (bl, bh) = bounds(a, ranges), bounds(b, ranges)
            return (al + bl, ah + bh)
        case Op("mul", (a, Const(value=c))):
            low, high = bounds(a, ranges)
            return (0, 0) if c == 0 else (low * c, high * c) if c > 0 else (high * c, low * c)
        case Op("floordiv", (a, Const(value=c))):
            low, high = bounds(a, ranges)
            return (low // c if low > float("-inf") else low, high // c if high < float("inf") else high)
        case Op("mod", (a, Const(value=c))):
            low, high = bounds(a, ranges)
            return (low, high) if low >= 0 and high < c else (0, c - 1)
        case Op("index" | "known_index", (_, Const(value=n))):
            return (0, n - 1)
        case Op("min", (a, b)):
            (al, ah), (bl, bh), total = bounds(a, ranges), bounds(b, ranges), _total(a, b)
            return (min(al, bl), min(ah, bh) if total is None else min(ah, bh, total // 2))
        case Op("max", (a, b)):
            (al, ah), (bl, bh), total = bounds(a, ranges), bounds(b, ranges), _total(a, b)
            return (max(al, bl) if total is None else max(al, bl, -(-total // 2)), max(ah, bh))
        case Select(_, a, b):
            (al, ah), (bl, bh) = bounds(a, ranges), bounds(b, ranges)
            return (min(al, bl), max(ah, bh))
        case _:
            return (float("-inf"), float("inf"))


def _total(a: Expr, b: Expr) -> int | None:
    """The constant that a sum of indices always is, as the two ends of what a reflection chooses from; else None."""
    if a.dtype != INDEX or isinstance(a, Const) or isinstance(b, Const):
        return None
    terms, constant = _sum(linear(a), linear(b), 1)
    return None if terms else constant


def linear(e: Expr) -> tuple[Linear, int]:
    """Coefficients of the non-linear atoms of an index expression, and the constant term."""
    match e:
        case Const():
            return {}, int(e.value)
        case Op("add" | "sub", (a, b)):
            return _sum(linear(a), linear(b), 1 if e.name == "add" else -1)
        case Op("mul", (a, Const(value=k))):
            return _times(linear(a), int(k))
        case Op("neg", (a,)):
            return _times(linear(a), -1)
        case _:
            return {e: 1}, 0


def _sum(a: tuple[Linear, int], b: tuple[Linear, int], sign: int) -> tuple[Linear, int]:
    """``a + sign b``."""
    (terms, c), (more, d) = a, b
    if not more:
        return terms, c + sign * d
    total = dict(terms)
    for atom, k in more.items():
        total[atom] = total.get(atom, 0) + sign * k
    return {atom: k for atom, k in total.items() if k}, c + sign * d


def _times(a: tuple[Linear, int], factor: int) -> tuple[Linear, int]:
    terms, c = a
    return ({atom: k * factor for atom, k in terms.items()} if factor else {}), c * factor


def from_linear(terms: Linear, constant: int) -> Expr:
    """The canonical sum: atoms ordered by text, largest coefficient first, the constant last."""
    ordered = list(terms.items())
    if len(ordered) > 1:
        distinct = len({abs(k) for k in terms.values()}) == len(ordered)
        ordered.sort(key=lambda item: (-abs(item[1]), "" if distinct else str(item[0])))
    total: Expr = Const(0)
    for atom, k in ordered:
        total = add(total, mul(atom, k))
    return add(total, constant)


def simplify(e: Expr, ranges: Ranges) -> Expr:
    """Canonical form of an expression whose integer variables lie in ``ranges``.

    Sums become linear forms; division and remainder by a constant drop the parts that divide and the parts that are
    too small to matter; comparisons and minima decided by their bounds disappear. Non-index nodes are kept, with
    their index parts simplified. What a Select chooses is simplified in the ranges in which it is chosen.
    """
    return _simplify(e, ranges, _known(tuple(ranges.items())))


Known = dict[Expr, Expr]
"""Expressions in their canonical form: what shares a part, as a quotient and its remainder do, asks for it again and
again."""


@lru_cache(500)
def _known(ranges: tuple[tuple[str, tuple[int, int]], ...]) -> Known:
    """What was simplified in these ranges."""
    return {}


def _simplify(e: Expr, ranges: Ranges, known: Known) -> Expr:
    if (found := known.get(e)) is None:
        if isinstance(e, Op) and e.dtype == INDEX and e.name in SUMS:  # all of a sum at once
            found = _recombine(*_terms(e, ranges, known), ranges)
        else:
            found = _simplify_node(_parts(e, ranges, known), ranges)
        known[e] = found
    return found


def _parts(e: Expr, ranges: Ranges, known: Known) -> Expr:
    """``e`` with its direct subexpressions simplified."""
    return _changed(e, ranges, lambda part, where: _simplify(part, where, known if where is ranges else {}))


def _terms(e: Expr, ranges: Ranges, known: Known) -> tuple[Linear, int]:
    """As :func:`linear`, of the expression with its atoms simplified."""
    match e:
        case Op("add" | "sub", (a, b)):
            return _sum(_terms(a, ranges, known), _terms(b, ranges, known), 1 if e.name == "add" else -1)
        case Op("mul", (a, Const(value=k))):
            return _times(_terms(a, ranges, known), int(k))
        case Op("neg", (a,)):
            return _times(_terms(a, ranges, known), -1)
        case Op("mul"):
            return linear(_parts(e, ranges, known))
        case _:
            return linear(_simplify(e, ranges, known))


def transform_guarded(e: Expr, ranges: Ranges, change: Callable[[Expr, Ranges], Expr]) -> Expr:
    """As :func:`mononn_core.program.expr.transform`, where ``change`` is told the ranges of the variables where a node
    is evaluated: within what a Select chooses, those that its condition leaves them."""
    return change(_changed(e, ranges, lambda part, where: transform_guarded(part, where, change)), ranges)


def _changed(e: Expr, ranges: Ranges, change: Callable[[Expr, Ranges], Expr]) -> Expr:
    """``e`` with its direct subexpressions changed, each in the ranges in which it is evaluated."""
    if isinstance(e, Select):
        condition = change(e.condition, ranges)
        then = change(e.then, assuming(condition, ranges))
        return with_parts(e, children(e), (condition, then, change(e.otherwise, ranges)))
    if parts := children(e):
        return with_parts(e, parts, tuple([change(p, ranges) for p in parts]))
    return e


def assuming(condition: Expr, ranges: Ranges) -> Ranges:
    """``ranges`` where a condition holds: narrower for the variables that it compares with constants."""
    match condition:
        case Op("and", (a, b)):
            return assuming(b, assuming(a, ranges))
        case Op("lt" | "le" | "gt" | "ge", (a, b)) if a.dtype == INDEX:
            terms, constant = linear(add(a, mul(b, -1)))
            if len(terms) != 1 or not isinstance(v := next(iter(terms)), Var) or v.name not in ranges:
                return ranges
            k = terms[v]
            if condition.name in ("gt", "ge"):  # as less than, or as much as, 0
                k, constant = -k, -constant
            most = -constant - (condition.name in ("lt", "gt"))  # k v <= most
            low, high = ranges[v.name]
            low, high = (low, min(high, most // k)) if k > 0 else (max(low, -(most // -k)), high)
            return {**ranges, v.name: (low, high)} if low <= high else ranges
        case _:
            return ranges


def _simplify_node(e: Expr, ranges: Ranges) -> Expr:
    if isinstance(e, Select):
        return e.then if e.condition == TRUE or e.then == e.otherwise else e.otherwise if e.condition == FALSE else e
    if isinstance(e, Cast) and isinstance(chosen := e.value, Select) and (e.dtype == COMPUTE and chosen.dtype in SHORT):
        return Select(chosen.condition, *(_as_float(part) for part in (chosen.then, chosen.otherwise)))
    if e.dtype not in (INDEX, "bool") or not isinstance(e, Op):
        return e
    match e:
        case Op("floordiv", (a, Const(value=c))):
            return _divide(a, int(c), ranges)
        case Op("mod", (a, Const(value=c))):
            return _remainder(a, int(c), ranges)
        case Op("index", (a, Const(value=n))):
            low, high = bounds(a, ranges)
            return a if low >= 0 and high < n else e
        case Op("min" | "max", (a, b)) if e.dtype == INDEX:
            (al, ah), (bl, bh) = bounds(a, ranges), bounds(b, ranges)
            if ah <= bl:
                return a if e.name == "min" else b
            if bh <= al:
                return b if e.name == "min" else a
            return e
        case Op("lt" | "le" | "gt" | "ge" | "eq" | "ne", (a, b)) if a.dtype == INDEX:
            return _compare(e, a, b, ranges)
        case Op("and", (a, b)):
            return b if a == TRUE else a if b == TRUE else FALSE if FALSE in (a, b) else e
        case Op("or", (a, b)):
            return b if a == FALSE else a if b == FALSE else TRUE if TRUE in (a, b) else e
        case _:
            return e


def _as_float(e: Expr) -> Expr:
    """A byte as what generated code computes with."""
    return Const(float(e.value), COMPUTE) if isinstance(e, Const) else Cast(e, COMPUTE)


def _compare(e: Op, a: Expr, b: Expr, ranges: Ranges) -> Expr:
    low, high = bounds(from_linear(*linear(add(a, mul(b, -1)))), ranges)
    decided = {
        "lt": (high < 0, low >= 0),
        "le": (high <= 0, low > 0),
        "gt": (low > 0, high <= 0),
        "ge": (low >= 0, high < 0),
        "eq": (low == high == 0, low > 0 or high < 0),
        "ne": (low > 0 or high < 0, low == high == 0),
    }[e.name]
    return TRUE if decided[0] else FALSE if decided[1] else e


def _recombine(terms: Linear, constant: int, ranges: Ranges) -> Expr:
    """The sum, with every pair ``k c (x // c) + k (x % c)`` put together again as ``k x``."""
    for atom, k in terms.items():
        match atom:
            case Op("mod", (x, Const(value=c))):
                whole = _divide(x, int(c), ranges)
                if terms.get(whole) == k * int(c):
                    rest = {a: t for a, t in terms.items() if a not in (atom, whole)}
                    more, extra = linear(add(from_linear(rest, constant), mul(x, k)))
                    return _recombine(more, extra, ranges)
    return from_linear(terms, constant)


def _split(a: Expr, c: int) -> tuple[Expr, Expr]:
    """``a`` as ``quotient * c + rest``, moving every term whose coefficient ``c`` divides."""
    terms, constant = linear(a)
    quotient = {atom: k // c for atom, k in terms.items() if k % c == 0}
    rest = {atom: k for atom, k in terms.items() if k % c}
    return from_linear(quotient, constant // c), from_linear(rest, constant % c)


def _coarser(a: Expr, c: int, ranges: Ranges) -> tuple[int, Expr, Expr] | None:
    """A divisor k of ``c`` with ``a`` as ``k * coarse + fine``, where fine is in [0, k): then a // c is
    coarse // (c / k), and fine is of no concern. (k, coarse, fine); None where there is none."""
    terms, constant = linear(a)
    for k in sorted({gcd(t, c) for t in terms.values()} - {1, c}, reverse=True):
        fine = from_linear({atom: t for atom, t in terms.items() if t % k}, constant % k)
        low, high = bounds(fine, ranges)
        if low >= 0 and high < k:
            return k, from_linear({atom: t // k for atom, t in terms.items() if t % k == 0}, constant // k), fine
    return None


def _divide(a: Expr, c: int, ranges: Ranges) -> Expr:
    if c == 1:
        return a
    quotient, rest = _split(a, c)
    low, high = bounds(rest, ranges)
    if low > float("-inf") and high < float("inf") and low // c == high // c:
        return add(quotient, int(low // c))
    coarser = _coarser(rest, c, ranges)
    match rest:
        case _ if coarser is not None:
            inner = _divide(coarser[1], c // coarser[0], ranges)
        case Op("floordiv", (x, Const(value=d))):
            inner = _divide(x, int(d) * c, ranges)
        case _:
            inner = Op("floordiv", (rest, Const(c)), INDEX)
    return from_linear(*linear(add(quotient, inner)))


def _remainder(a: Expr, c: int, ranges: Ranges) -> Expr:
    if c == 1:
        return Const(0)
    _, rest = _split(a, c)
    low, high = bounds(rest, ranges)
    if low > float("-inf") and high < float("inf") and low // c == high // c:
        return add(rest, int(-(low // c) * c))
    coarser = _coarser(rest, c, ranges)
    match rest:
        case _ if coarser is not None:
            k, coarse, fine = coarser
            return from_linear(*linear(add(mul(_remainder(coarse, c // k, ranges), k), fine)))
        case Op("mod", (x, Const(value=d))) if int(d) % c == 0:
            return _remainder(x, c, ranges)
        case _:
            return Op("mod", (rest, Const(c)), INDEX)
