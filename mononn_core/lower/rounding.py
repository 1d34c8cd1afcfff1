"""Weights in a narrower float type: each rounded to a neighbour, a column's sum kept.

Activations have a mean (after ReLU all are positive), so an error in the sum of a column's weights is an error in the
mean of what it computes, and no later layer averages that out. The sum of n weights that are each rounded to the
nearest is off by about 0.3 sqrt(n) of their spacing; a few that lie nearly halfway are rounded the other way instead.
The idea is that of SQuant (Guo et al., ICLR 2022), which needs no data, for integers.
"""

from __future__ import annotations

import numpy as np

from mononn_core.element import COMPUTE, WIDE
from mononn_core.ops.common import contiguous

AT_ONCE = 1 << 18
"""Weights that are rounded together."""
COARSE = 1 / 4
"""Only weights whose spacing is at least this much of their column's widest are rounded the other way."""


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """The matrix [terms, columns] in a float type of 16 bits: every finite element is one of the two neighbours of what
    it was, and a column's sum is off by about half of its weights' spacing. What is too large becomes infinite."""
    columns = np.empty(values.shape[::-1], dtype)
    step = max(1, AT_ONCE // max(1, values.shape[0]))
    with np.errstate(over="ignore", invalid="ignore"):
        for first in range(0, values.shape[1], step):
            block = np.ascontiguousarray(values[:, first : first + step].T, COMPUTE)
            columns[first : first + step] = _rounded_rows(block, dtype)
    return contiguous(columns.T)


def _rounded_rows(values: np.ndarray, dtype: str) -> np.ndarray:
    """As :func:`rounded`, of rows of floats."""
    nearest = values.astype(dtype)
    errors = nearest.astype(COMPUTE) - values
    if not errors.any():
        return nearest
    sums = errors.sum(axis=1, dtype=WIDE)
    found = np.isfinite(sums)
    # Towards zero the bits of a float, a sign and a magnitude, count down; of zero there are none below.
    bits = nearest.view(np.int16)
    shrunk = (errors > 0) == (values > 0)
    other = np.where(shrunk, bits - 1, bits + 1).astype(np.int16).view(dtype)
    spacing = np.abs(other.astype(COMPUTE) - nearest.astype(COMPUTE))
    useful = (errors != 0) & (bits & 0x7FFF != 0) & ((errors > 0) == (sums > 0)[:, None])
    spacing = np.where(useful & np.isfinite(spacing), spacing, 0)
    widest = spacing.max(axis=1, initial=0)
    useful &= (spacing > 0) & (spacing >= COARSE * widest[:, None])
    found &= widest > 0
    if not found.any():
        return nearest
    # An element costs spacing (spacing - 2 error) in squared error and takes its spacing off the sum's.
    cost = np.where(useful, spacing - 2 * np.abs(errors), np.inf)
    most = min(values.shape[1], int(np.max(np.abs(sums[found]) / (COARSE * widest[found]))) + 1)
    order = np.argpartition(cost, most - 1, axis=1)[:, :most] if most < values.shape[1] else np.argsort(cost, axis=1)
    order = np.take_along_axis(order, np.argsort(np.take_along_axis(cost, order, 1), axis=1, kind="stable"), 1)
    gains = np.take_along_axis(np.where(useful, spacing, 0), order, 1).cumsum(axis=1, dtype=WIDE)
    left = np.abs(np.abs(sums)[:, None] - np.concatenate([np.zeros_like(gains[:, :1]), gains], axis=1))
    count = np.where(found, left.argmin(axis=1), 0)
    chosen = np.zeros(values.shape, bool)
    np.put_along_axis(chosen, order, np.arange(most) < count[:, None], axis=1)
    return np.where(chosen & useful, other, nearest)
