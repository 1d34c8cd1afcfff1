"""A product or convolution with its channels rounded up: whether odd sizes are what makes it slow."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

MULTIPLE = 16
"""Of channels: the float32 numbers of the widest vectors there are."""


def padded(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """A brick of one product by constant weights, or of one convolution in one group, channels in and out rounded up to
    a multiple of `MULTIPLE`; None of another brick, and where they are such multiples.
    """
    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    if len(graph.node) != 1 or len(graph.input) != 1 or (node := graph.node[0]).input[0] in constants:
        return None
    axes = _axes(node, constants.get(node.input[1]) if len(node.input) > 1 else None)
    if axes is None:
        return None
    (entry, exit_), (data_axis, out_axis) = axes
    weight = constants[node.input[1]]
    before = weight.dims[entry], weight.dims[exit_]
    after = tuple(-(-size // MULTIPLE) * MULTIPLE for size in before)
    if after == before or weight.data_type != TensorProto.FLOAT:
        return None
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    ends = (changed.graph.input[0], data_axis, after[0]), (changed.graph.output[0], out_axis, after[1])
    for value, axis, size in ends:
        shape = value.type.tensor_type.shape.dim
        shape[axis if axis >= 0 else len(shape) + axis].dim_value = size
    for tensor in changed.graph.initializer:
        sizes = dict(zip((entry, exit_), after, strict=True)) if tensor.name == weight.name else {}
        if not sizes and tensor.dims and tensor.dims[-1] == before[1]:
            sizes = {len(tensor.dims) - 1: after[1]}
        _grow(tensor, sizes)
    return changed


def _axes(node: NodeProto, weight: TensorProto | None) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """The axes of the weight that channels come in and go out by, and those of the data and the result."""
    if weight is None:
        return None
    said = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    if node.op_type == "Conv" and said.get("group", 1) == 1:
        return (1, 0), (1, 1)
    if node.op_type == "MatMul" and len(weight.dims) == 2:
        return (0, 1), (-1, -1)
    if node.op_type == "Gemm" and not said.get("transA", 0):
        return ((1, 0) if said.get("transB", 0) else (0, 1)), (-1, -1)
    return None


def _grow(tensor: TensorProto, sizes: dict[int, int]) -> None:
    """Zeros up to `sizes`, by axis; a tensor without values grows in shape alone."""
    shape = [sizes.get(axis, size) for axis, size in enumerate(tensor.dims)]
    if tensor.raw_data or tensor.float_data:
        values = numpy_helper.to_array(tensor)
        grown = np.pad(values, [(0, size - before) for size, before in zip(shape, values.shape, strict=True)])
        tensor.CopyFrom(numpy_helper.from_array(grown, tensor.name))
    else:
        tensor.dims[:] = shape
