"""Whether a node is as its operator's ONNX schema says: the kinds of its attributes, the types of its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

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
    if problem := _problem(node.op_type, node.domain, node.kinds, tuple(dtypes)):
        raise ModelError(f"{node.origin}: {problem}")


@lru_cache(1 << 12)  # equal layers are asked about once
def _problem(op_type: str, domain: str, kinds: tuple[tuple[str, int], ...], dtypes: tuple[str, ...]) -> str:
    """What is wrong with a node of such attributes and operands; "" where nothing is."""
    schema = _schema(op_type, domain)
    if schema is None:
        return ""
    for name, number in kinds:
        known = schema.attributes.get(name)
        if known is not None and known != number:
            kind, wanted = (AttributeProto.AttributeType.Name(n) for n in (number, known))
            return f"attribute {name!r} is {kind}, not {wanted}; the model is damaged"
    same: dict[str, str] = {}
    for position, dtype in enumerate(dtypes):
        formal = schema.inputs[min(position, len(schema.inputs) - 1)] if schema.inputs else None
        if formal is None or not dtype:
            continue
        what = f"its input {position} ({formal.name}) is {dtype}"
        if _onnx_name(dtype) not in formal.types:
            return f"{what}, which it does not take"
        if formal.is_homogeneous and same.setdefault(formal.type_str, dtype) != dtype:
            return f"{what}, another one {same[formal.type_str]}; they must be the same"
    return ""


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
