"""Shortens chains of reshapes and transposes, and moves slices in front of them.

1. A chain of reshapes and transposes (no link of which anybody else reads) is one permutation of the factors of its
   input's extents: written as a reshape, a reshape and a transpose, a transpose and a reshape, or all three, when
   that takes fewer operators.
2. slice(transpose(x)) is transpose(slice(x)), when only slices read the transpose.
3. slice(reshape(x)) is reshape(slice(x)) when the slice selects a contiguous range of one axis of x (and all of the
   others) and only slices read the reshape: the parts of a product that was reshaped before being taken apart.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from math import prod

from mononn_core.graph import Graph, Node
from mononn_core.ops.common import integers
from mononn_core.passes.rewrite import Rewriter, rewrite

Shape = tuple[int, ...]


@dataclass(eq=False)
class Atom:
    """A factor of an extent; it may turn out to be a product of smaller ones."""

    extent: int
    parts: list[Atom] = field(default_factory=list)

    def leaves(self) -> list[Atom]:
        return [leaf for part in self.parts for leaf in part.leaves()] if self.parts else [self]


def _leaves(atoms: list[Atom]) -> list[Atom]:
    return [leaf for atom in atoms for leaf in atom.leaves()]


def regroup(atoms: list[Atom], shape: Shape) -> list[list[Atom]] | None:
    """The atoms of each axis of ``shape``; splits atoms where it must, None where no factor fits."""
    queue = list(atoms)
    axes: list[list[Atom]] = []
    for extent in shape:
        axis: list[Atom] = []
        need = extent
        while need > 1:
            atom = queue.pop(0)
            if atom.extent > need:
                if atom.extent % need:
                    return None
                atom.parts = [Atom(need), Atom(atom.extent // need)]
                atom, rest = atom.parts
                queue.insert(0, rest)
            if need % atom.extent:
                return None
            need //= atom.extent
            axis.append(atom)
        axes.append(axis)
    return axes


@dataclass(frozen=True)
class View:
    """A chain's meaning: the leaves of each source axis, and of each target axis, in order."""

    source: list[list[Atom]]
    target: list[list[Atom]]


def view_of(shape: Shape, chain: list[Node]) -> View | None:
    """What the nodes of ``chain`` (first to last) do to a tensor of ``shape``."""
    source = [[Atom(n)] if n > 1 else [] for n in shape]
    axes = source
    for node in chain:
        if node.op == "transpose":
            axes = [axes[p] for p in integers(node.attrs, "perm")]
            continue
        found = regroup(_leaves([a for axis in axes for a in axis]), integers(node.attrs, "shape"))
        if found is None:
            return None
        axes = found
    return View([_leaves(axis) for axis in source], [_leaves(axis) for axis in axes])


Step = tuple[str, Shape]
"""("reshape", shape) or ("transpose", perm)."""


def permutation(keys: list[int | None]) -> tuple[int, ...]:
    """The perm that brings axes sorted by key into this order; axes without a key (extent 1) stay where they are."""
    slots = [j for j, key in enumerate(keys) if key is not None]
    ordered = sorted(slots, key=lambda j: keys[j] or 0)
    place = dict(zip(ordered, slots, strict=True))
    return tuple(place.get(j, j) for j in range(len(keys)))


def _runs(axes: list[list[Atom]], order: list[Atom]) -> list[int | None] | None:
    """For each axis the position of its first atom in ``order``; None when one is not contiguous there."""
    position = {id(atom): i for i, atom in enumerate(order)}
    keys: list[int | None] = []
    for axis in axes:
        places = [position[id(atom)] for atom in axis]
        if places and places != list(range(places[0], places[0] + len(places))):
            return None
        keys.append(places[0] if places else None)
    return keys


def _extents(axes: list[list[Atom]]) -> Shape:
    return tuple(prod(a.extent for a in axis) for axis in axes)


def steps_of(view: View) -> list[Step]:
    """The fewest reshapes and transposes with the view's meaning."""
    first = [a for axis in view.source for a in axis]
    last = [a for axis in view.target for a in axis]
    source, target = _extents(view.source), _extents(view.target)
    if first == last:
        return [("reshape", target)] if source != target else []
    candidates = [_three_steps(first, last, target)]
    keys = _runs(view.target, first)
    if keys is not None:
        perm = permutation(keys)
        shape = [1] * len(target)
        for j, p in enumerate(perm):
            shape[p] = target[j]
        candidates.append([("reshape", tuple(shape)), ("transpose", perm)])
    keys = _runs(view.source, last)
    if keys is not None:
        inverse = permutation(keys)
        perm = tuple(sorted(range(len(inverse)), key=inverse.__getitem__))
        candidates.append([("transpose", perm), ("reshape", target)])
    return min((_needed(source, steps) for steps in candidates), key=len)


