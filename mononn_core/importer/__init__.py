"""ONNX to Graph. Importing this package registers every converter; only it and ``backend.py`` import onnx."""

from mononn_core.importer import control, elementwise, gather, movement, product, reduction
from mononn_core.importer.reader import load

__all__ = ["control", "elementwise", "gather", "load", "movement", "product", "reduction"]
