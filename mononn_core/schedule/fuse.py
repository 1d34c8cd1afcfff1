"""Which tensors are stored, and which operators become one stage.

A *stage* computes one stored tensor: a root operator (matmul, attention, a row operator, a reduction, or just an
expression) followed by the chain of elementwise operators and bijective movements that consume only its result.
Everything else stays virtual: it is an expression that its readers evaluate at the index they need.

Roots take their chains from the last to the first, so that ``a(x) + b(y)`` is finished by whichever runs later.
"""

from __future__ import annotations

from dataclasses import dataclass

from mononn_core.errors import Origin
from mononn_core.graph import Graph, Node
from mononn_core.ops import registry
from mononn_core.ops.common import integers, text
from mononn_core.program.expr import Const, Expr
from mononn_core.program.simplify import linear
from mononn_core.schedule.operands import ImageView, contraction_axes, unit_stride
from mononn_core.schedule.prepare import is_template
from mononn_core.schedule.views import Views

ROOT_KINDS = ("contraction", "row", "reduction")


@dataclass(frozen=True)
class Stage:
    """``root`` (None for a pure expression), the ``chain`` after it, and the tensor ``stored``."""

    stored: str
    root: Node | None
    chain: tuple[Node, ...]

    @property
    def origin(self) -> tuple[Origin, ...]:
        nodes = ((self.root,) if self.root else ()) + self.chain
        return tuple(dict.fromkeys(n.origin for n in nodes))


def border_of(stage: Stage) -> Node | None:
    """The pad that ends the stage's chain: the stage stores the inside, and something else must fill the border."""
    last = stage.chain[-1] if stage.root is not None and stage.chain else None
    return last if last is not None and last.op == "pad" else None


def run_chain(stage: Stage, views: Views, index: tuple[Expr, ...], value: Expr) -> tuple[tuple[Expr, ...], Expr]:
    """Push the root's element ``index`` with ``value`` through the chain: index and value in the stored tensor."""
    if stage.root is None:
        return index, value
    name = stage.root.output
    for node in stage.chain:
        definition = registry.get(node.op)
        if definition.kind == "movement":
            assert definition.forward is not None
            index = definition.forward(views.type(name), views.type(node.output), node.attrs, index)
        else:
            value = views.point(node, index, {name: value})
        name = node.output
    return index, value


def fuse(
    graph: Graph, enabled: bool = True, epilogues: bool = True, column_multiple: int = 1
) -> tuple[tuple[Stage, ...], Views]:
    """Stages in an order that respects their dependencies, and the view of everything they read.

    ``enabled`` off: every operator is a stage. ``epilogues`` off: no elementwise operator follows a template inside its
    stage. ``column_multiple``: a template reads a view in place only if it starts at a multiple of so many columns.
    """
    planner = _Planner(graph, enabled, epilogues, column_multiple)
    stages = planner.stages()
    return _order(stages, planner.views(), graph), planner.views()


