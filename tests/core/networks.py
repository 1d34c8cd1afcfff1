"""Small ONNX models built node by node, with seeded weights."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Builder:
    """Collects the nodes and weights of one model."""

    def __init__(self, name: str, seed: int = 0) -> None:
        self.name, self.random = name, np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def constant(self, value: np.ndarray) -> str:
        """An initializer; its name."""
        name = f"weight{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(value, name))
        return name

    def weight(self, *shape: int) -> str:
        """Normal float32 numbers, scaled so that a product keeps its variance."""
        scale = shape[0] ** -0.5 if len(shape) > 1 else 0.5
        return self.constant((self.random.standard_normal(shape) * scale).astype(np.float32))

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def add(self, op_type: str, *inputs: str, output: str = "", **attributes: object) -> str:
        """A node with one output; the output's name."""
        output = output or f"{op_type.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [output], f"{op_type}_{len(self.nodes)}", **attributes))
        return output

    def linear(self, x: str, inputs: int, outputs: int) -> str:
        return self.add("Add", self.add("MatMul", x, self.weight(inputs, outputs)), self.weight(outputs))

    def model(self, inputs: dict[str, tuple[int, tuple[int, ...]]], outputs: dict[str, tuple[int, ...]]) -> bytes:
        """The serialised model; inputs: name -> (element type, shape), outputs: name -> shape (float32)."""
        graph = helper.make_graph(
            self.nodes,
            self.name,
            [helper.make_tensor_value_info(n, kind, shape) for n, (kind, shape) in inputs.items()],
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in outputs.items()],
            self.weights,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
        onnx.checker.check_model(model)
        return model.SerializeToString()


def encoder(layers: int = 4, tokens: int = 6, width: int = 8, heads: int = 2, hidden: int = 20) -> bytes:
    """A BERT-like encoder: embedding, masked attention, layer norms, GELU; inputs ids and mask, output y."""
    b = Builder("encoder")
    mask = b.add("Cast", "mask", to=TensorProto.FLOAT)
    one, low = b.constant(np.float32(1).reshape(())), b.constant(np.float32(-1e4).reshape(()))
    bias = b.add("Mul", b.add("Sub", one, b.add("Unsqueeze", mask, b.ints(1, 2))), low)
    x = b.add("Add", b.add("Gather", b.weight(11, width), "ids"), b.weight(tokens, width))
    for layer in range(layers):
        q, k, v = (_heads(b, b.linear(x, width, width), tokens, heads, width) for _ in range(3))
        score = b.add("MatMul", q, b.add("Transpose", k, perm=[0, 1, 3, 2]))
        score = b.add("Add", b.add("Mul", score, b.constant(np.float32((width // heads) ** -0.5).reshape(()))), bias)
        context = b.add("Transpose", b.add("MatMul", b.add("Softmax", score, axis=-1), v), perm=[0, 2, 1, 3])
        attended = b.linear(b.add("Reshape", context, b.ints(1, tokens, width)), width, width)
        x = b.add("LayerNormalization", b.add("Add", attended, x), b.weight(width), b.weight(width), epsilon=1e-5)
        inner = b.linear(b.add("Gelu", b.linear(x, width, hidden)), hidden, width)
        last = "y" if layer == layers - 1 else ""
        summed = b.add("Add", inner, x)
        x = b.add("LayerNormalization", summed, b.weight(width), b.weight(width), output=last, epsilon=1e-5)
    inputs = {"ids": (TensorProto.INT64, (1, tokens)), "mask": (TensorProto.INT64, (1, tokens))}
    return b.model(inputs, {"y": (1, tokens, width)})


def _heads(b: Builder, x: str, tokens: int, heads: int, width: int) -> str:
    split = b.add("Reshape", x, b.ints(1, tokens, heads, width // heads))
    return b.add("Transpose", split, perm=[0, 2, 1, 3])


def mlp(layers: int = 5, rows: int = 3, width: int = 24) -> bytes:
    """Linear layers with ReLU in between, and a softmax at the end; input x, output y."""
    b = Builder("mlp")
    x = "x"
    for _ in range(layers):
        x = b.add("Relu", b.linear(x, width, width))
    b.add("Softmax", x, output="y", axis=-1)
    return b.model({"x": (TensorProto.FLOAT, (rows, width))}, {"y": (rows, width)})


def mixed(rows: int = 5, width: int = 12) -> bytes:
    """Movement, reductions and comparisons between products: transposes, slices, pads, concatenation, gathers."""
    b = Builder("mixed")
    h = b.linear("x", width, width)
    turned = b.add("Transpose", h, perm=[1, 0])
    summed = b.add("ReduceSum", turned, b.ints(1), keepdims=1)
    part = b.add("Slice", turned, b.ints(2), b.ints(9), b.ints(0))
    padded = b.add("Pad", part, b.ints(2, 0, 3, 0))
    chosen = b.add("Where", b.add("Greater", padded, summed), padded, summed)
    rows_of = b.add("Gather", chosen, "ids", axis=0)
    both = b.add("Concat", rows_of, chosen, axis=0)
    b.add("MatMul", both, b.weight(rows, 7), output="y")
    return b.model({"x": (TensorProto.FLOAT, (rows, width)), "ids": (TensorProto.INT64, (4,))}, {"y": (width + 4, 7)})


def cnn(size: int = 11) -> bytes:
    """Convolutions of every kind: strided, padded, pointwise, depthwise, grouped, dilated; poolings, a residual."""
    b = Builder("cnn")

    def conv(x: str, outputs: int, inputs: int, kernel: int = 3, **attributes: object) -> str:
        weight = b.constant(b.random.standard_normal((outputs, inputs, kernel, kernel)).astype(np.float32) / kernel)
        return b.add("Conv", x, weight, b.weight(outputs), **attributes)

    around = {"pads": [1, 1, 1, 1]}
    x = b.add("Relu", conv("x", 12, 3, 5, strides=[2, 2], pads=[2, 2, 2, 2]))
    short = b.add("MaxPool", x, kernel_shape=[3, 3], **around)
    x = b.add("Relu", conv(short, 12, 12, **around))
    x = b.add("Relu", b.add("Add", conv(x, 12, 12, 1), short))
    x = conv(x, 12, 1, group=12, **around)
    x = conv(x, 20, 3, group=4, strides=[2, 2], **around)
    x = b.add("AveragePool", conv(x, 20, 20, dilations=[2, 2], pads=[2, 2, 2, 2]), kernel_shape=[2, 2], **around)
    x = b.add("Concat", x, b.add("Sigmoid", x), axis=1)
    x = b.add("Flatten", b.add("GlobalAveragePool", x))
    b.add("MatMul", x, b.weight(40, 5), output="y")
    return b.model({"x": (TensorProto.FLOAT, (1, 3, size, size + 2))}, {"y": (1, 5)})


MODELS = {"encoder": encoder, "mlp": mlp, "mixed": mixed, "cnn": cnn}
