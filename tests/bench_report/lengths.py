"""A network that answered requests of two lengths, with times that can be worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping

from mononn_bench.measure.environment import describe_machine
from mononn_bench.record import Disturbance, ModelRecord, ReferenceRecord, Tensor
from mononn_bench.served import (
    Distribution,
    MemoryReading,
    RequestBlock,
    RequestCycle,
    RequestRound,
    ServedModel,
    ServedSystem,
    ServingSettings,
)

ROUNDS, CYCLES, REQUESTS = 3, 2, 64
LENGTHS = tuple(10 if number % 4 else 20 for number in range(ROUNDS * CYCLES * REQUESTS))
"""Three of 10 tokens to each one of 20; both are padded, to 16 and to 20."""
QUIET = Disturbance(1.0, 0.0, 0.0, 0, 0)
DISTRIBUTION = Distribution("two", "lengths for tests", "nowhere", "none", 10, (3, *(0,) * 9, 1))
MS = {
    "mononn": (1.0, 2.0), "mononn@2": (1.0, 2.0), "onnxruntime, dynamic": (1.5, 4.0),
    "onnxruntime, bucketed": (2.0, 3.0), "openvino, dynamic": (1.2, 2.4),
}  # fmt: skip
"""What a request of 10, and one of 20 tokens takes."""


def system(label: str, status: str = "ok", reason: str = "", held: tuple[float, ...] = ()) -> ServedSystem:
    name, _, form = label.partition(", ")
    memory = tuple(MemoryReading(n, mb) for n, mb in zip((0, 10, 1000), held, strict=False))
    return ServedSystem(label, name.partition("@")[0], form or "family", status, reason, memory=memory)  # type: ignore[arg-type]


def samples(label: str, first: int, count: int) -> tuple[int, ...]:
    short, long = MS[label]
    return tuple(int((short if LENGTHS[n] == 10 else long) * 1e6) for n in range(first, first + count))


def a_round(index: int, labels: Mapping[str, object]) -> RequestRound:
    start = index * CYCLES * REQUESTS
    cycles = []
    for cycle in range(CYCLES):
        first = start + cycle * REQUESTS
        blocks = [RequestBlock(label, 0, True, True, samples(label, first, REQUESTS), QUIET) for label in labels]
        blocks.insert(0, RequestBlock("mononn", 0, False, False, (10**9,) * REQUESTS, QUIET))
        cycles.append(RequestCycle(cycle, first, tuple(labels), tuple(blocks), None))
    warmed = (start, start + 1)
    first_ns = {label: tuple(3 * ns for ns in samples(label, start, 2)) for label in labels}
    return RequestRound(index, warmed, first_ns, tuple(cycles), None, 0.0, ())


MODEL = ServedModel(
    created="now",
    model=ModelRecord(
        name="net", batch=1, full_size=True, weights="seeded", seed=0, source="a net", digest="0", opset=18,
        inputs=(Tensor("input_ids", "int64", (1, 0)),), outputs=(Tensor("y", "float32", (1, 0, 4)),), flops=1,
        weight_bytes=1, compulsory_bytes=1, versions={},
    ),
    distribution=DISTRIBUTION, grid=(16, 20), lengths=LENGTHS,
    settings=ServingSettings(rounds=ROUNDS, cycles=CYCLES, requests=REQUESTS, step=16),
    machine=describe_machine(), cores=(0, 1),
    systems=(
        system("mononn", held=(100.0, 101.0, 102.0)), system("mononn@2"),
        system("onnxruntime, dynamic", held=(90.0, 95.0, 300.0)),
        system("onnxruntime, bucketed"), system("openvino, dynamic"),
        system("torch-inductor, dynamic", "failed", "no compiler"),
    ),
    rounds=tuple(a_round(index, MS) for index in range(ROUNDS)), ceilings=None,
    reference=ReferenceRecord("0", "by hand", "none", 0, 0, "", {}), command="again", source_revision="r", versions={},
    wall_s=1.0,
)  # fmt: skip
