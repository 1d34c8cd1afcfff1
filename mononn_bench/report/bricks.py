"""Bricks as tables: networks rebuilt from them, the least that layers take, and what could be gained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from mononn_bench.analysis.advice import Advice, advise, type_rates
from mononn_bench.analysis.bricks import Bound, Rebuilt, accuracies, bound, rebuild
from mononn_bench.analysis.cells import OURS
from mononn_bench.bricked import EMPTY, BrickedModel
from mononn_bench.codec import read_record
from mononn_bench.profiled import Primitives
from mononn_bench.report.grids import Grid

LINES = 8
"""Most pieces of advice that a table lists of one model and system."""


def read_bricks(folder: Path) -> list[BrickedModel]:
    """The records in a folder, by model; none where there is no folder."""
    return [read_record(BrickedModel, path) for path in sorted(folder.glob("*.json"))]


def brick_grids(models: Sequence[BrickedModel], primitives: Primitives | None = None) -> list[Grid]:
    """Accuracy, each model's errors, bounds, and advice for ours, as far as there is anything to say; advice on types
    needs the machine's primitives.
    """
    rates = type_rates(primitives) if primitives else {}
    grids = [accuracy_grid(models), errors_grid(models), bound_grid(models), advice_grid(models, OURS, rates)]
    return [grid for grid in grids if grid.rows]


def accuracy_grid(models: Sequence[BrickedModel]) -> Grid:
    """How near models come that are rebuilt from bricks; a row a system and length."""
    rows = [
        (
            one.system, str(one.length), str(one.models), f"{one.within_5:.0%}", f"{one.within_10:.0%}",
            f"{one.median_error:+.1%}", f"{one.smallest:+.1%}", f"{one.largest:+.1%}", f"{one.saved:.2f}",
            f"{one.wall_saved:.2f}",
        )
        for one in accuracies(models)
    ]  # fmt: skip
    return Grid(
        title="Networks rebuilt from their bricks",
        caption="A brick is so many layers in a row, measured by itself. A network's time is the sum of its bricks', "
        "without what a call costs; the error is that over the measured time, less one.",
        header=["system", "layers", "networks", "within 5 %", "within 10 %", "median error", "smallest", "largest",
                "fewer runs", "less work"],
        rows=rows,
        notes=[
            "Fewer runs: what one run of every network takes over what one of every different brick does. Less work: "
            "the same of all that measuring took, builds and loads included (below 1 bricks cost more).",
            *_unbuilt(rebuild(models)),
        ],
    )  # fmt: skip


def _unbuilt(rows: Sequence[Rebuilt]) -> Iterator[str]:
    for row in rows:
        if row.rebuilt_s is None or row.whole_s is None:
            why = row.reason.rstrip(".") or "the whole has no time"
            yield f"{row.model} with {row.system}, {row.length} layers: {why}."


def errors_grid(models: Sequence[BrickedModel]) -> Grid:
    """The error of each model, by system and length."""
    rows = rebuild(models)
    columns = list(dict.fromkeys((row.system, row.length) for row in rows))
    by_model: dict[str, dict[tuple[str, int], float | None]] = {}
    for row in rows:
        by_model.setdefault(row.model, {})[row.system, row.length] = row.error
    return Grid(
        title="Errors of rebuilt networks",
        caption="Rebuilt time over the measured one, less one.",
        header=["network", *(f"{system}, {length}" for system, length in columns)],
        rows=[
            (model, *("" if (error := found.get(column)) is None else f"{error:+.1%}" for column in columns))
            for model, found in by_model.items()
        ],
        notes=[],
    )


def bound_grid(models: Sequence[BrickedModel]) -> Grid:
    """The least by layers that were measured beside what systems take; a row a model."""
    systems = list(dict.fromkeys(one.system for model in models for one in model.systems))
    bounds = [bound(model) for model in models]
    return Grid(
        title="The least that layers take",
        caption="Each layer by the fastest system that was measured on it alone, in milliseconds: one after the other, "
        "and along the longest way of layers that need each other. Beside it the layers' roofline (direct algorithm, "
        "or bytes from the cache next to the cores), whole networks, and each system's own layers one after the other.",
        header=["network", "sum", "longest way", "roofline", *systems, *(f"{name}, layers" for name in systems),
                f"{OURS} over sum"],
        rows=[_bound_row(one, systems) for one in bounds],
        notes=[
            "A system that computes several layers as one step can take less than the sum: it is the least of a "
            "network of separate layers.",
            *(f"{one.model}: {one.missing} layers have no time with any system." for one in bounds if one.missing),
        ],
    )  # fmt: skip


def _bound_row(found: Bound, systems: Sequence[str]) -> tuple[str, ...]:
    times = [found.sum_s, found.path_s, found.roofline_s, *(found.wholes.get(name) for name in systems)]
    times += [found.layers_s.get(name) for name in systems]
    own = found.wholes.get(OURS)
    ratio = f"{own / found.sum_s:.2f}" if own and found.sum_s else ""
    return found.model, *("" if seconds is None else f"{seconds * 1e3:.4g}" for seconds in times), ratio


def advice_grid(models: Sequence[BrickedModel], system: str, rates: Mapping[str, float] | None = None) -> Grid:
    """What a system could gain on each model."""
    found = [one for model in models for one in _advised(model, system, rates or {})[:LINES]]
    return Grid(
        title=f"Advice for {system}",
        caption="What a run would take less, in milliseconds, if the advice were followed and all else stayed.",
        header=["network", "gain, ms", "of a run", "kind", "where", "what"],
        rows=[
            (one.model, f"{one.gain_s * 1e3:.3f}", f"{one.share:.1%}", one.kind, one.where, one.what) for one in found
        ],
        notes=[
            "Layers were measured by themselves, their weights in the caches: in a network of many weights they come "
            "from memory, and each layer's gain is a prediction."
        ],
    )


def _advised(model: BrickedModel, system: str, rates: Mapping[str, float]) -> list[Advice]:
    named = any(one.system == system and EMPTY in one.times for one in model.systems)
    return advise(model, system, rates) if named else []
