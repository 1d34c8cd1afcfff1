"""ONNX model to Graph: static shapes, known values folded on the way, composite operators expanded."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike
from onnx import numpy_helper

from mononn_core.errors import InputError, ModelError, MononnError, ShapeError, UnsupportedError
from mononn_core.graph import Graph, Node, Origin, TensorType
from mononn_core.importer.context import Context, OnnxGraph, OnnxNode, Value, converter_of
from mononn_core.importer.fused import LAYOUTS, fused_function
from mononn_core.importer.opsets import check_opset, dtype_name
from mononn_core.importer.protobuf import (
    DEFAULT_DOMAINS,
    bind_function,
    initializers,
    plain_node,
    read_structure,
    standard_function,
)
from mononn_core.importer.schema import check_node
from mononn_core.ops.builder import Builder

Shapes = Mapping[str, Sequence[int]]
Stored = Mapping[str, np.ndarray[Any, Any]]
Values = Mapping[str, ArrayLike]
Scope = dict[str, Value]
Dims = tuple[int | str, ...]
"""An input's declared dimensions: a number, or the name of a dynamic one ("" when it has none)."""


def load(source: str | Path | bytes, shapes: Shapes | None = None, values: Values | None = None) -> Graph:
    """The Graph of an ONNX model (a path, or the file's bytes).

    ``shapes`` gives the shape of inputs with dynamic dimensions; a symbol given by one input holds for the others.
    ``values`` as of :func:`fix_inputs`.
    Raises ModelError (not ONNX, damaged, external data), ShapeError (a dimension is unknown or does not fit) and
    UnsupportedError (an operator, attribute or type without a form); each names the node or the input.
    """
    return Imported(source, values).graph(shapes)


class Imported:
    """An ONNX model that was read once; errors are :func:`load`'s.

    A file's large constants stay in it, mapped: it must not be overwritten while the model, or a Graph of it, is used.

    Attributes:
        path: of the file that is the whole model; None where bytes were given, or values of inputs.
    """

    def __init__(self, source: str | Path | bytes, values: Values | None = None) -> None:
        self.path = None if isinstance(source, bytes) or values else Path(source)
        self.model, large = read_structure(source)
        fix_inputs(self.model, values or {})
        self._stored = initializers(self.model.graph, large)
        self._nodes: list[OnnxNode] | None = None

    def graph(self, shapes: Shapes | None = None) -> Graph:
        """Its Graph at these shapes."""
        importer = Importer(self.model, self._stored)
        importer.declare(input_types(self.model, shapes or {}))
        if self._nodes is None:
            self._nodes = [plain_node(node) for node in self.model.graph.node]
        for plain in self._nodes:
            importer.convert(plain, importer.scope, importer.opsets, "")
        return importer.finish()


def declared_inputs(model: onnx.ModelProto) -> dict[str, tuple[str, Dims]]:
    """Name -> (dtype, dimensions) of every input that is not an initializer."""
    stored = {t.name for t in model.graph.initializer}
    found: dict[str, tuple[str, Dims]] = {}
    for value in model.graph.input:
        if value.name in stored:
            continue
        if not value.type.HasField("tensor_type"):
            raise UnsupportedError(f"input {value.name!r} is not a tensor, and only tensors are supported")
        tensor = value.type.tensor_type
        if not tensor.HasField("shape"):
            found[value.name] = (dtype_name(tensor.elem_type), ("?",))
            continue
        found[value.name] = (dtype_name(tensor.elem_type), tuple(_dimension(d) for d in tensor.shape.dim))
    return found


def _dimension(declared: onnx.TensorShapeProto.Dimension) -> int | str:
    """Of a dimension that is not known some exporters write -1, or the name "?" for each, where ONNX leaves it out."""
    if declared.HasField("dim_value") and declared.dim_value >= 0:
        return declared.dim_value
    return "" if declared.dim_param == "?" else declared.dim_param


def fix_inputs(model: onnx.ModelProto, values: Values) -> None:
    """Make constants of a model's inputs, which has them no more; a number stands for all elements of its input.

    Raises:
        InputError: there is no such input, or its type does not hold the value.
        ShapeError: it has another shape.
    """
    for name, value in values.items():
        declared = declared_inputs(model)
        _known(name, declared)
        (dtype, dims), array = declared[name], np.asarray(value)
        if array.ndim == 0 and all(isinstance(d, int) for d in dims):
            array = np.full([int(d) for d in dims], array)
        _match(name, dims, array.shape, {})
        position, entry = next((i, entry) for i, entry in enumerate(model.graph.input) if entry.name == name)
        kind = onnx.helper.tensor_dtype_to_np_dtype(entry.type.tensor_type.elem_type)
        if (held := _as(array, kind)) is None:
            raise InputError(f"input {name!r} is of type {dtype}, and its value {array} is none; give another")
        model.graph.initializer.append(numpy_helper.from_array(held, name))
        del model.graph.input[position]


