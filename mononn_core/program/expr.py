"""Index and scalar expressions, and their simplifier.

    Expr = Const(value, dtype) | Var(name, dtype) | Load(operand, index, dtype) | Acc(dtype)
         | Op(name, args, dtype) | Select(condition, then, otherwise) | Cast(value, dtype)

Expressions are immutable trees compared by value. ``Load`` names an operand of the task by its role and reads its
logical element. ``Acc`` is the accumulator handed to an epilogue. Integer expressions (dtype "int64") are index
arithmetic: built with Python operators, folded as they are built, and brought into a canonical linear form by
:func:`simplify` once the ranges of their variables are known, before anything is printed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import reduce as fold
from typing import Union

INDEX = "int64"

UNARY = frozenset(
    "neg abs exp log sqrt tanh erf sin cos floor ceil round sign reciprocal not isnan isinf sigmoid softplus "
    "tan sinh cosh asin acos atan asinh acosh atanh bitnot".split()
)
BINARY = frozenset(
    "add sub mul div floordiv mod min max pow lt le gt ge eq ne and or xor fmod bitand bitor bitxor shl shr index".split()
)
"""``index(i, n)`` is an index taken from data: i, or i + n where i is negative; outside [-n, n) it reports the run's
index error and yields 0."""
COMPARISONS = frozenset("lt le gt ge eq ne and or xor not isnan isinf".split())


class _Arithmetic:
    """Python operators on index expressions."""

    def __add__(self, other: Expr | int) -> Expr:
        return add(self, other)  # type: ignore[arg-type]

    __radd__ = __add__

    def __sub__(self, other: Expr | int) -> Expr:
        return add(self, mul(other, -1))  # type: ignore[arg-type]

    def __rsub__(self, other: Expr | int) -> Expr:
        return add(other, mul(self, -1))  # type: ignore[arg-type]

    def __mul__(self, other: Expr | int) -> Expr:
        return mul(self, other)  # type: ignore[arg-type]

    __rmul__ = __mul__

    def __floordiv__(self, other: int) -> Expr:
        return floordiv(self, other)  # type: ignore[arg-type]

    def __mod__(self, other: int) -> Expr:
        return mod(self, other)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Const(_Arithmetic):
    value: int | float | bool
    dtype: str = INDEX


@dataclass(frozen=True)
class Var(_Arithmetic):
    name: str
    dtype: str = INDEX


@dataclass(frozen=True)
class Load(_Arithmetic):
    operand: str
    index: tuple[Expr, ...]
    dtype: str


@dataclass(frozen=True)
class Acc(_Arithmetic):
    dtype: str = "float32"


@dataclass(frozen=True)
class Op(_Arithmetic):
    name: str
    args: tuple[Expr, ...]
    dtype: str

    def __post_init__(self) -> None:
        if self.name not in UNARY and self.name not in BINARY:
            raise ValueError(f"unknown scalar operation {self.name!r}")


@dataclass(frozen=True)
class Select(_Arithmetic):
    condition: Expr
    then: Expr
    otherwise: Expr

    @property
    def dtype(self) -> str:
        return self.then.dtype


@dataclass(frozen=True)
class Cast(_Arithmetic):
    value: Expr
    dtype: str


Expr = Union[Const, Var, Load, Acc, Op, Select, Cast]  # noqa: UP007 (a forward reference inside the classes)
Ranges = Mapping[str, tuple[int, int]]
"""Variable name -> inclusive (lowest, highest) value."""


def wrap(value: Expr | int) -> Expr:
    """An int becomes an index constant."""
    return Const(int(value)) if isinstance(value, int) else value


def op(name: str, *args: Expr, dtype: str | None = None) -> Op:
    """A scalar operation; its dtype is the first argument's, or "bool" for a comparison."""
    result = dtype or ("bool" if name in COMPARISONS else args[0].dtype)
    return Op(name, tuple(args), result)


def const(value: float | bool, dtype: str = "float32") -> Const:
    return Const(value, dtype)