def _three_steps(first: list[Atom], last: list[Atom], target: Shape) -> list[Step]:
    """Atoms that stay neighbours are one axis: reshape to those, permute them, reshape to the target."""
    after = {id(a): id(b) for a, b in itertools.pairwise(last)}
    blocks: list[list[Atom]] = []
    for atom in first:
        if blocks and after.get(id(blocks[-1][-1])) == id(atom):
            blocks[-1].append(atom)
        else:
            blocks.append([atom])
    position = {id(atom): i for i, atom in enumerate(last)}
    perm = tuple(sorted(range(len(blocks)), key=lambda b: position[id(blocks[b][0])]))
    return [("reshape", _extents(blocks)), ("transpose", perm), ("reshape", target)]


def _needed(shape: Shape, steps: list[Step]) -> list[Step]:
    """Without the steps that change nothing."""
    kept = []
    for op, argument in steps:
        new = argument if op == "reshape" else tuple(shape[p] for p in argument)
        if (op == "reshape" and new != shape) or (op == "transpose" and argument != tuple(range(len(argument)))):
            kept.append((op, argument))
        shape = new
    return kept


def chains(rewriter: Rewriter, node: Node) -> str | None:
    """Case 1."""
    if node.op not in ("reshape", "transpose"):
        return None
    chain = [node]
    while (inner := rewriter.producer(chain[0].inputs[0])) is not None and inner.op in ("reshape", "transpose"):
        if not rewriter.single_use(chain[0].inputs[0]):
            break
        chain.insert(0, inner)
    x = chain[0].inputs[0]
    shape = rewriter.type(x).shape
    if len(chain) < 2 or 0 in shape:
        return None
    view = view_of(shape, chain)
    steps = None if view is None else steps_of(view)
    if steps is None or len(steps) >= len(chain):
        return None
    for op, argument in steps:
        x = rewriter.add(op, x, **{"shape" if op == "reshape" else "perm": argument})
    return x


def early_slice(rewriter: Rewriter, node: Node) -> str | None:
    """Case 2."""
    inner = rewriter.producer(node.inputs[0], "transpose") if node.op == "slice" else None
    if inner is None or not rewriter.only_read_by(inner.output, "slice"):
        return None
    perm = integers(inner.attrs, "perm")
    back = sorted(range(len(perm)), key=perm.__getitem__)
    moved = {key: tuple(integers(node.attrs, key)[b] for b in back) for key in ("starts", "sizes", "steps")}
    return rewriter.add("transpose", rewriter.add("slice", inner.inputs[0], **moved), perm=perm)


def slice_before_reshape(rewriter: Rewriter, node: Node) -> str | None:
    """Case 3."""
    inner = rewriter.producer(node.inputs[0], "reshape") if node.op == "slice" else None
    if inner is None or set(integers(node.attrs, "steps")) != {1} or not rewriter.only_read_by(inner.output, "slice"):
        return None
    x = inner.inputs[0]
    shape, middle, sizes = rewriter.type(x).shape, rewriter.type(node.inputs[0]).shape, integers(node.attrs, "sizes")
    cut = [d for d, (n, size) in enumerate(zip(middle, sizes, strict=True)) if n != size]
    if len(cut) != 1 or 0 in (*shape, *sizes):
        return None
    (axis,) = cut
    outer, inside = prod(middle[:axis]), prod(middle[axis + 1 :])
    for d, extent in enumerate(shape):
        block = prod(shape[d + 1 :])
        if prod(shape[:d]) == outer and extent > 1 and extent * block == middle[axis] * inside and inside % block == 0:
            scale = inside // block
            starts, counts = [0] * len(shape), list(shape)
            starts[d], counts[d] = integers(node.attrs, "starts")[axis] * scale, sizes[axis] * scale
            part = rewriter.add("slice", x, starts=tuple(starts), sizes=tuple(counts), steps=(1,) * len(shape))
            return rewriter.reshape(part, sizes)
    return None


RULES = (early_slice, slice_before_reshape, chains)


def run(graph: Graph) -> Graph:
    """``graph`` with its views shortened."""
    return rewrite(graph, RULES)
