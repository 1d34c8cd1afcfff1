"""How far an answer is from the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]


def relative_l2(answer: NDArray[Any], reference: NDArray[Any]) -> float:
    """||answer - reference|| / ||reference|| in float64; infinite for NaN, infinities or another shape."""
    if answer.shape != reference.shape or not np.isfinite(answer).all():
        return float("inf")
    exact = reference.astype(np.float64)
    distance = float(np.linalg.norm((answer.astype(np.float64) - exact).ravel()))
    size = float(np.linalg.norm(exact.ravel()))
    return distance / size if size > 0 else (0.0 if distance == 0 else float("inf"))


def largest_errors(answers: Sequence[Arrays], exact: Sequence[Arrays]) -> dict[str, float]:
    """The largest relative L2 error of each output over the sets of `answers`; none for one that was not finite."""
    pairs = list(zip(answers, exact, strict=False))
    errors = {name: max(relative_l2(a[name], e[name]) for a, e in pairs) for name in exact[0] if pairs}
    return {name: error for name, error in errors.items() if np.isfinite(error)}
