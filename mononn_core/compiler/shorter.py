"""Which other shapes a specialisation of a family may be given: fewer entries of a batch, or shorter sequences."""

from __future__ import annotations

import contextlib
import gc
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mononn_core.compiler.padding import Axes, KnownValues, Padding
from mononn_core.errors import MononnError
from mononn_core.graph import Graph
from mononn_core.importer.reader import Imported, declared_inputs

Shapes = Mapping[str, tuple[int, ...]]
Replacements = list[dict[str, Any]]
MOST_PROVEN, MOST_NODES = 32, 1 << 14
"""Shorter lengths of an axis than one that is compiled which are looked at, each a Graph of its own: so many, and more
while these Graphs have no more nodes together."""
BESIDE = 2000
"""Nodes of all specialisations from which on a process of its own proves."""
PROVER = "import sys; sys.path[:] = {!r}; from mononn_core.compiler.shorter import main; main()"


class Proofs:
    """What may be given in place of each of ``shapes``: found by a process beside this one while specialisations are
    compiled, where the model is a file and large, or when :meth:`found` is called."""

    def __init__(self, model: Imported, shapes: Sequence[Shapes]) -> None:
        self._model, self._shapes = model, list(shapes)
        self.prover: subprocess.Popen[bytes] | None = None
        large = len(shapes) > 1 and len(shapes) * len(model.model.graph.node) >= BESIDE
        python = Path(sys.executable or "").name.startswith(("python", "pypy"))  # else an application's own program
        if model.path is not None and large and python:
            self._start([str(model.path.absolute()), self._shapes])

    def _start(self, given: Any) -> None:
        command = [sys.executable, "-c", PROVER.format(sys.path)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        with contextlib.suppress(OSError):  # it cannot be run, or has ended already
            self.prover = subprocess.Popen(command, **pipes)  # type: ignore[call-overload]
            assert self.prover is not None and self.prover.stdin is not None
            with self.prover.stdin as stream:
                stream.write(json.dumps(given).encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.prover is not None:
            self.prover.kill()
            self.prover.wait()

    def found(self) -> list[Replacements]:
        """Of each of the shapes."""
        if self.prover is not None:
            assert self.prover.stdout is not None
            said = self.prover.stdout.read()
            if self.prover.wait() == 0:
                return list(json.loads(said))
        return prove(self._model, self._shapes)


def main() -> None:
    """A process beside: a model's path and shapes on standard input, what is found on standard output."""
    gc.disable()
    path, shapes = json.load(sys.stdin)
    given = [{name: tuple(shape) for name, shape in each.items()} for each in shapes]
    json.dump(prove(Imported(path), given), sys.stdout)


def prove(model: Imported, shapes: Sequence[Shapes]) -> list[Replacements]:
    """What may be given in place of each of ``shapes``."""
    bounds = KnownValues()
    return [in_place_of(model, model.graph(given), shapes, bounds) for given in shapes]


def in_place_of(model: Imported, graph: Graph, shapes: Sequence[Shapes], bounds: KnownValues) -> Replacements:
    """What may be given in place of the shapes of ``graph``: fewer entries of a batch, which all inputs have along
    their first axis, or shorter sequences, along the longest of the other axes that the model leaves open."""
    whole = {name: graph.types[name].shape for name in graph.inputs}
    open_axes = [
        (name, axis) for name, (_, dims) in declared_inputs(model.model).items() if name in whole
        for axis, dim in enumerate(dims) if axis and isinstance(dim, str)
    ]  # fmt: skip
    longest = max((whole[name][axis] for name, axis in open_axes), default=0)
    sequence: dict[str, tuple[int, ...]] = {}
    for name, axis in open_axes:
        if whole[name][axis] == longest:
            sequence[name] = (*sequence.get(name, ()), axis)
    found = []
    if whole and all(whole.values()) and len({shape[0] for shape in whole.values()}) == 1:
        found.append(_least(model, graph, shapes, dict.fromkeys(whole, (0,)), bounds))
    if sequence:
        found.append(_least(model, graph, shapes, sequence, bounds))
    return [about for about in found if about is not None]


def _least(
    model: Imported, graph: Graph, shapes: Sequence[Shapes], axes: Axes, bounds: KnownValues
) -> dict[str, Any] | None:
    """The shortest length of ``axes`` that is proven to run as the first elements of those of ``graph``, down to the
    next shorter one of ``shapes``, with the axes of inputs and outputs; None where there is none."""
    whole = {name: graph.types[name].shape for name in graph.inputs}
    first = next(iter(axes))
    length = whole[first][axes[first][0]]
    padding, about = Padding(graph, axes, bounds), None
    most = max(MOST_PROVEN, MOST_NODES // max(len(graph.nodes), 1))
    for few in range(length - 1, max(length - most, 1) - 1, -1):
        smaller = {n: tuple(few if a in axes.get(n, ()) else e for a, e in enumerate(s)) for n, s in whole.items()}
        if any(given.items() <= smaller.items() for given in shapes):
            break
        try:
            short = model.graph(smaller)
        except MononnError:  # the model is of this length alone
            break
        ends = padding.ends(short)
        if ends is None or (about and about["outputs"] != ends):
            break
        if any(graph.types[n].shape[a] != length or short.types[n].shape[a] != few for n in ends for a in ends[n]):
            break
        about = {"inputs": axes, "outputs": ends, "length": length, "least": few}
    return about
