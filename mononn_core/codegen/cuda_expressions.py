"""Expressions in CUDA code: 32-bit indices, 16-bit floats, and accesses to neighbours in memory by one thread.

A thread computes V neighbours along one variable: what can be loaded at once is loaded before, and the same scalar text
is then unrolled over the lanes. Which V the accesses of a body allow follows from their offsets alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import gcd
from typing import ClassVar

from mononn_core.codegen import cstyle
from mononn_core.codegen.cstyle import Pointer, Printer
from mononn_core.element import CUDA_TYPES, SIDE_BY_SIDE
from mononn_core.program.expr import (
    INDEX,
    Cast,
    Const,
    Expr,
    Load,
    Op,
    Ranges,
    Select,
    Var,
    children,
    floordiv,
    mod,
    substitute,
    transform,
    variables,
    walk,
)
from mononn_core.program.simplify import from_linear, linear, simplify

WIDTHS = (8, 4, 2, 1)
"""Neighbours that a thread may take at once; more than 16 bytes are moved in several accesses."""
LANE = "u_"
LANE_VAR = Var("lane_")


def c_type(dtype: str) -> str:
    """The type of a dtype in CUDA code; raises UnsupportedError for one generated code cannot hold."""
    return cstyle.c_type(dtype, CUDA_TYPES)


@dataclass(frozen=True)
class CudaPointer(Pointer):
    """``align``: bytes that the first element is known to be aligned to."""

    align: int = 16


@dataclass(frozen=True)
class CudaPrinter(Printer):
    """Prints scalars.

    Attributes:
        loaded: expressions that lie in registers -> C text of a lane's value.
        lanes: names that hold one value a lane.
    """

    loaded: Mapping[Expr, str] = field(default_factory=dict)
    lanes: frozenset[str] = frozenset()
    isinf: ClassVar[str] = "mn::isinf"
    libm: ClassVar[str] = ""
    types: ClassVar[Mapping[str, str]] = CUDA_TYPES

    def scalar(self, e: Expr) -> str:
        match e:
            case Load() | Cast() | Op() | Select() if self.loaded and e in self.loaded:
                return self.loaded[e]
            case Var() if e.name in self.lanes:
                return f"{e.name}[{LANE}]"
            case Op() if e.dtype == INDEX and e.name in ("min", "max", "floordiv", "mod") and self._is_position(e):
                return self._position(e)
            case Op("reciprocal", (Op("sqrt", (square,)),)):
                return f"mn::rsqrt({self.scalar(square)})"
        return super().scalar(e)

    def _is_position(self, e: Expr) -> bool:
        """Whether ``e`` is index arithmetic on loop variables, which fits 32 bits."""
        return all(isinstance(n, (Const, Op)) or (isinstance(n, Var) and n.name in self.ranges) for n in walk(e))

    def _position(self, e: Op) -> str:
        left, right = (self.scalar(a) for a in e.args)
        if e.name in ("floordiv", "mod"):
            text = super()._scalar_op(e)
            return text.removeprefix("(int64_t)")
        return f"mn::{e.name}({left}, {right})"

    def _division(self, e: Op, args: list[str]) -> str:
        """Numbers that are data have 64 bits on both sides."""
        wide = e.dtype == INDEX and not self._is_position(e)
        return super()._division(e, [f"(int64_t){a}" for a in args] if wide else args)

    def within(self, var: str, extent: int) -> CudaPrinter:
        """The same scope with ``var`` in [0, extent)."""
        return replace(self, ranges={**self.ranges, var: (0, extent - 1)})


def neighbours(pointer: CudaPointer, index: tuple[Expr, ...], var: str, width: int, ranges: Ranges) -> bool:
    """Whether the elements at ``index`` for ``width`` values of ``var``, from a multiple of ``width`` on, lie side by
    side and aligned to ``width`` elements (or to 16 bytes)."""
    if width == 1:
        return True
    inner = _lane_ranges(var, width, ranges)
    split = Var("block_") * width + LANE_VAR
    position = tuple(simplify(substitute(i, {var: split}), inner) for i in index)
    offset = transform(pointer.address(position, inner), lambda n: _without_lane(n, width))
    terms, constant = linear(simplify(offset, inner))
    if terms.pop(LANE_VAR, 0) != 1 or any(LANE_VAR.name in variables(t) for t in terms):
        return False
    size = pointer.buffer.itemsize
    steps = (constant, *(k * divisor(t) for t, k in terms.items()))
    return gcd(pointer.align, *(step * size for step in steps)) % min(width * size, 16) == 0


def _without_lane(e: Expr, width: int) -> Expr:
    """A division or remainder by c of rest + lane, where rest and c are multiples of more than the lanes."""
    match e:
        case Op("floordiv" | "mod", (a, Const(value=c))):
            terms, constant = linear(a)
            if terms.pop(LANE_VAR, 0) != 1 or any(LANE_VAR.name in variables(t) for t in terms):
                return e
            step = gcd(int(c), *(k * divisor(t) for t, k in terms.items()))
            small = constant % step
            if small + width > step:
                return e
            rest = from_linear(terms, constant - small)
            return floordiv(rest, int(c)) if e.name == "floordiv" else mod(rest, int(c)) + LANE_VAR + small
        case _:
            return e


def divisor(e: Expr) -> int:
    """A number that divides an index expression whatever its variables are; 0 for zero itself."""
    match e:
        case Const():
            return abs(int(e.value))
        case Op("add" | "sub", (a, b)):
            return gcd(divisor(a), divisor(b))
        case Op("mul", (a, b)):
            return divisor(a) * divisor(b)
        case Op("mod", (a, Const(value=c))):
            return gcd(divisor(a), int(c))
        case Op("min" | "max", (a, b)):
            return gcd(divisor(a), divisor(b))
        case _:
            return 1


def unguarded_loads(e: Expr, known: Mapping[Expr, str] | None = None) -> list[Load]:
    """Loads that are evaluated whatever the conditions in ``e`` say, each once, in order; none of what is ``known``."""
    if known and e in known:
        return []
    match e:
        case Load():
            return [e]
        case Select():
            return unguarded_loads(e.condition, known)
        case _:
            found: dict[Load, None] = {}
            for part in children(e):
                found.update(dict.fromkeys(unguarded_loads(part, known)))
            return list(found)


def guarded_loads(e: Expr, var: str, width: int, printer: CudaPrinter) -> dict[Load, Expr]:
    """Loads of ``width`` neighbours along ``var`` that are evaluated under one condition alone, which holds for all of
    them or for none, and those conditions; not where an address is loaded itself."""
    found: dict[Load, Expr] = {}
    bad = set(unguarded_loads(e, printer.loaded))
    for select in _selects(e, printer.loaded):
        bad.update(n for n in walk(select.otherwise) if isinstance(n, Load))
        guarded = [n for n in walk(select.then) if isinstance(n, Load)]
        bad.update(n for n in guarded if found.get(n, select.condition) != select.condition)
        if uniform(select.condition, var, width, printer.ranges):
            loads = (n for n in unguarded_loads(select.then, printer.loaded) if loadable(n, var, width, printer))
            found.update(dict.fromkeys(loads, select.condition))
        else:
            bad.update(guarded)
    bad.update(n for n in found if any(isinstance(m, Load) for i in n.index for m in walk(i)))
    return {load: condition for load, condition in found.items() if load not in bad}


def _selects(e: Expr, known: Mapping[Expr, str]) -> list[Select]:
    """Those that stand in no other's branches."""
    if e in known:
        return []
    inner = [e.condition] if isinstance(e, Select) else children(e)
    return [*([e] if isinstance(e, Select) else []), *(s for part in inner for s in _selects(part, known))]


