"""Where a shorter input's elements stand in a tensor of the longer one, and what rules of operators share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from mononn_core.compiler.padding.bounds import ZERO, Known, anything, is_ordinary
from mononn_core.element import is_float
from mononn_core.graph import Node, TensorType
from mononn_core.graph.graph import Attr

Positions = np.ndarray
"""Along an axis of the longer tensor, of each element of the shorter one, in its order."""
Indices = tuple[np.ndarray, np.ndarray] | None
"""A constant at both lengths."""


class UnprovenError(Exception):
    """There is no rule, or what lies elsewhere comes in."""


@dataclass(frozen=True)
class Placed:
    """A tensor of the longer Graph beside the same one of the shorter.

    Attributes:
        places: for every axis where the shorter one's elements stand; None: the axis is the same, and so are they.
        whole: of all elements.
        beyond: for every axis with places, of the elements at other positions of it, and at places of all other axes.
        alike: whether the elements at the places are the same; constant indices may be others for the same elements.
        above, below: axes with places along which those beyond are no smaller, or no larger, than those at the last
            place, wherever these stand along the other axes. Of floats ``above`` says no more than that they count
            where those do: a mask that leaves those something leaves these something.
    """

    places: tuple[Positions | None, ...]
    whole: Known
    beyond: Mapping[int, Known] = field(default_factory=dict)
    alike: bool = True
    above: frozenset[int] = frozenset()
    below: frozenset[int] = frozenset()

    @property
    def longer(self) -> tuple[int, ...]:
        """The axes with places."""
        return tuple(axis for axis, places in enumerate(self.places) if places is not None)

    def along(self, axis: int, extent: int) -> Positions:
        """The places along an axis of that extent."""
        places = self.places[axis]
        return np.arange(extent) if places is None else places

    def at(self, axis: int) -> Known:
        """Of the elements beyond the places of an axis, or of all where it has none."""
        return self.beyond[axis] if self.places[axis] is not None else self.whole


def is_first(places: Positions) -> bool:
    """Whether they are the first positions, in order."""
    return bool((places == np.arange(len(places))).all())


Inputs = Sequence[Placed | None]


@dataclass(frozen=True)
class Step:
    """A node of both Graphs: its types in the longer one, and what is other in the shorter."""

    node: Node
    inputs: tuple[TensorType | None, ...]
    out: TensorType
    few: tuple[int, ...]
    indices: Indices

    @property
    def attrs(self) -> Mapping[str, Attr]:
        return self.node.attrs

    def kind(self, index: int) -> TensorType:
        """The type of an input."""
        found = self.inputs[index]
        assert found is not None, "a required input is there"
        return found


def given(inputs: Inputs) -> list[Placed]:
    """Those that are there."""
    return [x for x in inputs if x is not None]


def agreed(parts: Sequence[Positions | None]) -> Positions | None:
    """The places that all of an axis have."""
    found = parts[0]
    for part in parts[1:]:
        same = found is part if found is None or part is None else np.array_equal(found, part)
        if not same:
            raise UnprovenError
    return found


def spread(parts: Sequence[tuple[Placed, tuple[int, ...]]], rank: int) -> tuple[Positions | None, ...]:
    """Places of what ``parts`` with their shapes are broadcast to, aligned at the last of ``rank`` axes."""
    places = []
    for axis in range(rank):
        there = [(x, axis - rank + len(shape), shape) for x, shape in parts if axis - rank + len(shape) >= 0]
        wide = [x.places[a] for x, a, shape in there if shape[a] != 1]
        places.append(agreed(wide) if wide else None)
    return tuple(places)


def within(known: Known, low: float, high: float) -> bool:
    """Whether all lie between these."""
    return known is not None and low <= known[0] and known[1] <= high


def products(step: Step, a: Known, b: Known) -> Known:
    """Sums of products."""
    if ZERO in (a, b) and is_ordinary(a) and is_ordinary(b):
        return ZERO
    if not is_float(step.out.dtype) or (is_ordinary(a) and is_ordinary(b)):
        return anything(step.out.dtype)
    return None
