"""Prints expressions and generated loops: what the CPU and CUDA printers share.

An expression is printed in one of two modes. *Scalar*: ordinary C on the expression's own types. *Vector*: every value
is a ``T`` (a vector of neighbours along one variable, of type ``COMPUTE``); that needs all parts that vary along the
variable to be of that type, loads of a narrow one cast to it (the vocabulary's loads widen), comparisons, or a Select
between an interval of the variable and the rest (a border's zeros), and the same text then serves whole vectors and
single lanes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import ClassVar

from mononn_core.codegen.c import c_type, closes_last, literal, part_of, widest
from mononn_core.codegen.cast import cast_lanes, looked_up, silu_operand, table_text
from mononn_core.codegen.steps import run_along, step_along
from mononn_core.element import C_SUFFIXES, C_TYPES, COMPUTE, NARROW, SIDE_BY_SIDE, WORD, itemsize
from mononn_core.errors import UnsupportedError
from mononn_core.program.expr import (
    INDEX,
    Acc,
    Cast,
    Const,
    Expr,
    Load,
    LookupTable,
    Op,
    Ranges,
    Select,
    Var,
    add,
    children,
    mul,
    op,
    variables,
    walk,
)
from mononn_core.program.functions import FUNCTIONS
from mononn_core.program.ir import Buffer, Layout
from mononn_core.program.simplify import bounds, from_linear, linear, simplify

LOGIC = {"and": ("&&", "&"), "or": ("||", "|"), "xor": ("!=", "^")}
"""(scalar, vector) operators."""
UNARY = {"neg": "-", "reciprocal": "1.f / ", "not": "~"}
"""Vector operators of one operand."""
LANES = (COMPUTE, WORD)
"""Types that vectors hold neighbours in."""
WORD_OPERATIONS = ("add", "sub", "mul", "neg")
"""What vectors of ``WORD`` are computed with."""
INTEGERS = {"pow": "power", "div": "quotient", "fmod": "rest", "mod": "modulo"}
"""What the vocabulary calls operations on integers that are data."""
Interval = tuple[tuple[Expr, ...], tuple[Expr, ...]]
"""Lower bounds of a variable, and upper bounds, which are excluded."""
NO_BOUND = 1 << 62
ORDER = {"lt": (True, True), "le": (True, False), "gt": (False, True), "ge": (False, False)}
"""Comparison -> (the left side is below, equality is excluded)."""


@dataclass(frozen=True)
class Pointer:
    """An operand in the generated code: the pointer's name and where logical elements lie behind it."""

    name: str
    buffer: Buffer

    def address(self, index: tuple[Expr, ...], ranges: Ranges) -> Expr:
        """Element offset of logical ``index``."""
        return simplify(element_offset(self.buffer.layout, index), ranges)


def element_offset(layout: Layout, index: tuple[Expr, ...]) -> Expr:
    """Where a logical element lies, in elements, as an expression."""
    total: Expr = Const(0)
    for e, factors in zip(index, layout.dims, strict=True):
        inner = 1
        parts: list[Expr] = []
        for position, (factor, stride) in reversed(list(enumerate(factors))):
            part = e // inner
            parts.append(mul(part % factor if position else part, stride))
            inner *= factor
        for part in reversed(parts):
            total = add(total, part)
    return total


def varies(e: Expr, var: str, bound: frozenset[str] = frozenset()) -> bool:
    """Whether ``e`` differs along ``var``, itself or through names that are ``bound`` to vectors."""
    return not {var, *bound}.isdisjoint(variables(e))


def vectorisable(e: Expr, var: str, bound: frozenset[str] = frozenset()) -> bool:
    """Whether ``e`` can be printed in vector mode along ``var``; ``bound`` names hold vectors."""
    if not varies(e, var, bound):
        return e.dtype in (*LANES, "bool")
    match e:
        case Var():
            return e.name in bound
        case Load():
            return e.dtype in LANES and not _is_gather(e, var)
        case Cast(value=Load() as narrow, dtype=dtype):
            return dtype in LANES and narrow.dtype in SIDE_BY_SIDE and not _is_gather(narrow, var)
        case Cast():
            known = {e.dtype, e.value.dtype} == {COMPUTE, WORD} or (e.value.dtype == "bool" and e.dtype == COMPUTE)
            return known and vectorisable(e.value, var, bound)
        case Acc():
            return e.dtype in LANES
        case Op("bits"):
            return False
        case Op():
            words = e.dtype == WORD and e.name in WORD_OPERATIONS
            kinds = (COMPUTE, "bool") if e.dtype == "bool" else (WORD if words else COMPUTE,)
            return all(a.dtype in kinds and vectorisable(a, var, bound) for a in e.args)
        case Select():
            inside, outside = e.then, e.otherwise
            if e.then.dtype != COMPUTE or not all(vectorisable(a, var, bound) for a in (inside, outside)):
                return False
            if interval(e.condition, var) is None:
                return vectorisable(e.condition, var, bound)
            loads = [n for n in walk(inside) if isinstance(n, Load)]  # only those along the variable can be masked
            return all(varies(n, var) for n in loads) and not any(isinstance(n, Load) for n in walk(outside))
        case _:
            return False


