"""Tools that watch a process: compute-sanitizer, Nsight Compute; and where traces are kept."""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

from mononn_bench.errors import SystemUnavailableError
from mononn_bench.gpu_suite.case import Case

COUNTERS = (
    "gpu__time_duration.sum",
    "dram__bytes.sum",
    "lts__t_bytes.sum",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "sm__inst_executed_pipe_tensor.sum",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "l1tex__data_bank_conflicts_pipe_lsu.sum",
)
KERNELS_KEPT = 40
Result = dict[str, Any]


def once_command(contender: str, case: Case, runs: int) -> list[str]:
    """What runs one contender a few times in a process of its own."""
    module = "mononn_bench.gpu_suite.once"
    return [sys.executable, "-m", module, contender, json.dumps(case.to_json()), str(runs)]


def run_once(mono: Path, case: Case) -> Result:
    """One run of our file, with whatever its session checks."""
    from mononn_bench.gpu_suite import ours

    with ours.load(mono) as session:
        binding = session.bind(case.sets()[0])
        binding.run()
        reports = [str(report)[:300] for report in getattr(binding, "reports", ())]
    return {"errors": 0, "reports": reports}


def sanitize(tool: str, mono: Path, case: Case, seconds: float) -> Result:
    """compute-sanitizer's verdict on one run of our kernel; RuntimeError with its first complaint."""
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        raise SystemUnavailableError("compute-sanitizer not found")
    contender = "mononn-graph" if mono.stem == "graph" else "mononn"
    command = [sanitizer, f"--tool={tool}", "--error-exitcode=9", "--print-limit=5", *once_command(contender, case, 1)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds)
    text = done.stdout + done.stderr
    summary = [line for line in text.splitlines() if "ERROR SUMMARY" in line or "RACECHECK SUMMARY" in line]
    if done.returncode:
        complaints = [line for line in text.splitlines() if line.startswith("=========")][:6]
        raise RuntimeError(f"{tool} (status {done.returncode}): {' '.join(complaints or text.splitlines()[-3:])[:600]}")
    return {"tool": tool, "summary": summary, "errors": 0}


def nsight(contender: str, case: Case, work: Path, seconds: float) -> Result:
    """Nsight Compute's counters of the last kernels of a contender's run, the slowest first. In a rehearsal the run
    alone, without the tool."""
    ncu = shutil.which("ncu")
    if case.target != "cuda":
        command = once_command(contender, case, 1)
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds)
        last = (done.stderr.strip().splitlines() or ["silent"])[-1][:200]
        how = "went through" if done.returncode == 0 else f"failed ({last})"
        raise SystemUnavailableError(f"ncu needs a GPU; the run that it would watch {how}")
    if ncu is None:
        raise SystemUnavailableError("ncu not found")
    work.mkdir(parents=True, exist_ok=True)
    counters, unknown = known_counters(ncu)
    command = [ncu, f"--metrics={','.join(counters)}", "--clock-control=none", "--csv", "--target-processes=all"]
    if contender == "mononn":
        command += ["--kernel-name=mononn_run", "--launch-count=2"]
    else:
        command += ["--launch-count=400"]
    done = subprocess.run(
        [*command, *once_command(contender, case, 2)], capture_output=True, text=True, check=False, timeout=seconds
    )
    kernels = read_counters(done.stdout)
    if not kernels:
        raise RuntimeError(f"ncu (status {done.returncode}): {(done.stdout + done.stderr).strip()[-400:]}")
    slowest = sorted(kernels, key=lambda k: -k.get("gpu__time_duration.sum", 0.0))
    return {"contender": contender, "kernels": slowest[:KERNELS_KEPT], "launches": len(kernels), "unknown": unknown}


def known_counters(ncu: str) -> tuple[list[str], list[str]]:
    """Those of `COUNTERS` that this GPU has, by `ncu --query-metrics`, and the others: one unknown name would cost all.
    Where it does not answer all count as known.
    """
    done = subprocess.run([ncu, "--query-metrics"], capture_output=True, text=True, check=False, timeout=60)
    here = {line.split()[0] for line in done.stdout.splitlines() if line.strip()}
    known = [name for name in COUNTERS if name.partition(".")[0] in here]
    return (known, [name for name in COUNTERS if name not in known]) if known else (list(COUNTERS), [])


def read_counters(text: str) -> list[Result]:
    """The CSV of `ncu --csv` as one row a launch, its counters by name in the unit that ncu prints."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        return []
    rows: dict[str, Result] = {}
    for row in csv.DictReader(io.StringIO("\n".join(lines[start:]))):
        kernel = rows.setdefault(row["ID"], {"kernel": row["Kernel Name"][:120]})
        try:
            kernel[row["Metric Name"]] = float(row["Metric Value"].replace(",", ""))
            kernel[f"{row['Metric Name']} unit"] = row["Metric Unit"]
        except ValueError:
            continue
    return list(rows.values())


def keep_trace(archive: Path, name: str, timeline: str) -> None:
    """Put a Perfetto file into the archive of all of them, which is written whole under a temporary name."""
    partial = archive.with_name(f".{archive.name}.partial")
    if archive.exists():
        shutil.copyfile(archive, partial)
    with zipfile.ZipFile(partial, "a", zipfile.ZIP_DEFLATED) as stream:
        stream.writestr(name, timeline)
    partial.replace(archive)
