"""Which of a system's steps compute each node of a model, and what goes through memory between them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from mononn_bench.profiled import ModelNode, Step

VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"})
"""Operators whose result is their input under another shape: nothing is stored for them."""


class Homes:
    """Which of a system's steps compute each node. One that no step names is inside the first step that reads it, or,
    where none does, inside one that makes what it reads.
    """

    def __init__(self, nodes: Sequence[ModelNode], steps: Sequence[Step]) -> None:
        self._steps = steps
        self._bytes = {node.outputs[0]: node.output_bytes for node in nodes if node.outputs}
        self._readers: dict[str, list[ModelNode]] = defaultdict(list)
        for node in nodes:
            for name in node.inputs:
                self._readers[name].append(node)
        self._of: dict[str, list[int]] = defaultdict(list)
        for index, step in enumerate(steps):
            for name in step.nodes:
                self._of[name].append(index)
        self._complete(nodes)
        self._inside: list[list[ModelNode]] = [[] for _ in steps]
        for node in nodes:
            for home in self.of(node):
                self._inside[home].append(node)

    def _complete(self, nodes: Sequence[ModelNode]) -> None:
        """A node that no step names is inside the first that reads it; where none does, inside what it reads."""
        for node in reversed(nodes):
            readers = (reader for name in node.outputs for reader in self._readers[name])
            self._adopt(node, readers)
        makers = {name: node for node in nodes for name in node.outputs}
        for node in nodes:
            self._adopt(node, (makers[name] for name in node.inputs if name in makers))

    def _adopt(self, node: ModelNode, others: Iterable[ModelNode]) -> None:
        if node.name not in self._of:
            homes = next((found for other in others if (found := self.of(other))), [])
            if homes:
                self._of[node.name] = homes[:1]

    def of(self, node: ModelNode | None) -> list[int]:
        """The steps that compute a node, in order."""
        return self._of.get(node.name, []) if node else []

    def has_products(self, index: int) -> bool:
        """Whether a step computes a node with arithmetic of matrices."""
        return any(node.flops for node in self._inside[index])

    def anchor(self, index: int) -> ModelNode | None:
        """The last node of a step; of one without nodes that of the next that has some, or else of the one before."""
        order = [*range(index, len(self._steps)), *range(index - 1, -1, -1)]
        return next((self._inside[i][-1] for i in order if self._inside[i]), None)

    def stores(self, node: ModelNode) -> bool:
        """Whether what a node makes is read by another step, or by nobody here."""
        if node.op in VIEWS:
            return False
        readers = [reader for name in node.outputs for reader in self._readers[name]]
        homes = self.of(node)
        return bool(homes) and (not readers or any(set(self.of(reader)) - set(homes) for reader in readers))

    def nodes(self, index: int) -> Sequence[ModelNode]:
        """What a step computes, in the order of the model."""
        return self._inside[index]

    def flops(self, index: int) -> int:
        """The arithmetic of a step's nodes; of one that several steps compute, an equal part."""
        return sum(node.flops // len(self.of(node)) for node in self._inside[index])

    def moved_bytes(self, index: int) -> int:
        """What a step reads that others made or that is constant, and what it makes for others; of a node that several
        steps compute, an equal part of its constants.
        """
        inside = self._inside[index]
        makers = {name for node in inside for name in node.outputs}
        read = {name: self._bytes.get(name, 0) for node in inside for name in node.inputs if name not in makers}
        written = sum(node.output_bytes for node in inside if self.stores(node))
        return sum(read.values()) + written + sum(node.constant_bytes // len(self.of(node)) for node in inside)
