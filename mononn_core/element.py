"""Element types of stored tensors and of arithmetic: the one place that knows a float type by name.

What generated code computes with is :data:`COMPUTE`. :data:`NARROW` types are stored and multiplied; the vocabularies
convert them (``mn::to_float``, ``mn::from_float<T>``). All other types convert by C's rules. A target holds the types
that its table below has a C type for.
"""

from __future__ import annotations

import ml_dtypes  # noqa: F401 (NumPy learns bfloat16 and the 8-bit floats)
import numpy as np

F16, BF16, F32, F64 = "float16", "bfloat16", "float32", "float64"
COMPUTE = F32
"""What generated code computes with: sums, epilogues, vectors and all scalar arithmetic on floats."""
WIDE = F64
"""What is computed with where ``COMPUTE`` has too few digits: powers of integers, references, constants' transforms."""
NARROW = (F16, BF16)
"""Floats that are stored and multiplied only: what is added up, or computed, is ``COMPUTE``."""
BYTES = ("int8", "uint8")
"""Integers that are stored and multiplied only: what generated code computes of them is a float or an int32."""
SHORT = (*BYTES, "int16", "uint16")
"""Integers that are stored only, those and the ones of 16 bits: a float holds any of them."""
HALF_WORD = "int16"
"""Integers whose products in pairs are int32: what sums of a few bytes are multiplied as."""
WORD = "int32"
"""Integers that as many lie side by side in a vector register as of ``COMPUTE``."""
SIDE_BY_SIDE = (COMPUTE, *NARROW, *SHORT, WORD)
"""Types that a CPU's vocabulary loads and stores several neighbours of at once."""
FLOATS = (*NARROW, F32, F64)
"""Floats that one computes with."""
SMALL_FLOATS = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn")
"""Floats that values are only cast to and from."""
ACCUMULATORS = {**dict.fromkeys(NARROW, COMPUTE), **dict.fromkeys((*BYTES, HALF_WORD), WORD)}
"""Type -> the type that its products are added up in, where that is another."""
PARTNERS = {"uint8": "int8"}
"""Type of a product's left operand -> its right one's as it is multiplied, where that is another."""
LEFT = {right: left for left, right in PARTNERS.items()}
"""And back."""
PRECISIONS = {"fp32": F32, "fp16": F16, "bf16": BF16}
"""What a user asks for -> the type that activations and weights are stored and multiplied in."""

C_TYPES = {
    F32: "float",
    F16: "mn::f16",
    BF16: "mn::bf16",
    F64: "double",
    "int64": "int64_t",
    "int32": "int32_t",
    "int16": "int16_t",
    "int8": "int8_t",
    "uint64": "uint64_t",
    "uint32": "uint32_t",
    "uint16": "uint16_t",
    "uint8": "uint8_t",
    "bool": "bool",
}
"""Type -> its name in a CPU's code."""
CUDA_TYPES = C_TYPES
"""Type -> its name in CUDA code."""
C_SUFFIXES = {F32: "f", F64: ""}
"""Floats that C computes with -> the suffix of their literals, and of the functions of its library."""


def itemsize(dtype: str) -> int:
    """Bytes of an element."""
    return np.dtype(dtype).itemsize


def together(dtype: str) -> int:
    """Neighbouring terms of a product that fill a lane of a vector."""
    return itemsize(COMPUTE) // itemsize(dtype)


def computed(dtype: str) -> str:
    """The type that values of ``dtype`` are computed with."""
    return COMPUTE if dtype in NARROW else dtype


def accumulator(dtype: str) -> str:
    """The type that products of ``dtype`` are added up in."""
    return ACCUMULATORS.get(dtype, dtype)


def product_type(a: str, b: str) -> str:
    """The type of a tensor of products of ``a`` and ``b``: integers of 8 bits give int32, others their own; "" where
    they do not go together."""
    if {a, b} <= {"int8", "uint8"}:
        return accumulator(a)
    return a if a == b else ""


def is_float(dtype: str) -> bool:
    """Whether ``dtype`` is a floating-point type that one computes with."""
    return dtype in FLOATS
