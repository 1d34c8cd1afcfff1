"""ONNX protobuf to plain values: model files, external data, attributes, tensors, function bodies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

import google.protobuf.message
import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, defs, helper, numpy_helper

from mononn_core.errors import ModelError, UnsupportedError
from mononn_core.graph import TensorType
from mononn_core.importer.context import OnnxGraph, OnnxNode
from mononn_core.importer.file import map_file, without_large
from mononn_core.importer.opsets import dtype_name
from mononn_core.importer.order import sort_nodes

DEFAULT_DOMAINS = ("", "ai.onnx")


def read_model(source: str | Path | bytes) -> onnx.ModelProto:
    """The model of a file or of its bytes, external data included.

    Raises ModelError when it is missing, truncated or not ONNX, or when external data is missing, too short or
    outside the model's folder.
    """
    model, large = read_structure(source)
    for number, raw in large.items():
        model.graph.initializer[number].raw_data = bytes(raw)
    return model


def read_structure(source: str | Path | bytes) -> tuple[onnx.ModelProto, dict[int, memoryview]]:
    """As :func:`read_model`, without the raw data of the graph's large initializers: these by the initializer's
    number, where they lie, which is a file's mapping (see :func:`mononn_core.importer.file.map_file`)."""
    if isinstance(source, bytes):
        data, label, folder = memoryview(source), "the model", None
    else:
        path = Path(source)
        label, folder = str(path), path.parent
        try:
            data = map_file(path)
        except OSError as error:
            raise ModelError(f"{label} cannot be read ({error.strerror}); check the path") from error
    model = onnx.ModelProto()
    small, large = without_large(data)
    try:
        model.ParseFromString(small)
    except google.protobuf.message.DecodeError as error:
        raise ModelError(f"{label} is not an ONNX model, or it is truncated; export or copy it again") from error
    if not model.HasField("graph") or not model.opset_import or not model.graph.output:
        raise ModelError(f"{label} is not an ONNX model, or it is truncated: it has no graph; export or copy it again")
    if not all(isinstance(name, str) for name in _names(model.graph)):  # else bytes, as protobuf gives what is no text
        raise ModelError(f"{label} has a tensor whose name is not UTF-8; export or copy it again")
    files = dict[Path, memoryview]()
    for number, tensor in enumerate(model.graph.initializer):
        if tensor.data_location == TensorProto.EXTERNAL:
            large[number] = _external(tensor, folder, files)
    for tensor in _tensors(model):
        if tensor.data_location == TensorProto.EXTERNAL:
            tensor.raw_data = bytes(_external(tensor, folder, files))
    sort_nodes(model.graph)
    return model, large


def _names(graph: onnx.GraphProto) -> Iterable[str]:
    """Names of a graph's tensors."""
    for value in (*graph.input, *graph.output, *graph.initializer):
        yield value.name
    for node in graph.node:
        yield from (*node.input, *node.output)


def _tensors(model: onnx.ModelProto) -> Iterable[TensorProto]:
    """Every tensor in the model: initializers and attributes, subgraphs and functions included."""
    yield from _graph_tensors(model.graph)
    for function in model.functions:
        yield from _node_tensors(function.node)


def _graph_tensors(graph: onnx.GraphProto) -> Iterable[TensorProto]:
    yield from graph.initializer
    yield from _node_tensors(graph.node)


def _node_tensors(nodes: Iterable[onnx.NodeProto]) -> Iterable[TensorProto]:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.TENSOR:
                yield attribute.t
            yield from attribute.tensors
            for graph in (attribute.g, *attribute.graphs):
                yield from _graph_tensors(graph)


