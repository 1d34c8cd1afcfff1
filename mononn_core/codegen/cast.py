"""Conversions between vectors, and other forms that the vocabulary has a function for. Floats are in vectors of floats,
whole numbers of any type in vectors of words."""

from __future__ import annotations

from collections.abc import Callable

from mononn_core.element import BYTES, COMPUTE, NARROW, SHORT, WORD
from mononn_core.program.expr import Cast, Const, Expr, Load, LookupTable, Op, Select, op, walk

LOWEST = {"uint8": 0, "int8": -128}
"""The least number of each type of bytes."""


def cast_lanes(value: str, e: Cast, lanes: str) -> str:
    """C text of ``e``, a vector of type ``lanes``, where ``value`` is that of what it converts."""
    source, whole = e.value.dtype, (WORD, *SHORT)
    if source == "bool":
        return f"({value} ? mn::splat<{lanes}>(1) : mn::splat<{lanes}>(0))"
    if source == COMPUTE and e.dtype in whole:
        return f"mn::to_word<T>({value})"
    if source in whole and e.dtype == COMPUTE:
        return f"mn::to_float<T>({value})"
    assert source in whole and e.dtype == WORD, f"{e} is not vectorisable"
    return value


def unrounded(e: Expr, chosen: bool = False) -> Expr:
    """What a stored narrow value is converted from, where that is known: the vocabulary's stores convert. Of what is
    loaded that is a float where it is ``chosen`` or lies where data says; a compiler's loop copies the others."""
    narrow = e.dtype in NARROW or e.dtype in SHORT
    if isinstance(e, Load) and narrow and (chosen or any(isinstance(n, Load) for i in e.index for n in walk(i))):
        return Cast(e, COMPUTE)
    if isinstance(e, Select) and narrow:
        then, otherwise = unrounded(e.then, True), unrounded(e.otherwise, True)
        return Select(e.condition, then, otherwise) if then.dtype == otherwise.dtype == COMPUTE else e
    if isinstance(e, Const) and narrow:
        return Const(float(e.value), COMPUTE)
    return e.value if isinstance(e, Cast) and narrow and e.value.dtype == COMPUTE else e


def rounded(e: Expr) -> tuple[Expr, int] | None:
    """x and k where ``e``, a quantised value as a float, is the whole number nearest to x, and k more: instructions
    that convert round as well, and values are put between whole bounds before that as well as behind it."""
    match e:
        case Op("min", (Op("max", (inner, Const() as low)), Const() as high)):
            value, zero = inner, 0.0
            match inner:
                case Op("add", (number, Const() as added)):
                    value, zero = number, float(added.value)
            ends = float(low.value) - zero, float(high.value) - zero
            if isinstance(value, Op) and value.name == "round" and all(n.is_integer() for n in (zero, *ends)):
                least, most = (Const(end, COMPUTE) for end in ends)
                return op("min", op("max", value.args[0], least), most), int(zero)
    return None


def as_bytes(e: Expr) -> tuple[Expr, int, str, LookupTable | None] | None:
    """(x, k, a type of bytes, a table or None) where ``e`` is a quantised value as a float: the whole number nearest to
    x, and k more, put between the ends of the type; or what the table has for it. None of other values."""
    match e:
        case Op("lookup", (inner, LookupTable() as table)):
            found = as_bytes(inner)
            return found and (*found[:3], table)
    match rounded(e):
        case (Op("min", (Op("max", (x, Const() as low)), high)) as bounded, more):
            least = low.value + more
            kind = "int8" if least < 0 else "uint8"
            return (op("min", x, high) if least == LOWEST[kind] else bounded), more, kind, None
    return None


def silu_operand(product: Op) -> int | None:
    """Which factor of a product x is, where the other is sigmoid(x): there is a function of its own for that."""
    a, b = product.args
    return next((n for n, x, y in ((0, a, b), (1, b, a)) if y == Op("sigmoid", (x,), COMPUTE)), None)


def looked_up(e: Op, vector: Callable[[Expr], str], load: Callable[[Load, str], str]) -> str:
    """C text of the words that a vector of "lookup" is; ``vector`` and ``load`` give that of other vectors, and of a
    loaded byte as another type."""
    x, table = e.args
    assert isinstance(table, LookupTable)
    if isinstance(x, Cast) and isinstance(x.value, Load) and x.value.dtype in BYTES:
        at = load(x.value, WORD)
    elif (whole := rounded(x)) is not None:
        at = f"mn::nearest<T>({vector(whole[0])}) + {whole[1]}"
    else:
        at = f"mn::to_word<T>({vector(x)})"
    return f"mn::lookup<T>({table_text(table)}, {at})"


def table_text(table: LookupTable) -> str:
    """C text of a pointer to a table's bytes."""
    kind, values = "int8_t" if min(table.values) < 0 else "uint8_t", ", ".join(map(str, table.values))
    return f"[] {{ alignas(64) static constexpr {kind} table_[256] = {{{values}}}; return table_; }}()"
