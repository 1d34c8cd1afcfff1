"""The operators: importing this package fills the registry, one file a family."""

from mononn_core.ops import (
    attention,
    conv,
    elementwise,
    index,
    matmul,
    norm,
    quantise,
    recurrent,
    reduce,
    scatter,
    shape,
    weight_only,
    window,
)
from mononn_core.ops.registry import OpDef, get, names

__all__ = [
    "OpDef",
    "attention",
    "conv",
    "elementwise",
    "get",
    "index",
    "matmul",
    "names",
    "norm",
    "quantise",
    "recurrent",
    "reduce",
    "scatter",
    "shape",
    "weight_only",
    "window",
]
