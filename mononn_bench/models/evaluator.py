"""onnx's own evaluator of ONNX models, where it is right.

Two of its ways lead to other answers than the specification's and every runtime's, so they are gone round here:

1. Operators of old opsets: it knows a Softmax of one axis only, and its BatchNormalization of opset 9 to 13 takes the
   batch's own statistics. A model of an opset below 15 is converted to 18 first, by onnx's converter.
2. LRN: it sums squares for as many channels as the batch has images. It stands below as the specification has it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import version_converter
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

CONVERTED_BELOW, CONVERTED_TO = 15, 18


class LRN(OpRun):
    """Local response normalisation over channels (ONNX, LRN-13)."""

    op_domain = ""

    def _run(self, x: NDArray[Any], alpha: float, beta: float, bias: float, size: int) -> tuple[NDArray[Any]]:
        before, channels = (size - 1) // 2, x.shape[1]
        rest = ((0, 0),) * (x.ndim - 2)
        squares = np.pad(x * x, ((0, 0), (before, size - 1 - before), *rest))
        total = sum(squares[:, c : c + channels] for c in range(size))
        return (x / (float(bias) + float(alpha) / size * total) ** float(beta),)


def make_evaluator(model: onnx.ModelProto) -> ReferenceEvaluator:
    """An evaluator of `model` in the precision its tensors have."""
    version = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), CONVERTED_TO)
    if version < CONVERTED_BELOW:
        model = version_converter.convert_version(model, CONVERTED_TO)
    return ReferenceEvaluator(model, new_ops=[LRN])
