"""The operator registry: everything the compiler knows about an operator stands in one ``OpDef``, in one file.

A Graph operator is defined by

* ``infer``: types of the inputs and attributes to types of the outputs (raises ShapeError / UnsupportedError),
* ``evaluate``: its semantics on whole arrays, written once against an array namespace ``xp`` (numpy, jax.numpy, cupy),
* ``point`` (elementwise operators and movements): the expression of one output element, for generated loops,
* ``forward`` (movements that are bijections): where input element ``index`` goes in the output,
* ``kind``: how the schedule treats it,
* ``loop`` (reductions and row operators): the schedule has a loop for it,
* ``flops``: arithmetic of one application, for the cost model and the roofline,
* ``onnx``: the ONNX operator that is just this one, input for input and without attributes; "" where none is (then a
  converter of :mod:`mononn_core.importer` makes it),
* ``folds``: of constants it is one, computed at once; off where the constants are what is worth storing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mononn_core.element import COMPUTE, F64, WORD
from mononn_core.errors import UnsupportedError
from mononn_core.graph import Graph, Node, TensorType
from mononn_core.graph.graph import Attr
from mononn_core.program.expr import INDEX, Expr

Index = tuple[Expr, ...]
Reader = Callable[[Index], Expr]
"""An input tensor seen from inside a loop: index to the expression of that element."""

Attrs = Mapping[str, Attr]
Infer = Callable[[Sequence[TensorType | None], Attrs], tuple[TensorType, ...]]
Evaluate = Callable[..., tuple[Any, ...]]
"""``evaluate(xp, inputs, attrs) -> outputs``; an absent optional input is None."""
Point = Callable[[Sequence[Reader], Sequence[TensorType], TensorType, Attrs, Index], Expr]
"""``point(readers, input types, output type, attrs, index)``: the output element at ``index``."""
Forward = Callable[[TensorType, TensorType, Attrs, Index], Index]
"""``forward(input type, output type, attrs, input index)``: the output index that holds that element."""
Flops = Callable[[Sequence[TensorType | None], Sequence[TensorType], Attrs], int]

KINDS = ("elementwise", "movement", "reduction", "contraction", "row", "gather")
"""elementwise: out[i] depends on in[i] (broadcast). movement: a pure re-indexing of one input (or a choice between
inputs by index alone). gather: index comes from data. reduction: some axes collapse. row: softmax and norms, output
rows depend on whole input rows. contraction: matmul, attention. constant: no tensor inputs."""


@dataclass(frozen=True)
class OpDef:
    """Definition of one Graph operator; see the module's docstring for the fields."""

    name: str
    kind: str
    infer: Infer
    evaluate: Evaluate
    point: Point | None = None
    forward: Forward | None = None
    flops: Flops | None = None
    loop: bool = False
    onnx: str = ""
    folds: bool = True


CUMULATIVE = (COMPUTE, F64, WORD, INDEX)
"""What a template sums up to each position."""
_OPS: dict[str, OpDef] = {}


def register(op: OpDef) -> OpDef:
    """Add ``op`` to the registry; registering a name twice is an error at import."""
    if op.name in _OPS:
        raise ValueError(f"operator {op.name!r} is registered twice")
    if op.kind not in KINDS:
        raise ValueError(f"operator {op.name!r} has unknown kind {op.kind!r}")
    _OPS[op.name] = op
    return op


def get(name: str) -> OpDef:
    """The definition of operator ``name``; raises UnsupportedError when there is none."""
    if name not in _OPS:
        raise UnsupportedError(f"operator {name!r} has no definition in this compiler")
    return _OPS[name]


def infer(node: Node, types: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
    """Output types of ``node`` for inputs of ``types``, as :func:`mononn_core.graph.verify.verify` takes it."""
    return get(node.op).infer(types, node.attrs)


def is_template(node: Node, graph: Graph) -> bool:
    """Whether a hand-written template computes ``node``: float32 contractions, convolutions by constants or, of one
    group, by what is computed, products of unsigned by signed integers of 8 bits, constant ones, or of computed ones of
    8 bits, by weights of few bits, attention of integers, sorting along the last axis, running sums and products of
    rows or matrices, scattered runs, and recurrences by constants."""
    types = [graph.types[n] for n in node.inputs if n]
    if node.op == "order":
        return node.attrs["axis"] == types[0].rank - 1
    if node.op == "cumulative":
        return node.attrs["axis"] == 1 and types[0].rank in (2, 3) and types[0].dtype in CUMULATIVE
    if node.op == "recurrence":
        r, *others = (n for n in (*node.inputs[1:6], node.inputs[0], *node.inputs[7:]) if n)
        floats = all(graph.types[n].dtype == COMPUTE for n in others)
        return floats and graph.types[r].dtype in (COMPUTE, "int8") and graph.is_constant(r)
    if node.op == "conv" and not graph.is_constant(node.inputs[1]):
        own = node.inputs[1] not in (*graph.inputs, *graph.outputs)  # behind these no vector may be read further
        return own and node.attrs["group"] == 1 and all(t.dtype == COMPUTE for t in types)
    if node.op in ("weight_only_matmul", "weight_only_bytes", "bytes_matmul", "scatter_runs") or (
        node.op == "attention" and types[0].dtype == "uint8"
    ):
        return True
    if [t.dtype for t in types] == ["uint8", "int8"] and graph.is_constant(node.inputs[1]):
        return node.op == "conv" or (node.op == "matmul" and types[0].rank >= 2 and types[1].rank == 2)
    return get(node.op).kind == "contraction" and all(t.dtype == COMPUTE for t in types)


def names() -> tuple[str, ...]:
    """All registered operator names, sorted."""
    return tuple(sorted(_OPS))
