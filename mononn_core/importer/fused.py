"""ONNX Runtime's fused operators on real numbers (domain com.microsoft) as functions of ONNX's own operators.

ONNX Runtime, docs/ContribOperators.md. Its graph optimiser and model builder write them. Each is a function body for a
node, as :func:`mononn_core.importer.protobuf.standard_function` gives of ONNX's composite operators; shapes are static,
so a body may hold them. Attention is in :mod:`mononn_core.importer.fused_attention`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx
from onnx import helper

from mononn_core.errors import ModelError, UnsupportedError
from mononn_core.graph import TensorType
from mononn_core.importer.context import OnnxNode

DOMAIN = "com.microsoft"
OPSET = 23
"""Of the bodies: the first that has all their operators."""
LAYOUTS = {
    "com.microsoft.nchwc": "the file is optimised for one processor's memory layout: save it at level EXTENDED at most"
}
"""Domains whose operators compute on tensors in another order, and what to do."""
Outputs = str | tuple[str, ...]
"""Of a node, "" for one that no model reads."""


@dataclass
class Body:
    """A function body that is being written: a call appends a node and gives its output; ``body[i]`` is an input, ""
    where it is absent."""

    node: OnnxNode
    types: Sequence[TensorType | None]
    nodes: list[onnx.NodeProto] = field(default_factory=list)

    def __call__(self, op_type: str, *inputs: str, **attrs: Any) -> str:
        name = f"{op_type}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], **attrs))
        return name

    def __getitem__(self, position: int) -> str:
        return f"input_{position}" if self.has(position) else ""

    def has(self, position: int) -> bool:
        return position < len(self.types) and self.types[position] is not None

    def shape(self, position: int) -> tuple[int, ...]:
        found = self.types[position] if position < len(self.types) else None
        if found is None:
            raise ModelError(f"{self.node.origin}: a required input is missing; the model is damaged")
        return found.shape

    def attr(self, name: str, default: Any) -> Any:
        return self.node.attrs.get(name, default)

    def unsupported(self, reason: str) -> UnsupportedError:
        return UnsupportedError(f"{self.node.origin}: {reason}")

    # -- what bodies have in common -----------------------------------------------------------------------------------

    def integers(self, *values: int) -> str:
        return self("Constant", value_ints=list(values))

    def number(self, value: float, like: str) -> str:
        """A scalar of another tensor's type."""
        return self("CastLike", self("Constant", value_float=float(value)), like)

    def reshape(self, x: str, *shape: int) -> str:
        return self("Reshape", x, self.integers(*shape))

    def cut(self, x: str, axis: int, start: int, end: int) -> str:
        return self("Slice", x, *(self.integers(n) for n in (start, end, axis)))

    def sum(self, *terms: str) -> str:
        """Of the terms that are there."""
        first, *rest = (t for t in terms if t)
        for term in rest:
            first = self("Add", first, term)
        return first


Writer = Callable[[Body], Outputs]
_WRITERS: dict[tuple[str, str], tuple[Writer, Sequence[int]]] = {}


def fused(*names: str, needs: Sequence[int] = (0,), domain: str = DOMAIN) -> Callable[[Writer], Writer]:
    """Register the writer of operators, whose inputs ``needs`` are always there."""

    def add(writer: Writer) -> Writer:
        _WRITERS.update({(domain, name): (writer, needs) for name in names})
        return writer

    return add


def is_fused(node: OnnxNode) -> bool:
    """Whether :func:`fused_function` has a body for such nodes."""
    return (node.domain, node.op_type) in _WRITERS


def fused_function(node: OnnxNode, types: Sequence[TensorType | None]) -> onnx.FunctionProto | None:
    """The body of a fused operator, for inputs of these types; None where there is none.

    Raises:
        ModelError, UnsupportedError: an input is missing, or the node has a form that this compiler lacks.
    """
    if not is_fused(node):
        return None
    writer, needs = _WRITERS[node.domain, node.op_type]
    body = Body(node, types)
    for position in needs:
        body.shape(position)
    made = writer(body)
    outputs = (made,) if isinstance(made, str) else made
    inputs = [f"input_{i}" for i in range(len(types))]
    opsets = [helper.make_opsetid("", OPSET)]
    return helper.make_function(node.domain or DOMAIN, node.op_type, inputs, outputs, body.nodes, opsets)


