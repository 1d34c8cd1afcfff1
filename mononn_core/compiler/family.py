"""A family: one network at several shapes as one artifact, with one copy of the packed constants and one arena.

Every specialisation takes the road of a network alone, so that it runs as fast as that. Packed constants of the same
values in the same layout are stored once, whichever specialisation came with them first.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from mononn_core.compiler.cpu import lower_imported
from mononn_core.compiler.pool import Pool
from mononn_core.compiler.shorter import Proofs, Shapes
from mononn_core.errors import MononnError, OptionError
from mononn_core.importer.reader import Imported
from mononn_core.machine import Machine
from mononn_core.options import Options
from mononn_core.runtime.artifact import Artifact
from mononn_core.runtime.base import elements_of, words_of
from mononn_core.runtime.toolchain import Compiled, compile_host

MOST = 256
"""Specialisations of one artifact."""


def build_family(model: Imported, shapes: Sequence[Shapes], options: Options, machine: Machine) -> Artifact:
    """One artifact with a specialisation for each of ``shapes``, in their order.

    Raises:
        OptionError: no shapes, too many, the same twice, or another target than a CPU.
        ModelError, ShapeError, UnsupportedError: the model cannot be compiled at one of the shapes; the message says at
            which.
        ToolchainError: there is no C++ compiler, or it refused the source.
    """
    _check(shapes, options)
    sizes = [elements_of(one) for one in shapes]
    pool, code = Pool(smallest=min(sizes) / max(*sizes, 1)), dict[int, Future[Compiled]]()
    manifests, texts = dict[int, dict[str, Any]](), dict[str, str]()
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as compilers, Proofs(model, shapes) as proofs:
        # the largest first, since panels that suit many rows serve few ones as well
        for index in sorted(range(len(shapes)), key=lambda i: -sizes[i]):
            try:
                graph = model.graph(shapes[index])
                stages = lower_imported(graph, options, machine, pool=pool, compiler=compilers)
            except MononnError as error:
                error.args = (f"at {words_of(shapes[index])}: {error}",)
                raise
            assert stages.code is not None
            code[index] = stages.code
            manifests[index] = stages.manifest
            texts |= {f"{name}:{index}" if index else name: text for name, text in stages.texts.items()}
        proven = proofs.found()
    compiled = [code[index].result() for index in range(len(shapes))]
    for index, about in manifests.items():
        about |= {"shorter": proven[index], "compile_command": compiled[index].command, "weight_bytes": pool.nbytes}
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
