"""What every step of a profiled run does: its time, arithmetic and bytes, and its share of what the machine allows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mononn_bench.analysis.homes import Homes
from mononn_bench.profiled import CaseProfile, ProfileRecord


@dataclass(frozen=True)
class Layer:
    """A step of one system: its number in the run, its kind, the model's nodes that it computes and their operators,
    seconds; `flops` of the direct algorithm, `moved_bytes` of tensors that it reads from others, of constants, and of
    what it makes for others. `roofline_share` is the least time that the machine's ceilings allow over its own; None
    without them, and where neither arithmetic nor bytes are known.
    """

    case: str
    system: str
    index: int
    step: str
    kind: str
    nodes: str
    operators: str
    seconds: float
    flops: int
    moved_bytes: int
    roofline_share: float | None


@dataclass(frozen=True)
class Kind:
    """All steps of one kind of a system: how many, their seconds and share of all steps', arithmetic and bytes."""

    case: str
    system: str
    kind: str
    count: int
    seconds: float
    share: float
    flops: int
    moved_bytes: int


@dataclass(frozen=True)
class KernelRow:
    """A GPU kernel of one system: launches and device seconds of all profiled runs, its share of all kernels', bytes of
    a launch through memory and occupancy where they were counted, and the bytes a second that this makes.
    """

    case: str
    system: str
    kernel: str
    launches: int
    seconds: float
    share: float
    dram_bytes: float | None
    occupancy: float | None
    dram_bytes_per_s: float | None


def kernels(profiles: Mapping[str, CaseProfile]) -> list[KernelRow]:
    """All GPU kernels of all systems, case by case, the hottest of a system first."""
    return [row for case, profile in profiles.items() for one in profile.profiles for row in _kernels(case, one)]


def _kernels(case: str, one: ProfileRecord) -> Iterable[KernelRow]:
    total = sum(kernel.seconds for kernel in one.kernels)
    for kernel in one.kernels:
        rate = None if kernel.dram_bytes is None else kernel.dram_bytes * kernel.launches / kernel.seconds
        yield KernelRow(
            case, one.system, kernel.name, kernel.launches, kernel.seconds, kernel.seconds / total, kernel.dram_bytes,
            kernel.occupancy, rate,
        )  # fmt: skip


def layers(profiles: Mapping[str, CaseProfile]) -> list[Layer]:
    """All steps of all systems, case by case, in the order of the runs."""
    return [layer for case, profile in profiles.items() for layer in _layers(case, profile)]


def _layers(case: str, profile: CaseProfile) -> Iterable[Layer]:
    for row in profile.profiles:
        homes = Homes(profile.nodes, row.steps)
        for index, step in enumerate(row.steps):
            inside = homes.nodes(index)
            flops, moved = homes.flops(index), homes.moved_bytes(index)
            yield Layer(
                case=case,
                system=row.system,
                index=index,
                step=step.name,
                kind=step.kind,
                nodes=" ".join(node.name for node in inside),
                operators=" ".join(dict.fromkeys(node.op for node in inside)),
                seconds=step.seconds,
                flops=flops,
                moved_bytes=moved,
                roofline_share=_share(profile, flops, moved, step.seconds),
            )


def _share(profile: CaseProfile, flops: int, moved: int, seconds: float) -> float | None:
    """Arithmetic at the multiply-add rate, bytes at the rate of the cache next to the cores: the longer of the two."""
    ceilings = profile.ceilings
    if ceilings is None or not seconds or not (flops or moved):
        return None
    return max(flops / ceilings.flops_per_s, moved / ceilings.cache_bytes_per_s) / seconds


def kinds(found: Iterable[Layer]) -> list[Kind]:
    """Steps by case, system and kind, the longest kind of a system first."""
    groups: dict[tuple[str, str, str], list[Layer]] = defaultdict(list)
    totals: dict[tuple[str, str], float] = defaultdict(float)
    for layer in found:
        groups[layer.case, layer.system, layer.kind].append(layer)
        totals[layer.case, layer.system] += layer.seconds
    made = [
        Kind(
            case=case,
            system=system,
            kind=kind,
            count=len(group),
            seconds=(seconds := sum(layer.seconds for layer in group)),
            share=seconds / totals[case, system] if totals[case, system] else 0.0,
            flops=sum(layer.flops for layer in group),
            moved_bytes=sum(layer.moved_bytes for layer in group),
        )
        for (case, system, kind), group in groups.items()
    ]
    order = {key: place for place, key in enumerate(totals)}
    return sorted(made, key=lambda one: (order[one.case, one.system], -one.seconds, one.kind))
