"""Requests of many lengths as tables: times and ratios, memory, and which lengths they have."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mononn_bench.analysis.lengths import OURS, TWIN, LengthRow, best_of, length_rows, mean_of_best
from mononn_bench.report.grids import Grid
from mononn_bench.served import ServedModel


def length_grids(models: Sequence[ServedModel]) -> list[Grid]:
    """Times, and memory where it was read; nothing without networks."""
    if not models:
        return []
    rows = length_rows(models)
    memory = [row for row in rows if row.loaded_mb is not None]
    return [times_grid(models, rows), *([memory_grid(models, memory)] if memory else [])]


def times_grid(models: Sequence[ServedModel], rows: Sequence[LengthRow]) -> Grid:
    """A row a contestant on each network."""
    return Grid(
        title="Requests of many lengths",
        caption="Milliseconds of a request, mean and 99th percentile, and its ratios to those of mononn in the same "
        "round, with 95 % intervals: over 1 means that mononn is faster.",
        header=["network", "contestant", "mean, ms", "99 %, ms", "ratio of means", "ratio of 99 %", "padding",
                "first of a length"],
        rows=[_times(row) for row in rows],
        notes=[*_said(models), *_failed(rows), *_flagged(models)],
    )  # fmt: skip


def memory_grid(models: Sequence[ServedModel], rows: Sequence[LengthRow]) -> Grid:
    """What processes hold, before and after requests."""
    by_model = {model.model.name: model for model in models}
    systems = {(name, one.label): one for name, model in by_model.items() for one in model.systems}
    read = [(row, systems[row.model, row.contestant].memory) for row in rows]
    return Grid(
        title="Memory over requests",
        caption="Megabytes (10^6 bytes, proportional set size) that a process holds above the same one after import: "
        "once the network is loaded, and after so many requests drawn as the timed ones are.",
        header=["network", "contestant", "loaded", "after requests", "growth", "on the way"],
        rows=[
            (row.model, row.contestant, f"{found[0].proportional_mb:.0f}",
             f"{found[-1].proportional_mb:.0f} ({found[-1].requests:,})",
             f"{found[-1].proportional_mb - found[0].proportional_mb:+.0f}",
             ", ".join(f"{one.proportional_mb:.0f} ({one.requests:,})" for one in found[1:-1]))
            for row, found in read
        ],
        notes=[f"{name}: no memory was read." for name, model in by_model.items() if not any(
            one.memory for one in model.systems)],
    )  # fmt: skip


def _times(row: LengthRow) -> tuple[str, ...]:
    if row.status != "ok" or row.mean_ms is None:
        return row.model, row.contestant, row.status, "", "", "", "", ""
    verdict = f" {row.verdict}" if row.verdict else ""
    return (
        row.model, row.contestant, f"{row.mean_ms:.4g}", "" if row.p99_ms is None else f"{row.p99_ms:.4g}",
        _ratio(row.ratio, row.low, row.high) + verdict, _ratio(row.p99_ratio, row.p99_low, row.p99_high),
        "" if row.padded is None else f"{row.padded:.1%}", "" if row.first is None else f"{row.first:+.0%}",
    )  # fmt: skip


def _ratio(ratio: float | None, low: float | None, high: float | None) -> str:
    if ratio is None:
        return ""
    return f"{ratio:.3f}" if low is None or high is None else f"{ratio:.3f} [{low:.3f}, {high:.3f}]"


def _said(models: Sequence[ServedModel]) -> list[str]:
    notes = []
    for model in models:
        best = best_of(model)
        told = f"best rival {best[0]}, {_ratio(best[1].ratio, best[1].low, best[1].high)}" if best else "no best rival"
        settings, lengths = model.settings, model.lengths
        notes.append(
            f"{model.model.name}: {told}; {len(lengths):,} requests of {min(lengths)} to {max(lengths)} tokens, "
            f"{np.mean(lengths):.0f} in the mean, in {settings.rounds} rounds of {settings.cycles} blocks of "
            f"{settings.requests} ({model.model.source})."
        )
    overall = mean_of_best(models)
    notes += [f"Geometric mean of the ratios to the best rival: {overall:.3f}."] if overall and len(models) > 1 else []
    drawn = dict.fromkeys((m.distribution, m.grid) for m in models)
    for distribution, grid in drawn:
        notes.append(
            f"Lengths are those of {distribution.name}: {distribution.meaning}. {distribution.source}. "
            f"{sum(distribution.counts):,} sequences."
        )
        notes.append(f"Padded lengths: {', '.join(map(str, grid))}.")
    notes.append(
        f"{TWIN} is {OURS} a second time. Padding: the share of computed tokens. First of a length: by how much the "
        "first request of a length in a process takes longer than the same one later; it is not among the times."
    )
    return notes


def _failed(rows: Sequence[LengthRow]) -> list[str]:
    return [f"{row.model}, {row.contestant}: {row.status}, {row.reason}." for row in rows if row.status != "ok"]


def _flagged(models: Sequence[ServedModel]) -> list[str]:
    notes = []
    for model in models:
        flags = [f"round {one.index + 1}: {flag}" for one in model.rounds for flag in one.flags]
        blocks = [block for one in model.rounds for cycle in one.cycles for block in cycle.blocks]
        disturbed = sum(block.accepted and not block.undisturbed for block in blocks)
        flags += [f"{disturbed} blocks stayed disturbed after their repeats"] if disturbed else []
        notes += [f"Flagged: {model.model.name} ({'; '.join(flags)})."] if flags else []
    return notes
