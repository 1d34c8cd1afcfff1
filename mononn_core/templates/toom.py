"""The transforms of Winograd's F(m, 3): m outputs of a filter of three taps, y = A^T ((G g) * (B^T d)), from the m + 2
numbers d that they reach. Of two dimensions, one after the other.

Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016, section 4.1. The points decide the
rounding error: Barabasz, Anderson, Soodhalter and Gregg, "Error Analysis and Improving the Accuracy of Winograd
Convolution for Deep Neural Networks", ACM TOMS 46 (2020).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
TAPS = 3


@dataclass(frozen=True, eq=False)
class Toom:
    """Matrices of float64: ``inputs`` B^T [terms, terms], ``filters`` G [terms, 3], ``outputs`` A^T [step, terms]."""

    inputs: Array
    filters: Array
    outputs: Array

    @property
    def step(self) -> int:
        """Outputs of one dimension."""
        return len(self.outputs)

    @property
    def terms(self) -> int:
        """Multiplications of one dimension."""
        return len(self.inputs)

    @property
    def products(self) -> int:
        """Multiplications of a tile of step x step outputs."""
        return self.terms**2


def toom_cook(*points: float) -> Toom:
    """Those of polynomials' values in ``points`` and in infinity; one output fewer than there are points."""
    others = [[q for q in points if q != p] for p in points]
    inputs = [[*np.poly(rest)[::-1], 0.0] for rest in others] + [np.poly(points)[::-1]]
    scales = [np.prod(np.subtract(p, rest)) for p, rest in zip(points, others, strict=True)]
    filters = [[p**j / scale for j in range(TAPS)] for p, scale in zip(points, scales, strict=True)]
    step = len(points) + 2 - TAPS
    outputs = [[p**i for p in points] + [float(i == step - 1)] for i in range(step)]
    return Toom(np.array(inputs), np.array([*filters, [0.0, 0.0, 1.0]]), np.array(outputs))
