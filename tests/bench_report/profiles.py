"""Profiles that several tests read: a chain of five nodes, and what two systems make of it."""

from __future__ import annotations

from mononn_bench.profiled import CaseProfile, ModelNode, ProfileRecord, Step
from mononn_bench.record import Ceilings

HEAVY = 1_000_000


def node(name: str, inputs: str, flops: int = 0, op: str = "") -> ModelNode:
    """A node that makes the tensor of its own name, of 4000 bytes."""
    return ModelNode(name, op or name.rstrip("0123456789"), tuple(inputs.split()), (name,), flops, 4000, 0)


CHAIN = (
    node("matmul1", "x", HEAVY), node("add1", "matmul1"), node("relu1", "add1"),
    node("matmul2", "relu1", HEAVY), node("norm1", "matmul2"),
)  # fmt: skip
OURS = (Step("p0", "matmul", 1e-3, ("matmul1", "add1", "relu1")), Step("p1", "matmul", 1e-3, ("matmul2", "norm1")))
THEIRS = (
    Step("a", "MatMul", 2e-3, ("matmul1",)), Step("b", "AddRelu", 0.5e-3, ("relu1",)),
    Step("c", "MatMul", 0.5e-3, ("matmul2",)), Step("reorder", "Reorder", 0.1e-3),
    Step("d", "Norm", 0.2e-3, ("norm1",)),
)  # fmt: skip


def a_profile(**changes: object) -> CaseProfile:
    """Two systems' steps over `CHAIN`, and one whose names tell nothing."""
    rows = (
        ProfileRecord("mononn", "mononn trace", "ok", "", runs=5, steps=OURS, plain_s=2e-3, profiled_s=2.02e-3),
        ProfileRecord("openvino", "PERF_COUNT", "ok", "", runs=4, steps=THEIRS, plain_s=3.3e-3, profiled_s=3.5e-3),
        ProfileRecord("tvm", "instrument", "ok", "", runs=4, steps=(Step("fused_add", "fused", 1e-3),), plain_s=4e-3),
        ProfileRecord("gone", "", "unavailable", "the library gone is not installed"),
    )
    facts: dict[str, object] = {
        "created": "now", "model": "net", "batch": 1, "model_digest": "", "machine": "here", "cores": (0, 1),
        "profiles": rows, "command": "again", "source_revision": "", "nodes": CHAIN,
        "ceilings": Ceilings("c", 4e9, 1e9, 1e9, 1, 1),
    }  # fmt: skip
    return CaseProfile(**{**facts, **changes})  # type: ignore[arg-type]
