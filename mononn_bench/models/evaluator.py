"""onnx's own evaluator of ONNX models, where it is right.

Some of its ways lead to other answers than the specification's and every runtime's, so they are gone round here:

1. Operators of old opsets: it knows a Softmax of one axis only, and its BatchNormalization of opset 9 to 13 takes the
   batch's own statistics. A model of an opset below 15 is converted to 18 first, by onnx's converter.
2. LRN: it sums squares for as many channels as the batch has images. It stands below as the specification has it.
3. QuantizeLinear and DequantizeLinear go through int32, which numbers far out of range overflow before they are
   saturated, and through float32, in which a bias of 32 bits is rounded. Below they compute in the scale's own type.
4. GatherElements ends in an error where the axis has one element.
5. MatMulNBits is ONNX Runtime's, and none of ONNX's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import version_converter
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from mononn_bench.errors import ModelError

CONVERTED_BELOW, CONVERTED_TO = 15, 18
UNANSWERED = "onnx's evaluator, which gives the right answers, does not know"
WITHOUT = "without them no answer can be judged; export the model with ONNX's own operators."


class LRN(OpRun):
    """Local response normalisation over channels (ONNX, LRN-13)."""

    op_domain = ""

    def _run(self, x: NDArray[Any], alpha: float, beta: float, bias: float, size: int) -> tuple[NDArray[Any]]:
        before, channels = (size - 1) // 2, x.shape[1]
        rest = ((0, 0),) * (x.ndim - 2)
        squares = np.pad(x * x, ((0, 0), (before, size - 1 - before), *rest))
        total = sum(squares[:, c : c + channels] for c in range(size))
        return (x / (float(bias) + float(alpha) / size * total) ** float(beta),)


def _along(x: NDArray[Any], values: NDArray[Any], axis: int) -> NDArray[Any]:
    """A scale or zero point, one of all or one a place of `axis`, shaped to broadcast over `x`."""
    return values.reshape(()) if values.size == 1 else values.reshape(-1, *(1,) * (x.ndim - 1 - axis % x.ndim))


class QuantizeLinear(OpRun):
    """Division by the scale, rounding half to even, zero point, saturation (ONNX, QuantizeLinear-13), in x's type."""

    op_domain = ""

    def _run(
        self, x: NDArray[Any], scale: NDArray[Any], zero: NDArray[Any] | None = None, axis: int = 1, **_: Any
    ) -> tuple[NDArray[Any]]:
        kind = np.dtype(np.uint8) if zero is None else zero.dtype
        shift = 0 if zero is None else _along(x, zero, axis).astype(x.dtype)
        whole = np.rint(x / _along(x, scale, axis)) + shift
        return (np.clip(whole, np.iinfo(kind).min, np.iinfo(kind).max).astype(kind),)


def _moved(by: float) -> type[QuantizeLinear]:
    """As QuantizeLinear, of numbers that were moved at random, by up to `by` of each."""
    numbers = np.random.default_rng(0)

    class Moved(QuantizeLinear):
        op_domain = ""

        def _run(self, x: NDArray[Any], *rest: Any, **attributes: Any) -> tuple[NDArray[Any]]:
            return super()._run(x * (1 + by * numbers.uniform(-1, 1, x.shape)), *rest, **attributes)

    Moved.__name__ = QuantizeLinear.__name__
    return Moved


class DequantizeLinear(OpRun):
    """(x - zero point) times the scale (ONNX, DequantizeLinear-13), in the scale's type."""

    op_domain = ""

    def _run(
        self, x: NDArray[Any], scale: NDArray[Any], zero: NDArray[Any] | None = None, axis: int = 1, **_: Any
    ) -> tuple[NDArray[Any]]:
        shift = 0 if zero is None else _along(x, zero, axis).astype(scale.dtype)
        return ((x.astype(scale.dtype) - shift) * _along(x, scale, axis),)


class GatherElements(OpRun):
    """result[i, j, ..] = x[i, indices[i, j, ..], ..] for an axis of 1, and alike (ONNX, GatherElements-13)."""

    op_domain = ""

    def _run(self, x: NDArray[Any], indices: NDArray[Any], axis: int = 0) -> tuple[NDArray[Any]]:
        kept = tuple(slice(None if d == axis % x.ndim else n) for d, n in enumerate(indices.shape))
        return (np.take_along_axis(x[kept], indices, axis),)


class MatMulNBits(OpRun):
    """x times the transpose of a matrix of a few bits in blocks along its rows (ONNX Runtime, contrib operators)."""

    op_domain = "com.microsoft"

    def _run(
        self, x: NDArray[Any], packed: NDArray[Any], scales: NDArray[Any], zeros: NDArray[Any] | None = None,
        order: NDArray[Any] | None = None, bias: NDArray[Any] | None = None, **_: Any,
    ) -> tuple[NDArray[Any]]:  # fmt: skip
        if order is not None:
            raise ModelError(f"{UNANSWERED} MatMulNBits whose rows are in an order of their own (g_idx): {WITHOUT}")
        k, n, bits = self.K, self.N, getattr(self, "bits", 4)
        blocks = -(-k // self.block_size)
        if zeros is not None and zeros.dtype == np.uint8:
            zeros = _unpacked(zeros.reshape(n, -1), bits)[:, :blocks].astype(x.dtype)
        shift = 1 << (bits - 1) if zeros is None else zeros.reshape(n, blocks, 1)
        numbers = _unpacked(packed.reshape(n, blocks, -1), bits).astype(x.dtype)
        weights = ((numbers - shift) * scales.reshape(n, blocks, 1)).reshape(n, -1)[:, :k]
        return (x @ weights.T + (0 if bias is None else bias),)


def _unpacked(packed: NDArray[Any], bits: int) -> NDArray[Any]:
    """The numbers of bytes, the lowest bits first, along the last axis."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return ((packed[..., None] >> shifts) & np.uint8((1 << bits) - 1)).reshape(*packed.shape[:-1], -1)


OWN = [LRN, QuantizeLinear, DequantizeLinear, GatherElements, MatMulNBits]


def make_evaluator(model: onnx.ModelProto, *, moved: float = 0.0) -> ReferenceEvaluator:
    """An evaluator of `model` in the precision its tensors have; before numbers are quantised they are `moved` at
    random, by up to so much of each. Raises ModelError where it knows an operator neither by itself nor from below.
    """
    version = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), CONVERTED_TO)
    if version < CONVERTED_BELOW:
        model = version_converter.convert_version(model, CONVERTED_TO)
    own = [_moved(moved) if moved and op is QuantizeLinear else op for op in OWN]
    try:
        return ReferenceEvaluator(model, new_ops=own)
    except NotImplementedError as error:
        known = {op.__name__ for op in OWN}
        missing = sorted({n.op_type for n in model.graph.node if n.domain not in ("", "ai.onnx")} - known)
        raise ModelError(f"{UNANSWERED} {', '.join(missing) or error}: {WITHOUT}") from error
