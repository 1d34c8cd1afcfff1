"""Conversions between vectors. Floats are in vectors of floats, whole numbers of any type in vectors of words."""

from __future__ import annotations

from mononn_core.element import COMPUTE, SHORT, WORD
from mononn_core.program.expr import Cast


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
