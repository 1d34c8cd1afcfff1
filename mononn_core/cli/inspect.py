"""``mononn inspect``: what a network became: phases, tasks, barriers, memory, work, and the texts of its stages."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mononn_core.cli.feeds import shapes_of
from mononn_core.cli.gpu import gpu_summary
from mononn_core.cli.words import columns, size, tensor_lines
from mononn_core.errors import OptionError
from mononn_core.machine import Machine
from mononn_core.runtime.artifact import MAGIC, Artifact
from mononn_core.runtime.base import Specialisation, fitting
from mononn_core.runtime.trace import floor_seconds


def run(options: argparse.Namespace) -> int:
    """Prints the summary, or one stage's text."""
    manifests, texts = described(options)
    each = [Specialisation.of(i, manifest) for i, manifest in enumerate(manifests)]
    index = fitting(each, shapes_of(options)).index if len(each) > 1 else 0
    manifest = manifests[index]
    if options.text:
        text = texts.get(f"{options.text}:{index}" if index else options.text)
        if text is None:
            raise OptionError(f"{options.file} does not hold its {options.text}; inspect the ONNX model instead")
        if options.json and options.text == "schedule":
            from mononn_core.schedule.cuda.schedule import read_schedule

            text = read_schedule(text).to_json()
        elif options.json:
            text = json.dumps({options.text: text})
        print(text.rstrip("\n"))
        return 0
    if "predicted" in manifest:
        print(json.dumps(manifest, sort_keys=True) if options.json else gpu_summary(manifest))
        return 0
    machine = Machine.probe()
    floors = floor_seconds(manifest, machine, manifest["threads"])
    if options.json:
        print(json.dumps({**manifest, "floor_seconds": sum(floors)}, sort_keys=True))
    else:
        print(summary(manifest, floors, machine))
    return 0


def described(options: argparse.Namespace) -> tuple[Sequence[Mapping[str, Any]], Mapping[str, str]]:
    """Manifests (one a specialisation) and texts of a ``.mono`` file, or of what an ONNX model lowers to."""
    path = Path(options.file)
    try:
        with path.open("rb") as stream:
            compiled = stream.read(len(MAGIC)) == MAGIC
    except OSError as error:
        raise OptionError(f"{path} cannot be read ({error.strerror}); give a .mono file or an ONNX model") from error
    if compiled:
        artifact = Artifact.load(path)
        return artifact.specialisations, artifact.texts
    # The compiler and onnx are loaded for a model only: a .mono file is inspected without them.
    from mononn_core.cli.compile import stages_of

    stages = stages_of(options.file, options)
    return (stages.manifest,), stages.texts


def summary(manifest: Mapping[str, Any], floors: list[float], machine: Machine) -> str:
    """The text for people."""
    phases = manifest["phases"]
    rates = f"{machine.peak_flops_per_core / 1e9:.0f} GFLOP/s a core, {machine.bandwidth / 1e9:.0f} GB/s"
    target = manifest["machine"]
    shapes = len(manifest.get("further", ())) + 1
    several = f" of {shapes}, one a shape" if shapes > 1 else ""
    lines = [
        f"{manifest['name']}: mononn {manifest['mononn_version']}, {target.get('level') or target['arch']}, "
        f"{manifest['threads']} threads, one function{several}",
        *tensor_lines(manifest),
        f"  phases  {len(phases)} ({sum(phase['tasks'] for phase in phases)} tasks, {manifest['barriers']} barriers)",
        f"  memory  arena {size(manifest['arena_bytes'])}, scratch {size(manifest['scratch_bytes'])} a worker, "
        f"weights {size(manifest['weight_bytes'])}",
        f"  work    {manifest['flops'] / 1e9:.4g} GFLOP, {size(manifest['bytes'])} read at least",
        f"  floor   {sum(floors) * 1e3:.4g} ms (stated rates: {rates}; `mononn trace --table` measures them)",
        "",
    ]
    rows = [("phase", "tasks", "MFLOP", "MB", "floor us", "barrier", "origin")]
    for phase, floor in zip(phases, floors, strict=True):
        moved = (phase["bytes"] + phase["activation_bytes"]) / 1e6
        work = (f"{phase['flops'] / 1e6:.2f}", f"{moved:.2f}", f"{floor * 1e6:.1f}")
        rows.append((phase["id"], str(phase["tasks"]), *work, "yes" if phase["barrier"] else "", phase["origin"]))
    return "\n".join([*lines, *columns(rows)])
