"""What a legal Graph is: checked between stages in tests, and once before lowering.

1. Every tensor is assigned once: inputs, constants and node outputs do not overlap.
2. Nodes stand in topological order and read only what exists ("" is an absent optional input).
3. Every tensor has a type with a non-negative static shape; a constant's value has its type.
4. Graph outputs are distinct and made by nodes; those without elements need none.
5. Attribute values are hashable.
6. Operators are known and infer exactly the declared output types (``infer`` is handed in by the caller, since this
   package knows no operators).
"""

from __future__ import annotations

from collections.abc import Callable

from mononn_core.errors import MononnError, VerifyError
from mononn_core.graph.graph import Graph, Node, TensorType

InferNode = Callable[[Node, list[TensorType | None]], tuple[TensorType, ...]]


def verify(graph: Graph, infer: InferNode) -> None:
    """Raises VerifyError, naming the node or tensor, when ``graph`` is not legal."""
    known = _sources(graph)
    for node in graph.nodes:
        where = f"{node.op} ({node.origin})"
        for name in node.inputs:
            if name and name not in known:
                raise VerifyError(f"{where} reads {name!r} before anything makes it")
        for name in node.outputs:
            if name in known:
                raise VerifyError(f"{where} assigns {name!r}, which is assigned already")
            if name not in graph.types:
                raise VerifyError(f"{where}: output {name!r} has no type")
            known.add(name)
        _check_attributes(node, where)
        _check_types(graph, node, where, infer)
    _check_outputs(graph)


def _sources(graph: Graph) -> set[str]:
    known = set(graph.inputs) | set(graph.constants)
    if len(known) != len(graph.inputs) + len(graph.constants):
        raise VerifyError("a name is listed twice among the inputs and constants")
    for name in known:
        if name not in graph.types:
            raise VerifyError(f"tensor {name!r} has no type")
    for name, t in graph.types.items():
        if any(n < 0 for n in t.shape):
            raise VerifyError(f"tensor {name!r} has a negative extent: {t}")
    for name, value in graph.constants.items():
        t = graph.types[name]
        if tuple(value.shape) != t.shape or str(value.dtype) != t.dtype:
            raise VerifyError(f"constant {name!r} is {value.dtype}{list(value.shape)}, declared {t}")
    return known


def _check_attributes(node: Node, where: str) -> None:
    for key, value in node.attrs.items():
        try:
            hash(value)
        except TypeError as error:
            raise VerifyError(f"{where}: attribute {key!r} is not hashable: {value!r}") from error


def _check_types(graph: Graph, node: Node, where: str, infer: InferNode) -> None:
    declared = tuple(graph.types[n] for n in node.outputs)
    try:
        found = tuple(infer(node, [graph.types[n] if n else None for n in node.inputs]))
    except MononnError as error:
        raise VerifyError(f"{where}: {error}") from error
    if found != declared:
        raise VerifyError(f"{where} makes {', '.join(map(str, found))}, declared {', '.join(map(str, declared))}")


def _check_outputs(graph: Graph) -> None:
    made = {name for node in graph.nodes for name in node.outputs} | {n for n, t in graph.types.items() if t.size == 0}
    if len(set(graph.outputs)) != len(graph.outputs):
        raise VerifyError("a graph output is listed twice")
    for name in graph.outputs:
        if name not in made:
            raise VerifyError(f"output {name!r} is made by no node")