def _as(array: np.ndarray[Any, Any], kind: np.dtype[Any]) -> np.ndarray[Any, Any] | None:
    """Numbers in a type; None where they are none, or whole numbers that it does not hold. Floats are rounded."""
    try:
        with np.errstate(invalid="ignore"):
            found = array.astype(kind)
    except (OverflowError, TypeError, ValueError):
        return None
    return None if kind.kind in "biu" and (found != array).any() else found


def _known(name: str, declared: Collection[str]) -> None:
    if name not in declared:
        raise InputError(f"the model has no input {name!r}; its inputs are {', '.join(declared)}")


def input_types(model: onnx.ModelProto, shapes: Shapes) -> dict[str, TensorType]:
    """Static types of the inputs; raises ShapeError for a dimension nobody gave, or one given wrongly."""
    declared = declared_inputs(model)
    for name in sorted(shapes):
        _known(name, declared)
    symbols: dict[str, int] = {}
    for name, shape in shapes.items():
        _match(name, declared[name][1], shape, symbols)
    types = {}
    for name, (dtype, dims) in declared.items():
        given = shapes.get(name)
        sizes = (
            tuple(given) if given is not None else tuple(symbols.get(d, -1) if isinstance(d, str) else d for d in dims)
        )
        if -1 in sizes:
            position = sizes.index(-1)
            label = f" ({dims[position]})" if dims[position] else ""
            example = "x".join("128" if n == -1 else str(n) for n in sizes)
            raise ShapeError(
                f"input {name!r}: dimension {position}{label} is dynamic; give its shape, "
                f"as in --shape {name}={example}"
            )
        types[name] = TensorType(dtype, tuple(int(n) for n in sizes))
    return types


def _match(name: str, dims: Dims, shape: Sequence[int], symbols: dict[str, int]) -> None:
    if any(int(n) < 0 for n in shape):
        raise ShapeError(f"input {name!r}: shape {list(shape)} has a negative extent; give numbers from 0 on")
    if dims == ("?",):
        return
    if len(shape) != len(dims):
        raise ShapeError(f"input {name!r} has {len(dims)} dimensions, and shape {list(shape)} has {len(shape)}")
    for position, (dim, size) in enumerate(zip(dims, shape, strict=True)):
        expected = dim if isinstance(dim, int) else symbols.setdefault(dim, int(size)) if dim else int(size)
        if expected != size:
            what = f" ({dim})" if isinstance(dim, str) else ""
            raise ShapeError(
                f"input {name!r}: dimension {position}{what} is {expected}, and the shape given says {size}"
            )


