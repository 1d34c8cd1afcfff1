"""Whether a node is as its operator's ONNX schema says: the kinds of its attributes, the types of its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from onnx import AttributeProto, TensorProto, defs, helper

from mononn_core.errors import ModelError
from mononn_core.importer.context import OnnxNode
from mononn_core.ops.common import numpy_dtype


def check_node(node: OnnxNode, dtypes: Sequence[str]) -> None:
    """``dtypes``: of the operands, "" where one is absent or no tensor. Operators that have no schema pass.

    Raises:
        ModelError: an attribute is of another kind, or an input has a type that the operator does not take, or not
            the one that another input has.
    """
    try:
        schema = defs.get_schema(node.op_type, node.domain)
    except defs.SchemaError:
        return
    for attribute in node.proto.attribute:
        known = schema.attributes.get(attribute.name)
        if known is not None and known.type.value != attribute.type:
            kind, wanted = AttributeProto.AttributeType.Name(attribute.type), known.type.name
            raise ModelError(
                f"{node.origin}: attribute {attribute.name!r} is {kind}, not {wanted}; the model is damaged"
            )
    same: dict[str, str] = {}
    for position, dtype in enumerate(dtypes):
        formal = schema.inputs[min(position, len(schema.inputs) - 1)] if schema.inputs else None
        if formal is None or not dtype:
            continue
        if _onnx_name(dtype) not in formal.types:
            raise ModelError(f"{node.origin}: its input {position} ({formal.name}) is {dtype}, which it does not take")
        if formal.is_homogeneous and same.setdefault(formal.type_str, dtype) != dtype:
            raise ModelError(
                f"{node.origin}: its input {position} ({formal.name}) is {dtype}, another one {same[formal.type_str]}; "
                "they must be the same"
            )


@cache
def _onnx_name(dtype: str) -> str:
    """As schemas write it: float32 is "tensor(float)"."""
    element = TensorProto.DataType.Name(helper.np_dtype_to_tensor_dtype(numpy_dtype(dtype)))
    return f"tensor({element.lower()})"
