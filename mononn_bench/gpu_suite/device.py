"""The machine, and what it can do at most: steps "machine" and "ceilings"."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from mononn_bench.codec import to_plain
from mononn_bench.errors import SystemUnavailableError
from mononn_bench.measure.environment import describe_machine
from mononn_bench.measure.process import PACKAGE
from mononn_bench.systems.cuda import find_gpus
from mononn_bench.workflow.machine import CUDA, name_here

SOURCE = Path(__file__).with_name("ceilings.cu")
HEADERS = PACKAGE.parent / "mononn_core" / "vocabulary"
PACKAGES = (
    "numpy", "onnx", "onnxruntime", "onnxruntime-gpu", "torch", "triton", "transformers", "jax", "jaxlib",
    "jax-cuda13-plugin", "cupy-cuda13x", "apache-tvm", "tensorrt", "ml-dtypes", "pandas", "seaborn",
)  # fmt: skip
TOOLS = ("nvcc", "ncu", "nsys", "compute-sanitizer", "nvidia-smi", "cuobjdump")
SMI_FIELDS = (
    "name",
    "driver_version",
    "clocks.sm",
    "clocks.mem",
    "power.limit",
    "ecc.mode.current",
    "mig.mode.current",
)
Result = dict[str, Any]


def package_versions() -> dict[str, str]:
    """Versions of the packages that the suite can use and that are here."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def describe(emulate: bool) -> Result:
    """Processor, GPUs, packages and tools. Raises SystemUnavailableError where a real run finds no GPU."""
    gpus = find_gpus()
    if not gpus and not emulate:
        raise SystemUnavailableError("no NVIDIA GPU; rehearse with --emulate")
    result: Result = {
        "machine": to_plain(describe_machine(name_here(len(os.sched_getaffinity(0)), [CUDA]))),
        "gpus": [asdict(gpu) for gpu in gpus],
        "python": sys.version.split()[0],
        "packages": package_versions(),
        "tools": {tool: shutil.which(tool) or "not found" for tool in TOOLS},
    }
    if gpus:
        command = ["nvidia-smi", f"--query-gpu={','.join(SMI_FIELDS)}", "--format=csv,noheader"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        result["nvidia_smi"] = dict(zip(SMI_FIELDS, done.stdout.strip().split(", "), strict=False))
    return result


def ceilings(work: Path, emulate: bool, tell: Callable[[Result], None]) -> Result:
    """Compile ceilings.cu with nvcc and run it; then PyTorch's matrix products. In a rehearsal it is only compiled.

    The result's `kernels` are the program's lines ({name, unit, value, and what it was measured at}).
    """
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        raise SystemUnavailableError("nvcc not found")
    work.mkdir(parents=True, exist_ok=True)
    program = work / "ceilings"
    number = "90" if emulate else find_gpus()[0].compute_capability.replace(".", "")
    name = "90a" if number == "90" else number
    only = [f"-gencode=arch=compute_{name},code=sm_{name}", *(["-DMONONN_SM90"] if number == "90" else [])]
    command = [nvcc, "-std=c++17", "-O3", *only, "-I", str(HEADERS), str(SOURCE), "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        raise RuntimeError(f"nvcc refused ceilings.cu: {done.stderr.strip()[-300:]}")
    if emulate:
        return {
            "kernels": [],
            "rehearsal": "compiled; running it needs a GPU",
            "products": library_products("cpu", 256),
        }
    result: Result = {"kernels": run_program(program, tell)}
    result["products"] = library_products("cuda", 8192)
    return result


def run_program(program: Path, tell: Callable[[Result], None]) -> list[Result]:
    """The lines of the ceilings' program, told as they come. Raises RuntimeError with the call that failed."""
    rows: list[Result] = []
    with subprocess.Popen([str(program)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            rows.append(json.loads(line))
            tell({"kernels": rows})
    if process.returncode or any(row["name"] == "error" for row in rows):
        raise RuntimeError(f"the ceilings' program ended with status {process.returncode}: {rows[-1:]}")
    return rows


def library_products(device: str, size: int) -> Result:
    """FLOP/s of size x size x size products of PyTorch's library on random data, by type; tf32 on GPUs only."""
    try:
        import torch
    except ImportError as error:
        return {"unavailable": f"PyTorch cannot be imported: {error}"}
    import time

    rates: Result = {"size": size}
    kinds = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
    for name, dtype in {**kinds, **({"tf32": torch.float32} if device == "cuda" else {})}.items():
        torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
        a, b = (torch.randn(size, size, device=device, dtype=torch.float32).to(dtype) for _ in range(2))
        seconds = []
        for number in range(13):
            started = time.perf_counter()
            torch.matmul(a, b)
            if device == "cuda":
                torch.cuda.synchronize()
            if number >= 3:
                seconds.append(time.perf_counter() - started)
        rates[name] = 2 * size**3 / sorted(seconds)[len(seconds) // 2]
    return rates