class Importer:
    """Converts ONNX nodes in order into a Builder; scopes map ONNX names to Graph tensors."""

    def __init__(self, model: onnx.ModelProto, stored: Stored | None = None) -> None:
        self.model = model
        self.stored = initializers(model.graph) if stored is None else stored
        self.builder = Builder()
        self.opsets = {("" if o.domain in DEFAULT_DOMAINS else o.domain): int(o.version) for o in model.opset_import}
        if "" in self.opsets:
            check_opset(self.opsets[""])
        self.functions = {(f.domain, f.name, f.overload): f for f in model.functions}
        self.scope: Scope = {}
        self.unmade: dict[str, str] = {}
        """Outputs that their nodes' converters do not make, and what is to be said where somebody reads one."""
        self.inputs: tuple[str, ...] = ()

    def declare(self, types: Mapping[str, TensorType]) -> None:
        """Inputs, outputs' names (kept free for them) and stored tensors."""
        self.inputs = tuple(types)
        self.builder.types.update(types)
        self.scope.update({name: name for name in self.inputs})
        self.builder.reserve(o.name for o in self.model.graph.output)
        for name, value in self.stored.items():
            self.scope[name] = self.builder.constant(value, name)

    def own(self, node: OnnxNode) -> onnx.FunctionProto | None:
        """The model's own function that a node calls."""
        return self.functions.get((node.domain, node.op_type, node.proto.overload))

    def convert(self, node: OnnxNode, scope: Scope, opsets: Mapping[str, int], prefix: str) -> None:
        """Import one node: by its converter, else by expanding the function that defines it."""
        try:
            self._convert(node, scope, opsets, prefix)
        except MononnError:
            raise
        except Exception as error:  # whatever a malformed node makes a converter or onnx itself raise
            cause = str(error).splitlines()[0][:120] if str(error) else ""
            raise ModelError(
                f"{node.origin} cannot be read ({type(error).__name__}: {cause}); check the model with onnx.checker"
            ) from error

    def _convert(self, node: OnnxNode, scope: Scope, opsets: Mapping[str, int], prefix: str) -> None:
        operands = self._operands(node, scope)
        types = [self.builder.types[v] if isinstance(v, str) and v else None for v in operands]
        check_node(node, [t.dtype if t else "" for t in types])
        converter, own = converter_of(node.domain, node.op_type), self.own(node)
        if own is not None:
            self._expand(own, node, operands, scope, opsets, prefix)
        elif converter is not None:

            def inline(body: OnnxGraph, bound: Mapping[str, Value]) -> list[Value]:
                return self.inline(body, bound, scope, opsets, prefix)

            named = _prefixed(node, prefix)
            context = Context(named, operands, self.builder, opsets.get("", 1), inline)
            produced = converter(context)
            self._bind(node, [produced] if isinstance(produced, str) else list(produced), scope)
        else:
            body = standard_function(node, types, opsets) or fused_function(node, types)
            if body is None:
                raise UnsupportedError(
                    f"{node.origin}: operator {_full_name(node)} has no form in this compiler; "
                    + LAYOUTS.get(node.domain, "`mononn check` lists every such node")
                )
            self._expand(body, node, operands, scope, opsets, prefix)

    def _operands(self, node: OnnxNode, scope: Scope) -> tuple[Value, ...]:
        names = list(node.inputs)
        while names and not names[-1]:
            names.pop()
        for name in names:
            if name and name not in scope:
                raise self._unmade(name, f"{node.origin} reads {name!r}, which nothing makes; the model is damaged")
        return tuple(scope[name] if name else "" for name in names)

    def _bind(self, node: OnnxNode, produced: Sequence[Value], scope: Scope) -> None:
        for position, name in enumerate(node.outputs):
            if not name:
                continue
            if position < len(produced) and produced[position] != "":
                scope[name] = produced[position]
            else:
                self.unmade[name] = f"{node.origin}: its output {position} ({name!r}) is not supported"

    def _unmade(self, name: str, damage: str) -> MononnError:
        """What to raise where ``name`` is read and there is none: it is not supported, or else there is ``damage``."""
        return UnsupportedError(self.unmade[name]) if name in self.unmade else ModelError(damage)

    def _expand(
        self,
        body: onnx.FunctionProto,
        node: OnnxNode,
        operands: Sequence[Value],
        scope: Scope,
        opsets: Mapping[str, int],
        prefix: str,
    ) -> None:
        function = bind_function(body, node, opsets)
        padded = [*operands, *([""] * (len(function.inputs) - len(operands)))]
        inner: Scope = dict(zip(function.inputs, padded, strict=True))
        label = f"{prefix}{node.origin.name}/"
        for child in function.nodes:
            self.convert(child, inner, function.opsets, label)
        self._bind(node, [inner.get(name, "") for name in function.outputs], scope)

    def inline(
        self, body: OnnxGraph, bound: Mapping[str, Value], scope: Scope, opsets: Mapping[str, int], prefix: str
    ) -> list[Value]:
        """Import a subgraph, which sees its parent's names; gives its outputs."""
        inner: Scope = {**scope, **bound}
        for name, value in body.constants.items():
            inner[name] = self.builder.constant(value, f"{prefix}{name}")
        for child in body.nodes:
            self.convert(child, inner, opsets, prefix)
        if missing := [name for name in body.outputs if name not in inner]:
            raise self._unmade(
                missing[0], f"a subgraph's output {missing[0]!r} is made by no node; the model is damaged"
            )
        return [inner[name] for name in body.outputs]

    def finish(self) -> Graph:
        """The Graph, its outputs under their ONNX names."""
        outputs = tuple(o.name for o in self.model.graph.output)
        nodes = self.builder.nodes
        made = {name for node in nodes for name in node.outputs}
        for name in outputs:
            if name in self.inputs or outputs.count(name) > 1:
                what = "an input" if name in self.inputs else "another output"
                raise UnsupportedError(f"output {name!r} is also {what}; give it a name of its own by an Identity node")
        renamed: dict[str, str] = {}
        copies: list[Node] = []
        for name in outputs:
            value = self.scope.get(name)
            if value is None:
                raise self._unmade(name, f"output {name!r} is made by no node; the model is damaged")
            if not isinstance(value, str):
                raise UnsupportedError(f"output {name!r} is a sequence of tensors, and only tensors are supported")
            if value in made and value not in renamed:
                renamed[value] = name
            else:
                copies.append(Node("identity", (value,), (name,), Origin(name, "Identity")))
            self.builder.types[name] = self.builder.types[value]

        def new(node: Node, outputs: bool = True) -> Node:
            if renamed.keys().isdisjoint((*node.inputs, *node.outputs)):
                return node
            inputs, made = (tuple(renamed.get(n, n) for n in names) for names in (node.inputs, node.outputs))
            return replace(node, inputs=inputs, outputs=made if outputs else node.outputs)

        self.builder.nodes = [*map(new, nodes), *(new(c, outputs=False) for c in copies)]
        return self.builder.graph(self.model.graph.name or "model", self.inputs, outputs)


def _prefixed(node: OnnxNode, prefix: str) -> OnnxNode:
    """A node of a function body, its name and outputs under the caller's."""
    if not prefix:
        return node
    outputs = tuple(prefix + name if name else "" for name in node.outputs)
    return OnnxNode(node.op_type, node.domain, prefix + node.origin.name, node.inputs, outputs, node.attrs, node.proto)


def _full_name(node: OnnxNode) -> str:
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type
