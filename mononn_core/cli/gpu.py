"""What ``mononn compile`` and ``mononn inspect`` say of code for a GPU. Loads no compiler."""

from __future__ import annotations

import resource
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any

from mononn_core.cli.words import columns, size, tensor_lines

if TYPE_CHECKING:
    from mononn_core.compiler import CudaStages


def peak_bytes() -> int:
    """The most memory that this process, or one it started, held at once."""
    return 1024 * max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def compiled_lines(stages: CudaStages, manifest: Mapping[str, Any]) -> Iterator[str]:
    """Kernels with their resources, the resident wave, phases a layer, and seconds of every step."""
    yield from kernel_lines(manifest)
    yield phase_line(manifest)
    yield "  seconds " + ", ".join(f"{step} {seconds:.1f}" for step, seconds in stages.seconds.items())


def gpu_summary(manifest: Mapping[str, Any]) -> str:
    """The text of ``mononn inspect`` for people."""
    machine = manifest["machine"]
    lines = [
        f"{manifest['name']}: mononn {manifest['mononn_version']}, target {manifest['target']}, "
        f"precision {manifest['precision']}, scheduled for {machine['name']} ({machine['arch']})",
        *tensor_lines(manifest),
        *kernel_lines(manifest),
        phase_line(manifest),
        f"  memory  arena {size(manifest['arena_bytes'])}, weights {size(manifest['weight_bytes'])}",
        f"  work    {manifest['flops'] / 1e9:.4g} GFLOP, {size(manifest['bytes'])} read at least",
        "",
        "time of one inference by the cost model, never measured",
    ]
    table: list[tuple[str, ...]] = [("GPU", "floor us", "predicted us", "")]
    table += [
        (name, f"{times['floor'] * 1e6:.1f}", f"{times['seconds'] * 1e6:.1f}", "")
        for name, times in manifest["predicted"].items()
    ]
    lines += [*columns(table), ""]
    table = [("phase", "tasks", "MFLOP", "MB", "barrier", "origin")]
    for phase in manifest["phases"]:
        work = (f"{phase['flops'] / 1e6:.2f}", f"{phase['bytes'] / 1e6:.2f}")
        table.append((phase["id"], str(phase["tasks"]), *work, "yes" if phase["barrier"] else "", phase["origin"]))
    return "\n".join([*lines, *columns(table)])


def kernel_lines(manifest: Mapping[str, Any]) -> Iterator[str]:
    """The launch, then one line an architecture and kernel: registers, spills, shared memory, the resident wave."""
    names = {kernel["name"] for kernel in manifest["kernels"]}
    launches = len(manifest["kernels"])
    kernels = "one kernel" if launches == 1 else f"{len(names)} kernels, {launches} launches"
    yield (
        f"  launch  {kernels}, {manifest['threads']} threads a block, {manifest['blocks_per_sm']} blocks an SM, "
        f"{size(manifest['shared_bytes'])} of shared memory a block"
    )
    for arch, compiled in manifest.get("cubins", {}).items():
        for name, used in compiled["kernels"].items():
            wave = "one resident wave" if used["blocks_per_sm"] >= manifest["blocks_per_sm"] else "no resident wave"
            yield (
                f"  {arch:7} {name}: {used['registers']} registers, {used['spills']} spills, "
                f"{used['stack']} bytes of stack, {size(used['shared_bytes'])} of shared memory, "
                f"{used['blocks_per_sm']} blocks an SM: {wave}"
            )


def phase_line(manifest: Mapping[str, Any]) -> str:
    """Phases, barriers and counters, and how many phases an iteration of a rolled loop has."""
    phases = manifest["phases"]
    iterations = groupby(phases, key=lambda phase: phase["id"].partition("[")[2])
    layers = sorted(len(list(group)) for number, group in iterations if number)
    counts = " to ".join(map(str, dict.fromkeys((layers[0], layers[-1])))) if layers else ""
    layer = f", {counts} a layer ({len(layers)} layers)" if layers else ""
    return (
        f"  phases  {len(phases)}{layer}, {sum(phase['tasks'] for phase in phases)} tasks, "
        f"{manifest['barriers']} barriers, {manifest['counters']} counters"
    )