class _Planner:
    """Decides what is stored. Starts from roots and their chains, then stores virtual tensors until every reader can
    read what it needs cheaply."""

    def __init__(self, graph: Graph, enabled: bool, epilogues: bool, column_multiple: int) -> None:
        self.graph = graph
        self.enabled = enabled
        self.epilogues = epilogues
        self.column_multiple = column_multiple
        self.consumers = graph.consumers()
        self.producers = graph.producers()
        self.absorbed: dict[str, str] = {}  # output of a chained node (or root) -> stored tensor
        self.by_stored: dict[str, Stage] = {}

    def views(self) -> Views:
        return Views(self.graph, frozenset(self.by_stored))

    def stages(self) -> list[Stage]:
        for node in reversed(self.graph.nodes):
            if registry.get(node.op).kind in ROOT_KINDS:
                self._root(node)
        for node in reversed(self.graph.nodes):
            name = node.outputs[0]
            if name not in self.absorbed and self._must_store(node):
                self.by_stored[name] = Stage(name, None, (node,))
                self.absorbed[name] = name
        return list(self.by_stored.values())

    def _root(self, node: Node) -> None:
        chain: list[Node] = []
        name = node.output
        bare = not self.epilogues and is_template(node, self.graph)
        while self.enabled and (follower := self._follower(name)) is not None:
            if bare and registry.get(follower.op).kind == "elementwise":
                break
            chain.append(follower)
            name = follower.output
            if follower.op == "pad":
                break
        for output in (node.output, *(n.output for n in chain)):
            self.absorbed[output] = name
        self.by_stored[name] = Stage(name, node, tuple(chain))

    def _follower(self, name: str) -> Node | None:
        """The one consumer of ``name`` that can be computed where ``name`` is produced."""
        readers = self.consumers[name]
        if len(readers) != 1 or name in self.graph.outputs:
            return None
        (node,) = readers
        definition = registry.get(node.op)
        if len(node.outputs) != 1 or node.output in self.absorbed:
            return None
        out, mine = self.graph.types[node.output], self.graph.types[name]
        if node.op == "pad":
            return node if self._is_border(node) else None
        if definition.kind == "movement" and definition.forward is not None:
            return node
        if definition.kind != "elementwise" or out.shape != mine.shape or out.dtype != "float32":
            return None
        return node

    def _is_border(self, pad: Node) -> bool:
        """Whether ``pad`` puts constants around an image that a convolution reads, all channels alike."""
        if text(pad.attrs, "mode") != "constant" or len(widths := integers(pad.attrs, "before")) != 4:
            return False
        kept = (*widths[::3], *integers(pad.attrs, "after")[::3])
        readers = self.consumers[pad.output]
        return not any(kept) and any(r.op == "conv" and r.inputs[0] == pad.output for r in readers)

    def _must_store(self, node: Node) -> bool:
        name = node.outputs[0]
        if name in self.graph.outputs or not self.enabled:
            return True
        if registry.get(node.op).kind in ("movement",) and self._is_view(name):
            return any(self._needs_storage(name, reader, view=True) for reader in self.consumers[name])
        readers = self.consumers[name]
        if len({self.absorbed.get(r.outputs[0], r.outputs[0]) for r in readers}) > 1:
            return True
        return any(self._needs_storage(name, reader, view=False) for reader in readers)

    def _is_view(self, name: str) -> bool:
        """Whether ``name`` only re-indexes a tensor that is stored (or will be, as its producer is no movement)."""
        while not self.graph.is_constant(name) and name not in self.graph.inputs:
            node = self.producers[name]
            if name in self.absorbed:
                return True
            if registry.get(node.op).kind != "movement" or len(node.inputs) != 1:
                return self._from_integers(name)
            name = node.inputs[0]
        return True

    def _needs_storage(self, name: str, reader: Node, view: bool) -> bool:
        """Whether ``reader`` cannot, or should not, evaluate virtual ``name`` itself."""
        kind = registry.get(reader.op).kind
        if kind == "contraction" and is_template(reader, self.graph):
            if reader.op == "conv":
                return not (view and self._image_view(name))
            if reader.op == "attention" and name not in reader.inputs[:3]:
                return not view and self._from_integers(name)
            return not (view and self._matrix_view(name, reader))
        if kind in ("row", "contraction"):
            return not view
        if kind == "reduction":
            return False
        return self.graph.types[name].dtype == "float32" and self._from_integers(name)

    def _from_integers(self, name: str) -> bool:
        """A float tensor computed from integers or bools: stored, so that its float readers stay vectors."""
        node = self.producers[name]
        return (
            any(n and self.graph.types[n].dtype != "float32" for n in node.inputs)
            and registry.get(node.op).kind == "elementwise"
        )

    def _matrix_view(self, name: str, reader: Node) -> bool:
        """Whether a contraction can read view ``name`` in place: unit stride along rows and columns of one tensor."""
        views = self._views_of(name)
        walks = contraction_axes(reader, name, self.graph.types)
        found = [unit_stride(views.element(name, w.index), w) for w in walks]
        if reader.op == "matmul" and name == reader.inputs[1]:  # its panels may end in the middle of a column block
            return all(f is not None and isinstance(f[2], Const) and self._aligned(f[2]) for f in found)
        return all(f is not None and self._aligned(f[2]) for f in found)

    def _aligned(self, column: Expr) -> bool:
        """Whether a view's first column is a multiple of what templates need."""
        terms, constant = linear(column)
        return all(k % self.column_multiple == 0 for k in (*terms.values(), constant))

    def _views_of(self, name: str) -> Views:
        """What is stored so far, and what ``name`` shows."""
        stored = frozenset(self.by_stored) | frozenset(
            n for n in self.producers if n in self.absorbed and self.absorbed[n] == n
        )
        return Views(self.graph, stored | self._future(name))

    def _image_view(self, name: str) -> bool:
        """Whether a convolution can read view ``name`` in place."""
        return ImageView.of(self._views_of(name), name) is not None

    def _future(self, name: str) -> frozenset[str]:
        """Walk up the movements to the tensor this view shows."""
        while name in self.producers and name not in self.absorbed:
            node = self.producers[name]
            if registry.get(node.op).kind != "movement":
                break
            name = node.inputs[0]
        return frozenset({name})


def dependencies(stage: Stage, views: Views) -> set[str]:
    """Stored tensors (not inputs or constants) that ``stage`` reads."""
    graph, found = views.graph, set()
    producers = graph.producers()
    inside = {n.outputs[0] for n in ((stage.root,) if stage.root else ()) + stage.chain}
    pending = [n for node in ((stage.root,) if stage.root else ()) + stage.chain for n in node.inputs if n]
    seen: set[str] = set()
    while pending:
        name = pending.pop()
        if name in inside or name in seen or name in graph.inputs or graph.is_constant(name):
            continue
        seen.add(name)
        if name in views.stored:
            found.add(name)
        else:
            pending.extend(n for n in producers[name].inputs if n)
    return found


def _order(stages: list[Stage], views: Views, graph: Graph) -> tuple[Stage, ...]:
    """Topological order; among the ready stages the one whose last node comes first in the model."""
    position = {n.outputs[0]: i for i, n in enumerate(graph.nodes)}
    waiting = {s.stored: dependencies(s, views) for s in stages}
    by_name = {s.stored: s for s in stages}
    ordered: list[Stage] = []
    while waiting:
        ready = [n for n, needs in waiting.items() if not needs & waiting.keys()]
        name = min(ready, key=lambda n: position[n])
        ordered.append(by_name[name])
        del waiting[name]
    return tuple(ordered)
