"""The one gate: how far an answer may be from the reference in each precision: docs/measuring.md,
"Wrong answers have no speed".

References are float64: from PyTorch for catalogued models, from onnx's ReferenceEvaluator for a user's file; neither is
ours. They are computed once a model and stored beside it. docs/measuring.md has the rules and why they are such.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mononn_bench.models.distance import relative_l2
from mononn_bench.record import AccuracyCheck, ModelRecord

FP32_FLOOR, FP32_CEILING, FACTOR = 1e-5, 1e-4, 4.0
HALF = {"bf16": 2e-2, "fp16": 2e-2}
"""The relative error that precisions of 16 bits are allowed: in L2, and of the largest difference to the scale."""
INT8, OWN_INT8 = "int8", "own int8"
"""The second: of a system that quantises the model by itself. It is held against the unquantised model."""
INT8_CEILING, INT8_FACTOR = 5e-2, 2.0
"""Of relative L2 errors against the file's exact answers."""
SCALE_RMS = 10.0
"""The scale of an output is its largest magnitude or so many times its root mean square, whichever is more."""
Array = NDArray[Any]
When = Literal["before", "after"]


@dataclass(frozen=True)
class Top1:
    """Places along the last axis whose largest value in the reference is clear, and how many answers differ there."""

    clear: int
    different: int


def largest_difference(answer: Array, reference: Array) -> float:
    """max |answer - reference|; infinite for NaN, infinities or another shape."""
    if answer.shape != reference.shape or not np.isfinite(answer).all():
        return float("inf")
    return float(np.max(np.abs(answer.astype(np.float64) - reference), initial=0.0))


def fp32_limit(onnxruntime: float | None, independent: float | None = None) -> float:
    """The largest relative L2 error that passes in float32, of ONNX Runtime's on the CPU and, where it is known, that
    of the reference's own implementation in float32.

    4 times ONNX Runtime's, from 1e-5 to 1e-4. An error that is itself in doubt does not count: one above 1e-4, or
    ONNX Runtime's where it does not pass by the limit that the other sets. Then the other stands in, or 1e-5.
    """
    otherwise, plausible = FP32_FLOOR, FP32_CEILING
    if independent is not None and independent <= FP32_CEILING:
        otherwise = plausible = _widened(independent)
    return _widened(onnxruntime) if onnxruntime is not None and onnxruntime <= plausible else otherwise


def _widened(error: float) -> float:
    return min(FP32_CEILING, max(FP32_FLOOR, FACTOR * error))


def rel_l2_limits(
    precision: str, outputs: Iterable[str], onnxruntime: Mapping[str, float], independent: Mapping[str, float]
) -> dict[str, float]:
    """The largest relative L2 error of each output; the errors of two implementations in float32 by output."""
    return {
        name: HALF[precision] if precision in HALF else fp32_limit(onnxruntime.get(name), independent.get(name))
        for name in outputs
    }


def limits_of(
    precision: str, outputs: Iterable[str], rivals: Sequence[Mapping[str, float]], exact: Mapping[str, float]
) -> dict[str, float]:
    """The largest relative L2 error that passes, by output: in int8 twice the larger of the errors that `rivals`, ONNX
    Runtime and OpenVINO, make by output, else as `rel_l2_limits`. `exact` is that of the reference's own implementation
    in float32, in int8 one more of theirs. A system's own int8 is held against another reference, from which `exact` is
    the 8-bit file's distance: it stands in where no rival has one.
    """
    names = list(outputs)
    if precision not in (INT8, OWN_INT8):
        return rel_l2_limits(precision, names, rivals[0] if rivals else {}, exact)
    known = [*rivals, exact] if precision == INT8 else rivals
    given = {name: [r[name] for r in known if name in r] or [exact.get(name, 0.0)] for name in names}
    ceiling = INT8_CEILING if precision == INT8 else np.inf
    return {n: min(ceiling, max(FP32_FLOOR, INT8_FACTOR * max(errors))) for n, errors in given.items()}


