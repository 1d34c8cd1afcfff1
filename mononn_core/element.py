"""Element types of stored tensors and of arithmetic: the one place that knows a float type by name."""

from __future__ import annotations

import ml_dtypes  # noqa: F401 (NumPy learns bfloat16)
import numpy as np

F16, BF16, F32 = "float16", "bfloat16", "float32"
COMPUTE = F32
"""What generated code computes with: sums, epilogues and all scalar arithmetic on floats."""
NARROW = (F16, BF16)
"""Floats that are stored and multiplied only: what is added up, or computed, is ``COMPUTE``."""
PRECISIONS = {"fp32": F32, "fp16": F16, "bf16": BF16}
"""What a user asks for -> the type that activations and weights are stored and multiplied in."""


def itemsize(dtype: str) -> int:
    """Bytes of an element."""
    return np.dtype(dtype).itemsize


def accumulator(dtype: str) -> str:
    """The type that sums of ``dtype`` are kept in."""
    return COMPUTE if dtype in NARROW else dtype
