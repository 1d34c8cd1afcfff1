"""One network at two lengths: see the package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from mononn_core.compiler.padding.bounds import ZERO, Known, anything, of_values, rounded
from mononn_core.compiler.padding.placed import Placed, UnprovenError, is_first
from mononn_core.compiler.padding.rules import GATHERS, place
from mononn_core.element import is_float
from mononn_core.graph import Graph, Node
from mononn_core.ops.builder import fold
from mononn_core.ops.common import same_bits

Axes = Mapping[str, tuple[int, ...]]
"""Tensor -> its axes that are longer."""
KnownValues = dict[int, tuple[np.ndarray, Known]]
"""Bounds of arrays, by their ids, with the arrays."""
EXTENTS = (("reshape", "shape"), ("expand", "shape"), ("slice", "sizes"))
"""Attributes that are extents of the result, which is compared."""
WEIGHTS = 32
"""Elements from which on a constant's bounds are rounded."""
MOST_ELEMENTS = 1 << 22
"""Of a tensor that is computed of constants."""


class Padding:
    """What one Graph computes of shorter inputs, padded with zeros at the end of their ``axes``. ``bounds``: of what
    other Graphs of the model store."""

    def __init__(self, long: Graph, axes: Axes, bounds: KnownValues | None = None) -> None:
        self.long, self.axes = long, axes
        self._values = _values(long)
        self._nodes = _computed(long, self._values)
        self._bounds = {} if bounds is None else bounds
        found = dict[object, int]()
        self._alike = [found.setdefault(self._form(node), len(found)) for node in self._nodes]
        """Of each node a number that those have too which differ in the names of what they read and make alone."""

    def ends(self, short: Graph) -> Axes | None:
        """The outputs' axes that are longer than those of ``short``, whose first elements its own are; None where that
        is not proven. ``short`` differs in the length of ``axes`` alone."""
        values = _values(short)
        try:
            _check_same_but_extents(self.long, short, self._nodes, _computed(short, values))
            read = {name for node in self._nodes for name in node.inputs} | {*self.long.outputs}
            one = _Once()
            placed = {name: one(self._input(name, short)) for name in self.long.inputs}
            if not {name for name in read if name in self._values} <= values.keys():
                return None  # a value in one, computed in the other
            placed |= {name: one(self._value(name, values[name])) for name in self._values if name in read}
            known = dict[object, list[Placed]]()  # equal layers are looked at once
            for node, alike in zip(self._nodes, self._alike, strict=True):
                inputs = [placed[name] if name else None for name in node.inputs]
                second = node.inputs[1] if node.op in GATHERS else ""
                indices = (self._values[second], values[second]) if second in self._values else None
                shapes = tuple((self.long.types[name].shape, short.types[name].shape) for name in node.outputs)
                key = alike, shapes, tuple(map(id, inputs)), tuple(map(id, indices or ()))
                if key not in known:
                    found = place(self.long, short, node, inputs, indices)
                    known[key] = [one(_checked(p, *both)) for p, both in zip(found, shapes, strict=True)]
                placed |= zip(node.outputs, known[key], strict=True)
        except UnprovenError:
            return None
        ends = {name: placed[name] for name in self.long.outputs}
        places = [places for end in ends.values() for places in end.places if places is not None]
        if not all(map(is_first, places)) or not all(end.alike for end in ends.values()):
            return None
        return {name: end.longer for name, end in ends.items()}

    def _form(self, node: Node) -> object:
        kinds = tuple(self.long.types[name] if name else None for name in (*node.inputs, *node.outputs))
        return node.op, tuple(node.attrs.items()), kinds, tuple(map(node.inputs.index, node.inputs))

    def _input(self, name: str, short: Graph) -> Placed:
        kind, axes = self.long.types[name], self.axes.get(name, ())
        whole = anything(kind.dtype)
        places = [np.arange(short.types[name].shape[a]) if a in axes else None for a in range(kind.rank)]
        return _checked(Placed(tuple(places), whole, dict.fromkeys(axes, ZERO)), kind.shape, short.types[name].shape)

    def _value(self, name: str, short: np.ndarray) -> Placed:
        long = self._values[name]
        if id(long) not in self._bounds:
            weights = long.size >= WEIGHTS and is_float(self.long.types[name].dtype)
            self._bounds[id(long)] = long, rounded(of_values(long)) if weights else of_values(long)
        _, whole = self._bounds[id(long)]
        if _is_same(long, short):
            return Placed((None,) * long.ndim, whole)
        if long.ndim != short.ndim or long.dtype != short.dtype:
            raise UnprovenError
        axes = [a for a, (n, m) in enumerate(zip(long.shape, short.shape, strict=True)) if n != m]
        places = tuple(np.arange(m) if a in axes else None for a, m in enumerate(short.shape))
        first = tuple(map(slice, short.shape))
        rest = {a: long[(*first[:a], slice(short.shape[a], None), *first[a + 1 :])] for a in axes}
        last = {a: long[(*first[:a], slice(short.shape[a] - 1, short.shape[a]), *first[a + 1 :])] for a in axes}
        above = frozenset(a for a in axes if (rest[a] >= last[a]).all())
        below = frozenset(a for a in axes if (rest[a] <= last[a]).all())
        known = {a: of_values(value) for a, value in rest.items()}
        return Placed(places, whole, known, _is_same(np.asarray(long[first]), short), above, below)


