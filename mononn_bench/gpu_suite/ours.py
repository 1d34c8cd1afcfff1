"""The one place of the GPU suite that knows the compiler: by its public functions only."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from mononn_bench.errors import SystemUnavailableError

RANKS = 3
"""Tiles of each product that are tried under each launch."""
WATCHDOG_S = 3.0
"""How long a run on a GPU may take."""


def compile_model(
    onnx: Path, mono: Path | None, *, target: str, precision: str, launch: str, gpu: str = ""
) -> dict[str, Any]:
    """Compile to a .mono file, or where there is none only for the cache; seconds of each step, the manifest's figures,
    the code's resources. `launch` may end in a colon and a variant's name; `gpu` names one that is not here.

    Raises SystemUnavailableError where our compiler has no form for the network, with its reason.
    """
    from mononn_core import compiler, errors

    started = time.perf_counter()
    try:
        stages = _lower(onnx, target, precision, launch, gpu)
    except errors.UnsupportedError as error:
        raise SystemUnavailableError(str(error)) from error
    lowered = time.perf_counter()
    artifact = compiler.build(stages)
    if mono is not None:
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
        **({"mono_bytes": mono.stat().st_size} if mono is not None else {}),
    }


def _lower(onnx: Path, target: str, precision: str, launch: str, gpu: str = "") -> Any:
    from mononn_core import compiler

    launch, _, name = launch.partition(":")
    stages = compiler.lower(str(onnx), target=target, precision=precision, launch=launch, gpu=gpu)
    if not name:
        return stages
    assert isinstance(stages, compiler.CudaStages)
    found = compiler.cuda_variants(stages, RANKS)
    if name not in found:
        raise SystemUnavailableError(f"no tile of a product fits a block of launch {name}")
    return compiler.lower(str(onnx), target=target, precision=precision, launch=launch, gpu=gpu, schedule=found[name])


def variants() -> list[str]:
    """Names of all launches with `RANKS` tiles of each product, for a launch's name."""
    from mononn_core import compiler

    return compiler.variant_names(RANKS)


def fit_costs(traced: list[tuple[Path, str, str, str, list[dict[str, Any]]]]) -> dict[str, Any]:
    """The cost model's constants by traces: of each network the ONNX file, target, precision, launch and the trace's
    rows."""
    from mononn_core import compiler

    lowered = [(_lower(onnx, target, precision, launch), rows) for onnx, target, precision, launch, rows in traced]
    result: dict[str, Any] = compiler.fit_costs(lowered)
    return result


def preflight(*, on_gpu: bool) -> dict[str, Any]:
    """Whether a GPU does the least that generated code needs."""
    import mononn_core

    result: dict[str, Any] = mononn_core.preflight(on_gpu)
    return result


def load(mono: Path) -> Any:
    """A session over a .mono file; on a GPU a kernel that does not end is given up soon."""
    import mononn_core

    session: Any = mononn_core.load(str(mono))
    if session.info["target"] == "cuda":
        session.watchdog_seconds = WATCHDOG_S
    return session


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
