"""Damaged ONNX models: small right ones, changed as a field, a node or a byte may be."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from functools import cache

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.backend.test.loader import load_model_tests

from tests.core import networks

SIZES = (0, 1, 2, 3, 7, 64, 1 << 20, 1 << 31, -1, 1 << 62, -(1 << 63))
"""Extents and integers that something may not expect."""
FLOATS = (0.0, -1.0, 1e-45, 3.4e38, float("inf"), float("-inf"), float("nan"))
LARGEST = 1 << 20
"""Bytes of the largest model that is changed."""


@cache
def corpus() -> tuple[bytes, ...]:
    """ONNX's own models of single operators, and a few small networks."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        single = [case.model.SerializeToString() for case in load_model_tests(kind="node")]
    whole = [networks.encoder(1), networks.mlp(2), networks.mixed(), networks.cnn()]
    return tuple(m for m in (*single, *(whole * (len(single) // 16))) if len(m) <= LARGEST)


def _nodes(model: ModelProto) -> list[NodeProto]:
    """Every node, those of inner graphs too."""
    found: list[NodeProto] = []
    waiting = [model.graph]
    while waiting:
        for node in waiting.pop().node:
            found.append(node)
            waiting += [a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]
    return found


def _attribute(model: ModelProto, pick: random.Random) -> None:
    """Another value, or another type, of an attribute; or it is gone."""
    nodes = [n for n in _nodes(model) if n.attribute]
    if not nodes:
        return
    node = pick.choice(nodes)
    number = pick.randrange(len(node.attribute))
    attribute = node.attribute[number]
    what = pick.randrange(6)
    if what == 0:
        del node.attribute[number]
    elif what == 1:
        attribute.CopyFrom(helper.make_attribute(attribute.name, pick.choice((3, 0.5, "text", [1, 2], [0.5]))))
    elif attribute.ints:
        place = pick.randrange(len(attribute.ints))
        if pick.random() < 0.3:
            del attribute.ints[place]
        else:
            attribute.ints[place] = pick.choice(SIZES)
    elif attribute.type == onnx.AttributeProto.INT:
        attribute.i = pick.choice(SIZES)
    elif attribute.type == onnx.AttributeProto.FLOAT:
        attribute.f = pick.choice(FLOATS)
    elif attribute.type == onnx.AttributeProto.STRING:
        attribute.s = pick.choice((b"", b"constant", b"SAME_UPPER", b"\xff\xfe", b"none"))


def _edges(model: ModelProto, pick: random.Random) -> None:
    """A node reads something else, one thing more or less, or itself."""
    nodes = _nodes(model)
    if not nodes:
        return
    node = pick.choice(nodes)
    names = [n for other in nodes for n in (*other.input, *other.output)] + [i.name for i in model.graph.initializer]
    name = pick.choice([*names, "", "nowhere", *node.output])
    what = pick.randrange(4)
    if what == 0 or not node.input:
        node.input.append(name)
    elif what == 1:
        del node.input[pick.randrange(len(node.input))]
    else:
        node.input[pick.randrange(len(node.input))] = name


def _node(model: ModelProto, pick: random.Random) -> None:
    """A node is gone, stands twice, elsewhere, or is of another operator."""
    graph = model.graph
    if not graph.node:
        return
    number, what = pick.randrange(len(graph.node)), pick.randrange(5)
    node = graph.node[number]
    if what == 0:
        del graph.node[number]
    elif what == 1:
        graph.node.append(node)
    elif what == 2:
        node.op_type = pick.choice(_nodes(onnx.load_from_string(pick.choice(corpus())))).op_type
    elif what == 3:
        node.domain = pick.choice(("", "com.microsoft", "ai.onnx.ml", "nobody"))
    else:
        node.output[pick.randrange(len(node.output))] = pick.choice((*node.input, "", "other"))


def _shape(model: ModelProto, pick: random.Random) -> None:
    """An input or output of another extent, rank or element type."""
    values = [*model.graph.input, *model.graph.output, *model.graph.value_info]
    if not values:
        return
    tensor = pick.choice(values).type.tensor_type
    what, dims = pick.randrange(5), tensor.shape.dim
    if what == 0:
        tensor.elem_type = pick.choice(list(TensorProto.DataType.values()))
    elif what == 1:
        dims.add().dim_value = pick.choice(SIZES)
    elif what == 2 and dims:
        del dims[pick.randrange(len(dims))]
    elif what == 3 and dims:
        dims[pick.randrange(len(dims))].dim_param = pick.choice(("n", "", "?"))
    elif dims:
        dims[pick.randrange(len(dims))].dim_value = pick.choice(SIZES)


def _constant(model: ModelProto, pick: random.Random) -> None:
    """An initializer of other extents, another type, other values, too few of them, or gone; an input made one."""
    stored, what = model.graph.initializer, pick.randrange(6)
    if not stored or what == 0:
        inputs = [i for i in model.graph.input if i.type.tensor_type.shape.dim]
        if inputs:
            shape = [max(0, min(d.dim_value, 64)) for d in pick.choice(inputs).type.tensor_type.shape.dim]
            values = np.full(shape[:4], pick.choice((0, 1, -1, 5)))
            name = pick.choice(inputs).name
            stored.append(numpy_helper.from_array(values.astype(pick.choice((np.int64, np.float32))), name))
        return
    number = pick.randrange(len(stored))
    tensor = stored[number]
    if what == 1:
        del stored[number]
    elif what == 2:
        tensor.data_type = pick.choice(list(TensorProto.DataType.values()))
    elif what == 3 and tensor.dims:
        tensor.dims[pick.randrange(len(tensor.dims))] = pick.choice(SIZES)
    elif what == 4:
        tensor.raw_data = tensor.raw_data[: pick.randrange(len(tensor.raw_data) + 1)]
    else:
        try:
            value = numpy_helper.to_array(tensor)
            kind = pick.choice(SIZES if value.dtype.kind in "iu" else FLOATS)
            tensor.CopyFrom(numpy_helper.from_array(np.full_like(value, kind), tensor.name))
        except (TypeError, ValueError, OverflowError):
            tensor.ClearField("raw_data")


def _header(model: ModelProto, pick: random.Random) -> None:
    """Another version of the operators or of the format."""
    what = pick.randrange(4)
    if what == 0 and model.opset_import:
        del model.opset_import[pick.randrange(len(model.opset_import))]
    elif what == 1:
        model.ir_version = pick.choice((0, 3, 8, 99, -1))
    elif what == 2 and model.graph.output:
        del model.graph.output[pick.randrange(len(model.graph.output))]
    else:
        model.opset_import.append(helper.make_opsetid("", pick.choice((-1, 0, 1, 7, 9, 11, 13, 17, 18, 21, 99))))


CHANGES: tuple[Callable[[ModelProto, random.Random], None], ...] = (
    _attribute, _attribute, _edges, _edges, _node, _shape, _shape, _constant, _constant, _header,
)  # fmt: skip


def _bytes(data: bytes, pick: random.Random) -> bytes:
    """Bytes changed, cut out, repeated, or cut off."""
    changed = bytearray(data)
    for _ in range(pick.choice((1, 1, 2, 8))):
        if not changed:
            break
        place, what = pick.randrange(len(changed)), pick.randrange(4)
        if what == 0:
            changed[place] = pick.randrange(256)
        elif what == 1:
            del changed[place : place + pick.randrange(1, 16)]
        elif what == 2:
            changed[place:place] = changed[place : place + pick.randrange(1, 64)]
        elif pick.random() < 0.2:
            del changed[place:]
    return bytes(changed)


def model_of(number: int, seed: int) -> bytes:
    """The ``number``-th damaged model: the same whenever it is asked for. Every fourth is damaged as bytes."""
    pick = random.Random(seed * 1_000_003 + number)
    data = pick.choice(corpus())
    if number % 4 == 3:
        return _bytes(data, pick)
    model = onnx.load_from_string(data)
    for _ in range(pick.choice((1, 1, 1, 2, 3))):
        pick.choice(CHANGES)(model, pick)
    return model.SerializeToString()
