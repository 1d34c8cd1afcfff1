"""What a converter sees of an ONNX node, and the registry of converters.

A converter turns one ONNX node into Graph nodes: ``convert(context) -> name`` or a tuple of names, one an output.
Converters never touch protobuf: attributes are Python values, tensors are arrays, subgraphs are OnnxGraph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NoReturn

import numpy as np

from mononn_core.errors import ModelError, ShapeError, UnsupportedError
from mononn_core.graph import Origin, TensorType
from mononn_core.graph.graph import Attr
from mononn_core.importer.opsets import MOVED, dtype_name
from mononn_core.ops import registry
from mononn_core.ops.builder import Builder
from mononn_core.ops.common import axis_of

Value = str | tuple[str, ...]
"""A tensor's name in the Graph, or the names in a sequence."""
Converted = str | Sequence[Value]


class UnknownValueError(UnsupportedError):
    """A shape or parameter depends on the model's ``inputs``."""

    def __init__(self, message: str, inputs: tuple[str, ...]) -> None:
        super().__init__(message)
        self.inputs = inputs


@dataclass(frozen=True)
class OnnxNode:
    """An ONNX node without protobuf; ``proto`` is kept for expanding function operators."""

    op_type: str
    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any]
    proto: Any = field(compare=False, repr=False)

    @cached_property
    def kinds(self) -> tuple[tuple[str, int], ...]:
        """Its attributes' names, each with the number of its kind."""
        return tuple((attribute.name, attribute.type) for attribute in self.proto.attribute)

    @cached_property
    def origin(self) -> Origin:
        return Origin(self.name or self.output or "?", self.op_type)

    @cached_property
    def output(self) -> str:
        """The first output that is there, "" where none is."""
        return next((n for n in self.outputs if n), "")


@dataclass(frozen=True)
class OnnxGraph:
    """A subgraph attribute (the body of If, Loop or Scan)."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[OnnxNode, ...]
    constants: Mapping[str, np.ndarray[Any, Any]]


Inline = Callable[[OnnxGraph, Mapping[str, Value]], list[Value]]
"""Imports a subgraph's nodes with its inputs bound to Graph tensors; gives its outputs."""


