"""The road to a CPU: passes, a schedule for one processor, one C++ source, one shared object."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from mononn_core.codegen.cpu import print_program
from mononn_core.codegen.cpu_storage import CpuTemplate
from mononn_core.codegen.storage import Storage
from mononn_core.compiler.packing import describe_program, multiplied, pack_weights
from mononn_core.compiler.pool import Pool
from mononn_core.compiler.proof import prove
from mononn_core.compiler.stages import Stages
from mononn_core.decide.cpu import CpuScheduler
from mononn_core.element import COMPUTE, PRECISIONS
from mononn_core.errors import OptionError, UnsupportedError
from mononn_core.graph import Graph, TensorType
from mononn_core.lower.cpu import lower
from mononn_core.machine import LOOKUPS, Machine
from mononn_core.options import Options
from mononn_core.passes import pipeline
from mononn_core.program.expr import LookupTable, walk
from mononn_core.program.ir import Program
from mononn_core.program.rules import expressions
from mononn_core.program.template import get
from mononn_core.runtime.artifact import Artifact
from mononn_core.runtime.toolchain import Compiled, compile_host, compile_shared
from mononn_core.schedule.groups import CpuGroups
from mononn_core.schedule.schedule import Schedule
from mononn_core.version import VERSION

PROOF = 4
"""Times the bytes of a stored tensor that it and its proof take, about: of a word who wrote it, as what, and who has
read it."""


def _memory() -> int:
    """Bytes that this process may have."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    here = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return here if limit == resource.RLIM_INFINITY else min(here, limit)


@dataclass(frozen=True)
class CpuStages(Stages[Schedule]):
    """The road to ``machine``. ``modelled``: phase -> seconds by the cost model; ``code``: the shared object, where its
    compiler was started already.
    """

    machine: Machine
    modelled: Mapping[str, float]
    code: Future[Compiled] | None = field(default=None, repr=False, compare=False)

    @cached_property
    def manifest(self) -> dict[str, Any]:
        about = manifest(self.program, self.optimized.types, self.options, self.machine)
        for phase in about["phases"]:
            if (seconds := self.modelled.get(phase["id"].partition("[")[0])) is not None:
                phase["modelled_seconds"] = seconds
        return about

    def build(self) -> Artifact:
        program, weights = self.program, self.lowered.weights
        return assemble(program, weights, self.source, self.manifest, self.machine, self.texts, self.code)


def lower_imported(
    graph: Graph,
    options: Options,
    machine: Machine,
    schedule: Schedule | None = None,
    pool: Pool | None = None,
    compiler: Executor | None = None,
) -> CpuStages:
    """From an imported Graph on: passes, schedule (or the one given), source, proof.

    Args:
        pool: of constants that other specialisations have, and that this one's are to be placed in.
        compiler: begins to compile the source while the Program is proven.

    Raises:
        UnsupportedError: there is no form for an operator, or no memory for the network.
    """
    try:
        return _lowered(graph, options, machine, schedule, pool, compiler)
    except MemoryError as error:
        most = max((t.nbytes for t in graph.types.values()), default=0)
        raise UnsupportedError(
            f"there is no memory to compile {graph.name!r}, whose largest tensor takes {most >> 20} MiB; use smaller "
            "shapes"
        ) from error


def rounding(options: Options, machine: Machine) -> str:
    """The rule for left sides of products by quantised weights (:mod:`mononn_core.passes.weight_only`).

    Raises:
        OptionError: bytes are asked for, and the machine multiplies none.
    """
    if machine.product("uint8") is not None:
        return COMPUTE if options.activations == "fp32" else options.activations
    if options.activations.startswith("int"):
        raise OptionError("this processor multiplies no bytes, so that fp32 is faster; compile with activations fp32")
    return COMPUTE