def add(a: Expr | int, b: Expr | int) -> Expr:
    a, b = wrap(a), wrap(b)
    if isinstance(a, Const) and isinstance(b, Const):
        return Const(a.value + b.value, a.dtype)
    if isinstance(a, Const) and a.value == 0:
        return b
    if isinstance(b, Const) and b.value == 0:
        return a
    return Op("add", (a, b), a.dtype)


def mul(a: Expr | int, b: Expr | int) -> Expr:
    a, b = wrap(a), wrap(b)
    if isinstance(a, Const):
        a, b = b, a
    if isinstance(b, Const):
        if isinstance(a, Const):
            return Const(a.value * b.value, a.dtype)
        if b.value == 1:
            return a
        if b.value == 0:
            return b
    return Op("mul", (a, b), a.dtype)


def floordiv(a: Expr | int, b: int) -> Expr:
    """Floor division by a positive constant."""
    a = wrap(a)
    if b == 1:
        return a
    if isinstance(a, Const):
        return Const(int(a.value) // b)
    return Op("floordiv", (a, Const(b)), a.dtype)


def mod(a: Expr | int, b: int) -> Expr:
    """Remainder with the sign of the (positive, constant) divisor."""
    a = wrap(a)
    if b == 1:
        return Const(0)
    if isinstance(a, Const):
        return Const(int(a.value) % b)
    return Op("mod", (a, Const(b)), a.dtype)


def minimum(a: Expr | int, b: Expr | int) -> Expr:
    a, b = wrap(a), wrap(b)
    if isinstance(a, Const) and isinstance(b, Const):
        return Const(min(a.value, b.value), a.dtype)
    return Op("min", (a, b), a.dtype)


def children(e: Expr) -> tuple[Expr, ...]:
    """Direct subexpressions."""
    match e:
        case Load():
            return e.index
        case Op():
            return e.args
        case Select():
            return (e.condition, e.then, e.otherwise)
        case Cast():
            return (e.value,)
        case _:
            return ()


def rebuild(e: Expr, parts: tuple[Expr, ...]) -> Expr:
    """``e`` with other direct subexpressions."""
    match e:
        case Load():
            return replace(e, index=parts)
        case Op():
            return replace(e, args=parts)
        case Select():
            return Select(*parts)
        case Cast():
            return replace(e, value=parts[0])
        case _:
            return e


def transform(e: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """Rewrite bottom-up: ``change`` is applied to every node after its children."""
    parts = children(e)
    new = tuple(transform(p, change) for p in parts)
    if any(a is not b for a, b in zip(parts, new, strict=True)):
        e = rebuild(e, new)
    return change(e)


def walk(e: Expr) -> list[Expr]:
    """Every node of the tree, parents first."""
    return [e, *(n for c in children(e) for n in walk(c))]


def substitute(e: Expr, values: Mapping[str, Expr]) -> Expr:
    """Replace variables by expressions."""
    return transform(e, lambda n: values.get(n.name, n) if isinstance(n, Var) else n)


def variables(e: Expr) -> frozenset[str]:
    """Names of the variables in ``e``."""
    return frozenset(n.name for n in walk(e) if isinstance(n, Var))


def evaluate_index(e: Expr, values: Mapping[str, int]) -> int:
    """The number an index expression has under an assignment of its variables; raises KeyError for an unbound one."""
    match e:
        case Const():
            return int(e.value)
        case Var():
            return values[e.name]
        case Cast():
            return evaluate_index(e.value, values)
        case Select():
            return evaluate_index(e.then if evaluate_index(e.condition, values) else e.otherwise, values)
        case Op():
            return int(_INTEGER[e.name](*(evaluate_index(a, values) for a in e.args)))
        case _:
            raise KeyError(f"{e} is not an index expression")


_INTEGER: dict[str, Callable[..., int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "min": min,
    "max": max,
    "neg": lambda a: -a,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
    "not": lambda a: not a,
}

Linear = dict[Expr, int]


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
            return (low, high) if 0 <= low and high < c else (0, c - 1)
        case Op("index", (_, Const(value=n))):
            return (0, n - 1)
        case Op("min", (a, b)):
            (al, ah), (bl, bh) = bounds(a, ranges), bounds(b, ranges)
            return (min(al, bl), min(ah, bh))
        case Op("max", (a, b)):
            (al, ah), (bl, bh) = bounds(a, ranges), bounds(b, ranges)
            return (max(al, bl), max(ah, bh))
        case Select(_, a, b):
            (al, ah), (bl, bh) = bounds(a, ranges), bounds(b, ranges)
            return (min(al, bl), max(ah, bh))
        case _:
            return (float("-inf"), float("inf"))


def linear(e: Expr) -> tuple[Linear, int]:
    """Coefficients of the non-linear atoms of an index expression, and the constant term."""
    match e:
        case Const():
            return {}, int(e.value)
        case Op("add" | "sub", (a, b)):
            (terms, c), (more, d) = linear(a), linear(b)
            sign = 1 if e.name == "add" else -1
            total = dict(terms)
            for atom, k in more.items():
                total[atom] = total.get(atom, 0) + sign * k
            return {a: k for a, k in total.items() if k}, c + sign * d
        case Op("mul", (a, Const(value=k))):
            terms, c = linear(a)
            return ({atom: t * int(k) for atom, t in terms.items()} if k else {}), c * int(k)
        case Op("neg", (a,)):
            return linear(mul(a, -1))
        case _:
            return {e: 1}, 0


def from_linear(terms: Linear, constant: int) -> Expr:
    """The canonical sum: atoms ordered by text, largest coefficient first, the constant last."""
    ordered = sorted(terms.items(), key=lambda item: (-abs(item[1]), str(item[0])))
    parts = [mul(atom, k) for atom, k in ordered]
    return fold(add, [*parts, Const(constant)], Const(0)) if parts else Const(constant)


def simplify(e: Expr, ranges: Ranges) -> Expr:
    """Canonical form of an expression whose integer variables lie in ``ranges``.

    Sums become linear forms; division and remainder by a constant drop the parts that divide and the parts that are
    too small to matter; comparisons and minima decided by their bounds disappear. Non-index nodes are kept, with
    their index parts simplified.
    """
    return transform(e, lambda n: _simplify_node(n, ranges))


def _simplify_node(e: Expr, ranges: Ranges) -> Expr:
    if e.dtype not in (INDEX, "bool") or not isinstance(e, (Op, Select)):
        return e
    match e:
        case Op("add" | "sub" | "mul" | "neg") if e.dtype == INDEX:
            return from_linear(*linear(e))
        case Op("floordiv", (a, Const(value=c))):
            return _divide(a, int(c), ranges)
        case Op("mod", (a, Const(value=c))):
            return _remainder(a, int(c), ranges)
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
        case Select(c, a, b):
            return a if c == TRUE or a == b else b if c == FALSE else e
        case _:
            return e


TRUE, FALSE = Const(True, "bool"), Const(False, "bool")


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


def _split(a: Expr, c: int) -> tuple[Expr, Expr]:
    """``a`` as ``quotient * c + rest``, moving every term whose coefficient ``c`` divides."""
    terms, constant = linear(a)
    quotient = {atom: k // c for atom, k in terms.items() if k % c == 0}
    rest = {atom: k for atom, k in terms.items() if k % c}
    return from_linear(quotient, constant // c), from_linear(rest, constant % c)


def _divide(a: Expr, c: int, ranges: Ranges) -> Expr:
    if c == 1:
        return a
    quotient, rest = _split(a, c)
    low, high = bounds(rest, ranges)
    if low > float("-inf") and high < float("inf") and low // c == high // c:
        return add(quotient, int(low // c))
    match rest:
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
    match rest:
        case Op("mod", (x, Const(value=d))) if int(d) % c == 0:
            return _remainder(x, c, ranges)
        case _:
            return Op("mod", (rest, Const(c)), INDEX)