class _Once:
    """Gives the first of those that are equal."""

    def __init__(self) -> None:
        self._known = dict[object, Placed]()

    def __call__(self, one: Placed) -> Placed:
        places = tuple(None if p is None else p.tobytes() for p in one.places)
        return self._known.setdefault((places, one.whole, *one.beyond.items(), one.alike, one.above, one.below), one)


def _check_same_but_extents(large: Graph, small: Graph, ours: Sequence[Node], theirs: Sequence[Node]) -> None:
    """Raises UnprovenError where the Graphs, or those nodes of them, differ in more than extents."""
    if (large.inputs, large.outputs, len(ours)) != (small.inputs, small.outputs, len(theirs)):
        raise UnprovenError
    for a, b in zip(ours, theirs, strict=True):
        if (a.op, a.inputs, a.outputs, a.attrs.keys()) != (b.op, b.inputs, b.outputs, b.attrs.keys()):
            raise UnprovenError
        if any(a.attrs[key] != b.attrs[key] and (a.op, key) not in EXTENTS for key in a.attrs):
            raise UnprovenError


def _computed(graph: Graph, values: Mapping[str, np.ndarray]) -> list[Node]:
    """The nodes whose results are no ``values``."""
    return [node for node in graph.nodes if node.outputs[0] not in values]


def _values(graph: Graph) -> dict[str, np.ndarray]:
    """The constants, and what is made of them alone: tables that grow with the length can be too large to be stored,
    and are computed in every run."""
    values = dict(graph.constants)
    for node in graph.nodes:
        if all(graph.types[name].size <= MOST_ELEMENTS for name in node.outputs):
            found = fold(node, values, graph.types, any_size=True)
            values |= zip(node.outputs, found, strict=True) if found is not None else ()
    return values


def _is_same(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two constants of a type are the same."""
    return a is b or (a.shape == b.shape and same_bits(a, b))


def _checked(one: Placed, long: tuple[int, ...], short: tuple[int, ...]) -> Placed:
    """The same, if its places fit the two shapes; an axis whose places are all, in order, has none."""
    extents = [n if places is None else len(places) for n, places in zip(long, one.places, strict=True)]
    if tuple(extents) != short:
        raise UnprovenError
    same = {a for a in one.longer if long[a] == short[a]}
    if not all(is_first(p) for a, p in enumerate(one.places) if a in same and p is not None):
        raise UnprovenError
    places = tuple(None if a in same else p for a, p in enumerate(one.places))
    return replace(one, places=places, beyond={a: known for a, known in one.beyond.items() if a not in same})
