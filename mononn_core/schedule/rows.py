"""Row operators and reductions as scalar code: what is computed once a row, and the element after it."""

from __future__ import annotations

from math import prod

from mononn_core.graph import Node
from mononn_core.ops.common import delinearise
from mononn_core.program.expr import Cast, Const, Expr, Var, const, op
from mononn_core.program.ir import Let, Reduce, Statement
from mononn_core.schedule.stages import FusionGroup
from mononn_core.schedule.views import Views

Body = tuple[tuple[Statement, ...], Expr]
REDUCTIONS = {
    "reduce_sum": "add",
    "reduce_mean": "add",
    "reduce_max": "max",
    "reduce_min": "min",
    "reduce_prod": "mul",
}


def group_body(stage: FusionGroup, views: Views, index: tuple[Expr, ...]) -> Body:
    """:func:`row_body` of a group's root, or its expression where it has none."""
    return ((), views.point(stage.chain[0], index)) if stage.root is None else row_body(stage.root, views, index)


def row_body(node: Node, views: Views, index: tuple[Expr, ...]) -> Body:
    """(statements before the element, value of the element at ``index`` of ``node``'s output)."""
    if node.op in REDUCTIONS:
        return _reduction(node, views, index)
    if node.op in ("softmax", "log_softmax"):
        return _softmax(node, views, index)
    if node.op == "layer_norm":
        return _layer_norm(node, views, index)
    if node.op == "rms_norm":
        return _rms_norm(node, views, index)
    return _matmul(node, views, index)


def _matmul(node: Node, views: Views, index: tuple[Expr, ...]) -> Body:
    """A product in a type no template has: one sum an element."""
    a, b = (views.type(n).shape for n in node.inputs)
    lead_a = [Const(0) if extent == 1 else i for i, extent in zip(index[-len(a) : -2], a[:-2], strict=True)]
    lead_b = [Const(0) if extent == 1 else i for i, extent in zip(index[-len(b) : -2], b[:-2], strict=True)]
    z: Expr = Var("z")
    tail = (index[-1], z) if node.attrs.get("transpose_b") else (z, index[-1])
    kind = views.type(node.output).dtype
    sides = views.read(node.inputs[0], (*lead_a, index[-2], z)), views.read(node.inputs[1], (*lead_b, *tail))
    left, right = (e if e.dtype == kind else Cast(e, kind) for e in sides)
    return (Reduce("total", "add", "z", a[-1], op("mul", left, right)),), Var("total", kind)


def _reduction(node: Node, views: Views, index: tuple[Expr, ...]) -> Body:
    source = views.type(node.inputs[0])
    axes: tuple[int, ...] = tuple(node.attrs["axes"])  # type: ignore[arg-type]
    extents = tuple(source.shape[a] for a in axes)
    count = prod(extents)
    reduced = dict(zip(axes, delinearise(Var("z"), extents), strict=True))
    if node.attrs.get("keepdims", False):
        full = tuple(reduced.get(d, i) for d, i in enumerate(index))
    else:
        rest = iter(index)
        full = tuple(reduced[d] if d in reduced else next(rest) for d in range(source.rank))
    value = views.read(node.inputs[0], full)
    total: Expr = Var("total", value.dtype)
    statement = Reduce("total", REDUCTIONS[node.op], "z", count, value)
    if node.op == "reduce_mean":
        total = op("div", total, Const(float(count), value.dtype))
    return (statement,), total


def _last_axis(node: Node, views: Views, index: tuple[Expr, ...]) -> tuple[int, Expr, Expr]:
    """(extent, element of input 0 along the row at "z", element at ``index``)."""
    shape = views.type(node.inputs[0]).shape
    axis = int(node.attrs.get("axis", -1)) % len(shape)  # type: ignore[arg-type]
    along = (*index[:axis], Var("z"), *index[axis + 1 :])
    return shape[axis], views.read(node.inputs[0], along), views.read(node.inputs[0], index)


def _softmax(node: Node, views: Views, index: tuple[Expr, ...]) -> Body:
    extent, along, here = _last_axis(node, views, index)
    kind = here.dtype
    top, total = Var("top", kind), Var("total", kind)
    statements: tuple[Statement, ...] = (
        Reduce("top", "max", "z", extent, along),
        Reduce("total", "add", "z", extent, op("exp", op("sub", along, top))),
    )
    shifted = op("sub", here, top)
    if node.op == "log_softmax":
        return statements, op("sub", shifted, op("log", total))
    inverse = Let("inverse", op("reciprocal", total))
    return (*statements, inverse), op("mul", op("exp", shifted), Var("inverse", kind))


def _layer_norm(node: Node, views: Views, index: tuple[Expr, ...]) -> Body:
    extent, along, here = _last_axis(node, views, index)
    kind = here.dtype
    mean, scale = Var("mean", kind), Var("scale", kind)
    centred = op("sub", along, mean)
    epsilon = float(node.attrs["epsilon"])  # type: ignore[arg-type]
    statements: tuple[Statement, ...] = (
        Reduce("sum", "add", "z", extent, along),
        Let("mean", op("div", Var("sum", kind), const(float(extent), kind))),
        Reduce("squares", "add", "z", extent, op("mul", centred, centred)),
        Let("scale", _inverse_root(Var("squares", kind), extent, epsilon)),
    )
    value: Expr = op("mul", op("sub", here, mean), scale)
    return statements, _affine(node, views, index, value)


def _rms_norm(node: Node, views: Views, index: tuple[Expr, ...]) -> Body:
    extent, along, here = _last_axis(node, views, index)
    kind, epsilon = here.dtype, float(node.attrs["epsilon"])  # type: ignore[arg-type]
    statements: tuple[Statement, ...] = (
        Reduce("squares", "add", "z", extent, op("mul", along, along)),
        Let("scale", _inverse_root(Var("squares", kind), extent, epsilon)),
    )
    return statements, _affine(node, views, index, op("mul", here, Var("scale", kind)))


def _inverse_root(squares: Expr, extent: int, epsilon: float) -> Expr:
    mean = op("div", squares, const(float(extent), squares.dtype))
    return op("reciprocal", op("sqrt", op("add", mean, const(epsilon, squares.dtype))))


def _affine(node: Node, views: Views, index: tuple[Expr, ...], value: Expr) -> Expr:
    """Times gamma, plus beta, where they are there."""
    for name, operation in zip(node.inputs[1:3], ("mul", "add"), strict=False):
        if name:
            value = op(operation, value, views.read(name, index[len(index) - views.type(name).rank :]))
    return value


__all__ = ["REDUCTIONS", "group_body", "row_body"]
