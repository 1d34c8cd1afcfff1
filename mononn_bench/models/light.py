"""The light networks of the `onnx` package with weights of their own.

The package has the graphs of nine published CNNs (opset 9); in place of large weights they hold one constant, with
which every input gives the same answer. Here each weight is drawn anew and scaled by the data that arrives at it, layer
by layer, after Mishkin and Matas, "All you need is a good init" (2016): convolutions and products keep the standard
deviation of their input, so a local response normalisation sees values of the size it was made for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from mononn_bench.models.evaluator import make_evaluator
from mononn_bench.models.inputs import make_inputs
from mononn_bench.models.weights import BIAS_STD, GAIN_RANGE, SHIFT_STD, STATISTICS_SEED, generator
from mononn_bench.models.zoo import ModelSpec

IMAGES = 3
"""Seeded inputs behind scales and statistics."""
LOGIT_STD = 2.0
"""Standard deviation of what the last product gives: a softmax of it has large and small elements."""
IR_VERSION = 10
"""Of the file: from 4 on, constants need not be graph inputs too."""
FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"

Array = NDArray[Any]


def make_light_model(spec: ModelSpec, seed: int) -> onnx.ModelProto:
    """The network of the file `spec.config["file"]` with seeded weights; the same arguments give the same numbers."""
    model = onnx.load(FOLDER / spec.config["file"])
    graph = model.graph
    weights = _Weights(model, spec, seed)
    for index, node in enumerate(graph.node):
        weights.settle(index, node)
    kept = [node for node in graph.node if node.op_type != "ConstantOfShape"]
    used = {name for node in kept for name in node.input}
    constants = [numpy_helper.from_array(a, name) for name, a in weights.constants.items() if name in used]
    images = {i.name for i in spec.inputs}
    inputs = [value for value in graph.input if value.name in images]
    made = helper.make_graph(kept, graph.name, inputs, list(graph.output), constants)
    return helper.make_model(made, opset_imports=model.opset_import, ir_version=IR_VERSION, producer_name="mononn")


class _Weights:
    """The constants of a light network, chosen node by node, and all tensors for IMAGES inputs up to that node."""

    def __init__(self, model: onnx.ModelProto, spec: ModelSpec, seed: int) -> None:
        graph = model.graph
        self.constants: dict[str, Array] = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
        self._seed, self._opsets = seed, model.opset_import
        self._last_product = max(i for i, n in enumerate(graph.node) if n.op_type in ("Conv", "Gemm"))
        self._last_reader = {name: i for i, node in enumerate(graph.node) for name in node.input}
        self._views: dict[str, onnx.NodeProto] = {}
        sets = make_inputs(spec.inputs, sets=IMAGES, seed=STATISTICS_SEED)
        self._tensors = {i.name: [s[i.name].astype(np.float64) for s in sets] for i in spec.inputs}

    def settle(self, index: int, node: onnx.NodeProto) -> None:
        """Choose the constants that `node` reads, then compute its first output for every image."""
        name = node.output[0]
        if node.op_type == "ConstantOfShape":
            self.constants[name] = np.zeros(self.constants[node.input[0]], np.float32)
            return
        if node.op_type in ("Unsqueeze", "Reshape") and node.input[0] in self.constants:
            self._views[name] = node  # its weight is chosen where the view is read
            return
        if node.op_type in ("Conv", "Gemm"):
            self._set_product(node, last=index == self._last_product)
        elif node.op_type == "BatchNormalization":
            self._set_statistics(node)
        elif node.op_type in ("Mul", "Add") and node.input[1] in self._views:
            self._draw(self._views[node.input[1]].input[0], gain=node.op_type == "Mul")
        if index < self._last_product:
            self._tensors[name] = self._compute(node)
        for read in node.input:
            if self._last_reader[read] == index:
                self._tensors.pop(read, None)

    def _draw(self, name: str, *, gain: bool) -> None:
        """A vector of gains around 1, or of shifts around 0."""
        random, shape = generator(self._seed, name), self.constants[name].shape
        drawn = random.uniform(*GAIN_RANGE, shape) if gain else random.standard_normal(shape) * SHIFT_STD
        self.constants[name] = drawn.astype(np.float32)

    def _set_product(self, node: onnx.NodeProto, *, last: bool) -> None:
        """A normal weight, scaled so that the result's standard deviation is its input's; a smaller normal bias."""
        view = self._views.get(node.input[1])
        name = node.input[1] if view is None else view.input[0]
        shape = self.constants[name].shape
        self.constants[name] = generator(self._seed, name).standard_normal(shape, dtype=np.float32)
        biases = node.input[2:3]
        for bias in biases:
            self.constants[bias] = np.zeros_like(self.constants[bias])
        wanted = LOGIT_STD if last else np.std(self._tensors[node.input[0]])
        scale = float(f"{wanted / np.std(self._compute(node)):.3g}")
        self.constants[name] *= np.float32(scale)
        for bias in biases:
            drawn = generator(self._seed, bias).standard_normal(self.constants[bias].shape)
            self.constants[bias] = (drawn * BIAS_STD * wanted).astype(np.float32)

    def _set_statistics(self, node: onnx.NodeProto) -> None:
        """Gain and shift of a batch norm, and the mean and variance that its input has."""
        data = np.concatenate(self._tensors[node.input[0]])
        self._draw(node.input[1], gain=True)
        self._draw(node.input[2], gain=False)
        self.constants[node.input[3]] = data.mean((0, 2, 3)).astype(np.float32)
        self.constants[node.input[4]] = data.var((0, 2, 3)).astype(np.float32)

    def _compute(self, node: onnx.NodeProto) -> list[Array]:
        """The first output of `node` for every image."""
        fixed = {name: self._constant(name) for name in node.input if name and name not in self._tensors}
        images = [{n: self._tensors[n][i] for n in node.input if n in self._tensors} for i in range(IMAGES)]
        return self._run(node, [{**fixed, **image} for image in images])

    def _constant(self, name: str) -> Array:
        """A constant, or a view of one, in double precision where it holds floating-point numbers."""
        if name in self._views:
            view = self._views[name]
            return self._run(view, [{n: self._constant(n) for n in view.input}])[0]
        array = self.constants[name]
        return array.astype(np.float64) if np.issubdtype(array.dtype, np.floating) else array

    def _run(self, node: onnx.NodeProto, operands: list[dict[str, Array]]) -> list[Array]:
        shapes = {name: array.shape for name, array in operands[0].items()}
        inputs = [helper.make_tensor_value_info(name, TensorProto.DOUBLE, shape) for name, shape in shapes.items()]
        output = helper.make_tensor_value_info(node.output[0], TensorProto.DOUBLE, None)
        graph = helper.make_graph([node], "node", inputs, [output])
        evaluator = make_evaluator(helper.make_model(graph, opset_imports=self._opsets))
        return [evaluator.run(None, given)[0] for given in operands]