def uniform(e: Expr, var: str, width: int, ranges: Ranges) -> bool:
    """Whether ``e`` is the same for ``width`` values of ``var`` from a multiple of ``width`` on, and loads nothing."""
    if any(isinstance(n, Load) for n in walk(e)):
        return False
    return width == 1 or LANE_VAR.name not in variables(_in_lanes(e, var, width, ranges))


def _in_lanes(e: Expr, var: str, width: int, ranges: Ranges) -> Expr:
    """``e`` with ``var`` as a lane of a block of ``width``."""
    inner = _lane_ranges(var, width, ranges)
    split = simplify(substitute(e, {var: Var("block_") * width + LANE_VAR}), inner)
    return simplify(transform(split, lambda n: _without_lane(n, width)), inner)


def _lane_ranges(var: str, width: int, ranges: Ranges) -> Ranges:
    parts = {"block_": (0, ranges[var][1] // width), LANE_VAR.name: (0, width - 1)}
    return {**{k: v for k, v in ranges.items() if k != var}, **parts}


def loadable(e: Load, var: str, width: int, printer: CudaPrinter) -> bool:
    """Whether ``width`` neighbours along ``var`` can be loaded at once, before anything else is computed."""
    names = frozenset().union(*(variables(i) for i in e.index)) if e.index else frozenset()
    if var not in names or not names.isdisjoint(printer.lanes):
        return False
    if any(isinstance(n, Load) and var in variables(n) for i in e.index for n in walk(i)):
        return False
    pointer = printer.pointers[e.operand]
    assert isinstance(pointer, CudaPointer)
    if pointer.buffer.dtype not in SIDE_BY_SIDE:
        return False
    return neighbours(pointer, e.index, var, width, printer.ranges)


def address(e: Load, printer: CudaPrinter) -> str:
    """The pointer to a Load's element."""
    pointer = printer.pointers[e.operand]
    return f"{pointer.name} + {printer.index(pointer.address(e.index, printer.ranges))}"
