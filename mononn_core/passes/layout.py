"""Keeps images channels last: the transpositions behind convolutions and poolings sink until they meet their inverse.

Only "channels first" transpositions of rank 4 and more move: [N, n.., C] to [N, C, n..]; sequences take part as images
(:mod:`mononn_core.passes.sequences`). Channels may be split over several axes, [N, n.., R, C] to [N, R, C, n..]: what a
reshape of channels first makes of one. These axes may change places and be joined again: channels are shuffled last as
they were first. With T for one:

1. f(T(x), T(y), vectors and scalars ..) is T(f(x, y, ..)) for an elementwise f.
2. pad(T(x)) is T(pad(x)), slice(T(x)) is T(slice(x)), and so is a gather by a vector.
3. concat(T(x), T(y), ..) is T(concat(x, y, ..)).
4. reduce(T(x)) is reduce(x), transposed where two or more spatial axes stay.
5. matmul(reshape(T(x)), W) of a flattened image and constant W is matmul(reshape(x), W with its rows in the new order).
6. f(reshape(T(x)), scalars ..) is reshape(f(T(x), scalars ..)): what follows may undo the reshape.
7. A softmax along another axis than the last is its steps, where the last fills vectors, which then have a row in each
   lane; else one along the last, that axis moved there and back: loops that run over the others would take maximum and
   sum anew for each element. So is one that a product reads, as attention's.

A transposition others read as well stays for them; it is a view and costs nothing until it is stored.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from mononn_core.graph import Graph, Node
from mononn_core.ops import registry
from mononn_core.ops.common import integer, integers
from mononn_core.passes.movement import composed, unchanged
from mononn_core.passes.rewrite import Rewriter, rewrite
from mononn_core.passes.sequences import lifted

SHORTEST_ROW, LONGEST_ROW = 8, 256
"""Elements of a softmax that are worth a transposition to and fro, at least; that are in as many vectors, at most."""
SHORTEST_VECTOR = 16
"""Elements of the last axis that fill vectors."""


class Image(NamedTuple):
    """A channels-last tensor, by its name, and the number of its last axes that are channels."""

    name: str
    channels: int


def _first(rank: int, channels: int = 1) -> tuple[int, ...]:
    """The permutation from channels last to channels first."""
    return (0, *range(rank - channels, rank), *range(1, rank - channels))


def _last(rank: int, channels: int = 1) -> tuple[int, ...]:
    """Its inverse."""
    return (0, *range(channels + 1, rank), *range(1, channels + 1))


def _image(rewriter: Rewriter, name: str) -> Image | None:
    """The channels-last tensor behind ``name``: what T is applied to, or what stands before a transposition that brings
    channels to the front and a reshape of the axes behind them, or of the channels. Of one pixel a reshape is T."""
    node = rewriter.producer(name)
    shape = rewriter.type(name).shape
    if node is None or len(shape) < 4:
        return None
    if node.op == "transpose":
        return _moved(rewriter, node.inputs[0], integers(node.attrs, "perm"))
    if node.op != "reshape":
        return None
    if rewriter.type(node.inputs[0]).shape == (shape[0], *shape[2:], shape[1]) and prod(shape[2:]) == 1:
        return Image(node.inputs[0], 1)
    last = _regrouped(rewriter, node.inputs[0], shape)
    return last or _joined(rewriter, node.inputs[0], shape)


def _moved(rewriter: Rewriter, name: str, perm: tuple[int, ...]) -> Image | None:
    """The image behind a transposition of ``name`` that is T, or that gives axes of channels another order."""
    rank = len(perm)
    channels = next((c for c in range(1, rank - 2) if perm == _first(rank, c)), 0)
    if channels:
        return Image(name, channels)
    image = _image(rewriter, name) if rank > 4 else None
    if image is None or (perm[0], *perm[1 + image.channels :]) != (0, *range(1 + image.channels, rank)):
        return None
    spatial = rank - 1 - image.channels
    order = (*range(1 + spatial), *(spatial + axis for axis in perm[1 : 1 + image.channels]))
    return Image(rewriter.add("transpose", image.name, perm=order), image.channels)


def _regrouped(rewriter: Rewriter, name: str, shape: tuple[int, ...]) -> Image | None:
    """The image behind ``name``, its channels over as many axes as in ``shape``."""
    whole, before = _image(rewriter, name), rewriter.type(name).shape
    if whole is None:
        return None
    spatial = before[1 + whole.channels :]
    channels = len(shape) - 1 - len(spatial)
    if channels in (0, whole.channels) or len(spatial) < 2:
        return None
    if (shape[0], *shape[1 + channels :]) != (before[0], *spatial):
        return None
    return Image(rewriter.reshape(whole.name, (shape[0], *spatial, *shape[1 : 1 + channels])), channels)


def _joined(rewriter: Rewriter, name: str, shape: tuple[int, ...]) -> Image | None:
    """The image of ``shape`` that a transposition to the front of channels and a reshape of the other axes make."""
    move = rewriter.producer(name, "transpose")
    if move is None:
        return None
    perm, before = integers(move.attrs, "perm"), rewriter.type(move.inputs[0]).shape
    lead = int(perm[0] == 0 and before[0] == shape[0])
    if len(perm) < lead + 2 or perm[lead] != len(perm) - 1 or before[-1] != shape[1] or (not lead and shape[0] != 1):
        return None
    order = (*perm[:lead], *perm[lead + 1 :], perm[lead])
    last = move.inputs[0]
    if order != tuple(range(len(order))):
        last = rewriter.add("transpose", last, perm=order)
    return Image(rewriter.reshape(last, (shape[0], *shape[2:], shape[1])), 1)


def _back(rewriter: Rewriter, name: str, channels: int) -> str:
    return rewriter.add("transpose", name, perm=_first(rewriter.type(name).rank, channels))


def elementwise(rewriter: Rewriter, node: Node) -> str | None:
    """Case 1."""
    if registry.get(node.op).kind != "elementwise" or not node.inputs or len(node.outputs) != 1:
        return None
    shape = rewriter.type(node.output).shape
    images = [_image(rewriter, name) for name in node.inputs]
    whole = (i for i, n in zip(images, node.inputs, strict=True) if i is not None and rewriter.type(n).shape == shape)
    channels = next((image.channels for image in whole), 0)
    if not channels:
        return None
    inputs = []
    for name, image in zip(node.inputs, images, strict=True):
        if image is not None and image.channels == channels and rewriter.type(name).rank == len(shape):
            inputs.append(image.name)
            continue
        kind = rewriter.type(name)
        if kind.shape == shape and rewriter.constant(name) is None:
            return None
        if kind.rank:
            full = rewriter.reshape(name, (1,) * (len(shape) - kind.rank) + kind.shape)
            name = rewriter.add("transpose", full, perm=_last(len(shape), channels))
        inputs.append(name)
    return _back(rewriter, rewriter.add(node.op, *inputs, **dict(node.attrs)), channels)


def border(rewriter: Rewriter, node: Node) -> str | None:
    """Case 2."""
    keys = {"pad": ("before", "after"), "slice": ("starts", "sizes", "steps")}.get(node.op)
    image = _image(rewriter, node.inputs[0]) if keys else None
    if keys is None or image is None:
        return None
    order = _last(rewriter.type(image.name).rank, image.channels)
    moved = {key: tuple(integers(node.attrs, key)[p] for p in order) for key in keys}
    return _back(rewriter, rewriter.add(node.op, image.name, **{**node.attrs, **moved}), image.channels)


def picked(rewriter: Rewriter, node: Node) -> str | None:
    """Case 2 of a gather."""
    image = _image(rewriter, node.inputs[0]) if node.op == "gather" else None
    if image is None or rewriter.type(node.inputs[1]).rank != 1:
        return None
    rank = rewriter.type(image.name).rank
    axis = _last(rank, image.channels).index(integer(node.attrs, "axis") % rank)
    return _back(rewriter, rewriter.add("gather", image.name, node.inputs[1], axis=axis), image.channels)


def concat(rewriter: Rewriter, node: Node) -> str | None:
    """Case 3."""
    images = [_image(rewriter, name) for name in node.inputs] if node.op == "concat" else []
    counts = {image.channels if image else 0 for image in images}
    if len(counts) != 1 or 0 in counts:
        return None
    channels = counts.pop()
    axis = _last(rewriter.type(node.output).rank, channels).index(integer(node.attrs, "axis"))
    return _back(rewriter, rewriter.add("concat", *(i.name for i in images if i), axis=axis), channels)


def reduction(rewriter: Rewriter, node: Node) -> str | None:
    """Case 4."""
    definition = registry.get(node.op)
    if definition.kind != "reduction" or "axes" not in node.attrs or len(node.outputs) != 1:
        return None
    image = _image(rewriter, node.inputs[0])
    if image is None:
        return None
    order = _last(rewriter.type(image.name).rank, image.channels)
    axes = integers(node.attrs, "axes")
    moved = tuple(sorted(order.index(a) for a in axes))
    result = rewriter.add(node.op, image.name, **{**node.attrs, "axes": moved})
    if node.attrs["keepdims"]:
        return _back(rewriter, result, image.channels)
    kept = [a for a in order if a not in axes]  # axes of channels first, in the order they now have
    perm = tuple(kept.index(a) for a in sorted(kept))
    return result if perm == tuple(range(len(perm))) else rewriter.add("transpose", result, perm=perm)


def product(rewriter: Rewriter, node: Node) -> str | None:
    """Case 5."""
    flat = rewriter.producer(node.inputs[0], "reshape") if node.op == "matmul" else None
    image = _image(rewriter, flat.inputs[0]) if flat is not None else None
    if flat is None or image is None or image.channels > 1 or rewriter.constant(node.inputs[1]) is None:
        return None
    n, *spatial, c = rewriter.type(image.name).shape
    weight = rewriter.type(node.inputs[1])
    if rewriter.type(flat.output).shape != (n, c * prod(spatial)) or weight.rank != 2:
        return None
    w = node.inputs[1]
    if node.attrs.get("transpose_b"):
        split = rewriter.reshape(w, (weight.shape[0], c, prod(spatial)))
        w = rewriter.add("transpose", split, perm=(0, 2, 1))
    else:
        w = rewriter.add("transpose", rewriter.reshape(w, (c, prod(spatial), weight.shape[1])), perm=(1, 0, 2))
    w = rewriter.reshape(w, weight.shape)
    return rewriter.add("matmul", rewriter.reshape(image.name, (n, c * prod(spatial))), w, **dict(node.attrs))


def reshaped(rewriter: Rewriter, node: Node) -> str | None:
    """Case 6."""
    if registry.get(node.op).kind != "elementwise" or not node.inputs or len(node.outputs) != 1:
        return None
    x, *others = node.inputs
    view = rewriter.producer(x, "reshape")
    if view is None or _image(rewriter, view.inputs[0]) is None or any(rewriter.type(name).rank for name in others):
        return None
    result = rewriter.add(node.op, view.inputs[0], *others, **dict(node.attrs))
    return rewriter.reshape(result, rewriter.type(x).shape)


def softmax(rewriter: Rewriter, node: Node) -> str | None:
    """Case 7."""
    if node.op not in ("softmax", "log_softmax"):
        return None
    shape = rewriter.type(node.output).shape
    axis = integer(node.attrs, "axis") % len(shape)
    if axis == len(shape) - 1 or shape[axis] < SHORTEST_ROW:
        return None
    if shape[-1] >= SHORTEST_VECTOR and shape[axis] <= LONGEST_ROW and not rewriter.is_read_by(node.output, "matmul"):
        return _in_steps(rewriter, node, axis)
    order = (*(d for d in range(len(shape)) if d != axis), axis)
    rows = rewriter.add(node.op, rewriter.add("transpose", node.inputs[0], perm=order), axis=len(shape) - 1)
    return rewriter.add("transpose", rows, perm=tuple(order.index(d) for d in range(len(shape))))


def _in_steps(rewriter: Rewriter, node: Node, axis: int) -> str:
    x = node.inputs[0]
    shifted = rewriter.add("sub", x, rewriter.add("reduce_max", x, axes=(axis,), keepdims=True))
    shares = rewriter.add("exp", shifted)
    total = rewriter.add("reduce_sum", shares, axes=(axis,), keepdims=True)
    if node.op == "log_softmax":
        return rewriter.add("sub", shifted, rewriter.add("log", total))
    return rewriter.add("mul", shares, rewriter.add("reciprocal", total))


RULES = (unchanged, composed, lifted, elementwise, border, picked, concat, reduction, product, reshaped, softmax)


def run(graph: Graph) -> Graph:
    """``graph`` with its images channels last for as long as possible."""
    return rewrite(graph, RULES)
