"""Array functions the array API lacks, written against any namespace ``xp``."""

from __future__ import annotations

from typing import Any

import numpy as np

from mononn_core.element import COMPUTE, WIDE

# W. J. Cody, "Rational Chebyshev approximations for the error function", Mathematics of Computation 23 (1969).
_A = (3.16112374387056560e00, 1.13864154151050156e02, 3.77485237685302021e02, 3.20937758913846947e03)
_A_TOP = 1.85777706184603153e-1
_B = (2.36012909523441209e01, 2.44024637934444173e02, 1.28261652607737228e03, 2.84423683343917062e03)
_C = (
    5.64188496988670089e-1,
    8.88314979438837594e00,
    6.61191906371416295e01,
    2.98635138197400131e02,
    8.81952221241769090e02,
    1.71204761263407058e03,
    2.05107837782607147e03,
    1.23033935479799725e03,
)
_C_TOP = 2.15311535474403846e-8
_D = (
    1.57449261107098347e01,
    1.17693950891312499e02,
    5.37181101862009858e02,
    1.62138957456669019e03,
    3.29079923573345963e03,
    4.36261909014324716e03,
    3.43936767414372164e03,
    1.23033935480374942e03,
)
_P = (3.05326634961232344e-1, 3.60344899949804439e-1, 1.25781726111229246e-1, 1.60837851487422766e-2)
_P_LAST, _P_TOP = 6.58749161529837803e-4, 1.63153871373020978e-2
_Q = (2.56852019228982242e00, 1.87295284992346725e00, 5.27905102951428412e-1, 6.05183413124413191e-2)
_Q_LAST = 2.33520497626869185e-3
_RSQRT_PI = 0.56418958354775628695


def wide(xp: Any, x: Any) -> Any:
    """``x`` in float64 under NumPy (whose float64 costs nothing to have); in at least float32 elsewhere."""
    if xp is np:
        return x.astype(WIDE)
    return x if str(x.dtype) in (COMPUTE, WIDE) else x.astype(COMPUTE)


def _rational(x: Any, top: float, over: tuple[float, ...], under: tuple[float, ...]) -> tuple[Any, Any]:
    numerator, denominator = top * x, x
    for a, b in zip(over, under, strict=True):
        numerator, denominator = (numerator + a) * x, (denominator + b) * x
    return numerator, denominator


def erf(xp: Any, x: Any) -> Any:
    """The error function, of ``x``'s dtype; relative error below 1e-15 in float64 (Cody 1969)."""
    v = wide(xp, x)
    y = xp.abs(v)
    square = xp.minimum(y, 0.5) ** 2
    over, under = _rational(square, _A_TOP, _A[:3], _B[:3])
    small = v * (over + _A[3]) / (under + _B[3])

    middle = xp.clip(y, 0.46875, 4.0)
    over, under = _rational(middle, _C_TOP, _C[:7], _D[:7])
    medium = (over + _C[7]) / (under + _D[7])

    large = xp.clip(y, 4.0, 30.0)
    inverse = 1.0 / (large * large)
    over, under = _rational(inverse, _P_TOP, _P, _Q)
    tail = (_RSQRT_PI - inverse * (over + _P_LAST) / (under + _Q_LAST)) / large

    bounded = xp.minimum(y, 30.0)
    step = xp.floor(bounded * 16.0) / 16.0
    decay = xp.exp(-step * step) * xp.exp(-(bounded - step) * (bounded + step))
    complement = decay * xp.where(y <= 4.0, medium, tail)
    result = xp.where(y <= 0.46875, small, xp.sign(v) * (1.0 - complement))
    return xp.where(v != v, v, result).astype(x.dtype)


def sigmoid(xp: Any, x: Any) -> Any:
    """1 / (1 + exp(-x)) without overflow, of ``x``'s dtype."""
    small = xp.exp(-xp.abs(x))
    return xp.where(x >= 0, 1 / (1 + small), small / (1 + small)).astype(x.dtype)


def softplus(xp: Any, x: Any) -> Any:
    """log(1 + exp(x)) without overflow, of ``x``'s dtype."""
    return (xp.maximum(x, 0) + xp.log1p(xp.exp(-xp.abs(x)))).astype(x.dtype)


def truncated_division(xp: Any, a: Any, b: Any) -> Any:
    """Integer division rounding towards zero, as ONNX and C divide; a zero divisor gives an unspecified value."""
    divisor = xp.where(b == 0, xp.ones_like(b), b)
    quotient = a // divisor
    inexact = quotient * divisor != a
    return (quotient + (inexact & ((a < 0) != (divisor < 0)))).astype(a.dtype)


def power(xp: Any, a: Any, b: Any) -> Any:
    """``a ** b`` of ``a``'s dtype; an integer base with another exponent is computed in float64."""
    if a.dtype == b.dtype and "int" not in str(a.dtype):
        return xp.power(a, b)
    if "int" in str(a.dtype) and "int" in str(b.dtype):
        return xp.power(a, xp.maximum(b, 0).astype(a.dtype))
    return xp.power(wide(xp, a), wide(xp, b)).astype(a.dtype)
