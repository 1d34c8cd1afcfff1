"""A network cut into bricks: consecutive layers that can stand alone, each as an ONNX model of its own.

The method is that of C. Li, A. Dakkak, J. Xiong, W. Hwu, "DLBricks: Composable Benchmark Generation to Reduce Deep
Learning Benchmarking Effort on CPUs", ICPE 2020. A layer is a node whose result depends on the network's inputs; what
does not is taken into each brick that reads it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, NodeProto, TensorProto, helper, numpy_helper, shape_inference

from mononn_bench.bricked import WHOLE, Cut, Layer
from mononn_bench.models.arithmetic import Tensors

FEW = 8
"""Constants of at most so many numbers count with their values: axes, sizes, bounds, exponents."""
MANY = 64
"""Constants of more numbers decide no shape."""
KEY_LENGTH = 16
QUANTISED = ("Linear", "Integer")
"""Parts of the names of operators whose scales and zero points are weights, but for whether a zero point is 0."""


class Network:
    """The ONNX file at `path`, of static shapes, ready to be cut."""

    def __init__(self, path: Path) -> None:
        self._model = onnx.load(path)
        bare = onnx.load(path, load_external_data=False)
        graph = shape_inference.infer_shapes(bare, data_prop=True).graph
        self._tensors = Tensors.of(graph)
        self._constants = {tensor.name: tensor for tensor in self._model.graph.initializer}
        self._prepared: dict[str, NodeProto] = {}
        self.layers: list[NodeProto] = []
        """The nodes that depend on inputs, in order."""
        given = {value.name for value in graph.input} - self._constants.keys()
        for node in graph.node:
            self._take(node, given)
        self._made = {name: i for i, node in enumerate(self.layers) for name in node.output if name}
        self._last = {name: i for i, node in enumerate(self.layers) for name in _read(node)}
        self._last |= {value.name: len(self.layers) for value in graph.output}

    def described(self) -> tuple[Layer, ...]:
        """The layers as a record has them."""
        return tuple(
            Layer(
                node.name or next(filter(None, node.output)),
                node.op_type,
                tuple(sorted({self._made[name] for name in _read(node) if name in self._made})),
            )
            for node in self.layers
        )

    def cut(self, length: int) -> Cut:
        """Bricks of `length` layers, and the rest. A brick is longer where its end would leave a tensor of unknown
        shape.
        """
        runs = tuple(self._runs(length))
        keys = (key_of(self.model(run, weights=False)) for run in runs)
        return Cut(length, tuple(keys), tuple(run.stop for run in runs))

    def model(self, run: range, *, weights: bool = True) -> onnx.ModelProto:
        """Some consecutive layers as a model: tensors by canonical names, constants of many numbers with or without
        their values.
        """
        layers = [self.layers[i] for i in run]
        nodes = [*self._before(layers), *layers]
        made = dict.fromkeys(name for node in nodes for name in node.output if name)
        read = dict.fromkeys(name for node in nodes for name in _read(node) if name not in made)
        constants = [name for name in read if name in self._constants]
        given, left = self.ends(run)
        names = _canonical(nodes, {"x": given, "c": constants, "t": list(made)})
        graph = helper.make_graph(
            [_renamed(node, names) for node in nodes],
            "brick",
            [self._value(name, names) for name in given],
            [self._value(name, names) for name in left],
            [_tensor(self._constants[name], names[name], weights=weights) for name in constants],
        )
        imports, functions = self._model.opset_import, list(self._model.functions)
        return helper.make_model(
            graph, opset_imports=imports, functions=functions, ir_version=self._model.ir_version, producer_name="mononn"
        )

    def ends(self, run: range) -> tuple[list[str], list[str]]:
        """The tensors that some consecutive layers read of others, and those that they make for others, by the names
        they have in the network, in the order of the inputs and outputs of `model`.
        """
        layers = [self.layers[i] for i in run]
        read = dict.fromkeys(name for node in layers for name in _read(node))
        given = [name for name in read if self._made.get(name, -1) not in run and not self._constant(name)]
        left = [name for node in layers for name in node.output if self._last.get(name, -1) >= run.stop]
        return given, left or [next(filter(None, layers[-1].output))]

    def _constant(self, name: str) -> bool:
        return name in self._constants or name in self._prepared

    def _take(self, node: NodeProto, given: set[str]) -> None:
        """Sort a node: a layer, a constant, or what constants are prepared by."""
        if node.op_type == "Constant" and (value := _value_of(node)) is not None:
            self._constants[node.output[0]] = value
        elif node.op_type in ("Shape", "Size") and self._known(node.input[0]) and not node.attribute:
            shape = self._tensors.shapes[node.input[0]]
            number = np.array(shape if node.op_type == "Shape" else math.prod(shape), np.int64)
            self._constants[node.output[0]] = numpy_helper.from_array(number)
        elif given.intersection(_read(node)) or (not any(node.input) and node.op_type.startswith("Random")):
            self.layers.append(node)
            given.update(filter(None, node.output))
        else:
            self._prepared |= dict.fromkeys(filter(None, node.output), node)

    def _known(self, name: str) -> bool:
        """Whether a tensor's type and shape are, and it is not empty."""
        shape = self._tensors.shapes.get(name, (0,))
        return bool(self._tensors.types.get(name)) and 0 not in shape

    def _runs(self, length: int) -> Iterator[range]:
        count = len(self.layers)
        closed = {
            border
            for name, i in self._made.items()
            if not self._known(name)
            for border in range(i + 1, self._last.get(name, -1) + 1)
        }
        first = 0
        for border in range(1, count + 1):
            full = length != WHOLE and border - first >= length and border not in closed
            if full or border == count:
                yield range(first, border)
                first = border

    def _before(self, layers: Iterable[NodeProto]) -> list[NodeProto]:
        """What prepares constants that the layers read, in order."""
        found: dict[int, NodeProto] = {}
        waiting = [name for node in layers for name in _read(node)]
        while waiting:
            node = self._prepared.get(waiting.pop())
            if node is not None and id(node) not in found:
                found[id(node)] = node
                waiting += _read(node)
        return list({id(node): node for node in self._prepared.values() if id(node) in found}.values())

    def _value(self, name: str, names: dict[str, str]) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(names[name], self._tensors.types[name], self._tensors.shapes[name])


