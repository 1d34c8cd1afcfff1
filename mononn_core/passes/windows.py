"""A convolution that no template of the target computes becomes a product over its windows: for a CPU of another type,
or by weights that are not constant; for CUDA most of them."""

from __future__ import annotations

from mononn_core.graph import Graph, Node
from mononn_core.graph.graph import Attr
from mononn_core.ops.builder import Builder
from mononn_core.ops.common import integer, integers
from mononn_core.ops.registry import is_template
from mononn_core.ops.served import serving
from mononn_core.passes.rewrite import restate


def on_cpu(graph: Graph) -> Graph:
    """``graph`` with those convolutions alone that a template for a CPU computes."""
    return restate(graph, lambda node: node.op == "conv" and not is_template(node, graph), _write)


def on_gpu(graph: Graph) -> Graph:
    """``graph`` with those convolutions alone that a template for a GPU computes."""
    return restate(graph, lambda node: node.op == "conv" and serving(node, graph) is None, _write)


def _write(node: Node, builder: Builder) -> None:
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
