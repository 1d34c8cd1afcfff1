"""Winograd's F(2x2, 3x3): a 3x3 convolution of stride 1 in tiles of 2 x 2 pixels, 16 multiplications instead of 36.

Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016, section 4.1.

The rounding error is about four times a direct convolution's: transforms of weights and windows only add, subtract and
halve. An infinite pixel makes every output of the tiles that read it NaN (infinity minus infinity).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mononn_core.program.windows import Windows

Array = np.ndarray[Any, Any]

INPUT = np.array([[1.0, 0.0, -1.0, 0.0], [0.0, 1.0, 1.0, 0.0], [0.0, -1.0, 1.0, 0.0], [0.0, 1.0, 0.0, -1.0]])
OUTPUT = np.array([[1.0, 1.0, 1.0, 0.0], [0.0, 1.0, -1.0, -1.0]])
PRODUCTS = 16
"""Matrix products a tile takes part in."""


def tiles(rows: int, width: int) -> int:
    """Tiles of ``rows`` x ``width`` pixels; the last of a row or column may be half empty."""
    return -(-rows // 2) * -(-width // 2)


def applies(windows: Windows) -> bool:
    return (windows.kernel, windows.strides, windows.dilations) == ((3, 3), (1, 1), (1, 1))


def transformed_weights(w: Array) -> Array:
    """The weights [3, 3, C, M] as the matrix [16 C, M] that the template reads, of w's dtype."""
    wide = w.astype(np.float64)
    for axis in (0, 1):
        a, b, c = np.moveaxis(wide, axis, 0)
        wide = np.stack([a, (a + b + c) / 2, (a - b + c) / 2, c], axis)
    return wide.reshape(PRODUCTS * w.shape[2], w.shape[3]).astype(w.dtype)


def convolve(windows: Windows, pixels: Array, weights: Array) -> Array:
    """[rows, width, M] of ``pixels`` [count, C], a pixel a row, and ``weights`` from :func:`transformed_weights`."""
    rows, width = windows.rows_in(len(pixels)), windows.width
    high, wide = -(-rows // 2), -(-width // 2)
    image = np.zeros((2 * high + 2, 2 * wide + 2, pixels.shape[1]), pixels.dtype)
    places = np.arange(rows + 2)[:, None] * windows.pitch + np.arange(width + 2)[None, :]
    image[: rows + 2, : width + 2] = pixels[places]
    parts = np.array([[image[i : i + 2 * high : 2, j : j + 2 * wide : 2] for j in range(4)] for i in range(4)])
    windowed = np.einsum("ia,jb,abyxc->ijyxc", INPUT, INPUT, parts, optimize=True)
    products = np.matmul(
        windowed.reshape(PRODUCTS, high * wide, -1), weights.reshape(PRODUCTS, pixels.shape[1], weights.shape[1])
    )
    stacked = products.reshape(4, 4, high, wide, weights.shape[1])
    out = np.einsum("pi,qj,ijyxm->ypxqm", OUTPUT, OUTPUT, stacked, optimize=True)
    return np.asarray(out.reshape(2 * high, 2 * wide, weights.shape[1])[:rows, :width])
