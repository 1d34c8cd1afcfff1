"""Canonical forms of movements and of gathers at known positions.

1. reshape, transpose, expand, slice, tile and concat that change nothing are their input.
2. reshape of reshape is one reshape; transpose of transpose one transpose; expand of expand one expand; slice of
   slice one slice.
3. A transpose that moves only axes of extent 1 is a reshape.
4. A gather at constant, evenly spaced positions is a slice (and a reshape, when the positions are not a vector).
5. gather_nd at constant positions that walk through the data in order is a reshape; along one axis of it, a slice.
6. A tile of axes of extent 1 is an expand.
7. concat of concats along the same axis is one concat.
8. Windows of one element (a convolution with a 1 x 1 kernel) are a reshape, of a slice when they have strides.
9. A product by a transposed softmax, x softmax(s)^T, is (softmax(s) x^T)^T where x is no larger: as attention has it,
   and of an image of channels first nothing is transposed (Wang et al., Non-local Neural Networks, 2018).
"""

from __future__ import annotations

import numpy as np

from mononn_core.graph import Graph, Node
from mononn_core.ops.common import integer, integers
from mononn_core.passes.rewrite import Rewriter, rewrite


def unchanged(rewriter: Rewriter, node: Node) -> str | None:
    """Case 1."""
    x = node.inputs[0] if node.inputs else ""
    if node.op in ("reshape", "expand", "tile"):
        return x if rewriter.type(x).shape == rewriter.type(node.output).shape else None
    if node.op == "transpose":
        perm = integers(node.attrs, "perm")
        return x if perm == tuple(range(len(perm))) else None
    if node.op == "slice":
        same = rewriter.type(x).shape == integers(node.attrs, "sizes")
        return x if same and set(integers(node.attrs, "steps")) <= {1} else None
    return x if node.op == "concat" and len(node.inputs) == 1 else None


def composed(rewriter: Rewriter, node: Node) -> str | None:
    """Case 2."""
    if node.op not in ("reshape", "transpose", "expand", "slice"):
        return None
    inner = rewriter.producer(node.inputs[0], node.op)
    if inner is None:
        return None
    x = inner.inputs[0]
    if node.op in ("reshape", "expand"):
        return rewriter.add(node.op, x, shape=integers(node.attrs, "shape"))
    if node.op == "transpose":
        first, second = integers(inner.attrs, "perm"), integers(node.attrs, "perm")
        return rewriter.add("transpose", x, perm=tuple(first[p] for p in second))
    starts, steps = integers(inner.attrs, "starts"), integers(inner.attrs, "steps")
    more, strides = integers(node.attrs, "starts"), integers(node.attrs, "steps")
    return rewriter.add(
        "slice",
        x,
        starts=tuple(s + m * t for s, m, t in zip(starts, more, steps, strict=True)),
        sizes=integers(node.attrs, "sizes"),
        steps=tuple(t * s for t, s in zip(steps, strides, strict=True)),
    )


def unit_transpose(rewriter: Rewriter, node: Node) -> str | None:
    """Case 3."""
    if node.op != "transpose":
        return None
    shape = rewriter.type(node.inputs[0]).shape
    moved = [p for p in integers(node.attrs, "perm") if shape[p] != 1]
    return rewriter.reshape(node.inputs[0], rewriter.type(node.output).shape) if moved == sorted(moved) else None


def known_gather(rewriter: Rewriter, node: Node) -> str | None:
    """Case 4."""
    if node.op != "gather":
        return None
    data, positions = node.inputs[0], rewriter.constant(node.inputs[1])
    if positions is None or positions.size == 0:
        return None
    axis = integer(node.attrs, "axis")
    shape = rewriter.type(data).shape
    flat = np.where(positions < 0, positions + shape[axis], positions).reshape(-1)
    step = int(flat[1] - flat[0]) if flat.size > 1 else 1
    if step == 0 or np.any(np.diff(flat) != step) or flat.min() < 0 or flat.max() >= shape[axis]:
        return None
    starts, sizes, steps = [0] * len(shape), list(shape), [1] * len(shape)
    starts[axis], sizes[axis], steps[axis] = int(flat[0]), int(flat.size), step
    part = rewriter.add("slice", data, starts=tuple(starts), sizes=tuple(sizes), steps=tuple(steps))
    return rewriter.reshape(part, rewriter.type(node.output).shape)