def _is_gather(e: Load, var: str) -> bool:
    """Whether neighbours along ``var`` lie where what is loaded says, and a run has to check that."""
    return any(_is_from_data(i, var) for i in e.index)


def _is_from_data(e: Expr, var: str) -> bool:
    if isinstance(e, Load):
        return varies(e, var)
    known = isinstance(e, Op) and e.name == "known_index"
    return not known and any(_is_from_data(part, var) for part in children(e))


def interval(condition: Expr, var: str) -> Interval | None:
    """The values of ``var`` for which ``condition`` holds, where it is a conjunction of comparisons of ``var`` with
    what does not vary along it; None elsewhere."""
    if isinstance(condition, Op) and condition.name == "and":
        left, right = (interval(a, var) for a in condition.args)
        return None if left is None or right is None else _both(left, right)
    if not (isinstance(condition, Op) and condition.name in ORDER and condition.args[0].dtype == INDEX):
        return None
    terms, constant = linear(op("sub", *condition.args))
    own = terms.pop(Var(var), 0)
    if own not in (1, -1) or any(varies(t, var) for t in terms):
        return None
    rest = from_linear({t: -own * k for t, k in terms.items()}, -own * constant)  # var against rest
    below, excluded = ORDER[condition.name]
    return ((), (rest + int(not excluded),)) if below == (own > 0) else ((rest + int(excluded),), ())


def _both(a: Interval, b: Interval) -> Interval:
    return a[0] + b[0], a[1] + b[1]