def max_abs_limit(reference: Array, precision: str) -> float | None:
    """The largest difference that passes: so much of the reference's scale; None where L2 alone decides (float32,
    int8).
    """
    return HALF[precision] * _scale(reference) if precision in HALF else None


def _scale(reference: Array) -> float:
    """The largest magnitude, or ten times the root mean square, whichever is more."""
    exact = np.abs(reference.astype(np.float64))
    rms = float(np.sqrt(np.mean(np.square(exact)))) if exact.size else 0.0
    return max(float(np.max(exact, initial=0.0)), SCALE_RMS * rms)


def top_1(answer: Array, reference: Array, margin: float) -> Top1:
    """Compare the largest value's place along the last axis, where the reference's two largest differ by over
    `margin`.
    """
    if reference.ndim == 0 or reference.shape[-1] < 2:
        return Top1(0, 0)
    two = np.partition(reference, -2, axis=-1)[..., -2:]
    clear = two[..., 1] - two[..., 0] > margin
    different = clear & (np.argmax(answer, axis=-1) != np.argmax(reference, axis=-1))
    return Top1(int(clear.sum()), int(different.sum()))


def check(
    output: str, input_set: int, when: When, answer: Array, reference: Array, *, precision: str, limit: float
) -> AccuracyCheck:
    """Judge one output; `limit` is of its relative L2 error. Neither NaN nor another shape ever passes."""
    error, difference = relative_l2(answer, reference), largest_difference(answer, reference)
    furthest, top = max_abs_limit(reference, precision), None
    passed = np.isfinite(error) and error <= limit
    margin = furthest
    if precision in (INT8, OWN_INT8):
        margin = max(INT8_CEILING, limit) * _scale(reference)
    if margin is not None:
        top = top_1(answer, reference, margin) if np.isfinite(difference) else None
        passed = passed and difference <= (furthest or np.inf) and top is not None and not top.different
    return AccuracyCheck(
        output=output,
        input_set=input_set,
        when=when,
        rel_l2=_finite(error),
        max_abs=_finite(difference),
        limit=limit,
        passed=bool(passed),
        max_abs_limit=furthest,
        top1_clear=top.clear if top else None,
        top1_different=top.different if top else None,
    )


def compare(
    answers: Path,
    reference: Path,
    model: ModelRecord,
    sets: Iterable[int],
    limits: Mapping[str, float],
    when: When,
    precision: str = "fp32",
) -> list[AccuracyCheck]:
    """Check each output of each set; both files are npz with `<set>/out/<name>`. A missing or non-finite output
    fails. `limits` are of relative L2 errors, by output. Where the reference has the answers of an unquantised model,
    the error against them is noted, and in "own int8" judged.
    """
    checks = []
    right = "unquantised" if precision == OWN_INT8 else "out"
    with np.load(answers) as given, np.load(reference) as exact:
        for index in sets:
            for tensor in model.outputs:
                key, before = f"{index}/out/{tensor.name}", f"{index}/unquantised/{tensor.name}"
                answer = given[key] if key in given else np.full(tensor.shape, np.nan)
                limit = limits[tensor.name]
                wanted = exact[f"{index}/{right}/{tensor.name}"]
                found = check(tensor.name, index, when, answer, wanted, precision=precision, limit=limit)
                if before in exact:
                    found = replace(found, unquantised_l2=_finite(relative_l2(answer, exact[before])))
                checks.append(found)
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
    return f"output {worst.output} of input set {worst.input_set} {_what(worst)}, {worst.when} timing"


def _what(found: AccuracyCheck) -> str:
    """What is wrong with an answer that failed."""
    if found.rel_l2 is None or found.max_abs is None:
        return "is not finite, or of another shape"
    if found.rel_l2 > found.limit:
        return f"is off by relative L2 {found.rel_l2:.1e} (limit {found.limit:.0e})"
    if found.max_abs_limit is not None and found.max_abs > found.max_abs_limit:
        return f"is off by {found.max_abs:.1e} in one place (limit {found.max_abs_limit:.1e})"
    return f"has another largest value in {found.top1_different} of {found.top1_clear} places where it is clear"


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
