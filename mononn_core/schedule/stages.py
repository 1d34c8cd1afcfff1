"""A stage: what becomes one, what it stores, what it reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mononn_core.errors import Origin
from mononn_core.graph import Node, TensorType
from mononn_core.ops import registry
from mononn_core.ops.common import BORDERS, linearise
from mononn_core.program.expr import Const, Expr, evaluate_index
from mononn_core.schedule.views import Views, made_behind


@dataclass(frozen=True)
class FusionGroup:
    """``root`` (None for a pure expression), the ``chain`` after it, and the tensor ``stored``; of a concatenation that
    ends the chain, with or without a border around it, its own part of that. ``first``: no stage before it stores the
    same tensor."""

    stored: str
    root: Node | None
    chain: tuple[Node, ...]
    first: bool = True

    @property
    def own(self) -> str:
        """The last tensor that is its own: what it stores, or adds to a concatenation."""
        nodes = self.nodes
        return nodes[-1].output if len(nodes) <= len(self.chain) else self.stored

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Its nodes up to what is its own."""
        joins = next((i for i, node in enumerate(self.chain) if node.op == "concat" and self.root), len(self.chain))
        return (*((self.root,) if self.root else ()), *self.chain[:joins])

    @property
    def origin(self) -> tuple[Origin, ...]:
        nodes = ((self.root,) if self.root else ()) + self.chain
        return tuple(dict.fromkeys(n.origin for n in nodes))


def border_of(stage: FusionGroup) -> Node | None:
    """The pad or border that ends the stage's chain: the stage stores the inside, and something else must fill the
    border. Of a concatenation the part that is stored first has it: others may read a part before all are there."""
    last = stage.chain[-1] if stage.root is not None and stage.chain else None
    return last if last is not None and last.op in BORDERS and stage.first else None


def run_chain(stage: FusionGroup, views: Views, index: tuple[Expr, ...], value: Expr) -> tuple[tuple[Expr, ...], Expr]:
    """Push the root's element ``index`` with ``value`` through the chain: index and value in the stored tensor."""
    if stage.root is None:
        return index, value
    name = stage.root.output
    values = {name: value}
    for node in stage.chain:
        if name in views.placed:
            return views.placed_index(name, index), values[name]
        definition = registry.get(node.op)
        if definition.kind == "movement":
            assert definition.forward is not None
            index = definition.forward(views.type(name), views.type(node.output), node.attrs, index)
            values = {node.output: values[name]}
        else:
            values[node.output] = views.point(node, index, values)
        name = node.output
    return index, values[name]


def apart_behind(root: Node, chain: Sequence[Node], types: Mapping[str, TensorType]) -> int:
    """Elements between the first neighbours along the last axis of ``root``'s result where ``chain`` puts them."""
    places = list[int]()
    for last in (0, 1):
        name = root.output
        index: tuple[Expr, ...] = (*(Const(0) for _ in types[root.output].shape[1:]), Const(last))
        for node in chain:
            if (forward := registry.get(node.op).forward) is not None:
                index = forward(types[name], types[node.output], node.attrs, index)
            name = node.output
        places.append(evaluate_index(linearise(index, types[name].shape), {}))
    return abs(places[1] - places[0])


def dependencies(stage: FusionGroup, views: Views) -> set[str]:
    """Stored tensors and parts of stored concatenations (not inputs or constants) that ``stage`` reads."""
    nodes = stage.nodes
    inside = {n.outputs[0] for n in nodes}
    return made_behind((n for node in nodes for n in node.inputs if n not in inside), views)
