"""Between which two numbers the elements of a tensor lie, and that none of them is NaN.

An interval of two doubles, infinity among them where an element can be infinite; ``None`` where one can be NaN or
nothing is known. The arithmetic is that of real numbers short of overflow: a floating-point number of which nothing
else is known, and what is computed of such ones, is taken to be no larger than ``MOST``. What constants alone make is
exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import Any

import numpy as np

from mononn_core.element import COMPUTE, F16, F64, is_float
from mononn_core.graph import Node
from mononn_core.ops import registry
from mononn_core.ops.common import numpy_dtype, text
from mononn_core.ops.quantise import limits

Bounds = tuple[float, float]
Known = Bounds | None
MOST = 1e30
"""In size, of numbers that a network computes."""
LARGEST = float(np.finfo(COMPUTE).max)
OVERFLOW = LARGEST + 2.0**103
"""The least number that float32 rounds to infinity: half of its last digit behind the largest."""
LEAST = -1e37
"""What is added to a score so that it counts for nothing lies below: nothing that a network computes reaches it."""
EXPONENT = 80.0
"""The exponential function of no more is no larger than MOST."""
UNIT: Bounds = (0.0, 1.0)
ZERO: Bounds = (0.0, 0.0)


def anything(dtype: str) -> Bounds:
    """Of numbers of that type of which nothing is known but that they are some."""
    if dtype == "bool":
        return UNIT
    if is_float(dtype):
        return (-math.inf, math.inf) if dtype == F16 else (-MOST, MOST)  # a float16 overflows where nothing is wrong
    low, high = limits(dtype)
    return float(low), float(high)


def of_values(value: np.ndarray) -> Known:
    """Of a constant's elements."""
    if not value.size:
        return ZERO
    low, high = float(value.min()), float(value.max())
    return None if math.isnan(low) or math.isnan(high) else (low, high)


def rounded(known: Known) -> Known:
    """Of such floats, rounded away from them to powers of 2^16, so that the weights of equal layers have equal ones."""
    if known is None or not is_ordinary(known):
        return known
    low, high = known
    return (
        -_power_above(-low) if low < 0 else _power_below(low),
        _power_above(high) if high > 0 else -_power_below(-high),
    )


