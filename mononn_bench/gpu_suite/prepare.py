"""Compiles here what a GPU machine would otherwise compile in time that it is lent for."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path

from mononn_bench.gpu_suite.case import Case, make_files
from mononn_bench.gpu_suite.contenders import compile_ours
from mononn_bench.gpu_suite.plan import Step
from mononn_bench.gpu_suite.runner import step_variables


def prepare(steps: Sequence[Step], gpu: str, work: Path, say: Callable[[str], None]) -> None:
    """Compile what the steps build for a GPU of that name, for as many at once as there are cores; `work`/cubins holds
    the machine code afterwards. What fails is said and left out. Needs torch and onnx, and a CUDA compiler.
    """
    os.environ.update(step_variables(work))
    builds = [(Case(**c), launch) for s in steps if s.kind == "build" for c, launch in s.arguments["builds"]]
    for case in {(case.model, case.batch): case for case, _ in builds}.values():
        make_files([replace(case, precision="fp32")])  # all before one is read: batches share a file of weights
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        futures = {pool.submit(compile_ours, c, launch, gpu): f"{c.label}:{launch}" for c, launch in builds}
        for number, future in enumerate(as_completed(futures), 1):
            error = future.exception()
            how = f"failed: {error}" if error else f"{future.result()['build_s']:.1f} s"
            say(f"[{number}/{len(futures)}] {futures[future]}: {how}")
