"""The suite's networks as ONNX files with static shapes (opset 18), made node by node: no exporter is needed.

Weights lie in a file beside the models, which batches of one network share (ONNX: External Data).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from mononn_bench.gpu_suite.networks import MASKED, NETWORKS, Maker
from mononn_bench.models.zoo import ModelSpec

OPSET = 18
TYPES = {"fp32": np.dtype(np.float32), "fp16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}
EXTERNAL_FROM = 4096
"""Bytes from which a constant lies in the weights' file: shapes stay where inference of shapes sees them."""
ALIGNMENT = 4096


class WeightFile:
    """Tensors in one precision, by name, in one file; each is written once."""

    def __init__(self, path: Path, precision: str) -> None:
        self.path, self.dtype = path, TYPES[precision]
        self._places: dict[str, tuple[int, tuple[int, ...]]] = {}
        self._size = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")

    def add(self, name: str, value: NDArray[Any]) -> None:
        """Append a tensor of floats, rounded to the file's precision."""
        value = np.asarray(value, self.dtype, order="C")
        with self.path.open("ab") as stream:
            stream.write(bytes(-self._size % ALIGNMENT))
            start = stream.tell()
            stream.write(value.tobytes())
            self._size = stream.tell()
        self._places[name] = (start, value.shape)

    def tensor(self, name: str) -> onnx.TensorProto:
        """The initializer that points into the file."""
        start, shape = self._places[name]
        length = int(np.prod(shape, dtype=np.int64)) * self.dtype.itemsize
        tensor = TensorProto(name=name, data_type=helper.np_dtype_to_tensor_dtype(self.dtype), dims=shape)
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", self.path.name), ("offset", start), ("length", length)):
            tensor.external_data.add(key=key, value=str(value))
        return tensor

    def __contains__(self, name: str) -> bool:
        return name in self._places


