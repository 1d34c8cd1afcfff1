"""What elements are computed of: what lies beyond the places must not come in."""

from __future__ import annotations

from math import prod

import numpy as np

from mononn_core.compiler.padding.bounds import LEAST, UNIT, ZERO, Known, anything, is_ordinary, of_elementwise
from mononn_core.compiler.padding.placed import (
    Inputs,
    Placed,
    Step,
    UnprovenError,
    agreed,
    given,
    is_first,
    products,
    spread,
    within,
)
from mononn_core.element import is_float
from mononn_core.ops.common import integer, integers


def elementwise_rule(step: Step, inputs: Inputs) -> Placed:
    parts, kinds, rank = given(inputs), [t for t in step.inputs if t is not None], step.out.rank
    places = spread([(x, t.shape) for x, t in zip(parts, kinds, strict=True)], rank)
    dtypes = [t.dtype for t in kinds]

    def computed(known: list[Known]) -> Known:
        return of_elementwise(step.node, known, dtypes, step.out.dtype)

    beyond, above, below = {}, set(), set()
    for axis in (a for a, p in enumerate(places) if p is not None):
        own = [axis - rank + t.rank for t in kinds]
        beyond[axis] = computed([x.at(a) if a >= 0 else x.whole for x, a in zip(parts, own, strict=True)])
        fixed = [a < 0 or x.places[a] is None for x, a in zip(parts, own, strict=True)]
        ups = [same or a in x.above for x, a, same in zip(parts, own, fixed, strict=True)]
        downs = [same or a in x.below for x, a, same in zip(parts, own, fixed, strict=True)]
        up, down = _compared(step, parts, ups, downs)
        above |= {axis} if up else set()
        below |= {axis} if down else set()
    return Placed(places, computed([x.whole for x in parts]), beyond, True, frozenset(above), frozenset(below))


def _compared(step: Step, parts: list[Placed], ups: list[bool], downs: list[bool]) -> tuple[bool, bool]:
    """Whether results are no smaller, and no larger, than those that they are compared with (``Placed.above``)."""
    op, floats = step.node.op, is_float(step.out.dtype)
    if all(ups) and all(downs):
        return True, True
    if op in ("and", "or", "min", "max", "identity", "cast") and not any(t and is_float(t.dtype) for t in step.inputs):
        rising = op != "cast" or within(parts[0].whole, 0, np.inf)  # what is not zero is true
        return rising and all(ups), rising and all(downs)
    if op == "not":
        return downs[0], ups[0]
    if op == "add" and floats:
        return all(up or is_ordinary(x.whole) for up, x in zip(ups, parts, strict=True)), False
    if op == "where" and floats:
        chosen = [(up, is_ordinary(x.whole)) for up, x in zip(ups[1:], parts[1:], strict=True)]
        (yes, yes_finite), (no, no_finite) = chosen
        return (yes_finite and ups[0] and no) or (no_finite and downs[0] and yes), False
    return False, False


def softmax_rule(step: Step, inputs: Inputs) -> Placed:
    (x,), axis = given(inputs), integer(step.attrs, "axis")
    rows = [a for a in x.longer if a != axis]
    some = {*rows} <= x.above and len(rows) < 2
    if axis in x.longer and not (_is_ignored(x.beyond[axis]) and some):
        raise UnprovenError
    beyond = {a: UNIT if _has_weights(x.beyond[a], some) else None for a in rows}
    whole = UNIT if _has_weights(x.whole, some) else None
    return Placed(x.places, whole, beyond | ({axis: ZERO} if axis in x.longer else {}))


def _has_weights(known: Known, some: bool) -> bool:
    """Whether the softmax of each row of such scores is some numbers; ``some`` of each row count."""
    return known is not None and known[1] < np.inf and (some or known[0] > -np.inf)


def _is_ignored(known: Known) -> bool:
    """Whether the exponential function of such a score is zero beside that of any score that counts."""
    return known is not None and known[1] <= LEAST


def norm_rule(step: Step, inputs: Inputs) -> Placed:
    x, vectors = given(inputs)[0], given(inputs)[1:]
    last = step.kind(0).rank - 1
    if last in x.longer:
        raise UnprovenError
    positive = float(step.attrs["epsilon"]) > 0  # type: ignore[arg-type]
    fine = positive and all(is_ordinary(v.whole) for v in vectors)

    def normed(known: Known) -> Known:
        return anything(step.out.dtype) if fine and is_ordinary(known) else None

    return Placed(x.places, normed(x.whole), {a: normed(known) for a, known in x.beyond.items()})


def reduction_rule(step: Step, inputs: Inputs) -> Placed:
    (x,), shape = given(inputs), step.kind(0).shape
    single = "axes" not in step.attrs
    axes = (integer(step.attrs, "axis"),) if single else integers(step.attrs, "axes")
    over = [a for a in axes if a in x.longer]
    if over and (len(over) > 1 or not _is_neutral(step, x.beyond[over[0]])):
        raise UnprovenError
    count = prod(shape[a] for a in axes)

    def collapsed(known: Known) -> Known:
        if known is None or step.node.op in ("argmax", "argmin", "reduce_prod"):
            return None if is_float(step.out.dtype) else anything(step.out.dtype)
        if step.node.op != "reduce_sum":
            return known
        return _summed(step, known, known[0] * count, known[1] * count)

    kept = [a for a in range(len(shape)) if a not in axes or step.attrs["keepdims"]]
    places = tuple(x.places[a] if a not in axes else None for a in kept)
    beyond = {i: collapsed(x.whole if over else x.beyond[a]) for i, a in enumerate(kept) if places[i] is not None}
    return Placed(places, collapsed(x.whole), beyond)


