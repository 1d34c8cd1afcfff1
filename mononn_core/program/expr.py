"""Index and scalar expressions.

    Expr = Const(value, dtype) | Var(name, dtype) | Load(operand, index, dtype) | Acc(dtype, part)
         | Op(name, args, dtype) | Select(condition, then, otherwise) | Cast(value, dtype) | LookupTable(values, dtype)

Expressions are immutable trees. Equal ones are one object (hash consing), so that comparing two and looking one up
take no walk. ``Load`` names an operand of the task by its role and reads its
logical element. ``Acc`` is the accumulator handed to an epilogue, of a template that has several number ``part``.
Integer expressions (dtype "int64") are index
arithmetic: built with Python operators, folded as they are built, and brought into a canonical linear form by
:mod:`mononn_core.program.simplify` once the ranges of their variables are known, before anything is printed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Union
from weakref import ref

from mononn_core.element import COMPUTE, is_float
from mononn_core.program.functions import FUNCTIONS

INDEX = "int64"

COMPARISONS = frozenset(name for name, function in FUNCTIONS.items() if function.comparison)


class _Reference(ref["Expr"]):
    """To an expression that lives as long as others hold it."""

    __slots__ = ("key",)
    key: tuple[Any, ...]


_LIVING: dict[tuple[Any, ...], _Reference] = {}
"""(class, fields) -> the expression."""


def _forget(dead: _Reference) -> None:
    if _LIVING.get(dead.key) is dead:
        del _LIVING[dead.key]


class _Single(type):
    """Of classes whose equal instances are one object."""

    __match_args__: tuple[str, ...]

    def __call__(cls, *args: Any, **named: Any) -> Any:
        for name in cls.__match_args__[len(args) :]:
            args += (named.pop(name) if name in named else getattr(cls, name),)
        return cls.living(args, (cls, *args), **named)

    def living(cls, args: tuple[Any, ...], key: tuple[Any, ...], **unknown: Any) -> Any:
        """The instance of these fields, which stands under ``key``."""
        known = _LIVING.get(key)
        found = None if known is None else known()
        if found is None or unknown:
            made = super().__call__(*args, **unknown)
            mine = _Reference(made, _forget)
            mine.key = key
            found = _LIVING.setdefault(key, mine)()  # another thread's, where it came first
            if found is None:
                _LIVING[key], found = mine, made
        return found


class _Number(_Single):
    """Of constants, whose value is one of their type's: 1 and True, or 0.0 and -0.0, are not the same."""

    def __call__(cls, value: float, dtype: str = INDEX) -> Any:
        if dtype == "bool":
            value = bool(value)
        elif is_float(dtype):
            value = float(value)
            return cls.living((value, dtype), (cls, value or str(value), dtype))
        elif type(value) is not int and value == value // 1:
            value = int(value)
        return cls.living((value, dtype), (cls, value, dtype))


class _Arithmetic(metaclass=_Single):
    """Python operators on index expressions."""

    def __reduce__(self) -> tuple[Any, ...]:
        """What a copy, or what was pickled, is made of."""
        return type(self), tuple(getattr(self, name) for name in type(self).__match_args__)

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


@dataclass(frozen=True, eq=False)
class Const(_Arithmetic, metaclass=_Number):
    value: int | float | bool
    dtype: str = INDEX


@dataclass(frozen=True, eq=False)
class Var(_Arithmetic):
    name: str
    dtype: str = INDEX


@dataclass(frozen=True, eq=False)
class Load(_Arithmetic):
    operand: str
    index: tuple[Expr, ...]
    dtype: str


@dataclass(frozen=True, eq=False)
class Acc(_Arithmetic):
    dtype: str = COMPUTE
    part: int = 0


@dataclass(frozen=True, eq=False)
class Op(_Arithmetic):
    name: str
    args: tuple[Expr, ...]
    dtype: str

    def __post_init__(self) -> None:
        if self.name not in FUNCTIONS:
            raise ValueError(f"unknown scalar operation {self.name!r}")


@dataclass(frozen=True, eq=False)
class Select(_Arithmetic):
    condition: Expr
    then: Expr
    otherwise: Expr

    @property
    def dtype(self) -> str:
        return self.then.dtype


@dataclass(frozen=True, eq=False)
class Cast(_Arithmetic):
    value: Expr
    dtype: str


@dataclass(frozen=True, eq=False)
class LookupTable(_Arithmetic):
    """256 constants, of which "lookup" takes one."""

    values: tuple[int, ...]
    dtype: str = COMPUTE


Expr = Union[Const, Var, Load, Acc, Op, Select, Cast, LookupTable]  # noqa: UP007 (a forward reference inside the classes)
Ranges = Mapping[str, tuple[int, int]]
"""Variable name -> inclusive (lowest, highest) value."""


TRUE, FALSE = Const(True, "bool"), Const(False, "bool")


def wrap(value: Expr | int) -> Expr:
    """An int becomes an index constant."""
    return Const(int(value)) if isinstance(value, int) else value


def op(name: str, *args: Expr, dtype: str | None = None) -> Op:
    """A scalar operation; its dtype is the first argument's, or "bool" for a comparison."""
    result = dtype or ("bool" if name in COMPARISONS else args[0].dtype)
    return Op(name, tuple(args), result)


def const(value: float | bool, dtype: str = COMPUTE) -> Const:
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
    return _CHILDREN[type(e)](e)


_CHILDREN: dict[type, Callable[[Any], tuple[Expr, ...]]] = {
    **dict.fromkeys((Const, Var, Acc, LookupTable), lambda e: ()),
    Op: attrgetter("args"),
    Load: attrgetter("index"),
    Select: attrgetter("condition", "then", "otherwise"),
    Cast: lambda e: (e.value,),
}


def rebuild(e: Expr, parts: tuple[Expr, ...]) -> Expr:
    """``e`` with other direct subexpressions."""
    match e:
        case Op():
            return Op(e.name, parts, e.dtype)
        case Load():
            return Load(e.operand, parts, e.dtype)
        case Select():
            return Select(*parts)
        case Cast():
            return Cast(parts[0], e.dtype)
        case _:
            return e


def transform(e: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """Rewrite bottom-up: ``change`` is applied once to every node, after its children."""
    done = dict[Expr, Expr]()

    def changed(e: Expr) -> Expr:
        if (found := done.get(e)) is None:
            parts = children(e)
            found = done[e] = change(with_parts(e, parts, tuple([changed(p) for p in parts])) if parts else e)
        return found

    return changed(e)


def with_parts(e: Expr, parts: tuple[Expr, ...], new: tuple[Expr, ...]) -> Expr:
    """``e``, which has these direct subexpressions, with the new ones; itself where all are the same objects."""
    for a, b in zip(parts, new, strict=True):
        if a is not b:
            return rebuild(e, new)
    return e


def walk(e: Expr) -> list[Expr]:
    """Every node of the tree, parents first."""
    found, waiting = list[Expr](), [e]
    while waiting:
        found.append(node := waiting.pop())
        if parts := children(node):
            waiting.extend(reversed(parts))
    return found


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
    "index": lambda i, n: (i + n if i < 0 else i) if -n <= i < n else 0,
    "known_index": lambda i, n: i,
}