class OnnxOperators:
    """The operators of networks.py as nodes; a tensor is a name, its shape is kept beside."""

    def __init__(self, tensors: Mapping[str, NDArray[Any]], weights: WeightFile) -> None:
        self._tensors, self._weights = tensors, weights
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, onnx.TensorProto] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}

    def node(self, op: str, inputs: Sequence[str], shape: tuple[int, ...], **attributes: Any) -> str:
        """One node with one output of that shape; the output's name."""
        name = f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=name, **attributes))
        self.shapes[name] = shape
        return name

    def store(self, name: str, value: NDArray[Any]) -> str:
        """An initializer: in the weights' file where it is large."""
        if name not in self.initializers:
            wanted = self._weights.dtype if value.dtype.kind == "f" else value.dtype
            if value.dtype.kind == "f" and value.size * wanted.itemsize >= EXTERNAL_FROM:
                if name not in self._weights:
                    self._weights.add(name, value)
                self.initializers[name] = self._weights.tensor(name)
            else:
                self.initializers[name] = numpy_helper.from_array(np.asarray(value, wanted, order="C"), name)
            self.shapes[name] = value.shape
        return name

    def parameter(self, name: str, shape: tuple[int, ...]) -> str:
        return self.store(name, self._tensors[name])

    def constant(self, make: Maker) -> str:
        return self.number(make())

    def number(self, value: NDArray[Any]) -> str:
        """A constant of the graph: its value."""
        return self.store(f"constant_{len(self.initializers)}", value)

    def scalar(self, value: float) -> str:
        return self.store(f"scalar_{value!r}", np.array(value, np.float32))

    def linear(self, x: str, name: str, inner: int, outer: int, bias: bool = True) -> str:
        weight = self.store(f"{name}.weight.T", self._tensors[f"{name}.weight"].T)
        y = self.node("MatMul", [x, weight], (*self.shapes[x][:-1], outer))
        return self.add(y, self.parameter(f"{name}.bias", (outer,))) if bias else y

    def gather(self, table: str, indices: str) -> str:
        return self.node("Gather", [table, indices], (*self.shapes[indices], self.shapes[table][-1]), axis=0)

    def score_bias(self, table: str, make: Maker) -> str:
        rows = self.gather(table, self.constant(make))
        n, m, heads = self.shapes[rows]
        turned = self.node("Transpose", [rows], (heads, n, m), perm=[2, 0, 1])
        return self.node("Unsqueeze", [turned, self.number(np.array([0]))], (1, heads, n, m))

    def add(self, a: str, b: str) -> str:
        return self.node("Add", [a, b], np.broadcast_shapes(self.shapes[a], self.shapes[b]))

    def multiply(self, a: str, b: str) -> str:
        return self.node("Mul", [a, b], np.broadcast_shapes(self.shapes[a], self.shapes[b]))

    def scale(self, x: str, factor: float) -> str:
        return x if factor == 1 else self.multiply(x, self.scalar(factor))

    def layer_norm(self, x: str, name: str, width: int, epsilon: float) -> str:
        names = [x, *(self.parameter(f"{name}.{part}", (width,)) for part in ("weight", "bias"))]
        return self.node("LayerNormalization", names, self.shapes[x], axis=-1, epsilon=epsilon)

    def rms_norm(self, x: str, name: str, width: int, epsilon: float) -> str:
        """In float32: squares leave the range of float16."""
        shape, axes = self.shapes[x], self.number(np.array([-1]))
        wide = self.cast(x, np.dtype(np.float32))
        two, little = (self.initial(np.array(v, np.float32)) for v in (2.0, epsilon))
        squares = self.node("Pow", [wide, two], shape)
        mean = self.node("ReduceMean", [squares, axes], (*shape[:-1], 1))
        root = self.node("Sqrt", [self.add(mean, little)], (*shape[:-1], 1))
        normal = self.node("Mul", [wide, self.node("Reciprocal", [root], (*shape[:-1], 1))], shape)
        return self.multiply(self.cast(normal, self._weights.dtype), self.parameter(f"{name}.weight", (width,)))

    def initial(self, value: NDArray[Any]) -> str:
        """A small constant in its own type, whatever the precision."""
        name = f"exact_{value.item()!r}"
        self.initializers.setdefault(name, numpy_helper.from_array(value, name))
        self.shapes[name] = value.shape
        return name

    def cast(self, x: str, dtype: np.dtype[Any]) -> str:
        """`x` in another type; nothing where the precision is that type already."""
        if self._weights.dtype == np.float32:
            return x
        return self.node("Cast", [x], self.shapes[x], to=int(helper.np_dtype_to_tensor_dtype(dtype)))

    def activate(self, x: str, kind: str) -> str:
        shape = self.shapes[x]
        if kind != "gelu":
            return self.node(kind.capitalize(), [x], shape)
        erf = self.node("Erf", [self.node("Div", [x, self.scalar(2**0.5)], shape)], shape)
        return self.scale(self.multiply(x, self.add(erf, self.scalar(1.0))), 0.5)

    def attention(self, q: str, k: str, v: str, bias: str | None, heads: int, factor: float) -> str:
        (b, n, _), m, outer = self.shapes[q], self.shapes[k][1], self.shapes[v][2]

        def split(x: str, order: tuple[int, ...]) -> str:
            count, size = self.shapes[x][1], self.shapes[x][2] // heads
            shape = (b, count, heads, size)
            x = self.node("Reshape", [x, self.number(np.array(shape))], shape)
            return self.node("Transpose", [x], tuple(shape[axis] for axis in order), perm=list(order))

        scores = self.node("MatMul", [split(q, (0, 2, 1, 3)), split(k, (0, 2, 3, 1))], (b, heads, n, m))
        scores = self.scale(scores, factor)
        scores = self.add(scores, bias) if bias else scores
        mixed = self.node("Softmax", [scores], (b, heads, n, m), axis=-1)
        mixed = self.node("MatMul", [mixed, split(v, (0, 2, 1, 3))], (b, heads, n, outer // heads))
        mixed = self.node("Transpose", [mixed], (b, n, heads, outer // heads), perm=[0, 2, 1, 3])
        return self.node("Reshape", [mixed, self.number(np.array((b, n, outer)))], (b, n, outer))

    def mask_bias(self, mask: str) -> str:
        b, n = self.shapes[mask]
        wide = self.node("Unsqueeze", [mask, self.number(np.array([1, 2]))], (b, 1, 1, n))
        kind = int(helper.np_dtype_to_tensor_dtype(self._weights.dtype))
        wide = self.node("Cast", [wide], (b, 1, 1, n), to=kind)
        return self.scale(self.node("Sub", [self.scalar(1.0), wide], (b, 1, 1, n)), MASKED)

    def convolution(self, x: str, name: str, shape: tuple[int, ...], stride: int, bias: bool) -> str:
        names = [x, self.parameter(f"{name}.weight", shape)]
        names += [self.parameter(f"{name}.bias", shape[:1])] if bias else []
        padding = 0 if bias else shape[-1] // 2
        size = (self.shapes[x][2] + 2 * padding - shape[-1]) // stride + 1
        result = (self.shapes[x][0], shape[0], size, size)
        return self.node("Conv", names, result, strides=[stride] * 2, pads=[padding] * 4, kernel_shape=list(shape[2:]))

    def batch_norm(self, x: str, name: str, channels: int) -> str:
        parts = ("weight", "bias", "running_mean", "running_var")
        names = [x, *(self.parameter(f"{name}.{part}", (channels,)) for part in parts)]
        return self.node("BatchNormalization", names, self.shapes[x], epsilon=1e-5)

    def max_pool(self, x: str) -> str:
        b, c, size, _ = self.shapes[x]
        half = (size - 1) // 2 + 1
        return self.node("MaxPool", [x], (b, c, half, half), kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)

    def mean_pixels(self, x: str) -> str:
        shape = self.shapes[x][:2]
        mean = self.node("GlobalAveragePool", [x], (*shape, 1, 1))
        return self.node("Reshape", [mean, self.number(np.array(shape))], shape)

    def tokens_of(self, image: str) -> str:
        b, c, h, w = self.shapes[image]
        flat = self.node("Reshape", [image, self.number(np.array((b, c, h * w)))], (b, c, h * w))
        return self.node("Transpose", [flat], (b, h * w, c), perm=[0, 2, 1])

    def put_first(self, token: str, x: str) -> str:
        b, n, width = self.shapes[x]
        token = self.node("Expand", [token, self.number(np.array((b, 1, width)))], (b, 1, width))
        return self.node("Concat", [token, x], (b, n + 1, width), axis=1)

    def first_token(self, x: str) -> str:
        b, _, width = self.shapes[x]
        return self.node("Gather", [x, self.number(np.array(0))], (b, width), axis=1)

    def output_of_table(self, x: str, table: str) -> str:
        turned = self.store(f"{table}.T", self._tensors[table].T)
        return self.node("MatMul", [x, turned], (*self.shapes[x][:-1], self.shapes[turned][1]))


def write_network(spec: ModelSpec, tensors: Mapping[str, NDArray[Any]], weights: WeightFile, path: Path) -> None:
    """Write the network beside its weights' file; its inputs and outputs keep the catalogue's types."""
    operators = OnnxOperators(tensors, weights)
    given = {}
    for i in spec.inputs:
        operators.shapes[i.name] = i.shape
        given[i.name] = operators.cast(i.name, weights.dtype) if i.dtype == "float32" else i.name
    results = NETWORKS[spec.family](operators, spec, given)
    outputs = []
    for name, result in zip(spec.outputs, results, strict=True):
        shape = operators.shapes[result]
        kind = {} if weights.dtype == np.float32 else {"to": TensorProto.FLOAT}
        operators.nodes.append(helper.make_node("Cast" if kind else "Identity", [result], [name], name=name, **kind))
        outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
    types = {i.name: helper.np_dtype_to_tensor_dtype(np.dtype(i.dtype)) for i in spec.inputs}
    inputs = [helper.make_tensor_value_info(i.name, types[i.name], i.shape) for i in spec.inputs]
    graph = helper.make_graph(operators.nodes, spec.name, inputs, outputs, list(operators.initializers.values()))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(model.SerializeToString(deterministic=True))
    partial.replace(path)