def _power_above(size: float) -> float:
    mantissa, exponent = math.frexp(size)  # of a power of two 0.5 and one more than its exponent
    return min(math.ldexp(1.0, -(-(exponent - (mantissa == 0.5)) // 16) * 16), MOST)


def _power_below(size: float) -> float:
    return math.ldexp(1.0, (math.frexp(size)[1] - 1) // 16 * 16) if size else 0.0


def hull(parts: Iterable[Known]) -> Known:
    """Of the elements of all ``parts`` together."""
    found = list(parts)
    known = [part for part in found if part is not None]
    return (min(low for low, _ in known), max(high for _, high in known)) if len(known) == len(found) else None


def is_ordinary(known: Known) -> bool:
    """Whether each times zero is zero, and sums of their products are numbers."""
    return known is not None and known[0] >= -MOST and known[1] <= MOST


def of_elementwise(node: Node, given: Sequence[Known], dtypes: Sequence[str], result: str) -> Known:
    """Of the results of an elementwise operator for inputs between these bounds; ``result`` is the results' type."""
    exact = _exact(node, given, dtypes)
    if exact is not None:
        return exact
    rule = _RULES.get(node.op)
    found = rule(node, list(given)) if rule else None
    if not is_float(result):
        return found or anything(result)  # whatever they were computed of, they are integers, or true or false
    return None if found is None else (_stored(found[0]), _stored(found[1]))


def _stored(number: float) -> float:
    """As a float32 has it, but for its digits."""
    return number if abs(number) < OVERFLOW else math.copysign(math.inf, number)


def _exact(node: Node, given: Sequence[Known], dtypes: Sequence[str]) -> Known:
    """Of inputs that are one known number each; None of any other."""
    values = []
    for known, dtype in zip(given, dtypes, strict=True):
        if known is None or known[0] != known[1] or (abs(known[0]) > 2**53 and not is_float(dtype)):
            return None
        values.append(np.asarray(known[0]).astype(numpy_dtype(dtype)))
    with np.errstate(all="ignore"):
        value = float(registry.get(node.op).evaluate(np, values, node.attrs)[0])
    return None if math.isnan(value) else (value, value)


def _computed(low: float, high: float, most: float = MOST) -> Known:
    """An interval that was computed of other than constants: no number in it is larger than ``most``."""
    return None if math.isnan(low) or math.isnan(high) else (max(low, -most), min(high, most))


def _sum(node: Node, given: list[Known]) -> Known:
    a, b = given
    if a is None or b is None or {math.inf, -math.inf} <= {*a, *b}:
        return None
    low, high = a[0] + b[0], a[1] + b[1]
    return _computed(low, high) if is_ordinary(a) and is_ordinary(b) else (low, high)


def _difference(node: Node, given: list[Known]) -> Known:
    a, b = given
    return None if b is None else _sum(node, [a, (-b[1], -b[0])])


def _corners(function: Callable[[float, float], float], a: Bounds, b: Bounds) -> Known:
    values = [function(x, y) for x, y in product(a, b)]
    if any(map(math.isnan, values)):
        return None
    one = a[0] == a[1] or b[0] == b[1]  # a mask times what is added for it
    return _computed(min(values), max(values), LARGEST if one else MOST)


def _product(node: Node, given: list[Known]) -> Known:
    a, b = given
    if a is None or b is None or math.inf in map(abs, (*a, *b)):
        return None
    if node.inputs[0] == node.inputs[1]:
        return _computed(0.0 if a[0] <= 0 <= a[1] else min(a[0] ** 2, a[1] ** 2), max(a[0] ** 2, a[1] ** 2))
    return _corners(lambda x, y: x * y, a, b)


def _quotient(node: Node, given: list[Known]) -> Known:
    a, b = given
    if a is None or b is None or b[0] <= 0 <= b[1] or math.inf in map(abs, (*a, *b)):
        return None
    return _corners(lambda x, y: x / y, a, b)


def _power(node: Node, given: list[Known]) -> Known:
    a, b = given
    if a is None or b is None or b[0] != b[1]:
        return None
    even, positive = b[0] % 2 == 0 and b[0] > 0, a[0] > 0
    if math.inf in map(abs, a):
        return None
    if b[0] % 2 == 1 and b[0] > 0:
        return _computed(*(math.copysign(_raised(abs(x), b[0]), x) for x in a))
    if not (even or positive):
        return None
    sizes = sorted(_raised(abs(x), b[0]) for x in a)
    return _computed(0.0 if even and a[0] <= 0 <= a[1] else sizes[0], sizes[1])


def _raised(x: float, exponent: float) -> float:
    try:
        return x**exponent
    except OverflowError:
        return math.inf


def _rising(function: Callable[[float], float], low: float = -math.inf, high: float = math.inf) -> _Rule:
    """Of a function that rises with its argument, which has to lie between ``low`` and ``high``."""

    def rule(node: Node, given: list[Known]) -> Known:
        (x,) = given
        return None if x is None or x[0] < low or x[1] > high else (function(x[0]), function(x[1]))

    return rule


def _within(low: float, high: float) -> _Rule:
    """Of a function with values between two numbers, whatever number its argument is."""
    return lambda node, given: None if None in given else (low, high)


def _of_size(node: Node, given: list[Known]) -> Known:
    (x,) = given
    return None if x is None else (max(x[0], -x[1], 0.0), max(-x[0], x[1]))


def _rounded(node: Node, given: list[Known]) -> Known:
    (x,) = given
    return None if x is None else (x[0] - 1, x[1] + 1)


def _clip(node: Node, given: list[Known]) -> Known:
    (x,) = given
    ends = [node.attrs.get(key) for key in ("low", "high")]
    low, high = (float(end) if isinstance(end, (int, float)) else None for end in ends)
    if x is None:
        return None
    if low is not None:
        x = max(x[0], low), max(x[1], low)
    return x if high is None else (min(x[0], high), min(x[1], high))


def _chosen(node: Node, given: list[Known]) -> Known:
    condition, yes, no = given
    if condition is not None and condition[0] == condition[1]:
        return yes if condition[0] else no
    return hull((yes, no))


def _all_true(node: Node, given: list[Known]) -> Known:
    ends = [known or UNIT for known in given]
    return min(low for low, _ in ends), min(high for _, high in ends)


def _any_true(node: Node, given: list[Known]) -> Known:
    ends = [known or UNIT for known in given]
    return max(low for low, _ in ends), max(high for _, high in ends)


def _compared(surely: Callable[[Bounds, Bounds], bool], never: Callable[[Bounds, Bounds], bool]) -> _Rule:
    def rule(node: Node, given: list[Known]) -> Known:
        a, b = given
        if a is None or b is None:
            return UNIT
        return (float(surely(a, b)), float(not never(a, b)))

    return rule


def _cast(node: Node, given: list[Known]) -> Known:
    (x,), to = given, text(node.attrs, "to")
    if x is None:
        return None
    if to == "bool":
        return (1.0, 1.0) if x[0] > 0 or x[1] < 0 else UNIT
    least, most = anything(to)
    if is_float(to):
        return x if to in (COMPUTE, F64) else None if not is_ordinary(x) else _narrow(x, to)
    return (math.floor(x[0]), math.ceil(x[1])) if least <= x[0] and x[1] <= most else None


def _narrow(x: Bounds, to: str) -> Known:
    ends = np.asarray(x).astype(numpy_dtype(to)).astype(float)
    return (-MOST, MOST) if not np.isfinite(ends).all() else (float(ends[0]), float(ends[1]))


def _quantised(node: Node, given: list[Known]) -> Known:
    return None if None in given else anything(text(node.attrs, "to"))


def _real(node: Node, given: list[Known]) -> Known:
    return anything(COMPUTE) if all(map(is_ordinary, given)) else None


_Rule = Callable[[Node, list[Known]], Known]
_RULES: dict[str, Any] = {
    "identity": _rising(lambda x: x),
    "add": _sum,
    "sub": _difference,
    "mul": _product,
    "div": _quotient,
    "pow": _power,
    "neg": lambda node, given: None if given[0] is None else (-given[0][1], -given[0][0]),
    "abs": _of_size,
    "sqrt": _rising(math.sqrt, 0.0),
    "exp": _rising(math.exp, high=EXPONENT),
    "log": _rising(math.log, 1 / MOST),
    "reciprocal": lambda node, given: _quotient(node, [(1.0, 1.0), given[0]]),
    "erf": _within(-1.0, 1.0),
    "tanh": _within(-1.0, 1.0),
    "sigmoid": _within(0.0, 1.0),
    "sin": lambda node, given: (-1.0, 1.0) if is_ordinary(given[0]) else None,
    "cos": lambda node, given: (-1.0, 1.0) if is_ordinary(given[0]) else None,
    "sign": _within(-1.0, 1.0),
    "relu": _rising(lambda x: max(x, 0.0)),
    "gelu": lambda node, given: (-1.0, max(given[0][1], 0.0)) if is_ordinary(given[0]) else None,
    "softplus": lambda node, given: (0.0, max(given[0][1], 0.0) + 1.0) if is_ordinary(given[0]) else None,
    "floor": _rounded,
    "ceil": _rounded,
    "round": _rounded,
    "clip": _clip,
    "min": lambda node, given: None if None in given else (min(a for a, _ in given), min(b for _, b in given)),
    "max": lambda node, given: None if None in given else (max(a for a, _ in given), max(b for _, b in given)),
    "where": _chosen,
    "and": _all_true,
    "or": _any_true,
    "not": lambda node, given: (1 - (given[0] or UNIT)[1], 1 - (given[0] or UNIT)[0]),
    "equal": _compared(lambda a, b: a[0] == a[1] == b[0] == b[1], lambda a, b: a[1] < b[0] or b[1] < a[0]),
    "less": _compared(lambda a, b: a[1] < b[0], lambda a, b: a[0] >= b[1]),
    "less_equal": _compared(lambda a, b: a[1] <= b[0], lambda a, b: a[0] > b[1]),
    "greater": _compared(lambda a, b: a[0] > b[1], lambda a, b: a[1] <= b[0]),
    "greater_equal": _compared(lambda a, b: a[0] >= b[1], lambda a, b: a[1] < b[0]),
    "cast": _cast,
    "quantize": _quantised,
    "dequantize": _real,
}
"""Of an operator's inputs the bounds of its results; what is not here is bounded by its type alone."""
