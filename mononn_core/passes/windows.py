"""A convolution that no template of the target computes becomes a product over its windows: for a CPU of another type,
or in groups by weights that are not constant; for CUDA most of them. One in groups becomes a product a group; for CUDA,
narrow groups of constant weights are joined, with zeros between them, until a product fills the tiles of its
instructions.

For a CPU computed weights become a tensor of their own: the template loads whole vectors of them, and nothing may be
read behind an array of the caller's.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from mononn_core.element import COMPUTE
from mononn_core.graph import Graph, Node
from mononn_core.graph.graph import Attr
from mononn_core.ops.builder import Builder
from mononn_core.ops.common import integer, integers
from mononn_core.ops.registry import is_template
from mononn_core.ops.served import serving
from mononn_core.passes.rewrite import Rewriter, restate, rewrite

COLUMNS = 32
"""Of a product for CUDA, at least, where groups can be joined."""


def _apart(rewriter: Rewriter, node: Node) -> str | None:
    """``node`` by a copy of its weights, which costs nothing where they are only computed for it."""
    if node.op != "conv" or node.attrs["group"] != 1 or rewriter.type(node.output).dtype != COMPUTE:
        return None
    x, w = node.inputs
    if rewriter.constant(w) is not None or (rewriter.producer(w, "identity") and rewriter.single_use(w)):
        return None
    return rewriter.add("conv", x, rewriter.add("identity", w), **dict(node.attrs))


def on_cpu(graph: Graph) -> Graph:
    """``graph`` with those convolutions alone that a template for a CPU computes."""
    graph = rewrite(graph, [_apart])
    return restate(
        graph, lambda node: node.op == "conv" and not is_template(node, graph), partial(_write, in_bytes=True)
    )


def on_gpu(graph: Graph) -> Graph:
    """``graph`` with those convolutions alone that a template for a GPU computes."""
    return restate(
        graph, lambda node: node.op == "conv" and serving(node, graph) is None, partial(_write, least=COLUMNS)
    )


def _write(node: Node, builder: Builder, least: int = 1, in_bytes: bool = False) -> None:
    """[N, OH, OW, taps, channels of a group] by [taps * channels, M], group by group; of groups whose products would
    have fewer columns than the ``least``, several together. ``in_bytes``: of computed bytes as a product of them."""
    x = node.inputs[0]
    n, oh, ow, m = builder.types[node.output].shape
    w, group = _joined(node, builder, least)
    kh, kw, mine, _ = builder.types[w].shape

    def add(op: str, *inputs: str, **attrs: Attr) -> str:
        return builder.add(op, inputs, node.origin, attrs)

    spread = {key: integers(node.attrs, key) for key in ("strides", "dilations")}
    windows = add("windows", x, axis=1, kernel=(kh, kw), **spread)
    windows = add("reshape", windows, shape=(n, kh * kw, oh * ow, group, mine))
    rows = add("reshape", add("transpose", windows, perm=(3, 0, 2, 1, 4)), shape=(group, n * oh * ow, kh * kw * mine))
    split = add("reshape", w, shape=(kh * kw * mine, group, m // group))
    right = add("transpose", split, perm=(1, 0, 2))
    if in_bytes and builder.types[w].dtype == "int8":
        product = add("bytes_matmul", rows, right, zeros=(0, 0), transpose_b=False)
    else:
        product = add("matmul", rows, right)
    product = add("transpose", product, perm=(1, 0, 2))
    builder.add("reshape", [product], node.origin, {"shape": (n, oh, ow, m)}, output=node.output)


def _joined(node: Node, builder: Builder, least: int) -> tuple[str, int]:
    """Weights [KH, KW, channels of a group, M], those of some neighbouring groups as of one, and how many groups these
    are."""
    w, group = node.inputs[1], integer(node.attrs, "group")
    kh, kw, mine, m = builder.types[w].shape
    width, value = m // group, builder.constants.get(w)
    times = next((t for t in range(1, group) if group % t == 0 and t * width >= least), group)
    if times == 1 or value is None:
        return w, group
    few = group // times
    wide = np.zeros((kh, kw, times, mine, few, times, width), value.dtype)
    for t in range(times):
        wide[:, :, t, :, :, t] = value.reshape(kh, kw, mine, few, times, -1)[:, :, :, :, t]
    return builder.constant(wide.reshape(kh, kw, times * mine, m), f"{w}/joined"), few