def _external(tensor: TensorProto, folder: Path | None, files: dict[Path, memoryview]) -> memoryview:
    """The data of a tensor in another file, of which the tensor says no more then; ``files``: those that are mapped."""
    entries = {e.key: e.value for e in tensor.external_data}
    location = entries.get("location", "")
    what = f"external data {location!r} of tensor {tensor.name!r}"
    if folder is None:
        raise ModelError(f"{what} cannot be found for a model given as bytes; pass the model's path instead")
    root = folder.resolve()
    path = (root / location).resolve()
    if not location or Path(location).is_absolute() or not path.is_relative_to(root):
        raise ModelError(f"{what} lies outside the model's folder; move it beside the model and save the model again")
    try:
        offset, length = int(entries.get("offset", 0)), int(entries.get("length", -1))
        if path not in files:
            files[path] = map_file(path)
    except OSError as error:
        raise ModelError(f"{what} cannot be read ({error.strerror}); copy it beside the model") from error
    except ValueError as error:
        raise ModelError(f"{what} has a damaged offset or length; export the model again") from error
    if offset < 0:
        raise ModelError(f"{what} has a damaged offset or length; export the model again")
    raw = files[path][offset : offset + length if length >= 0 else None]
    if len(raw) < length:
        raise ModelError(f"{what} ends after {len(raw)} of {length} bytes; copy it again")
    tensor.data_location = TensorProto.DEFAULT
    del tensor.external_data[:]
    return raw


def tensor_value(tensor: TensorProto) -> np.ndarray[Any, Any]:
    """A tensor as an array; raises ModelError when its data do not fill its shape."""
    dtype_name(tensor.data_type)
    try:
        return np.asarray(numpy_helper.to_array(tensor))
    except (ValueError, TypeError) as error:
        raise ModelError(
            f"tensor {tensor.name!r} has data that do not fit its shape; export the model again"
        ) from error


def attribute_value(attribute: AttributeProto) -> Any:
    """An attribute as a Python value: text, numbers, lists, arrays or OnnxGraph."""
    kind = attribute.type
    if kind == AttributeProto.TENSOR:
        return tensor_value(attribute.t) if attribute.t.data_type != TensorProto.STRING else None
    if kind == AttributeProto.GRAPH:
        return subgraph(attribute.g)
    if kind == AttributeProto.STRING:
        return attribute.s.decode("utf-8", "replace")
    if kind == AttributeProto.STRINGS:
        return [s.decode("utf-8", "replace") for s in attribute.strings]
    if kind in (AttributeProto.SPARSE_TENSOR, AttributeProto.SPARSE_TENSORS, AttributeProto.TYPE_PROTO):
        return None
    value = helper.get_attribute_value(attribute)
    return list(value) if isinstance(value, Sequence) else value


def plain_node(node: onnx.NodeProto) -> OnnxNode:
    """A NodeProto without protobuf; attributes of kinds that no converter reads are left out."""
    attrs = {a.name: attribute_value(a) for a in node.attribute if not a.ref_attr_name}
    domain = "" if node.domain in DEFAULT_DOMAINS else node.domain
    known = {key: value for key, value in attrs.items() if value is not None}
    return OnnxNode(node.op_type, domain, node.name, tuple(node.input), tuple(node.output), known, node)


def initializers(
    graph: onnx.GraphProto, large: Mapping[int, memoryview] = MappingProxyType({})
) -> dict[str, np.ndarray[Any, Any]]:
    """The graph's stored tensors by name; ``large``: raw data of some, by their number."""
    if graph.sparse_initializer:
        raise UnsupportedError("the model stores sparse tensors, which are not supported; export it with dense ones")
    return {t.name: _stored(t, large.get(number)) for number, t in enumerate(graph.initializer)}


def _stored(tensor: TensorProto, raw: memoryview | None) -> np.ndarray[Any, Any]:
    if raw is None:
        return tensor_value(tensor)
    dtype, shape = np.dtype(dtype_name(tensor.data_type)), tuple(tensor.dims)
    if len(raw) == prod(shape) * dtype.itemsize:
        return np.frombuffer(raw, dtype).reshape(shape)
    # elements that share bytes, or what does not fit
    tensor.raw_data = bytes(raw)
    return tensor_value(tensor)


def subgraph(graph: onnx.GraphProto) -> OnnxGraph:
    """A GraphProto without protobuf."""
    return OnnxGraph(
        tuple(i.name for i in graph.input),
        tuple(o.name for o in graph.output),
        tuple(plain_node(n) for n in graph.node),
        initializers(graph),
    )


