"""Arithmetic and traffic of an ONNX graph, for the roofline: direct-algorithm FLOPs and compulsory bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import onnx
from onnx import TensorProto, helper, shape_inference

Shape = tuple[int, ...]
RECURRENT = ("LSTM", "GRU", "RNN")
"""Their weights [directions, gates, inputs or states] are multiplied once for each token; what gates do counts 0."""


@dataclass(frozen=True)
class Arithmetic:
    """`flops` of products, convolutions and recurrences, two per multiply-add; `weight_bytes` of all constants as
    stored; `compulsory_bytes` of what one inference must read and write once: weights (of a table only the gathered
    rows), inputs and outputs.
    """

    flops: int
    weight_bytes: int
    compulsory_bytes: int


def count_arithmetic(model: onnx.ModelProto) -> Arithmetic:
    """Count over the main graph of a model with static shapes; operators beside products, convolutions (of any number
    of axes, transposed ones too) and recurrences count 0 FLOPs.
    """
    graph = shape_inference.infer_shapes(model, data_prop=True).graph
    shapes = {v.name: _shape(v) for v in (*graph.input, *graph.output, *graph.value_info)}
    shapes.update({t.name: tuple(t.dims) for t in graph.initializer})
    sizes = {t.name: math.prod(t.dims) * _item_size(t.data_type) for t in graph.initializer}
    types = {v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.output, *graph.value_info)}
    types.update({t.name: t.data_type for t in graph.initializer})
    read: dict[str, int] = {}
    for node in graph.node:
        for position, name in enumerate(node.input):
            if name in sizes:
                read[name] = max(read.get(name, 0), _bytes_read(node, position, sizes[name], shapes, types))
    ends = (*(v for v in graph.input if v.name not in sizes), *graph.output)
    moved = sum(math.prod(shapes[v.name]) * _item_size(types[v.name]) for v in ends)
    return Arithmetic(
        flops=sum(_flops(node, shapes) for node in graph.node),
        weight_bytes=sum(sizes.values()),
        compulsory_bytes=sum(read.values()) + moved,
    )


def _bytes_read(node: onnx.NodeProto, position: int, size: int, shapes: dict[str, Shape], types: dict[str, int]) -> int:
    """Of a constant: all of it, or of a table that is gathered from, what is gathered."""
    if node.op_type in ("Gather", "GatherND", "GatherElements") and position == 0 and node.output[0] in shapes:
        gathered = math.prod(shapes[node.output[0]]) * _item_size(types[node.input[0]])
        return min(size, gathered)
    return size


def _flops(node: onnx.NodeProto, shapes: dict[str, Shape]) -> int:
    if node.op_type in RECURRENT:
        (tokens, batch), weights = shapes[node.input[0]][:2], node.input[1:3]
        return 2 * tokens * batch * sum(math.prod(shapes[name]) for name in weights)
    if node.op_type == "ConvTranspose":
        return 2 * math.prod(shapes[node.input[0]]) * math.prod(shapes[node.input[1]][1:])
    if node.op_type not in ("MatMul", "Gemm", "Conv"):
        return 0
    result = shapes[node.output[0]]
    first, second = shapes[node.input[0]], shapes[node.input[1]]
    if node.op_type == "Conv":
        return 2 * math.prod(result) * math.prod(second[1:])
    if node.op_type == "Gemm":
        transposed = any(a.name == "transA" and a.i for a in node.attribute)
        return 2 * math.prod(result) * first[0 if transposed else 1]
    return 2 * math.prod(result) * first[-1]


def _shape(value: onnx.ValueInfoProto) -> Shape:
    return tuple(d.dim_value for d in value.type.tensor_type.shape.dim)


def _item_size(data_type: int) -> int:
    if data_type == TensorProto.UNDEFINED:
        return 0
    return int(helper.tensor_dtype_to_np_dtype(data_type).itemsize)
