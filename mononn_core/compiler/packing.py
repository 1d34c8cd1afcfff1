"""What both targets put into an artifact: packed constants, and what it says of the network and its phases."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import prod
from typing import Any

import numpy as np

from mononn_core.codegen.storage import Storage
from mononn_core.element import HALF_WORD, LEFT, itemsize
from mononn_core.graph import TensorType
from mononn_core.options import Options
from mononn_core.program import abi
from mononn_core.program.ir import Barrier, Buffer, Phase, Program
from mononn_core.program.rules import depends, phases_with_loops
from mononn_core.program.template import get, operand
from mononn_core.program.traffic import Traffic, traffic
from mononn_core.runtime.artifact import Unpacked
from mononn_core.version import VERSION


def pack_weights(program: Program, weights: Mapping[str, np.ndarray]) -> Unpacked:
    """All constants in the layouts the Program reads them in."""
    return pack([(b, weights[b.id]) for b in program.buffers if b.space == "weight"], program.weight_bytes)


def pack(stored: Sequence[tuple[Buffer, np.ndarray]], nbytes: int) -> Unpacked:
    """Placed buffers and their values as ``nbytes`` bytes."""

    def fill(blob: memoryview) -> None:
        flat = np.frombuffer(blob, np.uint8)
        parts = [(flat[b.offset : b.offset + b.nbytes].view(b.dtype), b, value) for b, value in stored]
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
            for _ in threads.map(_pack, *zip(*parts, strict=True)):
                pass

    return Unpacked(nbytes, fill)


def _pack(flat: np.ndarray, buffer: Buffer, value: np.ndarray) -> None:
    """Write a logical array into its layout: a strided view with one axis a factor."""
    factors = [f for dim in buffer.layout.dims for f in dim]
    padded = [prod(f for f, _ in dim) for dim in buffer.layout.dims]
    view = np.lib.stride_tricks.as_strided(
        flat, [f for f, _ in factors], [s * flat.itemsize for _, s in factors], writeable=True
    )
    widen = [(0, p - n) for p, n in zip(padded, value.shape, strict=True)]
    view[...] = (np.pad(value, widen) if np.any(widen) else value).reshape(view.shape)


def describe_program(program: Program, types: Mapping[str, TensorType], options: Options) -> dict[str, Any]:
    """A manifest's part that is the same for all targets; ``types`` are those of the inputs and outputs."""
    phases = list(_phases(program))
    edges = {
        kind: [{"name": n, "dtype": types[n].dtype, "shape": list(types[n].shape)} for n in names]
        for kind, names in (("inputs", program.inputs), ("outputs", program.outputs))
    }
    return {
        "name": program.name,
        **edges,
        "mononn_version": VERSION,
        "abi_version": abi.ABI_VERSION,
        "target": options.target,
        "precision": options.precision,
        "launch": options.launch,
        "arena_bytes": program.arena_bytes,
        "counters": sum(prod(c.shape) for c in program.counters),
        "weight_bytes": program.weight_bytes,
        "barriers": sum(isinstance(i, Barrier) for i, _ in program.trace()),
        "flops": sum(p["flops"] for p in phases),
        "bytes": sum(p["bytes"] for p in phases),
        "phases": phases,
    }


def _phases(program: Program) -> Iterator[dict[str, Any]]:
    """Executed phases in order, with what ``mononn inspect`` and ``mononn trace`` tell of them."""
    waited, storage = False, Storage(program)
    total, read = 0, dict[tuple[str, ...], int]()
    known = dict[object, Traffic]()  # once for a loop's rounds that name buffers in the same pattern
    moving = {p.id: loop is not None and depends(p, loop.var) for p, loop in phases_with_loops(program)}
    for item, loop in program.trace():
        if isinstance(item, Barrier):
            waited = True
            continue
        names = [program.resolve(o.buffer, loop) for o in item.task.operands]
        key = (item.id, *map(names.index, names), *(loop.values() if moving[item.id] else ()))
        if key not in known:
            known[key] = traffic(program, item, loop)
        moved = known[key]
        constants = (item.id, *(name for name, o in zip(names, item.task.operands, strict=True) if o.stable))
        since, total = total - read.get(constants, total), total + moved.constants + moved.activations
        read[constants] = total - moved.constants
        origin = item.origin_in(loop)
        yield {
            "id": item.name_in(loop),
            "origin": str(origin[0]) if origin else "",
            "nodes": list(dict.fromkeys(name for o in origin for name in o.names)),
            "template": item.task.template,
            "tasks": item.tasks,
            "flops": item.flops,
            "bytes": moved.constants,
            "activation_bytes": moved.activations,
            "multiplies": multiplied(storage, item),
            "barrier": waited,
            **({"moved_since": since} if since else {}),
        }
        waited = False


def multiplied(storage: Storage, phase: Phase) -> str:
    """The type that a template's left operand is multiplied in, the wider one of both; "" of a nest. Instructions take
    bytes without a sign on the left: whichever side has them, and though the left one be stored as words."""
    template = get(phase.task.template)
    types = [storage.buffer(operand(phase.task, role).buffer).dtype for role in template.roles[:2]]
    types[:1] = [template.rounded] if template.rounded else types[:1]
    widest = max(types, key=itemsize, default="")
    return LEFT.get(types[-1] if widest == HALF_WORD else widest, widest)
