"""Converters of ONNX operators that read at data-dependent positions."""

from __future__ import annotations

import numpy as np

from mononn_core.importer.context import Context, converts


def indices(ctx: Context, position: int) -> str:
    """An index input as int32 or int64."""
    name = ctx.input(position)
    return name if ctx.type(name).dtype in ("int32", "int64") else ctx.add("cast", name, to="int64")


@converts("Gather", "GatherElements")
def gather(ctx: Context) -> str:
    op = "gather" if ctx.node.op_type == "Gather" else "gather_elements"
    return ctx.add(op, ctx.input(0), indices(ctx, 1), axis=ctx.axis(0, ctx.type(0).rank))


@converts("GatherND")
def gather_nd(ctx: Context) -> str:
    return ctx.add("gather_nd", ctx.input(0), indices(ctx, 1), batch_dims=int(ctx.attr("batch_dims", 0)))


@converts("OneHot")
def one_hot(ctx: Context) -> str:
    depth = int(ctx.constant(1, "depth").reshape(-1)[0])
    axis = ctx.axis(-1, ctx.type(0).rank + 1)
    return ctx.add("one_hot", indices(ctx, 0), ctx.input(2), axis=axis, depth=depth)


@converts("NonZero")
def non_zero(ctx: Context) -> str:
    """Only of constants: the result's shape depends on the data."""
    return ctx.make(np.stack(np.nonzero(np.atleast_1d(ctx.constant(0, "result's shape")))).astype("int64"))
