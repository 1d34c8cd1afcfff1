"""What docs/gpu.md shows of the GPU suite's records under results/reference: times of each case, and ceilings."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mononn_bench.report.grids import Grid, markdown

PATTERN = "*/*/records.json"
"""results/reference/<GPU>/<call>/records.json."""
TIMED = "Microseconds on the device; expected: by the cost model, before; over ours: the warm time over the monolith's."
LAUNCHES = {"mononn": "once", "mononn-graph": "graph"}
TIMES = (("warm_device_us", "warm"), ("warm_back_to_back_us", "in a row"), ("cold_device_us", "cold"))


Call = dict[str, Any]
"""A record of the suite, see ``gpu_suite/records.py``, as plain values."""


def read_calls(reference: Path) -> list[tuple[str, Call]]:
    """(folder's name, record) of every call of the suite that is kept, in the order of time."""
    found = [(path.parent.name, json.loads(path.read_text())) for path in reference.glob(PATTERN)]
    return sorted(found, key=lambda call: str(call[1]["created"]))


def gpu_blocks(calls: Sequence[tuple[str, Call]]) -> list[str]:
    """Markdown of each call: what was compared, and the ceilings where they were measured."""
    blocks = []
    for name, suite in calls:
        title = f"{name}: {', '.join(suite['gpus'])}, {suite['created'][:10]}, {suite['source_revision']}"
        results = [(step["name"], step["result"]) for step in suite["steps"]]
        builds = {k: v for step, result in results if step.startswith("build:") for k, v in result.items()}
        if rows := [r for step, result in results if step.startswith("compare:") for r in _compared(result, builds)]:
            head = ("case", "system", "expected", *(word for _, word in TIMES), "over ours")
            blocks.append(markdown(Grid(title, TIMED, head, rows, ()), level=3))
        if limits := [row for step, result in results if step == "ceilings" for row in _limits(result)]:
            head = ("what", "at", "value", "unit")
            blocks.append(markdown(Grid(f"{name}: ceilings", "", head, limits, ()), level=3))
    return blocks


def _compared(result: Any, builds: Any) -> Iterator[tuple[str, ...]]:
    case, contenders = result.get("case", {}), result.get("contenders", {})
    ours = contenders.get("mononn", {}).get(TIMES[0][0])
    for system, row in contenders.items():
        if row["status"] == "ok":
            label = f"{case['model']}, batch {case['batch']}, {case['precision']}"
            name = f"{case['model']}-b{case['batch']}-{case['precision']}:{LAUNCHES.get(system)}"
            times = (f"{row[key]:.1f}" if row.get(key) else "" for key, _ in TIMES)
            yield (
                label,
                system,
                _expected(builds.get(name, {})),
                *times,
                f"{row[TIMES[0][0]] / ours:.2f}" if ours else "",
            )


def _expected(build: Any) -> str:
    gpu = build.get("scheduled_for", {}).get("name")
    return f"{build['predicted'][gpu]['seconds'] * 1e6:.1f}" if gpu in build.get("predicted", {}) else ""


def _limits(result: Any) -> Iterator[tuple[str, ...]]:
    for row in result.get("kernels", ()):
        if "value" in row:
            key = next(k for k in row if k not in ("name", "unit", "value"))
            yield row["name"], f"{key} {row[key]:g}", f"{row['value']:.4g}", row["unit"]
