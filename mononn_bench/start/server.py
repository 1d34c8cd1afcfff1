"""In a system's own environment: its native programs are built here, and its Python process answers once."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from mononn_bench.measure.worker import Server, aligned_copy, task_of
from mononn_bench.measure.worker import serve as serve_requests
from mononn_bench.start.programs import make_programs
from mononn_bench.systems import get_system


class StartServer(Server):
    """Builds programs; they are started by the parent, without this process."""

    def programs(self, folder: str, **task: Any) -> dict[str, Any]:
        """The native programs of a build, built into the folder."""
        where = Path(folder)
        shutil.rmtree(where, ignore_errors=True)
        where.mkdir(parents=True)
        made = make_programs(self._system.name, task_of(**task), where)
        return {"programs": {kind: asdict(program) for kind, program in made.items()}}


def serve(settings: Mapping[str, Any]) -> None:
    """See measure/worker.py. With `once` in the settings, answer once as the native programs do, by the adapter."""
    if "once" in settings:
        answer_once(settings["system"], settings["descriptor"], **settings["once"])
    else:
        serve_requests(settings, StartServer)


def answer_once(
    system: str,
    descriptor: int,
    inputs: Mapping[str, str],
    outputs: Mapping[str, str],
    **task: Any,
) -> None:
    """Load, bind, run once and tell when, then write the outputs and wait for the end of standard input. `inputs` and
    `outputs` are files of raw bytes by tensor.
    """
    made, adapter = task_of(**task), get_system(system)()
    given = {t.name: np.fromfile(inputs[t.name], t.dtype).reshape(t.shape) for t in made.model.inputs}
    bound = {name: aligned_copy(array) for name, array in given.items()}  # a system may read them where they lie
    adapter.load(made)
    adapter.bind(bound)
    stood = time.monotonic_ns()
    adapter.warm_up()
    found = adapter.outputs()
    os.write(descriptor, f"{stood} {time.monotonic_ns()}\n".encode())
    for name, array in found.items():
        np.ascontiguousarray(array).tofile(outputs[name])
    os.write(descriptor, b"written\n")
    sys.stdin.read()
