"""What changed between ONNX operator sets, and the element types.

The importer reads opset 7 (OLDEST) to the newest one the installed ``onnx`` knows. Most changes only added element
types. The ones that matter here:

1. A parameter moved from an attribute to an input: table ``MOVED`` (:meth:`Context.parameter` reads either).
2. Softmax, LogSoftmax and Hardmax flattened the input to a matrix at ``axis`` (default 1) before opset 13; since then
   they work along one axis (default -1).
3. Dropout and BatchNormalization had a test mode flag and more outputs; inference uses only the first output.
4. Upsample became Resize in opset 10, whose coordinate modes came with 11.
5. Pow, Add and the other binary operators broadcast by NumPy's rule since 7 (before, by an ``axis`` attribute).
6. Reshape with ``allowzero`` (14): a 0 means extent 0 instead of "copy that extent".
7. ReduceXxx without axes reduces everything, unless ``noop_with_empty_axes`` (13 / 18) makes it do nothing.
"""

from __future__ import annotations

from functools import cache

import onnx
from onnx import TensorProto, defs, helper

from mononn_core.errors import UnsupportedError

OLDEST = 7

MOVED: dict[str, dict[str, tuple[int, int]]] = {
    "Squeeze": {"axes": (1, 13)},
    "Unsqueeze": {"axes": (1, 13)},
    "ReduceSum": {"axes": (1, 13)},
    **{
        f"Reduce{name}": {"axes": (1, 18)}
        for name in ("Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")
    },
    "Slice": {"starts": (1, 10), "ends": (2, 10), "axes": (3, 10), "steps": (4, 10)},
    "Split": {"split": (1, 13)},
    "Clip": {"min": (1, 11), "max": (2, 11)},
    "Pad": {"pads": (1, 11), "value": (2, 11), "axes": (3, 18)},
    "Dropout": {"ratio": (1, 12)},
    "TopK": {"k": (1, 10)},
    "Tile": {"repeats": (1, 6)},
    "Upsample": {"scales": (1, 9)},
    "Reshape": {"shape": (1, 5)},
}
"""Operator -> parameter -> (input position, first opset that has it as an input)."""


def newest() -> int:
    """The newest default-domain opset the installed onnx knows."""
    return int(defs.onnx_opset_version())


def check_opset(version: int) -> None:
    """Raises UnsupportedError for an opset outside OLDEST..newest."""
    if not OLDEST <= version <= newest():
        raise UnsupportedError(
            f"the model uses ONNX opset {version}, and opsets {OLDEST} to {newest()} are read "
            f"(onnx {onnx.__version__}); "
            "convert it with onnx.version_converter or export it again"
        )


@cache
def dtype_name(element_type: int) -> str:
    """NumPy (or ml_dtypes) name of an ONNX element type; raises UnsupportedError for strings and unknown ones."""
    if element_type in (TensorProto.STRING, TensorProto.UNDEFINED):
        kind = "string" if element_type == TensorProto.STRING else "undefined"
        raise UnsupportedError(
            f"tensors of {kind} elements are not supported; keep such preprocessing out of the model"
        )
    try:
        return str(helper.tensor_dtype_to_np_dtype(element_type))
    except KeyError as error:
        raise UnsupportedError(f"element type {element_type} is unknown to onnx {onnx.__version__}") from error