# -- activations ------------------------------------------------------------------------------------------------------


@fused("Gelu")
def _gelu(f: Body) -> str:
    return f("Gelu", f[0])


@fused("BiasGelu", needs=(0, 1))
def _bias_gelu(f: Body) -> str:
    return f("Gelu", f.sum(f[0], f[1]))


@fused("FastGelu")
def _fast_gelu(f: Body) -> str:
    return f("Gelu", f.sum(f[0], f[1]), approximate="tanh")


@fused("QuickGelu")
def _quick_gelu(f: Body) -> str:
    return f("Mul", f[0], f("Sigmoid", f("Mul", f[0], f.number(f.attr("alpha", 1.702), f[0]))))


def _activated(f: Body, x: str) -> str:
    """By the attribute ``activation`` and its numbers, as FusedConv and FusedGemm name them."""
    name, numbers = f.attr("activation", ""), list(f.attr("activation_params", []))
    for key in ("activation_alpha", "activation_beta"):
        numbers += [f.node.attrs[key]] if key in f.node.attrs else []
    if not name:
        return x
    if name in ("Relu", "Tanh", "Sigmoid"):
        return f(name, x)
    if name == "Clip":
        return f("Clip", x, *(f.number(n, x) for n in numbers))
    if name in ("LeakyRelu", "HardSigmoid"):
        return f(name, x, **dict(zip(("alpha", "beta"), numbers, strict=False)))
    raise f.unsupported(f"its activation {name!r} is none that ONNX Runtime's documentation lists")


# -- products ---------------------------------------------------------------------------------------------------------


@fused("FusedMatMul", "TransposeMatMul", needs=(0, 1))
def _matmul(f: Body) -> str:
    """alpha A' B'; transBatchA moves A's first axis in front of its last, transA then exchanges the last two."""
    a, b = (_turned(f, i, side) for i, side in enumerate("AB"))
    product, alpha = f("MatMul", a, b), f.attr("alpha", 1.0)
    return product if alpha == 1 else f("Mul", product, f.number(alpha, product))


def _turned(f: Body, position: int, side: str) -> str:
    rank = len(f.shape(position))
    perm = list(range(rank))
    if f.attr(f"transBatch{side}", 0) and rank > 2:
        perm = [*perm[1:-1], 0, perm[-1]]
    if f.attr(f"trans{side}", 0) and rank > 1:
        perm[-2:] = perm[:-3:-1]
    return f[position] if perm == sorted(perm) else f("Transpose", f[position], perm=perm)


@fused("FusedGemm", needs=(0, 1))
def _gemm(f: Body) -> str:
    kept = {key: f.node.attrs[key] for key in ("alpha", "beta", "transA", "transB") if key in f.node.attrs}
    return _activated(f, f("Gemm", f[0], f[1], f[2], **kept))


@fused("FusedConv", needs=(0, 1))
def _conv(f: Body) -> str:
    names = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
    kept = {key: f.node.attrs[key] for key in names if key in f.node.attrs}
    return _activated(f, f.sum(f("Conv", f[0], f[1], f[2], **kept), f[3]))


# -- normalisations ---------------------------------------------------------------------------------------------------


@fused("SimplifiedLayerNormalization", needs=(0, 1), domain="")
@fused("SimplifiedLayerNormalization", needs=(0, 1))
def _rms_norm(f: Body) -> str:
    return f("RMSNormalization", f[0], f[1], axis=f.attr("axis", -1), epsilon=f.attr("epsilon", 1e-5))


@fused("SkipLayerNormalization", needs=(0, 1, 2))
def _skip_layer_norm(f: Body) -> Outputs:
    """(x, skip, gamma, beta, bias): of x + skip + bias, which is its fourth output."""
    x = f.sum(f[0], f[1], f[4])
    return f("LayerNormalization", x, f[2], f[3], axis=-1, epsilon=f.attr("epsilon", 1e-12)), "", "", x


