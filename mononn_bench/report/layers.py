"""Layers, kinds of layers and whole models as each system's own profiler saw them: the analyses of C. Li et al., "XSP:
Across-Stack Profiling and Analysis of Machine Learning Models on GPUs", IPDPS 2020. docs/measuring.md says which of its
fifteen stands where.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mononn_bench.analysis.layers import Layer, kernels, kinds, layers
from mononn_bench.profiled import CaseProfile
from mononn_bench.record import NOT_EXPOSED
from mononn_bench.report.grids import Grid

LISTED = 10
"""Steps of a system that the table of layers lists, and kernels."""


def layer_grids(case: str, profile: CaseProfile) -> list[Grid]:
    """What a case's profiles say of whole runs, of layers and of kinds of layers, and of counters and GPU kernels where
    any were seen.
    """
    found = layers({case: profile})
    by_layer = [_hottest(case, found), _kinds(case, found)]
    grids = [_runs(case, profile, found), *by_layer, _counters(case, profile), _kernels(case, profile)]
    return [grid for grid in grids if grid.rows]


def _runs(case: str, profile: CaseProfile, found: Sequence[Layer]) -> Grid:
    rows, flops, ceilings = [], sum(node.flops for node in profile.nodes), profile.ceilings
    for row in profile.profiles:
        own = [layer for layer in found if layer.system == row.system]
        if not own or not row.plain_s or not row.profiled_s:
            continue
        moved, steps = sum(layer.moved_bytes for layer in own), sum(layer.seconds for layer in own)
        bounds = (flops / ceilings.flops_per_s, moved / ceilings.cache_bytes_per_s) if ceilings else (0.0, 0.0)
        limit = ("arithmetic" if bounds[0] >= bounds[1] else "bytes") if moved else ""
        texts = (f"{flops / moved:.1f}", f"{moved / row.plain_s / 1e9:.1f}") if moved else ("", "")
        rows.append(
            (
                row.system, _ms(row.plain_s), _ms(steps), _ms(max(0.0, row.profiled_s - steps)),
                f"{flops / 1e9:.3g}", _mb(moved), texts[0], f"{flops / row.plain_s / 1e9:.1f}", texts[1],
                f"{max(bounds) / row.plain_s:.0%}" if ceilings and moved else "", limit,
            )
        )  # fmt: skip
    return Grid(
        title=f"{case}: whole runs",
        caption="A run without the profiler, the steps of a profiled one and what it took beside them; arithmetic of "
        "the direct algorithm, bytes that go from step to step and of constants; under the roofline of the machine.",
        header=["system", "run, ms", "steps, ms", "beside, ms", "GFLOP", "MB", "FLOP a byte", "GFLOP/s", "GB/s",
                "of the roofline", "bound by"],
        rows=rows,
        notes=[],
    )  # fmt: skip


def _hottest(case: str, found: Sequence[Layer]) -> Grid:
    rows = []
    for system in dict.fromkeys(layer.system for layer in found):
        own = [layer for layer in found if layer.system == system]
        total = sum(layer.seconds for layer in own)
        for layer in sorted(own, key=lambda one: -one.seconds)[:LISTED]:
            rates = (f"{value / layer.seconds / 1e9:.1f}" for value in (layer.flops, layer.moved_bytes))
            rows.append(
                (
                    system, str(layer.index), layer.kind, layer.operators, _ms(layer.seconds),
                    f"{layer.seconds / total:.1%}", f"{layer.flops / 1e6:.3g}", _mb(layer.moved_bytes),
                    *(rates if layer.nodes else ("", "")),
                    "" if layer.roofline_share is None else f"{layer.roofline_share:.0%}",
                )
            )  # fmt: skip
    return Grid(
        title=f"{case}: layers",
        caption=f"The {LISTED} longest steps of each system by their number in the run; all stand in layers.csv.",
        header=["system", "step", "kind", "operators", "ms", "of all steps", "MFLOP", "MB", "GFLOP/s", "GB/s",
                "of the roofline"],
        rows=rows,
        notes=[],
    )  # fmt: skip


def _kinds(case: str, found: Sequence[Layer]) -> Grid:
    made = kinds(found)
    totals = {
        system: [
            sum(getattr(kind, name) for kind in made if kind.system == system) for name in ("count", "moved_bytes")
        ]
        for system in {kind.system for kind in made}
    }
    rows = [
        (
            kind.system, kind.kind, str(kind.count), f"{kind.count / totals[kind.system][0]:.1%}", _ms(kind.seconds),
            f"{kind.share:.1%}", _mb(kind.moved_bytes),
            f"{kind.moved_bytes / totals[kind.system][1]:.1%}" if totals[kind.system][1] else "",
            f"{kind.flops / 1e6:.3g}",
        )
        for kind in made
    ]  # fmt: skip
    return Grid(
        title=f"{case}: kinds of layers",
        caption="How many steps there are of each kind, and what they take.",
        header=["system", "kind", "steps", "of all steps", "ms", "of the time", "MB", "of the bytes", "MFLOP"],
        rows=rows,
        notes=[],
    )


def _counters(case: str, profile: CaseProfile) -> Grid:
    rows = [one for one in profile.profiles if one.counters]
    names = list(dict.fromkeys(counter.name for one in rows for counter in one.counters))
    found = [(one.system, {counter.name: counter.value for counter in one.counters}) for one in rows]
    return Grid(
        title=f"{case}: counters",
        caption="What the processor and the kernel count in one run, all threads of the process together; "
        f'"{NOT_EXPOSED}" is what this machine does not show.',
        header=["system", *(f"{name}, ms" if name == "task-clock" else name for name in names), "instructions a cycle"],
        rows=[(system, *(_count(values.get(name)) for name in names), _per_cycle(values)) for system, values in found],
        notes=[],
    )


def _count(value: float | None) -> str:
    if value is None:
        return NOT_EXPOSED
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _per_cycle(values: Mapping[str, float | None]) -> str:
    cycles, instructions = values.get("cycles"), values.get("instructions")
    return f"{instructions / cycles:.2f}" if cycles and instructions is not None else NOT_EXPOSED


def _kernels(case: str, profile: CaseProfile) -> Grid:
    found = kernels({case: profile})
    rows = []
    for system in dict.fromkeys(row.system for row in found):
        for row in [one for one in found if one.system == system][:LISTED]:
            counted = (row.dram_bytes and row.dram_bytes / 1e6, row.occupancy, row.dram_bytes_per_s)
            texts = ("" if value is None else f"{value:.3g}" for value in counted)
            rows.append((system, row.kernel, str(row.launches), _ms(row.seconds), f"{row.share:.1%}", *texts))
    return Grid(
        title=f"{case}: GPU kernels",
        caption=f"The {LISTED} longest kernels of each system by name; all stand in kernels.csv.",
        header=["system", "kernel", "launches", "ms", "of all kernels", "MB a launch", "occupancy", "bytes a second"],
        rows=rows,
        notes=[],
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.4g}"


def _mb(count: int) -> str:
    return f"{count / 1e6:.3g}" if count else ""