def key_of(model: onnx.ModelProto) -> str:
    """The key of what a model with canonical names computes, whatever its weights are."""
    graph = model.graph
    weights = {name for node in graph.node if any(p in node.op_type for p in QUANTISED) for name in node.input}
    parts = [node.SerializeToString(deterministic=True) for node in graph.node]
    parts += [value.SerializeToString(deterministic=True) for value in (*graph.input, *graph.output)]
    parts += [_kind(tensor, tensor.name in weights) for tensor in graph.initializer]
    parts += [part.SerializeToString(deterministic=True) for part in (*model.opset_import, *model.functions)]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:KEY_LENGTH]


def write_values(model: onnx.ModelProto, path: Path) -> None:
    """One input set of a brick, `0/in/<name>`: positive numbers next to 1, and integers that index what they index."""
    random = np.random.default_rng(0)
    limits = _limits(model.graph)
    values = {}
    for value in model.graph.input:
        kind = value.type.tensor_type
        shape = [dimension.dim_value for dimension in kind.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
        whole = np.issubdtype(dtype, np.integer) or dtype == np.bool_
        limit = limits.get(value.name, 2)
        numbers: Any = random.integers(0, limit, shape) if whole else random.uniform(0.5, 1.5, shape)
        values[f"0/in/{value.name}"] = np.asarray(numbers).astype(dtype)
    np.savez(path, **values)  # type: ignore[arg-type]


def _limits(graph: onnx.GraphProto) -> dict[str, int]:
    """The exclusive bound of each input that is a place in another tensor."""
    shapes = Tensors.of(graph).shapes
    limits: dict[str, int] = {}
    for node in graph.node:
        if node.op_type.startswith(("Gather", "Scatter")) and (shape := shapes.get(node.input[0])):
            axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
            bound = min(shape) if node.op_type.endswith("ND") else shape[axis]
            limits[node.input[1]] = min(bound, limits.get(node.input[1], bound))
    return limits


def _read(node: NodeProto) -> list[str]:
    """The tensors that a node reads, those that its subgraphs take from outside among them."""
    names = list(filter(None, node.input))
    for graph in _subgraphs(node):
        own = {value.name for value in (*graph.input, *graph.initializer)}
        own |= {name for inner in graph.node for name in inner.output}
        read = [name for inner in graph.node for name in _read(inner)] + [value.name for value in graph.output]
        names += [name for name in read if name not in own]
    return names


def _subgraphs(node: NodeProto) -> list[onnx.GraphProto]:
    return [a.g for a in node.attribute if a.type == AttributeProto.GRAPH]


def _canonical(nodes: Sequence[NodeProto], groups: dict[str, list[str]]) -> dict[str, str]:
    """A letter and a number for each tensor; their own names where a subgraph may read them."""
    keep = any(_subgraphs(node) for node in nodes)
    return {n: n if keep else f"{letter}{i}" for letter, names in groups.items() for i, n in enumerate(names)}


def _renamed(node: NodeProto, names: dict[str, str]) -> NodeProto:
    inputs, outputs = ([names[name] if name else "" for name in ends] for ends in (node.input, node.output))
    renamed = helper.make_node(node.op_type, inputs, outputs, domain=node.domain)
    renamed.attribute.extend(sorted(node.attribute, key=lambda attribute: attribute.name))
    return renamed


def _tensor(tensor: TensorProto, name: str, *, weights: bool) -> TensorProto:
    renamed = TensorProto(dims=tensor.dims, data_type=tensor.data_type)
    if weights or math.prod(tensor.dims) <= MANY:
        renamed.CopyFrom(tensor)
    renamed.name, renamed.doc_string = name, ""
    return renamed


def _kind(tensor: TensorProto, weight: bool) -> bytes:
    """What counts of a constant: name, element type, shape, and of a few numbers that are no weights the values."""
    text = f"{tensor.name} {tensor.data_type} {list(tensor.dims)}"
    if math.prod(tensor.dims) <= FEW:
        values = numpy_helper.to_array(tensor)
        text += f" {(values != 0).tolist() if weight else values.tolist()}"
    return text.encode()


def _value_of(node: NodeProto) -> TensorProto | None:
    """What a Constant node holds, as far as that is a tensor of numbers."""
    for attribute in node.attribute:
        if attribute.name == "value":
            return attribute.t
        if attribute.name in ("value_int", "value_ints", "value_float", "value_floats"):
            kind = np.int64 if "int" in attribute.name else np.float32
            return numpy_helper.from_array(np.array(helper.get_attribute_value(attribute), kind))
    return None