@fused("SkipSimplifiedLayerNormalization", needs=(0, 1, 2))
def _skip_rms_norm(f: Body) -> Outputs:
    """(x, skip, gamma, bias)."""
    x = f.sum(f[0], f[1], f[3])
    return f("RMSNormalization", x, f[2], axis=-1, epsilon=f.attr("epsilon", 1e-12)), "", "", x


@fused("EmbedLayerNormalization", needs=(0, 2, 3, 5, 6))
def _embed(f: Body) -> Outputs:
    """(ids, segments, words, positions, segment table, gamma, beta, mask, position ids): normalised sums of rows,
    tokens that the mask keeps, and the sums."""
    return _normalised_rows(f, f[8], lambda x, position: x)


def _normalised_rows(f: Body, at: str, real: Callable[[str, int], str]) -> tuple[str, str, str]:
    """What EmbedLayerNormalization computes, for position ids ``at`` ("" for those of every token); ``real(x,
    position)`` is x, which is that input or rows of it, as a real tensor."""
    at = at or f.integers(*range(f.shape(0)[1]))
    rows = [real(f("Gather", f[table], index, axis=0), table) for table, index in ((2, f[0]), (3, at))]
    x = f.sum(*rows, real(f("Gather", f[4], f[1], axis=0), 4) if f.has(1) and f.has(4) else "")
    kept = f("ReduceSum", f[7], f.integers(1), keepdims=0) if f.has(7) else ""
    kept = kept or f("Expand", f("Cast", f.integers(0), to=onnx.TensorProto.INT32), f.integers(f.shape(0)[0]))
    gamma, beta = real(f[5], 5), real(f[6], 6)
    return f("LayerNormalization", x, gamma, beta, axis=-1, epsilon=f.attr("epsilon", 1e-12)), kept, x


@fused("QEmbedLayerNormalization", needs=(0, 2, 3, 5, 6, 8, 9, 11, 12))
def _quantised_embed(f: Body) -> Outputs:
    """EmbedLayerNormalization of tables, gamma and beta (inputs 2 to 6) on scales (8 to 12) and zero points (13 to
    17)."""

    def real(x: str, table: int) -> str:
        scale, zero = (f("Squeeze", f[i]) if f.has(i) and f.shape(i) else f[i] for i in (table + 6, table + 11))
        return f("DequantizeLinear", x, scale, zero)

    return _normalised_rows(f, "", real)[:2]


# -- recurrences ------------------------------------------------------------------------------------------------------


@fused("DynamicQuantizeLSTM", needs=(0, 1, 2, 8, 9, 10, 11))
def _dynamic_lstm(f: Body) -> Outputs:
    """ONNX's LSTM (inputs 0 to 7) by weights [D, I, 4 H] on scales and zero points (8 to 11), of one number or one a
    column. The input is quantised by the range of its numbers, the states by that of each row (by ONNX Runtime of all
    rows)."""
    weights = [_columns(f, position, scale) for position, scale in ((1, 8), (2, 10))]
    kept = {k: v for k, v in f.node.attrs.items() if k in ("activations", "clip", "direction", "input_forget")}
    names = [f"lstm_{i}" for i in range(3)]
    x = ["whole", "scale", "zero"]
    f.nodes.append(helper.make_node("DynamicQuantizeLinear", [f[0]], x))
    given = [f("DequantizeLinear", *x), *weights, *(f[i] for i in range(3, 8))]
    f.nodes.append(helper.make_node("LSTM", given, names, hidden_size=f.shape(2)[1], rounded="int8", **kept))
    return tuple(names[: len(f.node.outputs)])


def _columns(f: Body, position: int, scale: int) -> str:
    """Weights [D, N, M] on a scale and a zero point for each of D, or for each of D and M, as real [D, M, N]."""
    directions, _, columns = f.shape(position)
    size, zero = (
        f.reshape(f("Expand", f.reshape(f[n], directions, -1), f.integers(directions, columns)), -1)
        for n in (scale, scale + 1)
    )
    rows = f.reshape(f("Transpose", f[position], perm=[0, 2, 1]), directions * columns, -1)
    return f.reshape(f("DequantizeLinear", rows, size, zero, axis=0), directions, columns, -1)
