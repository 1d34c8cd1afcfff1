"""The short table at the end: what stands, then microseconds a case."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from mononn_bench.gpu_suite.records import StepRecord, SuiteRecord

REHEARSAL = "REHEARSAL on a CPU: no figure below is a GPU's"


def table(suite: SuiteRecord) -> str:
    """The suite as text, at most a screen or two."""
    lines = [REHEARSAL] if suite.rehearsal else []
    counts = Counter(step.status for step in suite.steps)
    lines.append("steps: " + ", ".join(f"{count} {status}" for status, count in counts.most_common()))
    for step in suite.steps:
        if step.status not in ("ok", "left out"):
            lines.append(f"  {step.name}: {step.status}: {step.reason[:160]}")
    for step in suite.steps:
        kind = step.name.partition(":")[0]
        if kind == "ceilings":
            lines += ceilings(step)
        if kind in SUMMARIES and step.status == "ok":
            lines.append(f"{step.name}: {SUMMARIES[kind](step.result)}")
        if kind == "compare" and step.result:
            lines += ["", *comparison(step, suite.rehearsal)]
    return "\n".join(lines)


def _fitted(result: Mapping[str, Any]) -> str:
    before, after = (result[which]["error"] for which in ("estimated", "fitted"))
    return f"the cost model is typically {before:.2f}x off a phase's time, {after:.2f}x with fitted constants"


def _varied(result: Mapping[str, Any]) -> str:
    seconds, fastest = result["seconds"], result["fastest"]
    nearest = sorted(seconds, key=lambda name: seconds[name])[1:3]
    others = ", ".join(f"{name} {seconds[name] * 1e6:.1f}" for name in nearest)
    return f"{fastest} is the fastest with {seconds[fastest] * 1e6:.1f} us, before {others}"


SUMMARIES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "trace": lambda result: f"{result['seconds'] * 1e6:.1f} us in {len(result['phases'])} phases",
    "fit": _fitted,
    "variants": _varied,
}
"""A line of the table for kinds of steps that have one."""


def ceilings(step: StepRecord) -> Iterator[str]:
    """One line a measurement."""
    for row in step.result.get("kernels", ()):
        if "value" in row:
            key = next(k for k in row if k not in ("name", "unit", "value"))
            yield f"  {row['name']} ({key} {row[key]}): {row['value']:.4g} {row['unit']}"


def comparison(step: StepRecord, rehearsal: bool) -> Iterator[str]:
    """One case: a line a contender, times in microseconds, ratios to our monolith (none in a rehearsal)."""
    yield f"{step.name}{' (rehearsal)' if rehearsal else ''}"
    header = ("", "warm us", "device", "in a row", "ratio", "cold us", "device", "ratio", "")
    ratio = ("" if rehearsal else "ratio", 2)
    kinds: dict[str, tuple[tuple[str, int], ...]] = {
        "warm": (("host_us", 1), ("device_us", 1), ("back_to_back_us", 1), ratio),
        "cold": (("host_us", 1), ("device_us", 1), ratio),
    }
    rows: list[tuple[str, ...]] = [header]
    for name, row in step.result.get("contenders", {}).items():
        cells = (
            _number(row.get(f"{state}_{what}"), digits) for state, columns in kinds.items() for what, digits in columns
        )
        note = row["status"] if row["status"] != "ok" else ""
        reason = f"{note}: {row['reason'][:90]}" if note and row["reason"] else note
        rows.append((f"  {name}", *cells, reason))
    yield from _columns(rows)


def _number(value: Any, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _columns(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        middle = (cell.rjust(width) for cell, width in zip(row[1:-1], widths[1:-1], strict=True))
        yield "  ".join([row[0].ljust(widths[0]), *middle, row[-1]]).rstrip()
