"""The road from an ONNX file to a Session, one visible step after the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from mononn_core import __version__
from mononn_core.codegen.cpu import print_program
from mononn_core.codegen.cpu_storage import worker_bytes
from mononn_core.graph import Graph, TensorType
from mononn_core.graph.text import to_text as graph_text
from mononn_core.importer import load as import_model
from mononn_core.machine import Machine
from mononn_core.options import Options
from mononn_core.passes import pipeline
from mononn_core.program import abi
from mononn_core.program.text import to_text as program_text
from mononn_core.program.tile import Barrier, Buffer, Phase, Program
from mononn_core.program.verify import verify
from mononn_core.runtime.artifact import Artifact
from mononn_core.runtime.session import Session
from mononn_core.runtime.toolchain import compile_host, compile_shared
from mononn_core.schedule.lower import Lowered
from mononn_core.schedule.lower import lower as lower_graph
from mononn_core.schedule.prefetch import prefetch_weights

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Stages:
    """Every value on the road: the imported and the optimised Graph, the Program with its constants, the source."""

    graph: Graph
    optimized: Graph
    lowered: Lowered
    source: str
    options: Options
    machine: Machine

    @property
    def program(self) -> Program:
        return self.lowered.program

    @property
    def manifest(self) -> dict[str, Any]:
        """What the artifact says about itself (see :class:`mononn_core.runtime.artifact.Artifact`)."""
        return manifest(self.program, self.optimized.types, self.options, self.machine)


def lower(
    model: str | Path | bytes,
    *,
    target: str = "cpu",
    shapes: Shapes | None = None,
    precision: str = "fp32",
    threads: int = 0,
    machine: Machine | None = None,
    fuse: bool = True,
    epilogues: bool = True,
    prefetch: bool = False,
    launch: str = "once",
) -> Stages:
    """Everything but the machine code.

    Args:
        model: path of an ONNX file, or its bytes.
        target: "cpu".
        shapes: static shape of every input that has a dynamic dimension.
        precision: "fp32".
        threads: workers the schedule is balanced for; 0 for every core of this process.
        machine: the processor compiled for; this one by default.
        fuse, epilogues, prefetch, launch: switches for ablations, see :class:`mononn_core.options.Options`.

    Raises:
        ModelError, ShapeError, UnsupportedError: the model cannot be read or compiled; the message says why.
        OptionError: an option has a value that makes no sense.
    """
    options = Options(target, precision, threads, fuse, epilogues, prefetch, launch)
    return lower_imported(import_model(model, dict(shapes or {})), options, machine or Machine.probe())


def lower_imported(graph: Graph, options: Options, machine: Machine) -> Stages:
    """From an imported Graph on: passes, schedule, proof, source."""
    optimized = pipeline.run(graph)
    lowered = lower_graph(optimized, options, machine)
    if options.prefetch:
        lowered = replace(lowered, program=prefetch_weights(lowered.program))
    verify(lowered.program)
    chosen = f"target {options.target}, precision {options.precision}, threads {options.threads}, {machine.level}"
    comment = f"mononn {__version__}, {chosen}"
    source = print_program(lowered.program, machine.vector_bytes, comment, options.launch)
    return Stages(graph, optimized, lowered, source, options, machine)


def compile(  # noqa: A001 (the name users expect)
    model: str | Path | bytes,
    *,
    target: str = "cpu",
    shapes: Shapes | None = None,
    precision: str = "fp32",
    threads: int = 0,
    machine: Machine | None = None,
    fuse: bool = True,
    epilogues: bool = True,
    prefetch: bool = False,
    launch: str = "once",
) -> Session:
    """Compile an ONNX model into one function and load it; the arguments and errors are :func:`lower`'s.

    Raises:
        ToolchainError: there is no C++ compiler, or it refused the source.
    """
    stages = lower(
        model, target=target, shapes=shapes, precision=precision, threads=threads, machine=machine,
        fuse=fuse, epilogues=epilogues, prefetch=prefetch, launch=launch,
    )  # fmt: skip
    return Session(build(stages))


def build(stages: Stages) -> Artifact:
    """Machine code and packed weights. The same stages give the same bytes."""
    texts = {"graph": graph_text(stages.optimized), "program": program_text(stages.program), "source": stages.source}
    return assemble(stages.lowered, stages.source, stages.manifest, stages.machine, texts)


def assemble(
    lowered: Lowered, source: str, about: Mapping[str, Any], machine: Machine, texts: Mapping[str, str]
) -> Artifact:
    """Compile a Program's ``source`` and pack its constants; ``about`` is its :func:`manifest`."""
    flags = (f"-DMONONN_VECTOR_BYTES={machine.vector_bytes}",)
    compiled = compile_shared(source, machine=machine, extra_flags=flags)
    about = {**about, "compile_command": compiled.command}
    return Artifact(about, compiled.code, compile_host(machine).code, pack_weights(lowered), texts)


