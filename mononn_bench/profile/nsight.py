"""Nsight Systems and Nsight Compute, by their command lines: GPU kernels, their time, DRAM traffic and occupancy."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path

from mononn_bench.profile.outside import require, run
from mononn_bench.profiled import Kernel

SYSTEMS, COMPUTE = "nsys", "ncu"
DRAM, OCCUPANCY = "dram__bytes.sum", "sm__warps_active.avg.pct_of_peak_sustained_active"
_UNITS = {"byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}


def systems_launcher(output: Path) -> list[str]:
    """The command in front of a process whose kernels Nsight Systems shall write to `output` (.nsys-rep)."""
    command = [require(SYSTEMS), "profile", "--trace=cuda", "--sample=none", "--cpuctxsw=none"]
    return [*command, "--force-overwrite=true", f"--output={output.with_suffix('')}"]


def compute_launcher(output: Path) -> list[str]:
    """The same for Nsight Compute's counters of every kernel, to `output` (.ncu-rep)."""
    command = [require(COMPUTE), f"--metrics={DRAM},{OCCUPANCY}", "--target-processes=all", "--force-overwrite"]
    return [*command, f"--export={output.with_suffix('')}"]


def systems_kernels(report: Path) -> str:
    """The CSV of `nsys stats` for a report."""
    return run([require(SYSTEMS), "stats", "--report=cuda_gpu_kern_sum", "--format=csv", "--quiet", str(report)])


def compute_counters(report: Path) -> str:
    """The CSV of `ncu --import` for a report."""
    return run([require(COMPUTE), f"--import={report}", "--csv", "--page=details"])


def kernels(times: str, counters: str) -> tuple[Kernel, ...]:
    """Both tools' CSV as kernels, the hottest first; `counters` may be empty. Times are in ns there."""
    dram, busy = _means(counters, DRAM), _means(counters, OCCUPANCY)
    found = []
    for row in _rows(times, "Total Time (ns)"):
        name = row["Name"]
        share = busy.get(name)
        found.append(
            Kernel(
                name=name,
                launches=int(row["Instances"]),
                seconds=float(row["Total Time (ns)"].replace(",", "")) / 1e9,
                dram_bytes=dram.get(name),
                occupancy=None if share is None else share / 100,
            )
        )
    return tuple(sorted(found, key=lambda kernel: -kernel.seconds))


def _means(text: str, metric: str) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for row in _rows(text, "Metric Name"):
        if row["Metric Name"] == metric:
            number = float(row["Metric Value"].replace(",", "")) * _UNITS.get(row["Metric Unit"], 1.0)
            values.setdefault(row["Kernel Name"], []).append(number)
    return {name: sum(found) / len(found) for name, found in values.items()}


def _rows(text: str, column: str) -> Iterable[dict[str, str]]:
    """The rows of the CSV in `text`, which begins at the line that names `column`; tools talk before it."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if column in line), len(lines))
    return csv.DictReader(io.StringIO("\n".join(lines[start:])))
