"""Scatters at constant positions as gathers: every element knows which updates reach it.

1. scatter_elements and scatter_nd with constant indices: where(reached, combine(updates gathered), data). Updates
   that reach one element are combined by a reduction; without one, the last of them wins.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mononn_core.graph import Graph, Node, TensorType
from mononn_core.ops.common import integer, text
from mononn_core.passes.rewrite import Rewriter, rewrite

COMBINE = {"add": "reduce_sum", "mul": "reduce_prod", "max": "reduce_max", "min": "reduce_min"}
"""Scatter reduction (also the name of the operator on two elements) -> operator on an axis."""
Indices = np.ndarray[Any, Any]


def targets(node: Node, data: TensorType, indices: Indices) -> tuple[Indices, int] | None:
    """The block of data each update goes to, and how many elements a block has; None when one is out of range."""
    if node.op == "scatter_nd":
        depth = indices.shape[-1]
        extents = data.shape[:depth]
        where = tuple(indices[..., d].reshape(-1) for d in range(depth))
    else:
        axis = integer(node.attrs, "axis")
        extents = data.shape
        grid = [g.reshape(-1) for g in np.indices(indices.shape)]
        where = tuple(indices.reshape(-1) if d == axis else grid[d] for d in range(data.rank))
    wrapped = tuple(np.where(i < 0, i + n, i) for i, n in zip(where, extents, strict=True))
    if any(i.min() < 0 or i.max() >= n for i, n in zip(wrapped, extents, strict=True)):
        return None
    size = int(np.prod(data.shape[len(extents) :], dtype=np.int64))
    return np.ravel_multi_index(wrapped, extents), size


def table(blocks: Indices, count: int, last: bool) -> tuple[Indices, Indices]:
    """For each of ``count`` blocks the updates that reach it, [count, most], and whether an entry is one."""
    reaching: list[list[int]] = [[] for _ in range(count)]
    for update, block in enumerate(blocks.tolist()):
        reaching[block].append(update)
    if last:
        reaching = [r[-1:] for r in reaching]
    most = max(1, *(len(r) for r in reaching))
    numbers = np.array([r + [0] * (most - len(r)) for r in reaching], np.int64)
    valid = np.array([[True] * len(r) + [False] * (most - len(r)) for r in reaching])
    return numbers, valid


def among(rewriter: Rewriter, rows: str, numbers: Indices, valid: Indices, how: str) -> str:
    """The updates of each block combined, [count, size]: gathered, and reduced where several meet."""
    size = rewriter.type(rows).shape[1]
    count, most = numbers.shape
    found = rewriter.reshape(rewriter.add("gather", rows, rewriter.make(numbers), axis=0), (count, most, size))
    if most == 1:
        return rewriter.reshape(found, (count, size))
    neutral = {"add": 0, "mul": 1}.get(how)
    if neutral is None:  # an extreme does not mind its first element twice
        other = rewriter.add("gather", rows, rewriter.make(numbers[:, :1]), axis=0)
    else:
        other = rewriter.make(neutral, rewriter.type(rows).dtype)
    kept = rewriter.add("where", rewriter.make(valid[:, :, None]), found, other)
    return rewriter.add(COMBINE[how], kept, axes=(1,), keepdims=False)


def scatter(rewriter: Rewriter, node: Node) -> str | None:
    """Case 1."""
    if node.op not in ("scatter_nd", "scatter_elements"):
        return None
    data, _, updates = node.inputs
    indices, t, how = rewriter.constant(node.inputs[1]), rewriter.type(data), text(node.attrs, "reduction")
    if indices is None or t.size == 0 or indices.size == 0 or t.dtype == "bool":
        return None
    goals = targets(node, t, indices)
    if goals is None:
        return None
    blocks, size = goals
    numbers, valid = table(blocks, t.size // size, last=how == "none")
    flat = rewriter.reshape(data, (t.size // size, size))
    value = among(rewriter, rewriter.reshape(updates, (blocks.size, size)), numbers, valid, how)
    if how != "none":
        value = rewriter.add(how, flat, value)
    reached = rewriter.make(valid.any(axis=1, keepdims=True))
    return rewriter.reshape(rewriter.add("where", reached, value, flat), t.shape)


def run(graph: Graph) -> Graph:
    """``graph`` without scatters at constant positions."""
    return rewrite(graph, [scatter])
