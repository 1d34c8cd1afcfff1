"""Estimated seconds of phases on a GPU: what a streaming multiprocessor moves and computes, waves, barriers.

A phase takes as long as the multiprocessor with most tasks: the slowest of its second-level cache reads, its shared
memory traffic, its tensor cores and its scalar operations, plus one start-up latency for every wave; or as long as the
weights take from memory. The model chooses between schedules and says what to expect; it is never shown as measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil, prod
from typing import Any

from mononn_core.cost.operations import body_operations, expr_operations
from mononn_core.element import itemsize
from mononn_core.gpu import Gpu
from mononn_core.program.ir import Barrier, For, Operand, Phase, Program, Reduce, Statement
from mononn_core.program.rules import matrix_dims
from mononn_core.program.template import get
from mononn_core.program.tensor_core import KINDS

ENOUGH_THREADS = 256
"""Threads of a multiprocessor that hide its latencies."""


@dataclass(frozen=True)
class Constants:
    """What no data sheet says. The defaults are estimates; :mod:`mononn_core.cost.fit` finds others from traces.

    Attributes:
        l2_share: of :attr:`Gpu.l2_bytes_per_second_per_sm`, what a phase gets.
        shared_bytes_per_second: of one multiprocessor's shared memory; the default is 128 bytes a clock.
        tensor_share: of the tensor cores' rate, what ``mma.sync`` reaches.
        few_threads_share: of a multiprocessor's rates, what hardly any threads reach.
        start_seconds: from the first request of a wave's tasks to a full pipeline.
        pass_seconds: every further time that a task waits for what it has just asked for: a row's sum before its
            elements.
        hand_off_seconds: what a barrier costs beside its own latency, since blocks never arrive together.
    """

    l2_share: float = 1.0
    shared_bytes_per_second: float = 200e9
    tensor_share: float = 0.6
    few_threads_share: float = 0.4
    start_seconds: float = 0.7e-6
    pass_seconds: float = 0.3e-6
    hand_off_seconds: float = 0.5e-6


ESTIMATED = Constants()


@dataclass(frozen=True)
class Work:
    """One phase in numbers; everything but ``tasks`` and ``stream_bytes`` (weights from memory) is of one task.

    Attributes:
        read_bytes, written_bytes: through the second-level cache. shared_bytes: between shared memory and registers.
        tensor_flops: on tensor cores, ``kind`` says in which type. operations: scalar instructions of one lane.
        passes: how often the task waits for memory it could not ask for earlier.
    """

    tasks: int
    read_bytes: float
    written_bytes: float = 0.0
    shared_bytes: float = 0.0
    tensor_flops: float = 0.0
    kind: str = "f16"
    operations: float = 0.0
    stream_bytes: float = 0.0
    passes: int = 1

    def seconds(self, gpu: Gpu, threads: int, blocks_per_sm: int, constants: Constants = ESTIMATED) -> float:
        """Time between the barrier before the phase and its last task's end, for blocks of ``threads``."""
        each = ceil(self.tasks / gpu.sms)
        waves = ceil(self.tasks / (gpu.sms * blocks_per_sm))
        rate = gpu.tf32_flops / 3 if self.kind == "tf32x3" else gpu.tensor_flops
        resident = threads * min(blocks_per_sm, each)
        few = constants.few_threads_share
        hidden = min(1.0, few + (1 - few) * resident / ENOUGH_THREADS)
        busy = max(
            (self.read_bytes + self.written_bytes) / (gpu.l2_bytes_per_second_per_sm * constants.l2_share),
            self.shared_bytes / (constants.shared_bytes_per_second * hidden),
            self.tensor_flops / (rate / gpu.sms * constants.tensor_share * hidden),
        )
        busy += self.operations / (gpu.fma_flops / 2 / gpu.sms * hidden)
        return max(each * busy, self.stream_bytes / gpu.bandwidth) + waves * (
            constants.start_seconds + (self.passes - 1) * constants.pass_seconds
        )


def barrier_seconds(gpu: Gpu, constants: Constants = ESTIMATED) -> float:
    """From the first block's arrival at a barrier until all go on."""
    return gpu.barrier_seconds + constants.hand_off_seconds


