"""What the importer makes of each node of a model: ``mononn check``."""

from __future__ import annotations

from pathlib import Path

import onnx

from mononn_core.errors import MononnError, ShapeError
from mononn_core.importer.context import OnnxNode, converter_of
from mononn_core.importer.fused import is_fused
from mononn_core.importer.protobuf import is_composite, plain_node, read_model
from mononn_core.importer.reader import Importer, Shapes, Values, declared_inputs, fix_inputs, input_types

Report = tuple[str, str, str, str]
"""(node name, operator type, "native" | "expanded" | "unsupported", reason)"""


def check(source: str | Path | bytes, shapes: Shapes | None = None, values: Values | None = None) -> list[Report]:
    """One row a node, in the model's order.

    "expanded" operators are replaced by the body of a function, the model's own or the one ONNX defines. A node whose
    inputs could not be followed (a dynamic dimension nobody gave, an unsupported operator before it) is judged by its
    operator alone, and its reason says so. Raises ModelError for a file that cannot be read.
    """
    model = read_model(source)
    fix_inputs(model, values or {})
    importer = Importer(model)
    lost = _declare(importer, model, shapes or {})
    rows = []
    for proto in model.graph.node:
        node = plain_node(proto)
        status, reason = _judge(importer, node, lost)
        if status == "unsupported" or reason:
            lost.update(n for n in node.outputs if n)
        full = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        rows.append((node.origin.name, full, status, reason))
    return rows


def _declare(importer: Importer, model: onnx.ModelProto, shapes: Shapes) -> set[str]:
    """Declare the inputs; gives those whose shape is unknown."""
    try:
        importer.declare(input_types(model, shapes))
    except ShapeError:
        importer.declare({})
        return set(declared_inputs(model))
    return set()


def _judge(importer: Importer, node: OnnxNode, lost: set[str]) -> tuple[str, str]:
    if any(name in lost for name in node.inputs):
        return _by_operator(importer, node)
    try:
        importer.convert(node, importer.scope, importer.opsets, "")
    except MononnError as error:
        return "unsupported", str(error)
    return _form(importer, node), ""


def _form(importer: Importer, node: OnnxNode) -> str:
    return "expanded" if importer.own(node) is not None or converter_of(node.domain, node.op_type) is None else "native"


def _by_operator(importer: Importer, node: OnnxNode) -> tuple[str, str]:
    """For a node whose input types are unknown."""
    unseen = "judged by its operator alone: the shape of an input is unknown"
    if _form(importer, node) == "native" or importer.own(node) is not None:
        return _form(importer, node), unseen
    if is_composite(node, importer.opsets) or is_fused(node):
        return "expanded", unseen
    return "unsupported", f"operator {node.op_type} has no form in this compiler"
