"""Small ONNX models for the importer's tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from mononn_core.importer import load
from mononn_core.ops.evaluate import run
from mononn_core.passes import pipeline

Edge = tuple[str, str, Sequence[int | str] | None]
"""(name, NumPy dtype, dimensions)"""


def value_info(edge: Edge) -> onnx.ValueInfoProto:
    name, dtype, dims = edge
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), dims)


def node(op: str, inputs: str, outputs: str, **attrs: Any) -> onnx.NodeProto:
    """``node("Add", "a b", "c")``; "-" is an absent input."""
    names = [n if n != "-" else "" for n in inputs.split()]
    domain = attrs.pop("domain", "")
    return helper.make_node(op, names, outputs.split(), name=f"{op}_{outputs.split()[0]}", domain=domain, **attrs)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Edge],
    outputs: Sequence[str],
    constants: Mapping[str, np.ndarray] | None = None,
    opset: int = 18,
    functions: Sequence[onnx.FunctionProto] = (),
    domains: Sequence[str] = (),
) -> onnx.ModelProto:
    """A model; outputs have whatever type comes out."""
    graph = helper.make_graph(
        nodes,
        "small",
        [value_info(e) for e in inputs],
        [onnx.ValueInfoProto(name=n) for n in outputs],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in (constants or {}).items()],
    )
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=8)


def typed(proto: onnx.ModelProto) -> bytes:
    """The model with its outputs' types inferred, as ONNX Runtime wants it."""
    inferred = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    return bytes(inferred.SerializeToString())


def random_inputs(inputs: Sequence[Edge], seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    found = {}
    for name, dtype, dims in inputs:
        shape = [int(n) for n in dims or ()]
        found[name] = (rng.standard_normal(shape) * 2).astype(dtype)
    return found


def assert_agrees(proto: onnx.ModelProto, inputs: Mapping[str, np.ndarray], tolerance: float = 1e-5) -> None:
    """Imported and optimised Graph against ONNX Runtime: same names, dtypes, shapes and values."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(typed(proto), options, providers=["CPUExecutionProvider"])
    wanted = session.run(None, dict(inputs))
    graph = load(proto.SerializeToString(), {k: v.shape for k, v in inputs.items()})
    assert graph.outputs == tuple(o.name for o in proto.graph.output)
    for candidate in (graph, pipeline.run(graph)):
        found = run(candidate, inputs)
        for name, value in zip(graph.outputs, wanted, strict=True):
            assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape)
            np.testing.assert_allclose(found[name], value, rtol=tolerance, atol=tolerance)
