"""Arithmetic and traffic of an ONNX graph, for the roofline: direct-algorithm FLOPs and compulsory bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import onnx
from onnx import TensorProto, helper, shape_inference

Shape = tuple[int, ...]
RECURRENT = ("LSTM", "GRU", "RNN")
"""Their weights [directions, gates, inputs or states] are multiplied once for each token; what gates do counts 0."""

GATHERING = ("Gather", "GatherND", "GatherElements")


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
    tensors = Tensors.of(graph)
    read: dict[str, int] = {}
    for node in graph.node:
        for name, size in tensors.constants_read(node).items():
            read[name] = max(read.get(name, 0), size)
    ends = (*(v for v in graph.input if v.name not in tensors.constants), *graph.output)
    return Arithmetic(
        flops=sum(tensors.flops(node) for node in graph.node),
        weight_bytes=sum(map(tensors.bytes, tensors.constants)),
        compulsory_bytes=sum(read.values()) + sum(tensors.bytes(v.name) for v in ends),
    )


@dataclass(frozen=True)
class Tensors:
    """Shapes and element types (TensorProto's numbers) of a graph's tensors, as far as they are known."""

    shapes: Mapping[str, Shape]
    types: Mapping[str, int]
    constants: frozenset[str]

    @classmethod
    def of(cls, graph: onnx.GraphProto) -> Tensors:
        """Of a graph whose shapes have been inferred."""
        values = (*graph.input, *graph.output, *graph.value_info)
        shapes = {v.name: _shape(v) for v in values} | {t.name: tuple(t.dims) for t in graph.initializer}
        types = {v.name: v.type.tensor_type.elem_type for v in values}
        constants = {t.name: t.data_type for t in graph.initializer}
        return cls(shapes, types | constants, frozenset(constants))

    def bytes(self, name: str) -> int:
        """Of a tensor as stored; 0 where shape or type is not known."""
        return math.prod(self.shapes[name]) * _item_size(self.types[name]) if name in self.shapes else 0

    def constants_read(self, node: onnx.NodeProto) -> dict[str, int]:
        """Bytes of each constant that a node reads: all of it, or of a table that it gathers from, what is gathered."""
        found = {name: self.bytes(name) for name in node.input if name in self.constants}
        if node.op_type in GATHERING and (table := node.input[0]) in found and node.output[0] in self.shapes:
            gathered = math.prod(self.shapes[node.output[0]]) * _item_size(self.types[table])
            found[table] = min(found[table], gathered)
        return found

    def flops(self, node: onnx.NodeProto) -> int:
        """Of products, convolutions and recurrences, two per multiply-add; 0 of any other node."""
        return _flops(node, self.shapes)


def _flops(node: onnx.NodeProto, shapes: Mapping[str, Shape]) -> int:
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
