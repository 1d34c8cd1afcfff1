"""The hand-made network of fixture.cpp as an artifact: toolchain, host runner and session without the compiler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mononn_core.machine import Machine
from mononn_core.program import abi
from mononn_core.runtime.artifact import Artifact
from mononn_core.runtime.toolchain import compile_host, compile_shared

SOURCE = (Path(__file__).parent / "fixture.cpp").read_text(encoding="utf-8")
WEIGHTS = (np.arange(64) % 7 - 3).astype(np.float32)


def manifest(**changes: Any) -> dict[str, Any]:
    """The hand-made network's manifest."""
    first = {"id": "scale", "origin": "Mul node 'scale'", "flops": 64, "bytes": 256, "activation_bytes": 512}
    second = {"id": "reverse", "origin": "Add node 'reverse'", "flops": 128, "bytes": 0, "activation_bytes": 512}
    phases = [{**first, "tasks": 2, "barrier": False}, {**second, "tasks": 2, "barrier": True}]
    return {
        "name": "handmade",
        "mononn_version": "0.1.0",
        "abi_version": abi.ABI_VERSION,
        "machine": {"arch": "x86_64", "features": []},
        "inputs": [
            {"name": "a", "dtype": "float32", "shape": [64]},
            {"name": "k", "dtype": "int32", "shape": [1]},
        ],
        "outputs": [
            {"name": "y", "dtype": "float32", "shape": [64]},
            {"name": "s", "dtype": "float32", "shape": [1]},
        ],
        "threads": 2,
        "arena_bytes": 256,
        "scratch_bytes": 64,
        "counters": 1,
        "weight_bytes": WEIGHTS.nbytes,
        "flops": 192,
        "bytes": 256,
        "barriers": 1,
        "phases": phases,
        **changes,
    }


def artifact(source: str = SOURCE, weights: bytes = WEIGHTS.tobytes(), **changes: Any) -> Artifact:
    """The network compiled for this architecture's baseline."""
    machine = Machine.named("scalar")
    code = compile_shared(source, machine=machine).code
    return Artifact(manifest(**changes), code, compile_host(machine).code, weights, {"source": source})


def expected(a: np.ndarray, k: int) -> dict[str, np.ndarray]:
    """What the network computes, by NumPy: y = reversed(a * w) + k; s = the sum of a * w in index order."""
    product = a * WEIGHTS
    return {"y": product[::-1] + np.float32(k), "s": np.cumsum(product, dtype=np.float32)[-1:]}