@dataclass(frozen=True)
class Printer:
    """Prints expressions in one scope.

    Attributes:
        pointers: role -> Pointer.
        ranges: inclusive ranges of the integer variables in scope.
        phase: C expression of the executed phase's ordinal, for error reports.
        vector: the variable whose neighbours make a vector, or "" in scalar mode.
        acc: text of the accumulator.
        bound: names that hold vectors.
        guard: in vector mode, where loads may read; elsewhere they give zeros.
        aligned: the variable whose vectors begin at multiples of their lanes.
    """

    pointers: Mapping[str, Pointer]
    ranges: Ranges
    phase: str = "ordinal"
    vector: str = ""
    acc: str = "v_"
    bound: frozenset[str] = frozenset()
    guard: Interval = ((), ())
    aligned: str = ""
    isinf: ClassVar[str] = "__builtin_isinf"
    libm: ClassVar[str] = "__builtin_"  # before the names of C's functions
    types: ClassVar[Mapping[str, str]] = C_TYPES

    def value(self, e: Expr) -> str:
        """A value in the current mode: a ``T`` in vector mode, an ordinary C value in scalar mode."""
        return self._vector(e) if self.vector else self.scalar(e)

    # -- scalar mode ------------------------------------------------------------------------------------------------

    def scalar(self, e: Expr) -> str:
        match e:
            case Const() if e.dtype in NARROW:
                return self._narrowed(literal(replace(e, dtype=COMPUTE)), e.dtype)
            case Const():
                return literal(e)
            case Var():
                return e.name
            case Acc():
                return part_of(self.acc, e)
            case Load():
                pointer = self.pointers[e.operand]
                return f"{pointer.name}[{self.index(pointer.address(e.index, self.ranges))}]"
            case LookupTable():
                return table_text(e)
            case Cast():
                return self._cast(e)
            case Select():
                return f"({self.scalar(e.condition)} ? {self.scalar(e.then)} : {self.scalar(e.otherwise)})"
            case Op():
                return self._scalar_op(e)

    def _cast(self, e: Cast) -> str:
        inner, source = self.scalar(e.value), e.value.dtype
        if source in NARROW:
            inner, source = f"mn::to_float({inner})", COMPUTE
        if e.dtype in NARROW:
            return self._narrowed(inner if source == COMPUTE else f"({self.c_type(COMPUTE)})({inner})", e.dtype)
        if e.dtype == source:
            return inner
        return f"({inner} != 0)" if e.dtype == "bool" else f"({self.c_type(e.dtype)})({inner})"

    def _narrowed(self, text: str, dtype: str) -> str:
        return f"mn::from_float<{self.c_type(dtype)}>({text})"

    def c_type(self, dtype: str) -> str:
        """The target's type for ``dtype``; raises UnsupportedError where it has none."""
        return c_type(dtype, self.types)

    def _scalar_op(self, e: Op) -> str:
        args, function = [self.scalar(a) for a in e.args], FUNCTIONS[e.name]
        kind = e.args[0].dtype
        match e.name:
            case "pow" | "div" | "fmod" | "mod" if "int" in kind and not self._by_constant(e):
                wide = "uint64_t" if kind.startswith("u") else "int64_t"
                return f"({self.c_type(kind)})mn::{INTEGERS[e.name]}(({wide}){args[0]}, ({wide}){args[1]})"
            case "fmod" if "int" in kind:
                return f"({args[0]} % {args[1]})"
            case _ if function.infix:
                return f"({args[0]} {function.infix} {args[1]})"
            case "and" | "or" | "xor":
                return f"({args[0]} {LOGIC[e.name][0]} {args[1]})"
            case "shl" | "shr":
                return self._shift(e, args)
            case "not":
                return f"(!{args[0]})"
            case "bitnot":
                return f"(~{args[0]})"
            case "neg":
                return f"(-{args[0]})"
            case "reciprocal":
                return f"(1 / {args[0]})"
            case "isnan":
                return f"({args[0]} != {args[0]})"
            case "isinf":
                return f"{self.isinf}({args[0]})"
            case "bits":
                return f"__builtin_bit_cast({self.c_type(e.dtype)}, {args[0]})"
            case "index":
                return f"mn::checked_index(call, {self.phase}, {args[0]}, {args[1]})"
            case "known_index":
                return args[0]
            case "lookup":
                return f"mn::lookup({args[1]}, {args[0]})"
            case "floordiv" | "mod":
                return self._division(e, args)
            case _ if function.vocabulary:
                return f"({self.c_type(kind)})mn::{e.name}({', '.join(widest(kind) + a for a in args)})"
            case _ if function.libm and kind in C_SUFFIXES:
                return f"{self.libm}{function.libm}{C_SUFFIXES[kind]}({', '.join(args)})"
        raise UnsupportedError(f"operation {e.name!r} on {kind} has no generated form; compute it in float32 or int64")

    def _shift(self, e: Op, args: list[str]) -> str:
        """Shifted by as many bits as there are, or by a negative number of them, as if by one after the other."""
        kind, bits, sign = e.args[0].dtype, 8 * itemsize(e.args[0].dtype), "<<" if e.name == "shl" else ">>"
        within, whole = f"(uint64_t){args[1]} < {bits}", self.c_type(kind)
        if e.name == "shr" and not kind.startswith("u"):
            return f"(({whole})({args[0]} >> ({within} ? {args[1]} : {bits - 1})))"
        return f"({within} ? ({whole})({args[0]} {sign} {args[1]}) : 0)"

    @staticmethod
    def _by_constant(e: Op) -> bool:
        """Whether C's own division, or an index's remainder, is meant: the divisor is a positive constant."""
        divisor = e.args[1]
        return isinstance(divisor, Const) and divisor.value > 0 and (e.name in ("div", "fmod") or e.dtype == INDEX)

    def _division(self, e: Op, args: list[str]) -> str:
        low, _ = bounds(e.args[0], self.ranges) if e.dtype == INDEX else (float("-inf"), 0)
        if e.dtype.startswith("uint") or (low >= 0 and isinstance(e.args[1], Const)):
            return f"({args[0]} {'/' if e.name == 'floordiv' else '%'} {args[1]})"
        return f"({self.c_type(e.dtype)})mn::{e.name}({args[0]}, {args[1]})"

    def index(self, e: Expr) -> str:
        """An integer expression without outer parentheses."""
        text = self.scalar(e)
        return text[1:-1] if text.startswith("(") and closes_last(text) else text

    # -- vector mode ------------------------------------------------------------------------------------------------

    def _vector(self, e: Expr) -> str:
        if not varies(e, self.vector, self.bound) and not any(isinstance(n, Acc) for n in walk(e)):
            text = self.scalar(e)
            return text if e.dtype == "bool" else f"mn::splat<{self._lanes(e)}>({text})"
        match e:
            case Var():
                return e.name
            case Acc():
                return part_of(self.acc, e)
            case Load():
                return self._vector_load(e, e.dtype)
            case Cast(value=Load() as narrow) if narrow.dtype != COMPUTE:
                return self._vector_load(narrow, e.dtype)
            case Cast():
                return cast_lanes(self._vector(e.value), e, self._lanes(e))
            case Select():
                return self._vector_select(e)
            case Op("lookup"):
                return f"mn::to_float<T>({self.looked_up(e)})"
            case Op():
                return self._vector_op(e)
        raise AssertionError(f"{e} is not vectorisable")

    def looked_up(self, e: Op) -> str:
        """The words that a vector of "lookup" is."""
        return looked_up(e, self._vector, self._vector_load)

    @staticmethod
    def _lanes(e: Expr) -> str:
        """C's type of a vector of such values."""
        return "mn::Int<T>" if e.dtype == WORD else "T"

    def _vector_select(self, e: Select) -> str:
        if (inside := interval(e.condition, self.vector)) is None:
            return f"({self._vector(e.condition)} ? {self._vector(e.then)} : {self._vector(e.otherwise)})"
        then = replace(self, guard=_both(self.guard, inside))._vector(e.then)
        return f"mn::between<T>({self.vector}, {self._ends(inside)}, {then}, {self._vector(e.otherwise)})"

    def _ends(self, inside: Interval) -> str:
        """The highest of the lower bounds and the lowest of the upper ones."""
        low = reduce(lambda a, b: op("max", a, b), inside[0] or (Const(-NO_BOUND),))
        high = reduce(lambda a, b: op("min", a, b), inside[1] or (Const(NO_BOUND),))
        return ", ".join(self.index(simplify(end, self.ranges)) for end in (low, high))

    def _vector_load(self, e: Load, dtype: str = COMPUTE) -> str:
        """``e`` as a vector of ``dtype``."""
        kind = "mn::Int<T>" if WORD in (e.dtype, dtype) and dtype != COMPUTE else "T"
        pointer = self.pointers[e.operand]
        offset = pointer.address(e.index, self.ranges)
        stride = self.stride(offset)
        guard = "" if self.guard == ((), ()) else f", {self._ends(self.guard)}"
        if stride is None or (guard and (stride != 1 or kind != "T")):
            kind += "" if guard or self.aligned != self.vector else run_along(offset, self.vector)
            at = f"{self.vector}{guard}, [&](long {self.vector}) {{ return {self.index(offset)}; }}"
            return f"mn::gather_at<{kind}>({pointer.name}, {at})"
        at = f"{pointer.name} + {self.index(offset)}"
        if guard:
            return f"mn::load_between<{kind}>({at}, {self.vector}{guard})"
        load = "load" if kind == "T" else "load_int"
        return f"mn::{load}<{kind}>({at})" if stride == 1 else f"mn::gather<{kind}>({at}, {stride})"

    def stride(self, offset: Expr) -> int | None:
        """Elements between neighbours along the vector variable, or None where they are not evenly spaced."""
        return step_along(offset, self.vector, aligned=self.aligned == self.vector)

    def _vector_op(self, e: Op) -> str:
        args, function = [self._vector(a) for a in e.args], FUNCTIONS[e.name]
        match e.name:
            case "mul" if (x := silu_operand(e)) is not None:
                return f"mn::silu<T>({args[x]})"
            case _ if function.infix:
                return f"({args[0]} {function.infix} {args[1]})"
            case "neg" | "reciprocal" | "not":
                return f"({UNARY[e.name]}{args[0]})"
            case "and" | "or" | "xor":
                return f"({args[0]} {LOGIC[e.name][1]} {args[1]})"
            case "isnan":
                return f"({args[0]} != {args[0]})"
            case "isinf":
                return f"(mn::abs<T>({args[0]}) == mn::splat<T>(INFINITY))"
            case "max" | "min" if isinstance(e.args[1], Const):
                return f"mn::{e.name}<T>({args[1]}, {args[0]})"  # one instruction this way round
            case _ if function.vocabulary:
                return f"mn::{e.name}<T>({', '.join(args)})"
            case "pow" if e.args[1] == Const(0.75, COMPUTE):
                return f"mn::pow_three_quarters<T>({args[0]})"
            case "round":
                return f"mn::round<T>({args[0]})"
            case "mod":
                return f"mn::each<T>({', '.join(args)}, [](float a, float b) {{ return mn::mod(a, b); }})"
            case _ if function.libm:
                call = f"{self.libm}{function.libm}{C_SUFFIXES[COMPUTE]}(a...)"
                return f"mn::each<T>({', '.join(args)}, [](auto... a) {{ return {call}; }})"
        raise UnsupportedError(f"operation {e.name!r} on float32 has no generated form")


__all__ = ["Pointer", "Printer", "element_offset", "varies", "vectorisable"]
