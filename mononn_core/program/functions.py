"""Scalar operations: what each computes, how generated code writes it, and what it costs. Adding one that has a name in
C's library is a line here; another one has a function in each vocabulary as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
_erf = np.frompyfunc(math.erf, 1, 1)


@dataclass(frozen=True)
class Function:
    """One operation.

    Attributes:
        compute: on NumPy arrays; None: the evaluator's own (it needs to know more than the values).
        arity: arguments, of one type all.
        comparison: whether its result is a bool, not of its arguments' type.
        infix: C's operator between two arguments, for scalars and vectors alike.
        vocabulary: whether the vocabularies have it, for scalars and vectors, under its name.
        libm: its name in C's library, without the suffix of a type.
        slow: whether an epilogue with it is not unrolled over a register tile.
        instructions: of one lane of a GPU, about.
    """

    name: str
    compute: Callable[..., Any] | None
    arity: int = 1
    comparison: bool = False
    infix: str = ""
    vocabulary: bool = False
    libm: str = ""
    slow: bool = False
    instructions: int = 1


def divide(a: Array, b: Array) -> Array:
    """C's division: exact quotient for floats, truncated toward zero for integers."""
    if np.issubdtype(a.dtype, np.inexact):
        return np.asarray(np.true_divide(a, b))
    return np.asarray((a - np.fmod(a, b)) // np.where(b == 0, 1, b))


F = Function
FUNCTIONS = {f.name: f for f in (
    F("neg", np.negative),
    F("not", np.logical_not, comparison=True),
    F("bitnot", np.bitwise_not),
    F("isnan", np.isnan, comparison=True),
    F("isinf", np.isinf, comparison=True),
    F("reciprocal", lambda x: divide(np.ones_like(x), x), instructions=6),
    F("abs", np.abs, vocabulary=True),
    F("sign", np.sign, vocabulary=True),
    F("exp", np.exp, vocabulary=True, slow=True, instructions=4),
    F("log", np.log, vocabulary=True, slow=True, instructions=8),
    F("cube", lambda x: x * x * x, vocabulary=True, instructions=2),
    F("sqrt", np.sqrt, vocabulary=True, slow=True, instructions=4),
    F("tanh", np.tanh, vocabulary=True, slow=True, instructions=16),
    F("erf", lambda x: np.asarray(_erf(x)).astype(x.dtype), vocabulary=True, slow=True, instructions=24),
    F("sigmoid", lambda x: 1 / (1 + np.exp(-x)), vocabulary=True, slow=True, instructions=12),
    F("softplus", lambda x: np.logaddexp(x, np.zeros_like(x)), vocabulary=True, slow=True),
    F("sin", np.sin, vocabulary=True, slow=True),
    F("cos", np.cos, vocabulary=True, slow=True),
    F("tan", np.tan, libm="tan"),
    F("sinh", np.sinh, libm="sinh"),
    F("cosh", np.cosh, libm="cosh"),
    F("asin", np.arcsin, libm="asin"),
    F("acos", np.arccos, libm="acos"),
    F("atan", np.arctan, libm="atan"),
    F("asinh", np.arcsinh, libm="asinh"),
    F("acosh", np.arccosh, libm="acosh"),
    F("atanh", np.arctanh, libm="atanh"),
    F("floor", np.floor, libm="floor"),
    F("ceil", np.ceil, libm="ceil"),
    F("round", np.rint, libm="rint"),
    F("add", np.add, 2, infix="+"),
    F("sub", np.subtract, 2, infix="-"),
    F("mul", np.multiply, 2, infix="*"),
    F("div", divide, 2, infix="/", slow=True, instructions=8),
    F("floordiv", np.floor_divide, 2),
    F("mod", np.mod, 2),
    F("fmod", np.fmod, 2, libm="fmod"),
    F("min", np.minimum, 2, vocabulary=True),
    F("max", np.maximum, 2, vocabulary=True),
    F("pow", np.power, 2, libm="pow", slow=True, instructions=24),
    F("lt", np.less, 2, True, "<"),
    F("le", np.less_equal, 2, True, "<="),
    F("gt", np.greater, 2, True, ">"),
    F("ge", np.greater_equal, 2, True, ">="),
    F("eq", np.equal, 2, True, "=="),
    F("ne", np.not_equal, 2, True, "!="),
    F("and", np.logical_and, 2, True),
    F("or", np.logical_or, 2, True),
    F("xor", np.logical_xor, 2, True),
    F("bitand", np.bitwise_and, 2, infix="&"),
    F("bitor", np.bitwise_or, 2, infix="|"),
    F("bitxor", np.bitwise_xor, 2, infix="^"),
    F("shl", np.left_shift, 2),
    F("shr", np.right_shift, 2),
    F("index", None, 2),
    F("known_index", None, 2),
    F("bits", None),
    F("lookup", lambda x, table: np.take(table, np.nan_to_num(x).astype(np.int64), mode="wrap"), 2),
)}  # fmt: skip
"""By name. ``index(i, n)`` is an index taken from data: i, or i + n where i is negative; outside [-n, n) it reports the
run's index error and yields 0. ``known_index(i, n)`` is i, taken from constants that lie in [0, n). ``bits(x)`` is x's
bits as a number of another type of the same size. ``lookup(x, table)`` is the entry of a LookupTable at the whole
number x, modulo 256."""
