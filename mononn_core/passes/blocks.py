"""Scatters to a block of the data are concatenations of what is set and of what is not; of the whole, what is set.

That is how exporters write ``x[a:b, c:d] = y``: scatter_nd with the index tuple of every element of the block, each
index a row of numbers that was spread over the other axes. With a reduction, the block is combined with what is set.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from mononn_core.graph import Node
from mononn_core.ops.common import integer, text
from mononn_core.passes.rewrite import Rewriter

Positions = np.ndarray[Any, Any]
LARGEST = 1 << 26
"""Numbers of index tuples that are looked at."""


def block(rewriter: Rewriter, node: Node) -> str | None:
    """The concatenation that a scatter is."""
    if node.op != "scatter_nd":
        return None
    data, indices, updates = node.inputs
    t, (*grid, depth) = rewriter.type(data), rewriter.type(indices).shape
    if len(grid) != depth or not 0 < rewriter.type(indices).size <= LARGEST or t.size == 0:
        return None
    corner = [0] * t.rank
    for axis, (size, extent) in enumerate(zip(grid, t.shape, strict=False)):
        first = _first(_positions(rewriter, indices, axis), axis)
        if first is None:
            return None
        corner[axis] = first + extent if first < 0 else first
        if first < 0 <= first + size - 1 or not 0 <= corner[axis] <= extent - size:
            return None
    parted = [axis for axis, size in enumerate(grid) if size < t.shape[axis]]
    return _replaced(rewriter, data, updates, corner, text(node.attrs, "reduction"), parted)


def _replaced(rewriter: Rewriter, data: str, updates: str, corner: list[int], how: str, axes: list[int]) -> str:
    """``data`` with its block at ``corner``, a part of it along ``axes``, set to ``updates`` or combined with them."""
    if not axes:
        return updates if how == "none" else rewriter.add(how, data, updates)
    shape, axis = rewriter.type(data).shape, axes[0]
    ends = (0, corner[axis], corner[axis] + rewriter.type(updates).shape[axis], shape[axis])
    parts = list[str]()
    for number, (start, end) in enumerate(pairwise(ends)):
        if start == end:
            continue
        starts, sizes = [0] * len(shape), list(shape)
        starts[axis], sizes[axis] = start, end - start
        part = rewriter.add("slice", data, starts=tuple(starts), sizes=tuple(sizes), steps=(1,) * len(shape))
        parts.append(_replaced(rewriter, part, updates, corner, how, axes[1:]) if number == 1 else part)
    return rewriter.add("concat", *parts, axis=axis)


def _first(positions: Positions | None, axis: int) -> int | None:
    """The first of positions that count up along ``axis``, and are the same along the others; None of others."""
    if positions is None:
        return None
    first = int(positions.reshape(-1)[0])
    row = np.arange(first, first + positions.shape[axis]).reshape(-1, *(1,) * (positions.ndim - 1 - axis))
    return first if np.array_equal(positions, np.broadcast_to(row, positions.shape)) else None


def _positions(rewriter: Rewriter, indices: str, axis: int) -> Positions | None:
    """Of every index tuple that along ``axis``, where it is known."""
    known = rewriter.constant(indices)
    if known is not None:
        return known[..., axis]
    joined, last = rewriter.producer(indices, "concat"), rewriter.type(indices).rank - 1
    if joined is None or integer(joined.attrs, "axis") % (last + 1) != last:
        return None
    if any(rewriter.type(name).shape[-1] != 1 for name in joined.inputs):
        return None
    found = _spread(rewriter, joined.inputs[axis])
    return None if found is None else found[..., 0]


def _spread(rewriter: Rewriter, name: str) -> Positions | None:
    """What was made of a constant by spreading it and by axes of extent 1: a view of it, which takes no memory."""
    known, node = rewriter.constant(name), rewriter.producer(name)
    if known is not None or node is None or node.op not in ("expand", "reshape"):
        return known
    before, shape = _spread(rewriter, node.inputs[0]), rewriter.type(name).shape
    if before is None or node.op == "expand":
        return None if before is None else np.broadcast_to(before, shape)
    same = [extent for extent in shape if extent > 1] == [extent for extent in before.shape if extent > 1]
    return before.reshape(shape) if same else None
