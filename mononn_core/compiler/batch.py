"""Whether a network treats the entries of a batch apart, so that a smaller batch can run as the first of a larger one.

Proven on two Graphs of one model, at batches B > b, never assumed:

1. They are the same but for the batch: node by node the same operators, inputs, attributes and constants. Only the
   target of a reshape or an expansion, the sizes of a slice, and the number of entries of a constant may differ, the
   first entries of that being equal.
2. In the larger one every tensor that depends on inputs, has such a constant or is expanded to a batch lies by entries:
   along one axis the first k places are entry 0's, the next k entry 1's, and nothing of one entry comes into the places
   of another. For every element it is known which entries it depends on: the smallest and the largest.
3. That axis has k * B places in one Graph and k * b in the other, and no other extent of any tensor differs.

So an entry's results are the same function of that entry at both batches. What has no rule here is not proven.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from mononn_core.graph import Graph, Node, TensorType
from mononn_core.graph.graph import Attr
from mononn_core.ops import registry
from mononn_core.ops.common import integer, integers

Owners = np.ndarray
"""[2, ...]: of every element of a tensor one more than the largest entry that it depends on, and the number of entries
less the smallest; both 0 where it depends on none. What depends on several has the larger of both."""
ROWS = ("softmax", "log_softmax", "layer_norm", "rms_norm")
EXTENTS = (("reshape", "shape"), ("expand", "shape"), ("slice", "sizes"))
"""Attributes that are extents of the result, which is compared."""
MOST_ELEMENTS = 1 << 25
"""Of a tensor whose elements are looked at one by one."""


class _UnprovenError(Exception):
    """There is no rule, or an entry meets another."""


def apart(large: Graph, small: Graph) -> bool:
    """Whether ``small`` computes what ``large`` does of the first entries of a batch, which all inputs and outputs have
    along their first axis."""
    ends = (*large.inputs, *large.outputs)
    pairs = [(large.types[n].shape, small.types[n].shape) for n in ends if n in small.types]
    batches = {(a[:1], b[:1]) for a, b in pairs}
    if len(batches) != 1 or len(pairs) < len(ends) or any(not a or not b or a[1:] != b[1:] for a, b in pairs):
        return False
    (((many,), (few,)),) = batches
    try:
        axes = dict.fromkeys(large.inputs, 0) | _same(large, small, many, few)
        for node in large.nodes:
            inputs = [_by_entries(large.types[n], axes[n], many) if n in axes else None for n in node.inputs]
            owners, types = _owners(large, node, inputs), (large.types[node.output], small.types[node.output])
            axis = _entries_axis(node, owners, types[0].shape, types[1].shape, many, few)
            if axis is not None:
                axes[node.output] = axis
        return True  # each output among them: its extents differ, and do so in the first axis
    except _UnprovenError:
        return False


# -- 1. the same Graph -----------------------------------------------------------------------------------------------


def _same(large: Graph, small: Graph, many: int, few: int) -> dict[str, int]:
    """Constants that have entries of the batch, and along which axis. Raises _UnprovenError where the Graphs differ in
    more than the batch."""
    if (large.inputs, large.outputs, len(large.nodes)) != (small.inputs, small.outputs, len(small.nodes)):
        raise _UnprovenError
    if large.constants.keys() != small.constants.keys():
        raise _UnprovenError
    for a, b in zip(large.nodes, small.nodes, strict=True):
        if (a.op, a.inputs, a.outputs, a.attrs.keys()) != (b.op, b.inputs, b.outputs, b.attrs.keys()):
            raise _UnprovenError
        if any(a.attrs[key] != b.attrs[key] and (a.op, key) not in EXTENTS for key in a.attrs):
            raise _UnprovenError
    owned = {}
    for name, value in large.constants.items():
        other = small.constants[name]
        if value is other or (value.shape == other.shape and value.tobytes() == other.tobytes()):
            continue
        axis = _differing(value.shape, other.shape, many, few)
        if value.dtype != other.dtype or axis is None:
            raise _UnprovenError
        if value.take(range(other.shape[axis]), axis=axis).tobytes() != other.tobytes():
            raise _UnprovenError
        owned[name] = axis
    return owned


# -- 2. who depends on whom, and 3. -----------------------------------------------------------------------------------


def _by_entries(kind: TensorType, axis: int, many: int) -> Owners:
    """Of a tensor whose axis has as many places for each entry, one entry after the other."""
    entry = np.arange(kind.shape[axis], dtype=np.int32) * many // kind.shape[axis]
    shape = (2, *(1,) * axis, -1, *(1,) * (kind.rank - axis - 1))
    return np.broadcast_to(np.stack([entry + 1, many - entry]).reshape(shape), (2, *kind.shape))


def _differing(a: tuple[int, ...], b: tuple[int, ...], many: int, few: int) -> int | None:
    """The one axis in which two shapes differ, as many entries do from few; None where they differ otherwise."""
    axes = [i for i, (n, m) in enumerate(zip(a, b, strict=False)) if n != m]
    if len(a) != len(b) or len(axes) != 1 or a[axes[0]] % many or a[axes[0]] * few != b[axes[0]] * many:
        return None
    return axes[0]


def _entries_axis(
    node: Node, owners: Owners | None, a: tuple[int, ...], b: tuple[int, ...], many: int, few: int
) -> int | None:
    """The axis along which a tensor of shape ``a`` at many entries and ``b`` at few lies by entries; None of one that
    depends on none. Raises _UnprovenError where it does not, or its shapes say otherwise."""
    axis = _differing(a, b, many, few)
    if owners is None or not owners.any():
        if a != b and (axis is None or node.op != "expand"):
            raise _UnprovenError
        return axis
    if axis is None or not ((owners == _by_entries(TensorType("int32", a), axis, many)) | ~owners.any(axis=0)).all():
        raise _UnprovenError
    return axis


def _owners(graph: Graph, node: Node, inputs: Sequence[Owners | None]) -> Owners | None:
    """Of the only output; None where it depends on no entry. Raises _UnprovenError where there is no rule."""
    given, kind = [owners for owners in inputs if owners is not None], registry.get(node.op).kind
    if len(node.outputs) != 1 or graph.types[node.output].size > MOST_ELEMENTS:
        raise _UnprovenError
    out, x = graph.types[node.output], inputs[0] if inputs else None
    if not given:
        return None
    if kind == "elementwise":
        return _together(given, out)
    if kind == "movement":
        return _moved(graph, node, inputs)
    if kind == "reduction" and x is not None:
        axes = integers(node.attrs, "axes") if "axes" in node.attrs else (integer(node.attrs, "axis"),)
        return x.max(axis=tuple(1 + axis % (x.ndim - 1) for axis in axes), initial=0).reshape(2, *out.shape)
    if node.op in ROWS and x is not None and len(given) == 1:
        axis = integer(node.attrs, "axis") % out.rank if "axis" in node.attrs else out.rank - 1
        return _together([x.max(axis=1 + axis, keepdims=True)], out)
    if node.op in ("matmul", "weight_only_matmul"):
        return _product(graph, node, inputs, out)
    if node.op in ("conv", "attention") and all(owners.ndim == 5 for owners in given):  # of each image, or sequence
        return _together([owners.max(axis=(2, 3, 4), keepdims=True) for owners in given], out)
    if node.op in ("gather", "gather_nd"):
        return _gathered(graph, node, inputs, out)
    raise _UnprovenError


def _together(parts: Sequence[Owners], out: TensorType) -> Owners:
    """What depends on all of ``parts``, each broadcast to ``out``."""
    found = np.zeros((2, *out.shape), np.int32)
    for part in parts:
        np.maximum(found, part.reshape(2, *(1,) * (out.rank + 1 - part.ndim), *part.shape[1:]), out=found)
    return found


def _moved(graph: Graph, node: Node, inputs: Sequence[Owners | None]) -> Owners:
    attrs: Mapping[str, Attr] = {**node.attrs, **({"value": 0} if "value" in node.attrs else {})}
    none = [np.zeros(graph.types[n].shape, np.int32) if n else None for n in node.inputs]
    found = []
    for part in range(2):
        given = [owners[part] if owners is not None else zero for owners, zero in zip(inputs, none, strict=True)]
        found.append(registry.get(node.op).evaluate(np, given, attrs)[0])
    return np.stack(found)


def _product(graph: Graph, node: Node, inputs: Sequence[Owners | None], out: TensorType) -> Owners:
    if min(graph.types[n].rank for n in node.inputs[:2]) < 2 or any(owners is not None for owners in inputs[2:]):
        raise _UnprovenError
    terms = (-1, -1 if node.attrs.get("transpose_b") else -2)
    parts = []
    for side, (owners, axis) in enumerate(zip(inputs[:2], terms, strict=True)):
        if owners is not None:
            lines = owners.max(axis=axis, keepdims=True)  # of the left side a column, of the right one a row
            parts.append(np.swapaxes(lines, -1, -2) if side and axis == -1 else lines)
    return _together(parts, out)


def _gathered(graph: Graph, node: Node, inputs: Sequence[Owners | None], out: TensorType) -> Owners:
    data, index = inputs
    kind, where = (graph.types[n] for n in node.inputs)
    parts = []
    if data is not None:
        value = graph.constants.get(node.inputs[1])
        if value is None:
            raise _UnprovenError
        given = ([part, value] for part in data)
        parts.append(np.stack([registry.get(node.op).evaluate(np, one, node.attrs)[0] for one in given]))
    if index is not None:
        if node.op == "gather":
            axis = integer(node.attrs, "axis") % kind.rank
            shape = (*(1,) * axis, *where.shape, *(1,) * (kind.rank - axis - 1))
        else:
            if integer(node.attrs, "batch_dims"):
                raise _UnprovenError
            index = index.max(axis=-1)
            shape = (*index.shape[1:], *(1,) * (out.rank - index.ndim + 1))
        if prod(shape) != index[0].size:
            raise _UnprovenError
        parts.append(index.reshape(2, *shape))
    return _together(parts, out)
