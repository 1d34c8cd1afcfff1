"""What a network does to a sequence between convolutions, done to the image of one column that the sequence is.

A convolution of a sequence [N, C, L] gives reshape(T(x)) with T(x) an image [N, C, L, 1], channels brought to the
front. With R for that reshape:

1. f(R(x), R(y), tensors of that shape, what is broadcast ..) is R(f(x, y, ..)) for an elementwise f.
2. pad(R(x)) is R(pad(x)), slice(R(x)) is R(slice(x)).
3. concat(R(x), R(y), ..) is R(concat(x, y, ..)).
4. reduce(R(x)) is reduce(x), with fewer axes where those that it reduces go.

:mod:`mononn_core.passes.layout` then moves T behind them.
"""

from __future__ import annotations

from mononn_core.graph import Node
from mononn_core.graph.graph import Attr
from mononn_core.ops import registry
from mononn_core.ops.common import integers
from mononn_core.passes.rewrite import Rewriter

ENDS = {"pad": {"before": 0, "after": 0}, "slice": {"starts": 0, "sizes": 1, "steps": 1}}
"""What movements do to the column."""


def lifted(rewriter: Rewriter, node: Node) -> str | None:
    """All cases."""
    kind = registry.get(node.op).kind
    if len(node.outputs) != 1 or not (kind in ("elementwise", "reduction") or node.op in ("concat", *ENDS)):
        return None
    shapes = [rewriter.type(name).shape for name in node.inputs]
    if not any(len(shape) == 3 and _is_column(rewriter, name) for name, shape in zip(node.inputs, shapes, strict=True)):
        return None
    if kind == "reduction" and "axes" not in node.attrs:
        return None
    attrs: dict[str, Attr] = dict(node.attrs)
    for key, value in ENDS.get(node.op, {}).items():
        attrs[key] = (*integers(node.attrs, key), value)
    inputs = [rewriter.reshape(n, (*s, 1)) if s else n for n, s in zip(node.inputs, shapes, strict=True)]
    image = rewriter.add(node.op, *inputs, **attrs)
    return rewriter.reshape(image, rewriter.type(node.output).shape)


def _is_column(rewriter: Rewriter, name: str) -> bool:
    """Whether ``name`` is R of an image."""
    move = rewriter.producer(name, "reshape")
    image = rewriter.producer(move.inputs[0], "transpose") if move is not None else None
    if image is None or integers(image.attrs, "perm") != (0, 3, 1, 2):
        return False
    return rewriter.type(image.output).shape == (*rewriter.type(name).shape, 1)