def predict(program: Program, gpu: Gpu, blocks_per_sm: int, threads: int) -> dict[str, float]:
    """Of one inference: "floor", the seconds that nothing in this precision beats (its weights read once from memory,
    or its products at the tensor cores' full rate), and "seconds", what this module expects, the launch included."""
    weights = sum(b.nbytes for b in program.buffers if b.space == "weight" and b.id in _streamed(program))
    flops, seconds, barriers = 0.0, gpu.launch_seconds, 0
    known: dict[str, float] = {}
    rate = gpu.tensor_flops
    for item, loop in program.trace():
        if isinstance(item, Barrier):
            barriers += 1
            continue
        work = work_of(program, item, loop)
        rate = gpu.tf32_flops / 3 if work.kind == "tf32x3" else rate
        flops += item.flops if _on_tensor_cores(item) else 0.0
        seconds += known.setdefault(item.id, work.seconds(gpu, threads, blocks_per_sm))
    floor = max(weights / gpu.bandwidth, flops / rate)
    return {"floor": floor, "seconds": max(floor, seconds + barriers * barrier_seconds(gpu))}


def _streamed(program: Program) -> set[str]:
    """Weights that a run reads in full: the right-hand sides of products."""
    return {
        program.resolve(o.buffer, loop)
        for item, loop in program.trace()
        if isinstance(item, Phase) and item.task.template != "nest"
        for o in item.task.operands
        if o.stable and o.role == "b"
    }


def work_of(program: Program, phase: Phase, loop: Mapping[str, int]) -> Work:
    """The numbers of one phase as scheduled."""
    buffers = {o.role: program.buffer(program.resolve(o.buffer, loop)) for o in phase.task.operands}
    task, read, written, stream = phase.task, 0.0, 0.0, 0.0
    for o in task.operands:
        nbytes = _volume(o) * buffers[o.role].itemsize
        if buffers[o.role].space == "local":
            continue
        if o.access == "read":
            read += min(nbytes, _touched(phase) * 8)
            stream += buffers[o.role].nbytes if o.stable and o.role == "b" else 0
        else:
            written += nbytes
    flops = phase.flops / phase.tasks if task.template != "nest" else 0.0
    tensor = flops if _on_tensor_cores(phase) else 0.0
    operations = body_operations(task.body) + (flops - tensor) / 2
    passes = 1 + sum(isinstance(s, Reduce) for s in _statements(task.body))
    for r in task.results:
        tile = prod(_tile(phase))
        operations += tile * expr_operations(r.value)
    if task.template == "attention":
        scores = prod(o.box.size[matrix_dims(o.box.size)[0]] for o in task.operands if o.role in ("q", "k"))
        operations += scores * (8 + sum(expr_operations(e) for e in task.prologue.values()))
    shared = 0.0
    if task.template == "matmul":
        shared = product_shared_bytes(task.params, _terms(phase))
    kind = str(task.params.get("kind", "f16"))
    return Work(phase.tasks, read, written, shared, tensor, kind, operations, stream, min(passes, 3))


def product_shared_bytes(params: Mapping[str, Any], terms: int) -> float:
    """Bytes that the warps of a product's task read from shared memory for ``terms`` terms."""
    rows, columns = params["tile"]
    warps_m, warps_n = params["warps"]
    return float(terms * itemsize(KINDS[params["kind"]]) * (rows * warps_n + columns * warps_m))


def _on_tensor_cores(phase: Phase) -> bool:
    """Whether the template multiplies there: in a kind that its parameters say."""
    return hasattr(get(phase.task.template).params(phase.task), "kind")


def _terms(phase: Phase) -> int:
    b = next(o for o in phase.task.operands if o.role == "b")
    return b.box.size[matrix_dims(b.box.size)[0]]


def _tile(phase: Phase) -> tuple[int, int]:
    """Rows, or pixels, and columns a template's task stores."""
    first, second = ("q", "v") if phase.task.template == "attention" else ("a", "b")
    sizes = {o.role: [o.box.size[d] for d in matrix_dims(o.box.size)] for o in phase.task.operands}
    windows = get(phase.task.template).windows(phase.task)
    return sizes[first][0] if windows is None else windows.rows * windows.width, sizes[second][1]


def _volume(operand: Operand) -> float:
    return float(prod(min(s, b) for s, b in zip(operand.box.size, operand.box.bound, strict=True)))


def _touched(phase: Phase) -> float:
    """Loads that a task executes (for a nest; a gather's box is larger than what it reads)."""
    if not phase.task.body:
        return float("inf")
    return sum(_iterations(s) for s in phase.task.body)


def _iterations(s: Statement) -> float:
    match s:
        case For(body=body, extent=extent):
            return extent * sum(_iterations(inner) for inner in body)
        case Reduce(extent=extent):
            return float(extent)
        case _:
            return 1.0


def _statements(body: tuple[Statement, ...]) -> Iterator[Statement]:
    for s in body:
        yield s
        if isinstance(s, For):
            yield from _statements(s.body)