@dataclass(frozen=True)
class Context:
    """One ONNX node under conversion."""

    node: OnnxNode
    operands: tuple[Value, ...]
    builder: Builder
    opset: int
    inline: Inline

    @property
    def origin(self) -> Origin:
        return self.node.origin

    @property
    def count(self) -> int:
        """Number of inputs, absent trailing ones not counted."""
        return len(self.operands)

    def has(self, position: int) -> bool:
        """Whether input ``position`` is there."""
        return position < len(self.operands) and self.operands[position] != ""

    def input(self, position: int) -> str:
        """The Graph tensor of an input ("" when absent)."""
        if not self.has(position):
            return ""
        value = self.operands[position]
        if not isinstance(value, str):
            raise UnsupportedError(f"{self.origin}: input {position} is a sequence of tensors")
        return value

    def inputs(self) -> list[str]:
        """All inputs."""
        return [self.input(i) for i in range(self.count)]

    def type(self, tensor: int | str) -> TensorType:
        """Type of an input (by position) or of any tensor (by name)."""
        name = self.input(tensor) if isinstance(tensor, int) else tensor
        if not name:
            raise ModelError(f"{self.origin}: a required input is missing; the model is damaged")
        return self.builder.types[name]

    def constant(self, position: int, what: str) -> np.ndarray[Any, Any]:
        """The value of an input that must be known when compiling: a constant, or what is dequantised of constants."""
        name = self.input(position)
        value = self.known(name)
        if value is None:
            made = next((node for node in reversed(self.builder.nodes) if name in node.outputs), None)
            given = [self.known(n) for n in made.inputs] if made is not None and made.op == "dequantize" else [None]
            if made is None or any(v is None for v in given):
                return self.unknown(name, what)
            (value,) = registry.get(made.op).evaluate(np, given, made.attrs)
        return np.asarray(value)

    def unknown(self, name: str, what: str) -> NoReturn:
        """Raises UnknownValueError for a tensor whose value must be known when compiling."""
        sources = self._sources(name)
        raise UnknownValueError(
            f"{self.origin}: its {what} depends on {', '.join(map(repr, sources))}, and must be known when compiling; "
            f"give it, as in --value {sources[0] if sources else 'NAME'}=1, or export the model with it constant",
            sources,
        )

    def _sources(self, name: str) -> tuple[str, ...]:
        """The graph inputs a tensor is computed from, sorted."""
        made = {output: node for node in self.builder.nodes for output in node.outputs}
        seen, waiting, found = {name}, [name], set()
        while waiting:
            node = made.get(current := waiting.pop())
            if node is None and current and current not in self.builder.constants:
                found.add(current)
            fresh = set(node.inputs) - seen if node is not None else set()
            seen |= fresh
            waiting += fresh
        return tuple(sorted(found))

    def known(self, name: str) -> np.ndarray[Any, Any] | None:
        """The value of a constant tensor, None for any other."""
        return self.builder.constants.get(name)

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute of the ONNX node."""
        return self.node.attrs.get(name, default)

    def parameter(self, name: str) -> np.ndarray[Any, Any] | None:
        """A parameter that is an attribute in old opsets and an input in new ones; None when absent."""
        if name in self.node.attrs:
            return np.asarray(self.node.attrs[name])
        position, _ = MOVED[self.node.op_type][name]
        return self.constant(position, name) if self.has(position) else None

    def integers(self, name: str) -> list[int] | None:
        """Like :meth:`parameter`, as a list of integers."""
        value = self.parameter(name)
        return None if value is None else [int(v) for v in np.asarray(value).reshape(-1)]

    def axis(self, default: int, rank: int) -> int:
        """Attribute ``axis``, made non-negative for a tensor of ``rank``."""
        return self.normal(self.attr("axis", default), rank)

    def normal(self, axis: int, rank: int) -> int:
        """A non-negative axis; errors name the node."""
        try:
            return axis_of(int(axis), rank)
        except ShapeError as error:
            raise ShapeError(f"{self.origin}: {error}; check the model or the shapes given") from error

    def dtype(self, name: str, default: str) -> str:
        """An attribute that holds an element type."""
        number = self.attr(name, 0)
        return dtype_name(number) if number else default

    def add(self, op: str, /, *inputs: str, **attrs: Attr) -> str:
        """Append a Graph node (or fold it) and give its output."""
        return self.builder.add(op, inputs, self.origin, attrs, hint=self.hint)

    @property
    def hint(self) -> str:
        """What tensors made here are named after."""
        return self.node.output or self.origin.name

    def make(self, value: Any, dtype: str | None = None) -> str:
        """A constant tensor."""
        return self.builder.constant(value, f"{self.hint}/constant", dtype)

    def like(self, value: float, tensor: str) -> str:
        """A constant scalar of a tensor's element type."""
        return self.make(value, self.type(tensor).dtype)

    def reshape(self, tensor: str, shape: Iterable[int]) -> str:
        """``tensor`` in another shape."""
        target = tuple(int(n) for n in shape)
        return tensor if self.type(tensor).shape == target else self.add("reshape", tensor, shape=target)

    def unsupported(self, reason: str) -> UnsupportedError:
        """The error for a form this compiler lacks."""
        return UnsupportedError(f"{self.origin}: {reason}")


Converter = Callable[[Context], Converted]
_CONVERTERS: dict[tuple[str, str], Converter] = {}
"""By domain and operator; ONNX's own domain is ""."""


def converts(*op_types: str, domain: str = "") -> Callable[[Converter], Converter]:
    """Register a converter of a domain's operators; registering one twice is an error at import."""

    def add(converter: Converter) -> Converter:
        for op_type in op_types:
            if (domain, op_type) in _CONVERTERS:
                raise ValueError(f"ONNX operator {op_type!r} has two converters")
            _CONVERTERS[domain, op_type] = converter
        return converter

    return add


def converter_of(domain: str, op_type: str) -> Converter | None:
    """The converter of an operator, or None."""
    return _CONVERTERS.get((domain, op_type))
