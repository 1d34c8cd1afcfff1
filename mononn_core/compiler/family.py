"""A family: one network at several shapes as one artifact, with one copy of the packed constants and one arena.

Every specialisation takes the road of a network alone, so that it runs as fast as that. Packed constants of the same
values in the same layout are stored once, whichever specialisation came with them first.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from mononn_core.compiler.cpu import lower_imported
from mononn_core.compiler.padding import Axes, KnownValues, Padding
from mononn_core.compiler.pool import Pool
from mononn_core.errors import MononnError, OptionError
from mononn_core.graph import Graph
from mononn_core.importer.reader import Imported, declared_inputs
from mononn_core.machine import Machine
from mononn_core.options import Options
from mononn_core.runtime.artifact import Artifact
from mononn_core.runtime.base import elements_of, words_of
from mononn_core.runtime.toolchain import Compiled, compile_host

Shapes = Mapping[str, tuple[int, ...]]
MOST = 256
"""Specialisations of one artifact."""
MOST_PROVEN, MOST_NODES = 32, 1 << 14
"""Shorter lengths of an axis than one that is compiled which are looked at, each a Graph of its own: so many, and more
while these Graphs have no more nodes together."""


def build_family(model: Imported, shapes: Sequence[Shapes], options: Options, machine: Machine) -> Artifact:
    """One artifact with a specialisation for each of ``shapes``, in their order.

    Raises:
        OptionError: no shapes, too many, the same twice, or another target than a CPU.
        ModelError, ShapeError, UnsupportedError: the model cannot be compiled at one of the shapes; the message says at
            which.
        ToolchainError: there is no C++ compiler, or it refused the source.
    """
    _check(shapes, options)
    pool, code, bounds = Pool(), dict[int, Future[Compiled]](), KnownValues()
    manifests, texts = dict[int, dict[str, Any]](), dict[str, str]()
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as compilers:
        # the largest first, since panels that suit many rows serve few ones as well
        for index in sorted(range(len(shapes)), key=lambda i: -elements_of(shapes[i])):
            try:
                graph = model.graph(shapes[index])
                stages = lower_imported(graph, options, machine, pool=pool, compiler=compilers)
            except MononnError as error:
                raise type(error)(f"at {words_of(shapes[index])}: {error}") from error
            assert stages.code is not None
            code[index] = stages.code
            manifests[index] = {**stages.manifest, "shorter": _shorter(model, graph, shapes, bounds)}
            texts |= {f"{name}:{index}" if index else name: text for name, text in stages.texts.items()}
    compiled = [code[index].result() for index in range(len(shapes))]
    for index, about in manifests.items():
        about |= {"compile_command": compiled[index].command, "weight_bytes": pool.nbytes}
    features = {feature for about in manifests.values() for feature in about["machine"]["features"]}
    first = manifests[0]
    first |= {"machine": {**first["machine"], "features": sorted(features)}}
    others = (manifests[index].items() for index in range(1, len(shapes)))
    further = [{key: value for key, value in about if key != "machine" and value != first[key]} for about in others]
    about = {**first, "further": further} if further else first
    host = compile_host(machine).code
    return Artifact(about, compiled[0].code, host, pool.pack(), texts, further=tuple(c.code for c in compiled[1:]))


def _check(shapes: Sequence[Shapes], options: Options) -> None:
    if options.on_gpu:
        raise OptionError(f"a file of several shapes is a CPU's, the target is {options.target}; compile one a shape")
    if not 1 <= len(shapes) <= MOST:
        raise OptionError(f"{len(shapes)} shapes are given for one file; give 1 to {MOST}")
    seen: dict[tuple[tuple[str, tuple[int, ...]], ...], int] = {}
    for number, given in enumerate(shapes, 1):
        key = tuple(sorted((name, tuple(shape)) for name, shape in given.items()))
        if key in seen:
            raise OptionError(f"shapes {seen[key]} and {number} are both {words_of(given)}; give each once")
        seen[key] = number


def _shorter(model: Imported, graph: Graph, shapes: Sequence[Shapes], bounds: KnownValues) -> list[dict[str, Any]]:
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
