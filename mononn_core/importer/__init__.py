"""ONNX to Graph. Importing this package registers every converter; only it and ``backend.py`` import onnx."""

from mononn_core.importer import (
    contrib,
    control,
    convolution,
    einsum,
    elementwise,
    gather,
    movement,
    normalisation,
    pooling,
    product,
    quantisation,
    recurrent,
    reduction,
    regions,
    resize,
    sampling,
    scatter,
    sequence,
    signal,
)
from mononn_core.importer.reader import load
from mononn_core.importer.survey import check

__all__ = [
    "check",
    "contrib",
    "control",
    "convolution",
    "einsum",
    "elementwise",
    "gather",
    "load",
    "movement",
    "normalisation",
    "pooling",
    "product",
    "quantisation",
    "recurrent",
    "reduction",
    "regions",
    "resize",
    "sampling",
    "scatter",
    "sequence",
    "signal",
]
