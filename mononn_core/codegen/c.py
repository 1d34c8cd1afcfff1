"""C's words for types and constants, the same in both languages that are generated."""

from __future__ import annotations

from collections.abc import Mapping
from math import isinf, isnan

from mononn_core.element import C_SUFFIXES, C_TYPES, COMPUTE
from mononn_core.errors import UnsupportedError
from mononn_core.program.expr import Acc, Const


def literal(e: Const) -> str:
    """A C literal of the constant's type."""
    value = e.value
    if e.dtype == "bool":
        return "true" if value else "false"
    if e.dtype in C_SUFFIXES:
        number, suffix = float(value), C_SUFFIXES[e.dtype]
        if isnan(number):
            return "NAN"
        if isinf(number):
            return "INFINITY" if number > 0 else "-INFINITY"
        text = f"{number:.9g}" if suffix else f"{number:.17g}"
        return (text if any(ch in text for ch in ".e") else text + ".0") + suffix
    number = int(value)
    return str(number) if abs(number) < 1 << 31 else "INT64_MIN" if number == -(1 << 63) else f"{number}ll"


def c_type(dtype: str, types: Mapping[str, str] = C_TYPES) -> str:
    """The C type of a dtype; raises UnsupportedError for one generated code cannot hold."""
    if dtype not in types:
        raise UnsupportedError(f"element type {dtype!r} has no generated form; convert the model to {COMPUTE}")
    return types[dtype]


def widest(kind: str) -> str:
    """A cast to the widest integer of the sign of ``kind``, for the vocabulary's functions; "" of another type."""
    return "(uint64_t)" if kind == "uint64" else "(int64_t)" if "int" in kind else ""


def part_of(name: str, acc: Acc) -> str:
    """The text of an accumulator, where that of the first one is ``name``."""
    return name.replace("v_", f"v{acc.part}_", 1) if acc.part else name


def closes_last(text: str) -> bool:
    """Whether the first parenthesis is closed by the last character."""
    depth = 0
    for position, ch in enumerate(text):
        depth += (ch == "(") - (ch == ")")
        if depth == 0:
            return position == len(text) - 1
    return False
