"""Which tensors are stored, and which operators become one stage.

A *stage* computes one stored tensor: a root operator (matmul, attention, a row operator, a reduction, or just an
expression) followed by the chain of bijective movements and elementwise expressions that consume only its result.
Everything else stays virtual: it is an expression that its readers evaluate at the index they need.

Roots take their chains from the last to the first, so that ``a(x) + b(y)`` is finished by whichever runs later. A
concatenation of images that roots compute is stored by them, each its channels.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from mononn_core.element import COMPUTE, SHORT, SIDE_BY_SIDE, WORD
from mononn_core.graph import Graph, Node
from mononn_core.ops import registry
from mononn_core.ops.common import BORDERS, fills_border, integer, integers
from mononn_core.ops.registry import is_template
from mononn_core.program.expr import Const, Expr
from mononn_core.program.simplify import linear
from mononn_core.schedule.operands import ImageView, RowsView, contraction_axes, side_by_side, unit_stride
from mononn_core.schedule.stages import FusionGroup, apart_behind
from mononn_core.schedule.views import Placed, Views

ROOT_KINDS = ("contraction", "row", "reduction")
LIGHT, SMALL = ("add", "sub", "mul"), 8
"""Operators that take less than storing and reading a result does, where all operands but one are so much smaller."""
MANY, FAR, LARGE = 8, 16, 1 << 13
"""Neighbours, elements between them, and elements in all, that are worth a stage that transposes them."""
IN_WORDS = ("add", "sub", "mul", "neg", "where", "cast")
"""Operators that vectors of words have."""
MOST_AGAIN = 16
"""Evaluations of operators for an element, in all the windows that show it; what would take more is stored."""
DEEPEST = 40
"""Operators one inside the other in what is evaluated for an element; what lies deeper is stored."""
MOST_STEPS = 64
"""Operators of a chain whose results are read several times, each as often as it stands in the code."""


def fuse(
    graph: Graph, enabled: bool = True, epilogues: bool = True, column_multiple: int = 1, joined: bool = False
) -> tuple[tuple[FusionGroup, ...], Views]:
    """Stages in an order that respects their dependencies, and the view of everything they read.

    ``enabled`` off: every operator is a stage. ``epilogues`` off: no elementwise operator follows a template inside its
    stage. ``column_multiple``: a template reads a view in place only if it starts at a multiple of so many columns.
    ``joined``, where both are on: several stages may store one concatenation.
    """
    apart: set[str] = set()
    while True:
        fusion = _Fusion(graph, enabled, epilogues, column_multiple)
        if joined and enabled and epilogues:
            fusion.join(apart)
        stages = fusion.stages()
        if not (unwritten := fusion.unwritten()):
            return _order(stages, graph), fusion.views()
        apart |= unwritten


class _Fusion:
    """Decides what is stored. Starts from roots and their chains, then stores virtual tensors until every reader can
    read what it needs cheaply."""

    def __init__(self, graph: Graph, enabled: bool, epilogues: bool, column_multiple: int) -> None:
        self.graph = graph
        self.enabled = enabled
        self.epilogues = epilogues
        self.column_multiple = column_multiple
        self.consumers = graph.consumers()
        self.producers = graph.producers()
        self.position = {node.outputs[0]: number for number, node in enumerate(graph.nodes)}
        self.absorbed: dict[str, str] = {}  # output of a chained node (or root) -> stored tensor
        self.depth: dict[str, int] = {}  # operators around what is not stored, where it is evaluated
        self.found: list[FusionGroup] = []
        self.stored: set[str] = set()
        self.placed: dict[str, Placed] = {}  # parts of concatenations that are stored by them

    def join(self, apart: Collection[str] = ()) -> None:
        """Find the concatenations of images' channels, but those ``apart``, all inputs of which end a root's chain. Who
        else reads such an input finds it there. Where only a border is put around one it is stored with that."""
        ends = {name for node in self.graph.nodes for name in self._ends(node)}
        for node in self.graph.nodes:
            if node.op != "concat" or len(shape := self.graph.types[node.output].shape) != 4:
                continue
            last = integer(node.attrs, "axis") in (-1, len(shape) - 1)
            if not last or len(set(node.inputs)) < len(node.inputs) or not all(map(self._is_placed, node.inputs)):
                continue
            readers = self.consumers[node.output]
            pad = readers[0] if len(readers) == 1 and self._is_border(readers[0]) else None
            whole, first = (pad.output, integers(pad.attrs, "before")) if pad else (node.output, (0,) * 4)
            if ends.issuperset(node.inputs) and whole not in apart:
                for name in node.inputs:
                    self.placed[name] = (whole, first)
                    first = (*first[:-1], first[-1] + self.graph.types[name].shape[-1])

    def _ends(self, root: Node) -> Iterator[str]:
        """Results that ``root``'s chain could end with."""
        if registry.get(root.op).kind in ROOT_KINDS:
            yield root.output
            yield from (following[-1].output for following in self._chain(root))

    def _is_placed(self, name: str) -> bool:
        """Whether a concatenation may hold ``name`` and be where its other readers, no concatenations, find it."""
        node = self.producers.get(name)
        alone = sum(reader.op == "concat" for reader in self.consumers[name]) == 1 and name not in self.graph.outputs
        return alone and node is not None and node.op not in BORDERS and self.graph.types[name].dtype == COMPUTE

    def unwritten(self) -> set[str]:
        """Concatenations a part of which no root's chain has reached."""
        return {whole for name, (whole, _) in self.placed.items() if self.absorbed.get(name) != whole}

    def views(self) -> Views:
        return Views(self.graph, frozenset(self.stored), self.placed)

    def _store(self, stage: FusionGroup) -> None:
        self.found.append(stage)
        self.stored.add(stage.stored)

    def stages(self) -> list[FusionGroup]:
        for node in reversed(self.graph.nodes):
            if registry.get(node.op).kind in ROOT_KINDS:
                self._root(node)
        while sum(map(self._decide, reversed(self.graph.nodes))):
            pass  # what is stored now may hide what views, read in place, showed
        return self.found

    def _decide(self, node: Node) -> bool:
        """Store what ``node`` computes, where it has to be; whether it was a movement's."""
        name = node.outputs[0]
        if stored := name not in self.absorbed and self._must_store(node):
            self._store(FusionGroup(name, None, (node,)))
            self.absorbed[name] = name
        self.depth[name] = 0 if stored else self.depth.get(name, 0) if name in self.absorbed else self._depth(node)
        return stored and registry.get(node.op).kind == "movement"

    def _depth(self, node: Node) -> int:
        return 1 + max((self.depth.get(r.outputs[0], 0) for r in self.consumers[node.outputs[0]]), default=0)

    def _chain(self, root: Node) -> Iterator[list[Node]]:
        """What follows ``root`` in its stage, step by step."""
        bare = not self.epilogues and is_template(root, self.graph)
        name, steps, length, last = root.output, 1, 0, ""
        while self.enabled and root.op != "recurrence" and last not in (*BORDERS, "concat") and length < DEEPEST:
            following, steps = self._following(name, steps)
            if not following or (bare and registry.get(following[-1].op).kind == "elementwise"):
                break
            yield following
            name, last, length = following[-1].output, following[-1].op, length + len(following)

    def _scatters(self, root: Node, chain: list[Node]) -> bool:
        """Whether the neighbours that a template stores at once, many, would lie far from one another behind ``chain``,
        for others to read: then squares of what it has stored are transposed in registers."""
        kind, last = self.graph.types[root.output], chain[-1]
        if not is_template(root, self.graph) or kind.shape[-1] < MANY or kind.size < LARGE or last.op == "concat":
            return False
        return last.output not in self.graph.outputs and apart_behind(root, chain, self.graph.types) >= FAR

    def _root(self, node: Node) -> None:
        chain = [one for following in self._chain(node) for one in following]
        while any(one.op == "transpose" for one in chain) and self._scatters(node, chain):
            while chain.pop().op != "transpose":
                pass
        name = chain[-1].output if chain else node.output
        while chain and chain[-1].op == "dequantize" and not self._wanted_dequantised(chain[-1].output):
            name = chain.pop().inputs[0]
        for output in (node.output, *(n.output for n in chain)):
            self.absorbed[output] = name
        self.depth |= {n.output: around for around, n in enumerate(reversed(chain))}
        self._store(FusionGroup(name, node, tuple(chain)))

    def _wanted_dequantised(self, name: str) -> bool:
        """Whether a dequantised tensor has to be stored as such, not as the integers that it stands for."""
        readers = self.consumers[name]
        return name in self.graph.outputs or any(self._needs_storage(name, r, view=False) for r in readers)

    def _following(self, name: str, steps: int) -> tuple[list[Node], int]:
        """What can be computed where ``name`` is produced in so many steps, and consumes it: one node, or the fewest
        elementwise ones of which only the last one's result, no truth value, is read by others; no node where there are
        no such. Then the steps to that result."""
        if name in self.placed:
            joins = next(reader for reader in self.consumers[name] if reader.op == "concat")
            whole = self.producers[self.placed[name][0]]
            return [joins] if joins is whole else [joins, whole], steps
        cost, found = {name: steps}, dict[str, Node]()
        while len(found) <= MOST_STEPS:
            waiting = [[r for r in self.consumers[n] if r.outputs[0] not in found] for n in cost]
            ends = [*cost][-1]
            if found and not any(waiting[:-1]) and self.graph.types[ends].dtype in SIDE_BY_SIDE:
                last = cost[ends]
                return ([], steps) if last > max(MOST_STEPS, steps + len(found)) else (list(found.values()), last)
            readers = {r.outputs[0]: r for some in waiting for r in some}
            if not readers or any(n in self.graph.outputs for n in cost):
                break
            node, alone = readers[min(readers, key=self.position.__getitem__)], len(readers) == 1 and not found
            if len(node.outputs) != 1 or node.output in self.absorbed or not self._follows(name, node):
                break
            if not alone and registry.get(node.op).kind != "elementwise":
                break
            found[node.output] = node
            cost[node.output] = 1 + sum(cost.get(n, 0) for n in node.inputs)
        return [], steps

    def _follows(self, name: str, node: Node) -> bool:
        """Whether ``node`` can be computed where ``name``, which only it reads, is produced."""
        definition = registry.get(node.op)
        out, mine = self.graph.types[node.output], self.graph.types[name]
        if node.op in BORDERS:
            return self._is_border(node)
        if definition.kind == "movement" and definition.forward is not None:
            return True
        fits = definition.kind == "elementwise" and out.shape == mine.shape and out.dtype in (*SIDE_BY_SIDE, "bool")
        return fits and self._in_lanes(node)

    def _in_lanes(self, node: Node) -> bool:
        """Whether vectors are computed as ``node`` says: floats, words in few ways, others as what floats become."""
        out = self.graph.types[node.output].dtype
        if out == WORD:
            return node.op in IN_WORDS
        of_floats = node.op == "cast" and self.graph.types[node.inputs[0]].dtype == COMPUTE
        return out not in SHORT or of_floats or node.op in ("quantize", "lookup")

    def _is_border(self, pad: Node) -> bool:
        """Whether ``pad`` puts constants around an image that a convolution reads, around all channels alike."""
        if not fills_border(pad.op, pad.attrs) or len(widths := integers(pad.attrs, "before")) != 4:
            return False
        kept = (*widths[::3], *integers(pad.attrs, "after")[::3])
        readers = self.consumers[pad.output]
        return not any(kept) and any(r.op == "conv" and r.inputs[0] == pad.output for r in readers)

    def _must_store(self, node: Node) -> bool:
        name = node.outputs[0]
        if name in self.graph.outputs or not self.enabled or self._depth(node) > DEEPEST:
            return True
        if registry.get(node.op).kind in ("movement",) and self._is_view(name):
            return any(self._needs_storage(name, reader, view=True) for reader in self.consumers[name])
        readers = self.consumers[name]
        if not self._is_dequantised(node):
            if self._in_places(readers) > 1 and not self._is_light(node):
                return True
            evaluated = len(list(self._evaluated(readers)))
            if evaluated > 1 and evaluated * self._steps(node) > MOST_STEPS:
                return True
            times = [self._times(r, name) for r in readers]
            again = sum(times) * self._steps(node) > MOST_AGAIN
            if registry.get(node.op).kind == "elementwise" and max(times, default=1) > 1 and again:
                return True
        return any(self._needs_storage(name, reader, view=False) for reader in readers)

    def _times(self, reader: Node, name: str) -> int:
        """How often ``reader`` shows an element of ``name``: in windows that overlap, picked again and again as of an
        image that is enlarged, or spread by an expansion or for a reduction."""
        moved, size = reader.outputs[0], max(1, self.graph.types[name].size)
        if reader.op in ("windows", "gather"):
            return max(1, self.graph.types[moved].size // size) if name == reader.inputs[0] else 1
        if moved in self.absorbed:
            return 1
        if registry.get(reader.op).kind == "elementwise" and not self._is_dequantised(reader):
            reduced = all(registry.get(r.op).kind == "reduction" for r in self.consumers[moved])
            return self.graph.types[moved].size // size if reduced else 1
        if registry.get(reader.op).kind != "movement" and not self._is_dequantised(reader):
            return 1
        again = self.graph.types[moved].size // size if reader.op == "expand" else 1
        return again * max((self._times(r, moved) for r in self.consumers[moved]), default=1)

    def _in_places(self, readers: Iterable[Node]) -> int:
        """In how many stages ``readers`` are evaluated."""
        return len({self.absorbed.get(name, name) for name in self._evaluated(readers)})

    def _evaluated(self, readers: Iterable[Node]) -> Iterator[str]:
        """Where ``readers`` are evaluated, once for each time: what is neither stored nor moved, or is dequantised,
        wherever it is read."""
        for reader in readers:
            name = reader.outputs[0]
            moves = registry.get(reader.op).kind == "movement" and not self._is_dequantised(reader)
            if name in self.absorbed or moves:
                yield name
            else:
                yield from self._evaluated(self.consumers[name])

    def _steps(self, node: Node, most: int = MOST_STEPS) -> int:
        """Operators that evaluate ``node`` where it is read, should nothing of it be stored; any number over ``most``
        where there are more."""
        steps = 1
        for inner in (self.producers[n] for n in node.inputs if n in self.producers and n not in self.absorbed):
            if steps > most:
                break
            steps += self._steps(inner, most - steps)
        return steps

    def _is_light(self, node: Node) -> bool:
        """Whether it takes less to evaluate ``node`` in several places than to store it and read it there: one sum or
        product of a tensor that is stored and of small ones."""
        if node.op not in LIGHT:
            return False
        size = self.graph.types[node.output].size
        large = [n for n in node.inputs if self.graph.types[n].size * SMALL > size]
        return len(large) == 1 and (large[0] in self.absorbed or large[0] in self.graph.inputs)

    def _is_dequantised(self, node: Node) -> bool:
        """Whether ``node`` shows a dequantised tensor, which is computed wherever it is read."""
        if node.op == "dequantize":
            return True
        moves = registry.get(node.op).kind == "movement" and len(node.inputs) == 1
        return moves and node.inputs[0] in self.producers and self._is_dequantised(self.producers[node.inputs[0]])

    def _is_view(self, name: str) -> bool:
        """Whether ``name`` only re-indexes a tensor that is stored (or will be, as its producer is no movement, or puts
        together what is evaluated in several places)."""
        shown = name
        while not self.graph.is_constant(name) and name not in self.graph.inputs:
            node = self.producers[name]
            if name in self.absorbed:
                return True
            if registry.get(node.op).kind != "movement" or len(node.inputs) != 1:
                joined = node.op == "concat" and name != shown
                return (joined and self._in_places(self.consumers[name]) > 1) or self._from_integers(name)
            name = node.inputs[0]
        return True

    def _needs_storage(self, name: str, reader: Node, view: bool) -> bool:
        """Whether ``reader`` cannot, or should not, evaluate virtual ``name`` itself."""
        kind = registry.get(reader.op).kind
        if kind == "contraction" and is_template(reader, self.graph):
            if reader.op == "conv":
                return not (view and name == reader.inputs[0] and self._image_view(name))
            if reader.op == "attention" and name not in reader.inputs[:3]:
                return not view and self._from_integers(name)
            return not (view and self._matrix_view(name, reader))
        if kind == "row" and view and not self._side_by_side(name):
            return True
        if kind in ("row", "contraction"):
            below = reader.op in ("recurrence", "cumulative")
            return not (view and (not is_template(reader, self.graph) or self._rows_view(name, below)))
        if kind == "reduction":
            return False
        return self._from_integers(name)

    def _from_integers(self, name: str) -> bool:
        """A float tensor computed from integers or bools: stored, so that its float readers stay vectors."""
        node = self.producers[name]
        if self.graph.types[name].dtype != COMPUTE or registry.get(node.op).kind != "elementwise":
            return False
        return any(n and self.graph.types[n].dtype not in SIDE_BY_SIDE for n in node.inputs)

    def _matrix_view(self, name: str, reader: Node) -> bool:
        """Whether a contraction can read view ``name`` in place: unit stride along rows and columns of one tensor."""
        views = self._views_of(name)
        walks = contraction_axes(reader, name, self.graph.types)
        found = [unit_stride(views.element(name, w.index), w) for w in walks]
        if reader.op == "matmul" and name == reader.inputs[1]:  # its panels may end in the middle of a column block
            return all(f is not None and isinstance(f[2], Const) and self._aligned(f[2]) for f in found)
        packed = reader.op == "bytes_matmul" and name != reader.inputs[0]
        return all(f is not None and (packed or self._aligned(f[2])) for f in found)

    def _aligned(self, column: Expr) -> bool:
        """Whether a view's first column is a multiple of what templates need."""
        terms, constant = linear(column)
        return all(k % self.column_multiple == 0 for k in (*terms.values(), constant))

    def _views_of(self, name: str) -> Views:
        """What is stored so far, and what ``name`` shows."""
        stored = frozenset(self.stored) | frozenset(
            n for n in self.producers if n in self.absorbed and self.absorbed[n] == n
        )
        return Views(self.graph, stored | self._future(name), self.placed)

    def _image_view(self, name: str) -> bool:
        """Whether a convolution can read view ``name`` in place."""
        return ImageView.of(self._views_of(name), name) is not None

    def _side_by_side(self, name: str) -> bool:
        """Whether neighbours along the last axis of a view lie side by side, or are not many."""
        kind = self.graph.types[name]
        return kind.rank == 0 or kind.shape[-1] < MANY or kind.size < LARGE or side_by_side(self._views_of(name), name)

    def _rows_view(self, name: str, below: bool) -> bool:
        """Whether the rows of view ``name`` can be read in place; ``below``: one below the other."""
        found = RowsView.of(self._views_of(name), name)
        return found is not None and not (below and found.beside)

    def _future(self, name: str) -> frozenset[str]:
        """Walk up the movements to the tensor this view shows."""
        while name in self.producers and name not in self.absorbed:
            node = self.producers[name]
            if registry.get(node.op).kind != "movement":
                break
            name = node.inputs[0]
        return frozenset({name})


def _order(stages: list[FusionGroup], graph: Graph) -> tuple[FusionGroup, ...]:
    """As their last nodes stand in the model, whose order respects dependencies."""
    position = {n.outputs[0]: i for i, n in enumerate(graph.nodes)}
    ordered = sorted(stages, key=lambda s: position[s.own])
    first = {stage.stored: stage.own for stage in reversed(ordered)}
    return tuple(replace(stage, first=first[stage.stored] == stage.own) for stage in ordered)
