"""Gathers: what indices take, constant ones and those that a run computes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mononn_core.compiler.padding.bounds import Known
from mononn_core.compiler.padding.placed import (
    Inputs,
    Placed,
    Step,
    UnprovenError,
    agreed,
    given,
    is_first,
    within,
)
from mononn_core.ops.common import integer


def gather_rule(step: Step, inputs: Inputs) -> Placed:
    data, index = given(inputs)
    axis, rank = integer(step.attrs, "axis"), step.kind(1).rank
    places = (*data.places[:axis], *index.places, *data.places[axis + 1 :])
    beyond = {a if a < axis else a + rank - 1: known for a, known in data.beyond.items() if a != axis}
    if step.indices is not None:
        many, few = (value[..., None] for value in step.indices)
        taken = _taken(data, [axis], step.kind(0).shape, many, few, index)
    else:
        _check_read(data, [axis], step.kind(0).shape, index)
        taken = dict.fromkeys(index.longer, data.whole)
    return Placed(places, data.whole, beyond | {a + axis: known for a, known in taken.items()})


def gather_nd_rule(step: Step, inputs: Inputs) -> Placed:
    data, index = given(inputs)
    lead, depth, shape = step.kind(1).rank - 1, step.kind(1).shape[-1], step.kind(0).shape
    if integer(step.attrs, "batch_dims") or lead in index.longer:
        raise UnprovenError
    beyond = {a - depth + lead: known for a, known in data.beyond.items() if a >= depth}
    if step.indices is not None:
        taken = _taken(data, range(depth), shape, *step.indices, index)
    else:
        _check_read(data, range(depth), shape, index)
        taken = dict.fromkeys(index.longer, data.whole)
    return Placed((*index.places[:-1], *data.places[depth:]), data.whole, beyond | taken)


def gather_elements_rule(step: Step, inputs: Inputs) -> Placed:
    data, index = given(inputs)
    axis = integer(step.attrs, "axis")
    _check_read(data, [axis], step.kind(0).shape, index)
    others = [a for a in range(step.out.rank) if a != axis]
    if any(step.kind(0).shape[a] != step.out.shape[a] for a in others):
        raise UnprovenError
    places = [agreed([data.places[a], index.places[a]]) if a != axis else index.places[a] for a in range(step.out.rank)]
    return Placed(tuple(places), data.whole, dict.fromkeys(index.longer, data.whole))


def _check_read(data: Placed, axes: Sequence[int], shape: tuple[int, ...], index: Placed) -> None:
    """Raises UnprovenError unless indices that a run computes mean the same elements at both lengths, and those of
    elsewhere lie in the tensor: the run would end at one that nobody gave."""
    once = [index.beyond[a] for a in index.longer] if len(index.longer) <= 1 else [index.whole]
    for axis in axes:
        own, extent = data.places[axis], shape[axis]
        if own is not None and not (is_first(own) and within(index.whole, 0, len(own) - 1)):
            raise UnprovenError
        if not all(within(known, -extent, extent - 1) for known in once):
            raise UnprovenError


def _taken(
    data: Placed, axes: Sequence[int], shape: tuple[int, ...], many: np.ndarray, few: np.ndarray, index: Placed
) -> dict[int, Known]:
    """Of what constant indices [.., a position along each of ``axes``] take, beyond the places of theirs. Raises
    UnprovenError where they take other elements at the other length."""
    own = [data.along(a, shape[a]) for a in axes]
    along = {a: index.along(a, many.shape[a]) for a in index.longer}
    many = np.where(many < 0, many + [shape[a] for a in axes], many)
    few = np.where(few < 0, few + [len(p) for p in own], few)
    if any((few[..., k] < 0).any() or (few[..., k] >= len(p)).any() for k, p in enumerate(own)):
        raise UnprovenError
    valid = many
    for a in index.longer:
        valid = valid.take(along[a], axis=a)
    if not all((valid[..., k] == p[few[..., k]]).all() for k, p in enumerate(own)):
        raise UnprovenError
    found = {}
    for a in index.longer:
        rest = np.delete(many, along[a], axis=a)
        for other in index.longer:
            rest = rest if other == a else rest.take(along[other], axis=other)
        inside = {axis: np.isin(rest[..., k], own[k]) for k, axis in enumerate(axes) if data.places[axis] is not None}
        out = [axis for axis, there in inside.items() if not there.any()]
        single = len(out) == 1 and all(there.all() for axis, there in inside.items() if axis not in out)
        found[a] = data.beyond[out[0]] if single else data.whole
    return found