@dataclass(frozen=True)
class Function:
    """A function body with its attributes bound: ``nodes`` over ``inputs`` to ``outputs``."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[OnnxNode, ...]
    opsets: Mapping[str, int]


def _bind(node: onnx.NodeProto, attributes: Mapping[str, AttributeProto]) -> onnx.NodeProto:
    """A copy of a body's node with references to the function's attributes replaced by their values."""
    bound = onnx.NodeProto()
    bound.CopyFrom(node)
    del bound.attribute[:]
    for attribute in node.attribute:
        if attribute.ref_attr_name:
            given = attributes.get(attribute.ref_attr_name)
            if given is not None:
                copy = bound.attribute.add()
                copy.CopyFrom(given)
                copy.name = attribute.name
            continue
        copy = bound.attribute.add()
        copy.CopyFrom(attribute)
        _bind_graphs(copy, attributes)
    return bound


def _bind_graphs(attribute: AttributeProto, attributes: Mapping[str, AttributeProto]) -> None:
    for graph in (attribute.g, *attribute.graphs):
        nodes = [_bind(n, attributes) for n in graph.node]
        if nodes:
            del graph.node[:]
            graph.node.extend(nodes)


def bind_function(body: onnx.FunctionProto, node: OnnxNode, opsets: Mapping[str, int]) -> Function:
    """A function's body as called by ``node``; its own opset imports win over the caller's ``opsets``."""
    given = {a.name: a for a in body.attribute_proto}
    given.update({a.name: a for a in node.proto.attribute})
    imports = {**opsets, **{o.domain: o.version for o in body.opset_import}}
    nodes = tuple(plain_node(_bind(n, given)) for n in body.node)
    return Function(tuple(body.input), tuple(body.output), nodes, imports)


def _schema(node: OnnxNode, opsets: Mapping[str, int]) -> tuple[defs.OpSchema | None, int]:
    """The operator's definition in the model's opset, and that opset's number."""
    version = opsets.get(node.domain, opsets.get("", 1))
    try:
        return defs.get_schema(node.op_type, version, node.domain), version
    except defs.SchemaError:
        return None, version


def is_composite(node: OnnxNode, opsets: Mapping[str, int]) -> bool:
    """Whether ONNX itself defines the operator by a function body (for some input types, at least)."""
    schema, version = _schema(node, opsets)
    if schema is None:
        return False
    versions = [*schema.function_opset_versions, *schema.context_dependent_function_opset_versions]
    return any(v <= version for v in versions)


def standard_function(
    node: OnnxNode, types: Sequence[TensorType | None], opsets: Mapping[str, int]
) -> onnx.FunctionProto | None:
    """The body ONNX itself defines for a composite operator, fitting the input types; None when there is none."""
    schema, version = _schema(node, opsets)
    if schema is None:
        return None
    body = onnx.FunctionProto()
    for number in sorted((v for v in schema.function_opset_versions if v <= version), reverse=True):
        body.ParseFromString(schema.get_function_with_opset_version(number))
        return _with_defaults(body, schema)
    encoded = [_type_proto(t).SerializeToString() for t in types]
    for number in sorted((v for v in schema.context_dependent_function_opset_versions if v <= version), reverse=True):
        text = schema.get_context_dependent_function_with_opset_version(number, node.proto.SerializeToString(), encoded)
        if text:
            body.ParseFromString(text)
            return _with_defaults(body, schema)
    return None


def _with_defaults(body: onnx.FunctionProto, schema: defs.OpSchema) -> onnx.FunctionProto:
    """The body with the operator's default attribute values, which it may refer to."""
    known = {a.name for a in body.attribute_proto}
    for name, attribute in sorted(schema.attributes.items()):
        if attribute.default_value.name and name not in known:
            body.attribute_proto.append(attribute.default_value)
    return body


def _type_proto(t: TensorType | None) -> onnx.TypeProto:
    if t is None:
        return onnx.TypeProto()
    return helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(np.dtype(t.dtype)), t.shape)
