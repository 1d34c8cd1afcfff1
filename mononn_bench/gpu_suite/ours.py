"""The one place of the GPU suite that knows the compiler: by its public functions only."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from mononn_bench.errors import SystemUnavailableError


def compile_model(onnx: Path, mono: Path, *, target: str, precision: str, launch: str) -> dict[str, Any]:
    """Compile to a .mono file; seconds of each step, the manifest's figures, the code's resources.

    Raises SystemUnavailableError where our compiler has no form for the network, with its reason.
    """
    from mononn_core import compiler, errors

    started = time.perf_counter()
    try:
        stages = compiler.lower(str(onnx), target=target, precision=precision, launch=launch)
    except errors.UnsupportedError as error:
        raise SystemUnavailableError(str(error)) from error
    lowered = time.perf_counter()
    artifact = compiler.build(stages)
    mono.parent.mkdir(parents=True, exist_ok=True)
    artifact.save(mono)
    manifest = artifact.manifest
    kept = ("barriers", "counters", "arena_bytes", "weight_bytes", "shared_bytes", "threads", "blocks_per_sm", "flops")
    return {
        **{key: manifest[key] for key in kept if key in manifest},
        "phases": len(manifest["phases"]),
        "launches": len(manifest["kernels"]),
        "cubins": manifest.get("cubins", {}),
        "predicted": manifest.get("predicted", {}),
        "scheduled_for": manifest["machine"],
        "lower_s": lowered - started,
        "build_s": time.perf_counter() - lowered,
        "mono_bytes": mono.stat().st_size,
    }


def load(mono: Path) -> Any:
    """A session over a .mono file."""
    import mononn_core

    return mononn_core.load(str(mono))


def trace(session: Any, inputs: dict[str, Any], runs: int) -> tuple[list[dict[str, Any]], str]:
    """Time stamps of a session, as the table of its phases and as a file that opens in Perfetto."""
    import mononn_core

    rows, timeline = mononn_core.trace_report(session, inputs, runs)
    return rows, timeline


def version() -> str:
    """The compiler's version."""
    import mononn_core

    return str(mononn_core.__version__)


def conformance(*, on_gpu: bool, output: Path) -> dict[str, Any]:
    """Every primitive of generated code, run here, compared with the emulator's table; a GPU's outputs are kept."""
    import mononn_core

    result: dict[str, Any] = mononn_core.conformance(on_gpu, output)
    return result
