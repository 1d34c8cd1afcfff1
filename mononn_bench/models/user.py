"""A user's own ONNX file as a model of the suite: checked, made static, its inputs understood."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import helper, shape_inference

from mononn_bench.errors import ModelError, UnknownNameError
from mononn_bench.models.spec import InputSpec, Role

INTEGER_LIMIT = 2
"""Exclusive bound of integer inputs that index no table: right for masks and segments."""


def read_user_model(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> onnx.ModelProto:
    """Read an ONNX file with its external data and give its inputs the static `shapes`.

    Raises ModelError: the file is missing or not ONNX, its data is missing or outside its folder, or a dimension is
    still dynamic, or an input is of a type that NumPy lacks (bfloat16); UnknownNameError: `shapes` names no input.
    """
    if not path.is_file():
        raise ModelError(f"There is no model file {path}: correct its path.")
    try:
        model = onnx.load(path, load_external_data=False)
        _check_external_data(model, path)
        onnx.load_external_data_for_model(model, str(path.parent))
        onnx.checker.check_model(model)
    except (DecodeError, onnx.checker.ValidationError) as error:
        raise ModelError(f"{path} is not a valid ONNX model ({_line(error)}): export it again.") from error
    constants = {t.name for t in model.graph.initializer}
    inputs = {v.name: v for v in model.graph.input if v.name not in constants}
    for name, shape in shapes.items():
        if name not in inputs:
            raise UnknownNameError("input", name, inputs)
        _make_static(inputs[name], shape)
    for value in inputs.values():
        _require_static(value)
        dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        if dtype.isbuiltin != 1:
            raise ModelError(f"Input {value.name!r} is {dtype}, and no input set has such: make it float32 or float16.")
    return shape_inference.infer_shapes(model, data_prop=True)


def describe_inputs(model: onnx.ModelProto) -> tuple[InputSpec, ...]:
    """How to make values for each input: a padding mask, segments, indices into a table, or dense numbers."""
    constants = {t.name: t for t in model.graph.initializer}
    limits = {
        node.input[1]: constants[node.input[0]].dims[0]
        for node in model.graph.node
        if node.op_type == "Gather" and node.input[0] in constants and constants[node.input[0]].dims
    }
    specs = []
    for value in model.graph.input:
        if value.name in constants:
            continue
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))
        shape = tuple(d.dim_value for d in value.type.tensor_type.shape.dim)
        limit = 0 if np.issubdtype(dtype, np.floating) else limits.get(value.name, INTEGER_LIMIT)
        specs.append(InputSpec(value.name, dtype.name, shape, _role(value.name, dtype, value.name in limits), limit))
    return tuple(specs)


def identity_model(spec: InputSpec, output: str) -> onnx.ModelProto:
    """One Identity node from `spec` to `output`."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(spec.dtype))
    source, target = (helper.make_tensor_value_info(name, kind, spec.shape) for name in (spec.name, output))
    graph = helper.make_graph([helper.make_node("Identity", [spec.name], [output])], "identity", [source], [target])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10, producer_name="mononn")


def _role(name: str, dtype: np.dtype[np.generic], indexes: bool) -> Role:
    lowered = name.lower()
    if np.issubdtype(dtype, np.floating):
        return "dense"
    if "mask" in lowered:
        return "mask"
    if "token_type" in lowered or "segment" in lowered:
        return "segments"
    return "tokens" if indexes else "dense"


def _check_external_data(model: onnx.ModelProto, path: Path) -> None:
    """ModelError where weights lie outside the model's folder or are missing."""
    folder = path.resolve().parent
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key != "location":
                continue
            data = (folder / entry.value).resolve()
            if not data.is_relative_to(folder):
                raise ModelError(
                    f"{path} keeps {tensor.name!r} outside its own folder ({entry.value}): move it beside."
                )
            if not data.is_file():
                raise ModelError(f"{path} needs the file {entry.value} beside it for {tensor.name!r}: put it there.")


def _make_static(value: onnx.ValueInfoProto, shape: tuple[int, ...]) -> None:
    dimensions = value.type.tensor_type.shape.dim
    if len(dimensions) != len(shape):
        raise ModelError(f"Input {value.name!r} has {len(dimensions)} dimensions, the shape given has {len(shape)}.")
    for dimension, size in zip(dimensions, shape, strict=True):
        if dimension.dim_value not in (0, size):
            raise ModelError(f"Input {value.name!r} is fixed to {dimension.dim_value} where {size} is given.")
        dimension.ClearField("dim_param")
        dimension.dim_value = size


def _require_static(value: onnx.ValueInfoProto) -> None:
    for dimension in value.type.tensor_type.shape.dim:
        if dimension.dim_value <= 0:
            name = dimension.dim_param or "unknown"
            raise ModelError(
                f"Input {value.name!r} has a dynamic dimension {name!r}: give its shape (--shape, shapes:)."
            )


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:160]
