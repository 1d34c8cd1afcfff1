"""``windows``: every sliding window over some neighbouring axes, the shared half of convolutions and poolings.

For x [lead.., n1, .., nd, tail..] with n1 at ``axis`` and a kernel (k1, .., kd): out[lead.., a1, .., ad, o1, .., od,
tail..] = x[lead.., oi * stride_i + ai * dilation_i, tail..]. The input is padded beforehand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mononn_core.errors import ShapeError
from mononn_core.graph import TensorType
from mononn_core.ops.common import integer, integers, present
from mononn_core.ops.registry import Attrs, Index, Reader
from mononn_core.ops.shape import movement
from mononn_core.program.expr import Expr, add, mul

Types = Sequence[TensorType | None]


def _infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    (x,) = present(types)
    kernel, strides, dilations = (integers(attrs, key) for key in ("kernel", "strides", "dilations"))
    axis = integer(attrs, "axis")
    end = axis + len(kernel)
    if axis < 0 or end > x.rank:
        raise ShapeError(f"{x} has no axes {axis} to {end - 1} for windows")
    spans = zip(x.shape[axis:end], kernel, strides, dilations, strict=True)
    counts = tuple((n - (k - 1) * d - 1) // s + 1 for n, k, s, d in spans)
    if any(n < 1 for n in counts):
        raise ShapeError(f"windows of {list(kernel)} (dilated by {list(dilations)}) do not fit into {x}")
    return (TensorType(x.dtype, (*x.shape[:axis], *kernel, *counts, *x.shape[end:])),)


def _evaluate(xp: Any, attrs: Attrs, x: Any) -> Any:
    kernel, strides, dilations = (integers(attrs, key) for key in ("kernel", "strides", "dilations"))
    d, lead = len(kernel), integer(attrs, "axis")
    where = []
    for axis, (k, stride, dilation) in enumerate(zip(kernel, strides, dilations, strict=True)):
        count = (x.shape[lead + axis] - (k - 1) * dilation - 1) // stride + 1
        taps = xp.reshape(xp.arange(k) * dilation, tuple(k if e == axis else 1 for e in range(2 * d)))
        starts = xp.reshape(xp.arange(count) * stride, tuple(count if e == d + axis else 1 for e in range(2 * d)))
        where.append(taps + starts)
    return x[(*(slice(None),) * lead, *where)]


def _point(readers: Sequence[Reader], types: Sequence[TensorType], out: TensorType, attrs: Attrs, index: Index) -> Expr:
    strides, dilations = integers(attrs, "strides"), integers(attrs, "dilations")
    d, axis = len(strides), integer(attrs, "axis")
    taps, starts = index[axis : axis + d], index[axis + d : axis + 2 * d]
    inner = tuple(
        add(mul(start, stride), mul(tap, dilation))
        for tap, start, stride, dilation in zip(taps, starts, strides, dilations, strict=True)
    )
    return readers[0]((*index[:axis], *inner, *index[axis + 2 * d :]))


movement("windows", _infer, _evaluate, _point)
