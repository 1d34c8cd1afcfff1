"""Two systems' steps beside one another, by the ONNX nodes that both compute.

Systems fuse differently, so a step of one has rarely exactly the nodes of one of the other's. A *region* is a smallest
set of steps of both that share all their products: the nodes with arithmetic of matrices (products, convolutions,
recurrences). A step without products lies in the region of ours that computes the last of its nodes. A node that no
step of a system names is inside a step that reads it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mononn_bench.analysis.homes import Homes
from mononn_bench.profiled import ModelNode, Step


@dataclass(frozen=True)
class Side:
    """What one system does of a region: steps with products, and the others; how many of the region's tensors it stores
    for other steps, and their bytes.
    """

    products: tuple[Step, ...]
    rest: tuple[Step, ...]
    stored: int
    stored_bytes: int

    @property
    def steps(self) -> int:
        """How many there are."""
        return len(self.products) + len(self.rest)

    @property
    def products_s(self) -> float:
        """Seconds of the steps with products."""
        return sum(step.seconds for step in self.products)

    @property
    def rest_s(self) -> float:
        """Seconds of the others."""
        return sum(step.seconds for step in self.rest)

    @property
    def seconds(self) -> float:
        """Of all its steps."""
        return self.products_s + self.rest_s


@dataclass(frozen=True)
class Region:
    """The same part of a network on both sides, or `count` parts that are alike, with the nodes of the first."""

    nodes: tuple[ModelNode, ...]
    ours: Side
    theirs: Side
    count: int = 1

    @property
    def flops(self) -> int:
        """Of the direct algorithm."""
        return self.count * sum(node.flops for node in self.nodes)

    @property
    def gained_s(self) -> float:
        """What theirs takes longer; below 0 where it is the faster one."""
        return self.theirs.seconds - self.ours.seconds

    @property
    def likeness(self) -> tuple[object, ...]:
        """Equal for regions that do the same to tensors of the same sizes, in as many steps."""
        facts = [(n.op, n.flops, n.output_bytes, n.constant_bytes) for n in self.nodes]
        return (*facts, self.ours.steps, self.theirs.steps)


def named(steps: Sequence[Step]) -> bool:
    """Whether a system's steps say what they compute."""
    return any(step.nodes for step in steps)


def regions(nodes: Sequence[ModelNode], ours: Sequence[Step], theirs: Sequence[Step]) -> list[Region]:
    """The regions of a network, in the order of its nodes; both sides' steps have names of nodes (`named`)."""
    mine, other, shift = Homes(nodes, ours), Homes(nodes, theirs), len(ours)
    groups = _Groups(len(ours) + len(theirs))
    for node in nodes:
        if node.flops:
            groups.join([*mine.of(node), *(shift + home for home in other.of(node))])
    for index in range(len(theirs)):
        if not other.has_products(index):
            groups.join([*mine.of(other.anchor(index))[-1:], shift + index])
    for index in range(len(ours)):
        groups.join([*mine.of(mine.anchor(index))[-1:], index])
    placed: dict[int, list[ModelNode]] = defaultdict(list)
    for node in nodes:
        for home in [*mine.of(node)[-1:], *(shift + home for home in other.of(node)[-1:])][:1]:
            placed[groups.root(home)].append(node)
    members: dict[int, list[int]] = defaultdict(list)
    for handle in range(len(ours) + len(theirs)):
        members[groups.root(handle)].append(handle)
    place = {node.name: index for index, node in enumerate(nodes)}
    found = [
        Region(
            tuple(inside := placed[root]),
            _side(mine, ours, [handle for handle in handles if handle < shift], inside),
            _side(other, theirs, [handle - shift for handle in handles if handle >= shift], inside),
        )
        for root, handles in members.items()
    ]
    return sorted(found, key=lambda region: min((place[node.name] for node in region.nodes), default=len(nodes)))


def _side(homes: Homes, steps: Sequence[Step], indices: Sequence[int], inside: Sequence[ModelNode]) -> Side:
    """What the steps at `indices` are of a region with those nodes."""
    stored = [node for node in inside if homes.stores(node)]
    return Side(
        products=tuple(steps[i] for i in indices if homes.has_products(i)),
        rest=tuple(steps[i] for i in indices if not homes.has_products(i)),
        stored=len(stored),
        stored_bytes=sum(node.output_bytes for node in stored),
    )


class _Groups:
    """Disjoint sets of the numbers below `count`."""

    def __init__(self, count: int) -> None:
        self._parent = list(range(count))

    def root(self, number: int) -> int:
        """The one that stands for the set of a number."""
        while self._parent[number] != number:
            self._parent[number] = self._parent[self._parent[number]]
            number = self._parent[number]
        return number

    def join(self, numbers: Sequence[int]) -> None:
        """Make one set of the sets of these."""
        for number in numbers[1:]:
            self._parent[self.root(number)] = self.root(numbers[0])


def alike(found: Iterable[Region]) -> list[Region]:
    """Regions that do the same to tensors of the same sizes as one, such as the layers of an encoder."""
    return [
        Region(group[0].nodes, sum_of(r.ours for r in group), sum_of(r.theirs for r in group), len(group))
        for group in groups_of(found)
    ]


def groups_of(found: Iterable[Region]) -> list[list[Region]]:
    """Those that are `alike` together, in the order of the first of each."""
    groups: dict[tuple[object, ...], list[Region]] = defaultdict(list)
    for region in found:
        groups[region.likeness].append(region)
    return list(groups.values())


def sum_of(sides: Iterable[Side]) -> Side:
    """All that one system does of several regions."""
    parts = list(sides)
    return Side(
        products=tuple(step for side in parts for step in side.products),
        rest=tuple(step for side in parts for step in side.rest),
        stored=sum(side.stored for side in parts),
        stored_bytes=sum(side.stored_bytes for side in parts),
    )


def operators(nodes: Iterable[ModelNode]) -> Mapping[str, int]:
    """How many nodes of each operator there are, in order of their first."""
    return Counter(node.op for node in nodes)
