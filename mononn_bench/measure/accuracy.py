"""Right answers, and how far an answer may be from them (MEASURING rule 7).

References are float64: from PyTorch for catalogued models, from onnx's ReferenceEvaluator for a user's file; neither is
ours. They are computed once a model and stored beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mononn_bench.record import AccuracyCheck, ModelRecord

FP32_FLOOR, FP32_CEILING, RIVAL_FACTOR = 1e-5, 1e-4, 4.0
Array = NDArray[Any]


def relative_l2(answer: Array, reference: Array) -> float:
    """||answer - reference|| / ||reference|| in float64; infinite for NaN, infinities or another shape."""
    if answer.shape != reference.shape or not np.isfinite(answer).all():
        return float("inf")
    exact = reference.astype(np.float64)
    distance = float(np.linalg.norm((answer.astype(np.float64) - exact).ravel()))
    size = float(np.linalg.norm(exact.ravel()))
    return distance / size if size > 0 else (0.0 if distance == 0 else float("inf"))


def largest_difference(answer: Array, reference: Array) -> float:
    """max |answer - reference|; infinite for NaN, infinities or another shape."""
    if answer.shape != reference.shape or not np.isfinite(answer).all():
        return float("inf")
    return float(np.max(np.abs(answer.astype(np.float64) - reference), initial=0.0))


def fp32_limit(onnxruntime_error: float | None) -> float:
    """The largest relative L2 error that passes: 1e-5, or 4 times ONNX Runtime's on the CPU, never above 1e-4."""
    if onnxruntime_error is None or not np.isfinite(onnxruntime_error):
        return FP32_FLOOR
    return min(FP32_CEILING, max(FP32_FLOOR, RIVAL_FACTOR * onnxruntime_error))


def compare(
    answers: Path,
    reference: Path,
    model: ModelRecord,
    sets: Iterable[int],
    limits: Mapping[str, float],
    when: Literal["before", "after"],
) -> list[AccuracyCheck]:
    """Check each output of each set; both files are npz with `<set>/out/<name>`. A missing or non-finite output
    fails.
    """
    checks = []
    with np.load(answers) as given, np.load(reference) as exact:
        for index in sets:
            for tensor in model.outputs:
                key = f"{index}/out/{tensor.name}"
                answer = given[key] if key in given else np.full(tensor.shape, np.nan)
                error = relative_l2(answer, exact[key])
                checks.append(
                    AccuracyCheck(
                        output=tensor.name,
                        input_set=index,
                        when=when,
                        rel_l2=error if np.isfinite(error) else None,
                        max_abs=_finite(largest_difference(answer, exact[key])),
                        limit=limits[tensor.name],
                        passed=error <= limits[tensor.name],
                    )
                )
    return checks


def worst_errors(checks: Sequence[AccuracyCheck]) -> dict[str, float]:
    """The largest relative L2 error of each output; infinite where one was not finite."""
    worst: dict[str, float] = {}
    for check in checks:
        error = float("inf") if check.rel_l2 is None else check.rel_l2
        worst[check.output] = max(worst.get(check.output, 0.0), error)
    return worst


def failure_reason(checks: Sequence[AccuracyCheck]) -> str:
    """One line about the worst check that failed; empty when all passed."""
    failed = [check for check in checks if not check.passed]
    if not failed:
        return ""
    worst = max(failed, key=lambda c: float("inf") if c.rel_l2 is None else c.rel_l2)
    size = "not finite, or of another shape" if worst.rel_l2 is None else f"off by relative L2 {worst.rel_l2:.1e}"
    return (
        f"output {worst.output} of input set {worst.input_set} is {size} (limit {worst.limit:.0e}), {worst.when} timing"
    )


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
