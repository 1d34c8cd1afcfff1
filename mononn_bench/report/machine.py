"""What a machine gives as tables, and what the compiler's cost model takes for it beside that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median

from mononn_bench.profiled import Primitives, Reading
from mononn_bench.report.grids import Grid

UNITS = {"B/s": (1e-9, "GB/s"), "op/s": (1e-9, "Gop/s")}
"""Unit of a record -> what its values are multiplied by for a reader, and the unit then."""
TIMES = ((1e-6, 1e9, "ns"), (1e-3, 1e6, "us"), (1.0, 1e3, "ms"))
"""Seconds below which a factor and a unit serve."""


def primitives_grid(found: Primitives) -> Grid:
    """A row a reading: the median of its trials, the smallest and the largest."""
    rows = [
        (
            r.what,
            r.variant,
            str(r.workers),
            _text(median(r.values), r.unit),
            *(_text(f(r.values), r.unit) for f in (min, max)),
        )
        for r in found.readings
    ]
    return Grid(
        title=f"What {found.name} gives",
        caption="Each primitive alone on the machine: median, smallest and largest of its trials. A multiply-add is "
        "two operations. Several workers stand on cores of their own, and rates are those of all together.",
        header=["primitive", "variant", "workers", "median", "smallest", "largest"],
        rows=rows,
        notes=[
            f"{found.machine.cpu}, cores {', '.join(map(str, found.cores))}; measured {found.created}, source "
            f"{found.source_revision[:12]}.",
        ],
    )


def machine_grids(found: Primitives) -> list[Grid]:
    """What the machine gives, and what the cost model takes for it, as far as there is anything to say."""
    return [grid for grid in (primitives_grid(found), constants_grid(found)) if grid.rows]


def constants_grid(found: Primitives) -> Grid:
    """Each number of the cost model beside the reading that it stands for, where one does."""
    rows = []
    for one in found.stated:
        measured = _measured(found).get(one.name, lambda: None)()
        ratio = f"{measured / one.value:.2f}" if measured else ""
        rows.append(
            (one.name, one.meaning, _text(one.value, one.unit), _text(measured, one.unit) if measured else "", ratio)
        )
    return Grid(
        title="What the cost model takes",
        caption="Stated numbers of the compiler beside this machine's readings. They are never fitted to a machine, so "
        "that two compilations on one machine decide alike.",
        header=["number", "meaning", "stated", "measured", "measured / stated"],
        rows=rows,
        notes=["Without a reading: what no single primitive shows."],
    )


def _measured(found: Primitives) -> Mapping[str, Callable[[], float | None]]:
    """Number of the cost model -> the reading that it stands for."""
    caches, everyone = found.machine.caches_kib, len(found.cores)

    def read(what: str, starts: str, workers: int) -> float | None:
        values = [median(r.values) for r in _readings(found, what, workers) if r.variant.startswith(starts)]
        return max(values, default=None) if what == "peak" else next(iter(values), None)

    def beside_float32(starts: str) -> float | None:
        narrow, whole = read("peak", starts, 1), read("peak", "float32", 1)
        return narrow / whole if narrow and whole else None

    return {
        "machine.peak_flops_per_core": lambda: read("peak", "float32", 1),
        "machine.bandwidth": lambda: read("memory read", "huge pages", everyone),
        "machine.l2_bandwidth": lambda: read("cache read", f"{_half(caches.get('L2', 0))} KiB", 1),
        "machine.l3_bandwidth": lambda: read("cache read", f"{_half(caches.get('L3', 0))} KiB", 1),
        "machine.barrier_seconds": lambda: read("barrier", "a flag", everyone),
        "cost.EXCHANGE_BYTES_PER_SECOND": lambda: read("exchange", "", 2),
        "winograd.RATE[words]": lambda: beside_float32("int16"),
        "winograd_bytes.SEVEN_BITS": lambda: beside_float32("int8, vpmaddubsw vpmaddwd"),
    }


def _readings(found: Primitives, what: str, workers: int) -> list[Reading]:
    return [r for r in found.readings if r.what == what and r.workers == workers]


def _half(kib: int) -> int:
    """The power of two next below half of a cache's size."""
    return 1 << max(0, (kib // 2).bit_length() - 1)


def _text(value: float, unit: str) -> str:
    if unit in UNITS:
        factor, shown = UNITS[unit]
        return f"{value * factor:.4g} {shown}"
    if unit == "s":
        factor, shown = next(((f, text) for limit, f, text in TIMES if value < limit), (1.0, "s"))
        return f"{value * factor:.3g} {shown}"
    return f"{value:.3g}"