def _summed(step: Step, known: Known, low: float, high: float) -> Known:
    """Of sums of such elements, which lie between these."""
    least, most = anything(step.out.dtype)
    if not is_float(step.out.dtype):
        return (low, high) if least <= low and high <= most else (least, most)
    return (max(low, least), min(high, most)) if is_ordinary(known) else None


def cumulative_rule(step: Step, inputs: Inputs) -> Placed:
    (x,), axis = given(inputs), integer(step.attrs, "axis")
    places, neutral, count = x.places[axis], 1.0 if step.attrs["product"] else 0.0, step.out.shape[axis]
    if places is not None:
        behind = is_first(places) and not step.attrs["reverse"]
        if not behind and not (x.beyond[axis] == (neutral, neutral) and bool((np.diff(places) > 0).all())):
            raise UnprovenError

    def up_to(known: Known) -> Known:
        if known is None or step.attrs["product"]:
            return None if is_float(step.out.dtype) else anything(step.out.dtype)
        return _summed(step, known, min(known[0], 0.0) * count, max(known[1], 0.0) * count)

    beyond = {a: up_to(x.whole if a == axis else known) for a, known in x.beyond.items()}
    return Placed(x.places, up_to(x.whole), beyond)


def _is_neutral(step: Step, known: Known) -> bool:
    """Whether such elements change nothing of what the others are reduced to."""
    if known is None:
        return False
    if step.node.op == "reduce_sum":
        return known == ZERO
    if step.node.op == "reduce_max":
        return known[1] <= (0.0 if step.out.dtype == "bool" else LEAST)
    return step.node.op == "reduce_prod" and known == (1.0, 1.0)


def matmul_rule(step: Step, inputs: Inputs) -> Placed:
    a, b = given(inputs)[:2]
    left, right = step.kind(0), step.kind(1)
    if not a.longer and not b.longer:
        return Placed((None,) * step.out.rank, products(step, a.whole, b.whole))
    if min(left.rank, right.rank) < 2:
        raise UnprovenError
    term, column = (
        (right.rank - 1, right.rank - 2) if step.attrs.get("transpose_b") else (right.rank - 2, right.rank - 1)
    )
    inner = agreed([a.places[-1], b.places[term]])
    if inner is not None:
        _check_sum(a.beyond[left.rank - 1], b.beyond[term])
    rank = step.out.rank
    outer = spread([(a, left.shape[:-2]), (b, right.shape[:-2])], rank - 2)
    places = (*outer, a.places[-2], b.places[column])
    own = {i: (i - rank + left.rank, i - rank + right.rank) for i in range(rank - 2)}
    own |= {rank - 2: (left.rank - 2, -1), rank - 1: (-1, column)}

    def side(x: Placed, axis: int) -> Known:
        return x.whole if axis < 0 or inner is not None else x.at(axis)

    beyond = {
        axis: products(step, side(a, own[axis][0]), side(b, own[axis][1]))
        for axis, p in enumerate(places)
        if p is not None
    }
    return Placed(places, products(step, a.whole, b.whole), beyond)


def _check_sum(a: Known, b: Known) -> None:
    """Raises UnprovenError unless products of such elements are zero."""
    if not ((a == ZERO and is_ordinary(b)) or (b == ZERO and is_ordinary(a))):
        raise UnprovenError


def conv_rule(step: Step, inputs: Inputs) -> Placed:
    x, weights = given(inputs)
    spans, strides = step.kind(1).shape[:2], integers(step.attrs, "strides")
    through = [0, *(a + 1 for a in range(2) if spans[a] == strides[a] == 1)]
    if weights.longer or not {*x.longer} <= {*through}:
        raise UnprovenError
    beyond = {a: products(step, known, weights.whole) for a, known in x.beyond.items()}
    return Placed(x.places, products(step, x.whole, weights.whole), beyond)


def by_weights_rule(step: Step, inputs: Inputs) -> Placed:
    """A product of rows by constants, whatever form these have."""
    x, last = given(inputs)[0], step.kind(0).rank - 1
    if last in x.longer or any(other.longer for other in given(inputs)[1:]) or step.out.rank != step.kind(0).rank:
        raise UnprovenError
    rows = {a: products(step, known, UNIT) for a, known in x.beyond.items()}
    return Placed((*x.places[:-1], None), products(step, x.whole, UNIT), rows)


def attention_rule(step: Step, inputs: Inputs) -> Placed:
    q, k, v = given(inputs)[:3]
    bias = inputs[3] if len(inputs) > 3 else None
    if "zeros" in step.attrs or 3 in (*q.longer, *k.longer, *v.longer):
        raise UnprovenError
    keys = agreed([k.places[2], v.places[2]])
    places = (*spread([(q, step.kind(0).shape[:2]), (k, step.kind(1).shape[:2])], 2), q.places[2], None)
    if bias is not None:
        lines, shift = (*places[:3], keys), 4 - len(bias.places)
        _ = [agreed([bias.places[a], lines[a + shift]]) for a in bias.longer]
    if keys is not None:
        rank = len(bias.places) if bias is not None else 0
        if bias is None or not _is_ignored(bias.beyond.get(rank - 1)) or not {*bias.longer} - {rank - 1} <= bias.above:
            raise UnprovenError
        if not all(map(is_ordinary, (q.whole, k.beyond[2], v.beyond[2]))):
            raise UnprovenError
    fine = all(is_ordinary(x.whole) for x in (q, k, v)) and (bias is None or _has_weights(bias.whole, keys is not None))
    whole = anything(step.out.dtype) if fine else None
    return Placed(places, whole, {a: whole for a, p in enumerate(places) if p is not None})
