"""Whether a node is as its operator's ONNX schema says: the kinds of its attributes, the types of its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    schema = _schema(node.op_type, node.domain)
    if schema is None:
        return
    for name, number in node.kinds:
        known = schema.attributes.get(name)
        if known is not None and known != number:
            kind, wanted = (AttributeProto.AttributeType.Name(n) for n in (number, known))
            raise ModelError(f"{node.origin}: attribute {name!r} is {kind}, not {wanted}; the model is damaged")
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


@dataclass(frozen=True)
class _Formal:
    """An input as a schema has it."""

    name: str
    types: frozenset[str]
    is_homogeneous: bool
    type_str: str


@dataclass(frozen=True)
class _Schema:
    """What is asked of a schema, which its library makes anew at every question."""

    attributes: Mapping[str, int]
    inputs: tuple[_Formal, ...]


@cache
def _schema(op_type: str, domain: str) -> _Schema | None:
    try:
        schema = defs.get_schema(op_type, domain)
    except defs.SchemaError:
        return None
    inputs = (_Formal(f.name, frozenset(f.types), f.is_homogeneous, f.type_str) for f in schema.inputs)
    return _Schema({name: int(a.type.value) for name, a in schema.attributes.items()}, tuple(inputs))


@cache
def _onnx_name(dtype: str) -> str:
    """As schemas write it: float32 is "tensor(float)"."""
    element = TensorProto.DataType.Name(helper.np_dtype_to_tensor_dtype(numpy_dtype(dtype)))
    return f"tensor({element.lower()})"
