"""``mononn compile``: an ONNX model to one ``.mono`` file."""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from mononn_core.cli.feeds import read_shapes, shapes_of, values_of
from mononn_core.cli.gpu import compiled_lines, peak_bytes
from mononn_core.compiler import CudaStages, Stages, build, build_family, lower
from mononn_core.emit import checked, emit
from mononn_core.errors import OptionError
from mononn_core.options import Given
from mononn_core.runtime.artifact import Artifact
from mononn_core.schedule.cuda.schedule import CudaSchedule, read_schedule
from mononn_core.schedule.schedule import Schedule


def run(options: argparse.Namespace) -> int:
    """Compiles and writes; nothing is written when anything fails."""
    collects = gc.isenabled()
    gc.disable()  # most of what is made is kept until the end
    try:
        return _compiled(options)
    finally:
        if collects:
            gc.enable()


def _output(options: argparse.Namespace) -> Path:
    """The file to write; OptionError for what could not be written."""
    output = Path(options.output)
    if not output.parent.is_dir():
        raise OptionError(f"the folder of {output} does not exist; create it first")
    if output.exists() and not output.is_file():
        raise OptionError(f"{output} is no file that could be replaced; choose another --output")
    if options.emit != "mono":
        checked(options.emit, options.target, output, options.weights)
    elif options.weights:
        raise OptionError("a .mono file has its weights inside; leave --weights out, or choose another --emit")
    return output


def _compiled(options: argparse.Namespace) -> int:
    output = _output(options)
    started = time.perf_counter()
    if options.shapes_file:
        stages, artifact = None, family_of(options, started)
    else:
        with ThreadPoolExecutor(1) as compiler:
            stages = stages_of(options.model, options, compiler)
            phases, kib = len(stages.manifest["phases"]), len(stages.source) >> 10
            progress(f"{phases} phases; compiling {kib} KiB of source", started)
            artifact = build(stages)
    progress(f"writing {output}", started)
    if options.emit == "mono":
        artifact.save(output)
    written = [output] if options.emit == "mono" else emit(artifact, options.emit, output, options.weights)
    seconds = time.perf_counter() - started
    output, size = written[0], sum(file.stat().st_size for file in written)
    manifest = artifact.manifest
    if options.json:
        keys = ("name", "threads", "barriers", "arena_bytes", "weight_bytes", "flops", "cubins", "kernels", "further")
        facts = {key: manifest[key] for key in keys if key in manifest}
        memory = {"peak_bytes": peak_bytes()}
        print(
            json.dumps(
                {
                    "output": str(output),
                    "files": [str(file) for file in written],
                    "bytes": size,
                    "seconds": seconds,
                    **memory,
                    **facts,
                }
            )
        )
    else:
        for line in compiled_lines(stages, manifest) if isinstance(stages, CudaStages) else ():
            print(line)
        shapes = len(artifact.specialisations)
        what = f"{shapes} shapes" if shapes > 1 else f"{manifest['barriers']} barriers"
        print(
            f"{output}: {size / 1e6:.1f} MB, {what}, compiled in {seconds:.1f} s"
            + (f", at most {peak_bytes() / 1e9:.2f} GB of memory" if isinstance(stages, CudaStages) else "")
        )
    return 0


def stages_of(model: str, options: argparse.Namespace, compiler: Executor | None = None) -> Stages:
    """The model lowered with the command's options; ``compiler`` as in :func:`lower`."""
    progress(f"reading {model}", time.perf_counter())
    schedule = given_schedule(getattr(options, "given_schedule", ""))
    shapes, values = shapes_of(options), values_of(options)
    return lower(model, shapes=shapes, values=values, schedule=schedule, compiler=compiler, **compilation(options))


def family_of(options: argparse.Namespace, started: float) -> Artifact:
    """The model compiled for every line of --shapes-file."""
    if options.shape or options.given_schedule:
        other = "--shape" if options.shape else "--schedule"
        raise OptionError(f"{other} and --shapes-file are given; write all shapes in the file, or give one shape")
    shapes = read_shapes(options.shapes_file)
    progress(f"compiling {options.model} for {len(shapes)} shapes", started)
    return build_family(options.model, shapes, values=values_of(options), **compilation(options))


def compilation(options: argparse.Namespace) -> Any:
    """The command's options as keywords of the compiler."""
    threads = 0 if options.threads is None else options.threads
    if threads < 0 or options.threads == 0:
        raise OptionError(f"--threads {options.threads} is not a positive number; leave it out for every core")
    return {name: getattr(options, name) for name in Given.__annotations__} | {"threads": threads}


def given_schedule(path: str) -> Schedule | CudaSchedule | None:
    """The Schedule in a file, as text or JSON; None where no file is named."""
    if not path:
        return None
    try:
        return read_schedule(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(
            f"the schedule {path} cannot be read ({error}); give a file of mononn inspect --schedule"
        ) from error


def progress(text: str, started: float) -> None:
    """A line on standard error: seconds since the start, and what begins now."""
    print(f"[{time.perf_counter() - started:5.1f} s] {text}", file=sys.stderr, flush=True)