def pack_weights(lowered: Lowered) -> memoryview:
    """All constants in the layouts the Program reads them in."""
    blob = np.zeros(lowered.program.weight_bytes, np.uint8)
    for buffer in lowered.program.buffers:
        if buffer.space == "weight":
            part = blob[buffer.offset : buffer.offset + buffer.nbytes].view(buffer.dtype)
            _pack(part, buffer, lowered.weights[buffer.id])
    return blob.data


def _pack(flat: np.ndarray, buffer: Buffer, value: np.ndarray) -> None:
    """Write a logical array into its layout: a strided view with one axis a factor."""
    factors = [f for dim in buffer.layout.dims for f in dim]
    padded = [prod(f for f, _ in dim) for dim in buffer.layout.dims]
    view = np.lib.stride_tricks.as_strided(
        flat, [f for f, _ in factors], [s * flat.itemsize for _, s in factors], writeable=True
    )
    widen = [(0, p - n) for p, n in zip(padded, value.shape, strict=True)]
    view[...] = np.pad(value, widen).reshape(view.shape)


def manifest(program: Program, types: Mapping[str, TensorType], options: Options, machine: Machine) -> dict[str, Any]:
    """What an artifact of ``program`` says about itself; ``types`` are those of its inputs and outputs."""
    phases = list(_phases(program))
    edges = {
        kind: [{"name": n, "dtype": types[n].dtype, "shape": list(types[n].shape)} for n in names]
        for kind, names in (("inputs", program.inputs), ("outputs", program.outputs))
    }
    return {
        "name": program.name,
        "mononn_version": __version__,
        "abi_version": abi.ABI_VERSION,
        "target": options.target,
        "precision": options.precision,
        "machine": {
            "arch": machine.arch,
            "features": sorted(machine.features),
            "vector_bytes": machine.vector_bytes,
            "level": machine.level,
        },
        **edges,
        "threads": options.threads,
        "launch": options.launch,
        "arena_bytes": program.arena_bytes,
        "scratch_bytes": worker_bytes(program, machine.vector_bytes),
        "counters": sum(prod(c.shape) for c in program.counters),
        "weight_bytes": program.weight_bytes,
        "barriers": sum(isinstance(i, Barrier) for i, _ in program.trace()),
        "flops": sum(p["flops"] for p in phases),
        "bytes": sum(p["bytes"] for p in phases),
        "phases": phases,
    }


def _phases(program: Program) -> Any:
    """Executed phases in order, with what ``mononn inspect`` and ``mononn trace`` tell of them."""
    waited = False
    for item, loop in program.trace():
        if isinstance(item, Barrier):
            waited = True
            continue
        suffix = "".join(f"[{i}]" for i in loop.values())
        yield {
            "id": item.id + suffix,
            "origin": str(item.origin[0]) if item.origin else "",
            "template": item.task.template,
            "tasks": item.tasks,
            "flops": item.flops,
            "bytes": _weight_bytes(program, item, loop),
            "barrier": waited,
        }
        waited = False


def _weight_bytes(program: Program, phase: Phase, loop: Mapping[str, int]) -> int:
    """Constants a phase must read at least once; a gather reads no more of a table than its own box is large."""
    total = 0
    for operand in phase.task.operands:
        buffer = program.buffer(program.resolve(operand.buffer, loop))
        if buffer.space == "weight" and phase.task.template != "nest":
            total += prod(buffer.shape) * buffer.itemsize
    return total


__all__ = ["Stages", "assemble", "build", "compile", "lower", "lower_imported", "manifest", "pack_weights"]
