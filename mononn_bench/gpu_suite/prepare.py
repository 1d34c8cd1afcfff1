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
    builds = [built for step in steps if step.kind == "build" for built in step.arguments["builds"]]
    made: set[tuple[str, int]] = set()
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        futures = {}
        for described, launch in builds:
            case = Case(**described)
            if (case.model, case.batch) not in made:
                make_files([replace(case, precision="fp32")])
                made.add((case.model, case.batch))
            futures[pool.submit(compile_ours, case, launch, gpu)] = f"{case.label}:{launch}"
        for number, future in enumerate(as_completed(futures), 1):
            error = future.exception()
            how = f"failed: {error}" if error else f"{future.result()['build_s']:.1f} s"
            say(f"[{number}/{len(futures)}] {futures[future]}: {how}")