def groups_of(optimized: Graph, options: Options, machine: Machine, pool: Pool | None = None) -> CpuGroups:
    """The groups of an optimised Graph, in the forms that ``machine`` takes."""
    in_floats = not machine.faster_than_floats(PRECISIONS[options.precision])
    graph = pipeline.prepare(optimized, options.target, in_floats)
    shared = pool or Pool()
    return CpuGroups(graph, options, machine, shared.panels, shared.smallest)


def _lowered(
    graph: Graph,
    options: Options,
    machine: Machine,
    schedule: Schedule | None,
    pool: Pool | None,
    compiler: Executor | None,
) -> CpuStages:
    optimized = pipeline.run(graph, options.target, rounding(options, machine))
    groups = groups_of(optimized, options, machine, pool)
    if max((groups.graph.types[name].nbytes for name in groups.views.stored), default=0) * PROOF > _memory():
        raise MemoryError
    scheduler = CpuScheduler(groups)
    alone = lower(groups, scheduler.legal(schedule))
    lowered = pool.place(alone, groups) if pool is not None else alone
    chosen = f"target {options.target}, precision {options.precision}, threads {options.threads}, {machine.level}"
    comment = f"mononn {VERSION}, {chosen}"
    source = print_program(lowered.program, comment, options.launch)
    code = compiler.submit(compile_program, lowered.program, source, machine) if compiler is not None else None
    prove(alone.program, schedule is not None)
    modelled = scheduler.modelled(lowered.schedule)
    return CpuStages(graph, optimized, lowered, source, options, machine, modelled, code)


def assemble(
    program: Program,
    weights: Mapping[str, np.ndarray],
    source: str,
    about: Mapping[str, Any],
    machine: Machine,
    texts: Mapping[str, str],
    code: Future[Compiled] | None = None,
) -> Artifact:
    """Compile a Program's ``source``, or take the ``code`` that is being made of it; ``about`` is its
    :func:`manifest`."""
    compiled = code.result() if code is not None else compile_program(program, source, machine)
    packed = pack_weights(program, weights)
    about = {**about, "compile_command": compiled.command}
    return Artifact(about, compiled.code, compile_host(machine).code, packed, texts)


def compile_program(program: Program, source: str, machine: Machine) -> Compiled:
    """The shared object of a Program's ``source``."""
    more = (f"-m{feature}" for feature in sorted(product_features(program, machine)))
    flags = (f"-DMONONN_VECTOR_BYTES={machine.vector_bytes}", f"-DMONONN_STREAMS={int(machine.streams)}", *more)
    return compile_shared(source, machine=machine, extra_flags=flags)


def product_features(program: Program, machine: Machine) -> frozenset[str]:
    """Features beyond a machine's level whose instructions the Program's products and lookups are made of."""
    storage, needed = Storage(program), frozenset[str]()
    for phase in program.phases():
        kind, tiled = multiplied(storage, phase), phase.task.params.get("tile_groups", 0)
        for found in (machine.product(kind), machine.tiles(kind) if tiled else None):
            needed |= found.needs if found is not None else frozenset()
        template = get(phase.task.template)
        gathers = isinstance(template, CpuTemplate) and template.gathers_bytes(phase.task)
        if gathers or any(isinstance(n, LookupTable) for e in expressions(phase) for n in walk(e)):
            needed |= LOOKUPS & machine.features if machine.vector_bytes == 64 else frozenset()
    return needed - machine.level_features


def manifest(program: Program, types: Mapping[str, TensorType], options: Options, machine: Machine) -> dict[str, Any]:
    """What an artifact of ``program`` says about itself; ``types`` are those of its inputs and outputs."""
    return {
        **describe_program(program, types, options),
        "machine": {
            "arch": machine.arch,
            "features": sorted(machine.level_features | product_features(program, machine)),
            "vector_bytes": machine.vector_bytes,
            "streams": machine.streams,
            "level": machine.level,
        },
        "threads": options.threads,
        "scratch_bytes": program.scratch_bytes,
    }
