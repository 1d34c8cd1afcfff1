"""``conv``: a 2-d convolution with channels last, over an input that holds its zero border already.

x [N, H, W, C], w [KH, KW, C / group, M] -> out [N, OH, OW, M]; output channel m of group g reads the channels of group
g. Strides and dilations are pairs. Channels last because a pixel's channels are then one run of memory, whatever the
kernel: every tap is a matrix product of shifted rows. Of integers of 8 bits the result is int32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mononn_core.element import product_type
from mononn_core.errors import ShapeError
from mononn_core.graph import TensorType
from mononn_core.ops.common import integer, integers, present
from mononn_core.ops.registry import Attrs, OpDef, register

Types = Sequence[TensorType | None]


def _infer(types: Types, attrs: Attrs) -> tuple[TensorType, ...]:
    x, w = present(types)
    group, strides, dilations = integer(attrs, "group"), integers(attrs, "strides"), integers(attrs, "dilations")
    if (
        x.rank != 4
        or w.rank != 4
        or not (summed := product_type(x.dtype, w.dtype))
        or x.shape[3] != w.shape[2] * group
        or w.shape[3] % group
    ):
        raise ShapeError(f"{x} and weight {w} do not fit {group} groups of a convolution with channels last")
    spans = [(k - 1) * d + 1 for k, d in zip(w.shape[:2], dilations, strict=True)]
    sizes = [(n - span) // s + 1 for n, span, s in zip(x.shape[1:3], spans, strides, strict=True)]
    if min(sizes) < 1:
        raise ShapeError(f"windows of {spans[0]} x {spans[1]} do not fit into {x}")
    return (TensorType(summed, (x.shape[0], *sizes, w.shape[3])),)


def _evaluate(xp: Any, inputs: Sequence[Any], attrs: Attrs) -> tuple[Any, ...]:
    """The sum over taps of products of the shifted input, group by group."""
    x, w = inputs
    summed = product_type(str(x.dtype), str(w.dtype))
    if summed != str(x.dtype):
        x, w = x.astype(summed), w.astype(summed)
    group = integer(attrs, "group")
    (sh, sw), (dh, dw) = integers(attrs, "strides"), integers(attrs, "dilations")
    n, height, width, _ = x.shape
    kh, kw, c, m = w.shape
    oh, ow = (height - (kh - 1) * dh - 1) // sh + 1, (width - (kw - 1) * dw - 1) // sw + 1
    total = None
    for i in range(kh):
        for j in range(kw):
            top, left = i * dh, j * dw
            part = x[:, top : top + (oh - 1) * sh + 1 : sh, left : left + (ow - 1) * sw + 1 : sw, :]
            part = xp.transpose(xp.reshape(part, (n * oh * ow, group, c)), (1, 0, 2))
            tap = xp.transpose(xp.reshape(w[i, j], (c, group, m // group)), (1, 0, 2))
            product = xp.matmul(part, tap)
            total = product if total is None else total + product
    return (xp.asarray(xp.reshape(xp.transpose(total, (1, 0, 2)), (n, oh, ow, m))).astype(x.dtype),)


def _flops(types: Types, outputs: Sequence[TensorType], attrs: Attrs) -> int:
    w = types[1]
    return 2 * outputs[0].size * w.shape[0] * w.shape[1] * w.shape[2] if w is not None else 0


register(OpDef("conv", "contraction", _infer, _evaluate, flops=_flops))
