"""Brings contractions into the forms the templates take, and refuses what has no generated form.

1. A vector operand of a matmul becomes a matrix of one row or column, and its result a vector again.
2. A transposed right-hand side that is computed in the run is transposed by a movement of its own (a constant one is
   packed transposed).
3. A convolution that no template computes (another type, weights that are not constant) becomes a product over its
   windows.
4. Tensors without elements, and operators that have neither a pointwise form nor a loop, are named errors.
"""

from __future__ import annotations

from mononn_core.errors import UnsupportedError
from mononn_core.graph import Graph, Node
from mononn_core.graph.graph import Attr
from mononn_core.ops import registry
from mononn_core.ops.builder import Builder
from mononn_core.ops.common import integer, integers
from mononn_core.schedule.rows import GENERATED

LOOPED = ("reduction", "row")
TEMPLATES = ("matmul", "attention", "conv")


def prepare(graph: Graph, convolutions: bool = True) -> Graph:
    """The same network in schedulable form; the same object when it is so already. ``convolutions``: there are
    templates for them; without, each becomes a product over its windows.

    Raises:
        UnsupportedError: see above; the message names the node.
    """
    for node in graph.nodes:
        _check(node, graph)
    if not any(_rewrites(n, graph, convolutions) for n in graph.nodes):
        return graph
    builder = Builder(graph.types, graph.constants, folding=False)
    builder.reserve(graph.types)
    for node in graph.nodes:
        if _rewrites(node, graph, convolutions):
            (_convolution if node.op == "conv" else _matmul)(node, builder)
        else:
            builder.nodes.append(node)
    return graph.rebuild(builder.nodes, builder.types, builder.constants)


def is_template(node: Node, graph: Graph) -> bool:
    """Whether a hand-written template computes ``node``: float32 contractions, convolutions by constants."""
    if node.op == "conv" and not graph.is_constant(node.inputs[1]):
        return False
    return node.op in TEMPLATES and all(graph.types[n].dtype == "float32" for n in node.inputs if n)


def _check(node: Node, graph: Graph) -> None:
    definition = registry.get(node.op)
    loop = definition.kind in LOOPED and node.op in GENERATED
    if not (loop or definition.kind == "contraction" or definition.point is not None):
        raise UnsupportedError(f"{node.origin}: operator {node.op!r} has no loop yet; `mononn check` lists such nodes")
    if node.op == "attention" and not is_template(node, graph):
        raise UnsupportedError(f"{node.origin}: attention is compiled in float32 only; convert the model to float32")
    for name in (*node.inputs, *node.outputs):
        if name and graph.types[name].size == 0:
            raise UnsupportedError(f"{node.origin}: tensor {name!r} has no elements; remove it from the model")


def _rewrites(node: Node, graph: Graph, convolutions: bool) -> bool:
    if node.op == "conv":
        return not convolutions or not is_template(node, graph)
    if node.op != "matmul":
        return False
    a, b = (graph.types[n] for n in node.inputs)
    return a.rank < 2 or b.rank < 2 or (bool(node.attrs.get("transpose_b")) and not _packable(node, graph))


def _packable(node: Node, graph: Graph) -> bool:
    a, b = node.inputs
    return graph.is_constant(b) and graph.types[b].rank == 2 and graph.types[a].dtype == "float32"


def _matmul(node: Node, builder: Builder) -> None:
    a, b = node.inputs
    left, right = builder.types[a], builder.types[b]
    if left.rank == 1:
        a = builder.add("reshape", [a], node.origin, {"shape": (1, left.size)})
    if right.rank == 1:
        b = builder.add("reshape", [b], node.origin, {"shape": (right.size, 1)})
    elif node.attrs.get("transpose_b"):
        axes = tuple(range(right.rank))
        b = builder.add("transpose", [b], node.origin, {"perm": (*axes[:-2], axes[-1], axes[-2])})
    if left.rank > 1 and right.rank > 1:
        builder.add("matmul", [a, b], node.origin, output=node.output)
        return
    product = builder.add("matmul", [a, b], node.origin)
    builder.add("reshape", [product], node.origin, {"shape": builder.types[node.output].shape}, output=node.output)


def _convolution(node: Node, builder: Builder) -> None:
    """[N, OH, OW, taps, channels of a group] by [taps * channels, M], group by group."""
    x, w = node.inputs
    n, oh, ow, m = builder.types[node.output].shape
    kh, kw, mine, _ = builder.types[w].shape
    group = integer(node.attrs, "group")

    def add(op: str, *inputs: str, **attrs: Attr) -> str:
        return builder.add(op, inputs, node.origin, attrs)

    spread = {key: integers(node.attrs, key) for key in ("strides", "dilations")}
    windows = add("windows", x, axis=1, kernel=(kh, kw), **spread)
    windows = add("reshape", windows, shape=(n, kh * kw, oh * ow, group, mine))
    rows = add("reshape", add("transpose", windows, perm=(3, 0, 2, 1, 4)), shape=(group, n * oh * ow, kh * kw * mine))
    split = add("reshape", w, shape=(kh * kw * mine, group, m // group))
    product = add("matmul", rows, add("transpose", split, perm=(1, 0, 2)))
    product = add("transpose", product, perm=(1, 0, 2))
    builder.add("reshape", [product], node.origin, {"shape": (n, oh, ow, m)}, output=node.output)