def known_gather_nd(rewriter: Rewriter, node: Node) -> str | None:
    """Case 5."""
    if node.op != "gather_nd" or integer(node.attrs, "batch_dims"):
        return None
    data, positions = rewriter.type(node.inputs[0]), rewriter.constant(node.inputs[1])
    out = rewriter.type(node.output)
    if positions is None or out.size == 0 or not positions.shape[-1]:
        return None
    extents = data.shape[: positions.shape[-1]]
    wrapped = np.where(positions < 0, positions + np.asarray(extents, dtype=positions.dtype), positions)
    rows = wrapped.reshape(-1, len(extents))
    if np.any(rows < 0) or np.any(rows >= np.asarray(extents)):
        return None
    flat = np.ravel_multi_index(tuple(rows.T), extents)
    if data.size == out.size and np.array_equal(flat, np.arange(flat.size)):
        return rewriter.reshape(node.inputs[0], out.shape)
    strides = rows[1] - rows[0] if len(rows) > 1 else np.zeros_like(rows[0])
    if np.count_nonzero(strides) != (len(rows) > 1) or np.any(np.diff(rows, axis=0) != strides):
        return None
    rest = data.shape[len(extents) :]
    sizes = (*(len(rows) if stride else 1 for stride in strides.tolist()), *rest)
    steps = (*(stride or 1 for stride in strides.tolist()), *(1,) * len(rest))
    starts = (*rows[0].tolist(), *(0,) * len(rest))
    return rewriter.reshape(rewriter.add("slice", node.inputs[0], starts=starts, sizes=sizes, steps=steps), out.shape)


def unit_tile(rewriter: Rewriter, node: Node) -> str | None:
    """Case 6."""
    if node.op != "tile":
        return None
    shape, repeats = rewriter.type(node.inputs[0]).shape, integers(node.attrs, "repeats")
    if any(r != 1 and n != 1 for n, r in zip(shape, repeats, strict=True)):
        return None
    return rewriter.expand(node.inputs[0], rewriter.type(node.output).shape)


def nested_concat(rewriter: Rewriter, node: Node) -> str | None:
    """Case 7."""
    if node.op != "concat":
        return None
    axis = integer(node.attrs, "axis")
    parts: list[str] = []
    for name in node.inputs:
        inner = rewriter.producer(name, "concat")
        nested = inner is not None and rewriter.single_use(name) and integer(inner.attrs, "axis") == axis
        parts += inner.inputs if inner is not None and nested else [name]
    return rewriter.add("concat", *parts, axis=axis) if len(parts) > len(node.inputs) else None


def unit_windows(rewriter: Rewriter, node: Node) -> str | None:
    """Case 8."""
    if node.op != "windows" or set(integers(node.attrs, "kernel")) != {1}:
        return None
    x = node.inputs[0]
    shape, out = rewriter.type(x).shape, rewriter.type(node.output).shape
    strides = integers(node.attrs, "strides")
    axis, d = integer(node.attrs, "axis"), len(strides)
    if set(strides) != {1}:
        sizes = (*shape[:axis], *out[axis + d : axis + 2 * d], *shape[axis + d :])
        steps = (*(1,) * axis, *strides, *(1,) * (len(shape) - axis - d))
        x = rewriter.add("slice", x, starts=(0,) * len(shape), sizes=sizes, steps=steps)
    return rewriter.reshape(x, out)


def weighted(rewriter: Rewriter, node: Node) -> str | None:
    """Case 9."""
    if node.op != "matmul" or min(rewriter.type(name).rank for name in node.inputs) < 2:
        return None
    x, shares = node.inputs
    if not node.attrs.get("transpose_b"):
        moved = rewriter.producer(shares, "transpose")
        if moved is None or integers(moved.attrs, "perm") != _swapped(rewriter.type(shares).rank):
            return None
        shares = moved.inputs[0]
    softmax = rewriter.producer(shares, "softmax")
    if softmax is None or integer(softmax.attrs, "axis") != rewriter.type(shares).rank - 1:
        return None
    if rewriter.type(x).size > rewriter.type(shares).size:
        return None
    turned = rewriter.add("transpose", x, perm=_swapped(rewriter.type(x).rank))
    product = rewriter.add("matmul", shares, turned)
    return rewriter.add("transpose", product, perm=_swapped(rewriter.type(product).rank))


def _swapped(rank: int) -> tuple[int, ...]:
    """The permutation of the last two axes."""
    return (*range(rank - 2), rank - 1, rank - 2)


RULES = (
    unchanged,
    composed,
    unit_transpose,
    known_gather,
    known_gather_nd,
    unit_tile,
    nested_concat,
    unit_windows,
    weighted,
)


def run(graph: Graph) -> Graph:
    """``graph`` with its movements in canonical form."""
    return rewrite(graph, RULES)
