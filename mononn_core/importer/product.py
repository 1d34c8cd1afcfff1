"""Converters of ONNX matrix products."""

from __future__ import annotations

from mononn_core.importer.context import Context, converts


@converts("MatMul")
def matmul(ctx: Context) -> str:
    return ctx.add("matmul", *ctx.inputs())


@converts("Gemm")
def gemm(ctx: Context) -> str:
    """alpha A' B' + beta C; scales and transposes of constants fold away."""
    a, b = ctx.input(0), ctx.input(1)
    if ctx.attr("transA", 0):
        a = ctx.add("transpose", a, perm=(1, 0))
    if ctx.attr("transB", 0):
        b = ctx.add("transpose", b, perm=(1, 0))
    alpha, beta = ctx.attr("alpha", 1.0), ctx.attr("beta", 1.0)
    if alpha != 1.0:
        b = ctx.add("mul", b, ctx.like(alpha, b))
    product = ctx.add("matmul", a, b)
    if not ctx.has(2) or beta == 0.0:
        return product
    c = ctx.input(2)
    return ctx.add("add", product, c if beta == 1.0 else ctx.add("mul", c, ctx.like(beta, c)))
