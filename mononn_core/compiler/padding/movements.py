"""Movements: where elements go."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from mononn_core.compiler.padding.bounds import ZERO, Known, hull
from mononn_core.compiler.padding.placed import (
    Inputs,
    Placed,
    Positions,
    Step,
    UnprovenError,
    agreed,
    given,
    is_first,
)
from mononn_core.ops.common import integer, integers


def transpose_rule(step: Step, inputs: Inputs) -> Placed:
    (x,), perm = given(inputs), integers(step.attrs, "perm")
    places = tuple(x.places[p] for p in perm)
    beyond = {a: x.beyond[p] for a, p in enumerate(perm) if p in x.beyond}
    above, below = (frozenset(a for a, p in enumerate(perm) if p in axes) for axes in (x.above, x.below))
    return Placed(places, x.whole, beyond, True, above, below)


def expand_rule(step: Step, inputs: Inputs) -> Placed:
    (x,), shift = given(inputs), step.out.rank - step.kind(0).rank
    places: list[Positions | None] = [*(None,) * shift, *x.places]
    beyond = {a + shift: known for a, known in x.beyond.items()}
    new = {a for a, p in enumerate(places) if p is None and step.out.shape[a] != step.few[a]}
    for axis in new:
        places[axis], beyond[axis] = np.arange(step.few[axis]), x.whole
    above, below = (frozenset({a + shift for a in axes} | new) for axes in (x.above, x.below))
    return Placed(tuple(places), x.whole, beyond, True, above, below)


def slice_rule(step: Step, inputs: Inputs) -> Placed:
    (x,) = given(inputs)
    starts, steps = integers(step.attrs, "starts"), integers(step.attrs, "steps")
    places = list(x.places)
    for axis, (many, few) in enumerate(zip(step.out.shape, step.few, strict=True)):
        own = x.places[axis]
        if own is None:
            continue
        inside = starts[axis] + steps[axis] * np.arange(few)
        if not few or not (0 <= inside.min() <= inside.max() < len(own)):
            raise UnprovenError
        taken = own[inside] - starts[axis]
        if (taken % steps[axis]).any() or not ((taken // steps[axis] >= 0) & (taken // steps[axis] < many)).all():
            raise UnprovenError
        places[axis] = taken // steps[axis]
    return Placed(tuple(places), x.whole, x.beyond)


def concat_rule(step: Step, inputs: Inputs) -> Placed:
    parts, axis = given(inputs), integer(step.attrs, "axis")
    extents = [step.kind(i).shape[axis] for i in range(len(parts))]
    starts = np.cumsum([0, *extents[:-1]])
    places = [agreed([x.places[a] for x in parts]) if a != axis else None for a in range(step.out.rank)]
    if any(x.places[axis] is not None for x in parts):
        joined = [x.along(axis, n) + start for x, n, start in zip(parts, extents, starts, strict=True)]
        places[axis] = np.concatenate(joined)
    beyond = {}
    for a in (a for a, p in enumerate(places) if p is not None):
        beyond[a] = hull(x.at(a) for x in parts if a != axis or x.places[a] is not None)
    return Placed(tuple(places), hull(x.whole for x in parts), beyond)


def pad_rule(step: Step, inputs: Inputs) -> Placed:
    x, before, after = given(inputs)[0], integers(step.attrs, "before"), integers(step.attrs, "after")
    if any(before[a] or after[a] for a in x.longer):
        raise UnprovenError
    value = float(step.attrs["value"]) if step.attrs["mode"] == "constant" else None  # type: ignore[arg-type]

    def padded(known: Known) -> Known:
        return known if value is None else hull((known, (value, value)))

    return Placed(x.places, padded(x.whole), {a: padded(known) for a, known in x.beyond.items()})


def windows_rule(step: Step, inputs: Inputs) -> Placed:
    (x,), axis, over = given(inputs), integer(step.attrs, "axis"), len(integers(step.attrs, "kernel"))
    if any(axis <= a < axis + over for a in x.longer):
        raise UnprovenError
    places = (*x.places[:axis], *(None,) * 2 * over, *x.places[axis + over :])
    return Placed(places, x.whole, {a if a < axis else a + over: known for a, known in x.beyond.items()})


def tile_rule(step: Step, inputs: Inputs) -> Placed:
    (x,), repeats = given(inputs), integers(step.attrs, "repeats")
    if any(repeats[a] != 1 for a in x.longer):
        raise UnprovenError
    return x


def trilu_rule(step: Step, inputs: Inputs) -> Placed:
    x = given(inputs)[0]
    if any(p is not None and not is_first(p) for p in x.places[-2:]):
        raise UnprovenError
    return Placed(x.places, hull((x.whole, ZERO)), {a: hull((known, ZERO)) for a, known in x.beyond.items()})


def reshape_rule(step: Step, inputs: Inputs) -> Placed:
    """Axes go over into axes in groups of as many elements, at both lengths."""
    (x,), long, out = given(inputs), step.kind(0).shape, step.out.shape
    if not x.longer:
        return Placed((None,) * len(out), x.whole)
    short = tuple(n if p is None else len(p) for n, p in zip(long, x.places, strict=True))
    places: list[Positions | None] = []
    beyond: dict[int, Known] = {}
    for ours, theirs in _groups((long, short), (out, step.few)):
        longer = [a for a in ours if a in x.longer]
        lines = _regrouped(x, [long[a] for a in ours], ours, step, theirs) if longer else [None] * len(theirs)
        new = [a for a, line in zip(theirs, lines, strict=True) if line is not None]
        places += lines
        beyond |= {a: x.beyond[longer[0]] if len(longer) == len(new) == 1 else x.whole for a in new}
    return Placed(tuple(places), x.whole, beyond)


def _regrouped(x: Placed, there: list[int], ours: list[int], step: Step, theirs: list[int]) -> list[Positions | None]:
    """Along each axis of ``theirs`` the places that a group's elements have along ``ours``."""
    flat = np.zeros((), np.int64)
    for a, extent, stride in zip(ours, there, _strides(there), strict=True):
        flat = np.add.outer(flat, stride * x.along(a, extent))
    flat = flat.reshape([step.few[a] for a in theirs])
    extents = [step.out.shape[a] for a in theirs]
    lines: list[Positions | None] = []
    for k, (extent, stride) in enumerate(zip(extents, _strides(extents), strict=True)):
        along = flat // stride % extent
        line = along[tuple(slice(None) if i == k else slice(0, 1) for i in range(along.ndim))]
        if not (along == line).all():
            raise UnprovenError
        line = line.ravel()
        lines.append(None if len(line) == extent and is_first(line) else line)
    return lines


def _strides(extents: Sequence[int]) -> list[int]:
    return [prod(extents[k + 1 :]) for k in range(len(extents))]


Shapes = tuple[tuple[int, ...], tuple[int, ...]]
"""At both lengths."""


def _groups(before: Shapes, after: Shapes) -> list[tuple[list[int], list[int]]]:
    """The axes of two shapes of as many elements, in the smallest groups that have as many at both lengths."""
    if 0 in before[1]:
        raise UnprovenError
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    ends = len(before[0]), len(after[0])
    while i < ends[0] or j < ends[1]:
        ours, theirs = [i][: ends[0] - i], [j][: ends[1] - j]
        while True:
            sizes = [tuple(prod(shape[a] for a in axes) for shape in shapes) for shapes, axes in
                     ((before, ours), (after, theirs))]  # fmt: skip
            if sizes[0] == sizes[1]:
                break
            if (sizes[0] < sizes[1] or j + len(theirs) == ends[1]) and i + len(ours) < ends[0]:
                ours.append(i + len(ours))
            elif j + len(theirs) < ends[1]:
                theirs.append(j + len(theirs))
            else:
                raise UnprovenError
        groups.append((ours, theirs))
        i, j = i + len(ours), j + len(theirs)
    return groups
