"""Scatters at constant positions as gathers, where every element knows which updates reach it; others as updates of
numbered runs of elements.

1. scatter_elements and scatter_nd with constant indices: where(reached, combine(updates gathered), data). Updates
   that reach one element are combined by a reduction; without one, the last of them wins. Not where far more would be
   gathered than there is. No updates leave the data as it is, wherever they would go.
2. Parts of a tensor that are set one after the other, each in what the one before gives (a written-out loop's results,
   step by step): a concatenation.
3. Positions that are a block of the data: see :mod:`mononn_core.passes.blocks`.
4. For a CPU every other one as scatter_runs: a template computes it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from mononn_core.graph import Graph, Node, TensorType
from mononn_core.ops.common import integer, text
from mononn_core.passes.blocks import block
from mononn_core.passes.rewrite import Rewriter, along, rewrite

COMBINE = {"add": "reduce_sum", "mul": "reduce_prod", "max": "reduce_max", "min": "reduce_min"}
"""Scatter reduction (also the name of the operator on two elements) -> operator on an axis."""
MOST_GATHERED = 4
"""Times the updates and what they meet that case 1 gathers at most."""
SHORTEST_ROW, LONGEST_ROW = 64, 1 << 12
"""Single elements are scattered to rows of so many, where the data can be cut into such."""
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
    order = np.argsort(blocks, kind="stable")
    met = blocks[order]
    ends = np.searchsorted(met, np.arange(count), "right")
    if last:  # one entry a block
        numbers, valid = np.zeros((count, 1), np.int64), np.diff(ends, prepend=0)[:, None] > 0
        numbers[valid[:, 0], 0] = order[ends[valid[:, 0]] - 1]
        return numbers, valid
    place = np.arange(met.size) - np.concatenate([[0], ends[:-1]])[met]  # of an update among those of its block
    numbers = np.zeros((count, int(place.max()) + 1), np.int64)
    valid = np.zeros(numbers.shape, bool)
    numbers[met, place], valid[met, place] = order, True
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
    if rewriter.type(updates).size == 0:
        return data
    indices, t, how = rewriter.constant(node.inputs[1]), rewriter.type(data), text(node.attrs, "reduction")
    if indices is None or t.size == 0 or indices.size == 0 or t.dtype == "bool":
        return None
    goals = targets(node, t, indices)
    if goals is None:
        return None
    blocks, size = goals
    count = t.size // size
    most = 1 if how == "none" else int(np.bincount(blocks).max())
    if count * most > MOST_GATHERED * (blocks.size + count):
        return None
    numbers, valid = table(blocks, count, last=how == "none")
    flat = rewriter.reshape(data, (count, size))
    value = among(rewriter, rewriter.reshape(updates, (blocks.size, size)), numbers, valid, how)
    if how != "none":
        value = rewriter.add(how, flat, value)
    reached = rewriter.make(valid.any(axis=1, keepdims=True))
    return rewriter.reshape(rewriter.add("where", reached, value, flat), t.shape)


def assigned(rewriter: Rewriter, node: Node) -> str | None:
    """Case 2, of the last of them."""
    t = rewriter.type(node.output)
    if node.op != "scatter_nd" or rewriter.only_read_by(node.output, node.op) or t.size == 0:
        return None
    steps = list[tuple[str, Indices]]()
    link: Node | None = node
    sizes = set[int]()
    while link is not None and text(link.attrs, "reduction") == "none":
        indices = rewriter.constant(link.inputs[1])
        goals = None if indices is None or indices.size == 0 else targets(link, t, indices)
        if goals is None or (steps and not rewriter.single_use(link.output)):
            break
        steps.append((link.inputs[2], goals[0]))
        sizes.add(goals[1])
        base, link = link.inputs[0], rewriter.producer(link.inputs[0], node.op)
    if len(steps) < 2 or len(sizes) > 1:
        return None
    size = sizes.pop()
    origin = np.full(t.size // size, -1)  # of each block: which step sets it last, -1 where none does,
    row = np.arange(t.size // size)  # and which block of that it gets
    for number in reversed(range(len(steps))):
        blocks = steps[number][1]
        origin[blocks], row[blocks] = number, np.arange(blocks.size)
    starts = np.flatnonzero(np.diff(origin, prepend=-2) | (np.diff(row, prepend=-2) != 1))
    if starts.size > 2 * len(steps) + 1:
        return None
    parts = []
    for start, end in pairwise((*starts.tolist(), origin.size)):
        name = base if origin[start] < 0 else steps[origin[start]][0]
        flat = rewriter.reshape(name, (rewriter.type(name).size // size, size))
        first = (int(row[start]), 0)
        parts.append(rewriter.add("slice", flat, starts=first, sizes=(end - start, size), steps=(1, 1)))
    return rewriter.reshape(rewriter.add("concat", *parts, axis=0), t.shape)


def runs(rewriter: Rewriter, node: Node) -> str | None:
    """Case 4."""
    if node.op not in ("scatter_nd", "scatter_elements"):
        return None
    data, _, updates = node.inputs
    t = rewriter.type(data)
    targets = _numbers(rewriter, node)
    count = rewriter.type(targets).size
    size = rewriter.type(updates).size // count
    row = t.shape[-1]
    columns = (
        size if size > 1 else next((c for c in range(min(row, LONGEST_ROW), SHORTEST_ROW, -1) if row % c == 0), row)
    )
    data = rewriter.reshape(data, (t.size // columns, columns))
    updates = rewriter.reshape(updates, (count, size) if size > 1 else (1, count))
    found = rewriter.add("scatter_runs", data, targets, updates, reduction=node.attrs["reduction"])
    return rewriter.reshape(found, t.shape)


def _numbers(rewriter: Rewriter, node: Node) -> str:
    """Which run of elements, those of one update after the other, each update goes to: int64 [1, updates]. A gather
    from where each position of an axis starts also reports a position that is none."""
    data, indices = rewriter.type(node.inputs[0]), rewriter.type(node.inputs[1])

    def starts(extent: int, step: int, positions: str) -> str:
        return rewriter.add("gather", rewriter.make(np.arange(extent) * step, "int64"), positions, axis=0)

    if node.op == "scatter_nd":
        lead, depth = indices.shape[:-1], indices.shape[-1]
        steps = [int(np.prod(data.shape[d + 1 : depth], dtype=np.int64)) for d in range(depth)]
        sizes, rest = (*lead, 1), (0,) * len(lead)
        columns = [
            rewriter.add("slice", node.inputs[1], starts=(*rest, d), sizes=sizes, steps=(1,) * indices.rank)
            for d in range(depth)
        ]
        parts = [starts(data.shape[d], steps[d], column) for d, column in enumerate(columns)]
        parts = parts or [rewriter.make(np.zeros(lead), "int64")]
    else:
        axis = integer(node.attrs, "axis")
        steps = [int(np.prod(data.shape[d + 1 :], dtype=np.int64)) for d in range(data.rank)]
        parts = [starts(data.shape[axis], steps[axis], node.inputs[1])]
        others = (d for d in range(data.rank) if d != axis and indices.shape[d] > 1)
        parts += [rewriter.make(along(d, data.rank, np.arange(indices.shape[d]) * steps[d]), "int64") for d in others]
    total = parts[0]
    for part in parts[1:]:
        total = rewriter.add("add", total, part)
    return rewriter.reshape(total, (1, rewriter.type(total).size))


def on_cpu(graph: Graph) -> Graph:
    """``graph`` without scatters but of runs."""
    return rewrite(graph, [runs])


def run(graph: Graph) -> Graph:
    """``graph`` without scatters at constant positions."""
    return rewrite(rewrite(graph, [assigned]), [block, scatter])
