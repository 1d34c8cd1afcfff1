"""The child that answers requests: one system in one form in one process, asked as measure's worker is.

Like that worker it imports NumPy, the standard library, this package and its system's own library, nothing else; a
build of PyTorch's imports the suite's export too.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from mononn_bench.codec import to_plain
from mononn_bench.lengths.distribution import padded_length
from mononn_bench.lengths.requests import Buffers, Requests, cut_answers, fill_padded
from mononn_bench.lengths.serving import Run, Serving, make_serving, pads
from mononn_bench.measure.worker import Server, task_of
from mononn_bench.measure.worker import serve as serve_requests
from mononn_bench.models.zoo import get_model
from mononn_bench.record import ModelRecord
from mononn_bench.systems.base import Arrays


class RequestServer(Server):
    """Holds one system in a form and, once loaded, the requests and room for one of any length."""

    def build_form(self, form: str, grid: list[int], **task: Any) -> dict[str, Any]:
        """Build the network; seconds, options and what the adapter says."""
        made = task_of(precision="fp32", target="cpu", **task)
        made.build_folder.mkdir(parents=True)
        serving = make_serving(self._system.name, form, grid)
        started = time.perf_counter()
        built = serving.build(made)
        seconds = time.perf_counter() - started
        options = [asdict(option) for option in serving.options(made)]
        return {"build_s": seconds, "options": options, **to_plain(asdict(built))}

    def load_form(self, form: str, grid: list[int], requests: str, **task: Any) -> dict[str, Any]:
        """Load a build; milliseconds of the load alone. `requests` is an npz of `Requests`."""
        made = task_of(precision="fp32", target="cpu", **task)
        serving = make_serving(self._system.name, form, grid)
        self._answering = Answering(serving, made.model, grid if pads(form) else (), grid[-1])
        self._requests = Requests.read(Path(requests))
        self._specs = [spec for spec in get_model(made.model.name).inputs if spec.name in self._answering.names]
        started = time.perf_counter()
        serving.load(made)
        seconds = time.perf_counter() - started
        gc.collect()
        gc.freeze()
        return {"load_ms": seconds * 1e3}

    def answer(self, numbers: list[int], warm_up_s: float = 0.0, warm_up_runs: int = 0) -> dict[str, Any]:
        """Answer requests one after the other; nanoseconds of each, from its arrays at their length to its answers at
        theirs. Before that at least so many of them, and so long, untimed.
        """
        samples, clock = list[int](), time.perf_counter_ns
        gc.disable()
        begun, warm = clock(), 0
        while warm < warm_up_runs or clock() - begun < warm_up_s * 1e9:
            self._answering(self._requests.inputs(numbers[warm % len(numbers)], self._specs))
            warm += 1
        for number in numbers:
            request = self._requests.inputs(number, self._specs)
            started = clock()
            self._answering(request)
            samples.append(clock() - started)
        gc.enable()
        gc.collect()  # what lay uncollected since is no memory of the system's
        return {"samples_ns": samples}

    def check_answers(self, reference: str, sets: list[int], output: str) -> dict[str, Any]:
        """Answer the inputs `<set>/in/<name>` of an npz and write `<set>/out/<name>` to another."""
        answers = {}
        with np.load(reference) as stored:
            for index in sets:
                given = {name: stored[f"{index}/in/{name}"] for name in self._answering.names}
                found = self._answering(given)
                answers.update({f"{index}/out/{name}": np.array(array) for name, array in found.items()})
        np.savez(output, **answers)  # type: ignore[arg-type]
        return {}


class Answering:
    """Requests of any length in, answers of the same length out. With a `grid` a request is padded to its next length,
    and what is bound to a length is kept; without one it is bound at its own length, anew each time.
    """

    def __init__(self, serving: Serving, model: ModelRecord, grid: Sequence[int], longest: int) -> None:
        self.names = [tensor.name for tensor in model.inputs]
        self._serving, self._model, self._grid = serving, model, tuple(grid)
        self._inputs, self._outputs = Buffers(model.inputs, longest), Buffers(model.outputs, longest)
        self._bound: dict[int, tuple[Arrays, Run]] = {}

    def __call__(self, request: Arrays) -> Arrays:
        """The answers to inputs [1, n], valid until the next request."""
        length = request[self.names[0]].shape[1]
        place = padded_length(length, self._grid) if self._grid else length
        inputs, run = self._bound.get(place) or self._bind(place)
        fill_padded(inputs, request)
        return cut_answers(run(), self._model.outputs, length)

    def _bind(self, length: int) -> tuple[Arrays, Run]:
        inputs = self._inputs.at(length)
        found = inputs, self._serving.bind(inputs, self._outputs.at(length))
        if self._grid:
            self._bound[length] = found
        return found


def serve(settings: Mapping[str, Any]) -> None:
    """See measure/worker.py."""
    serve_requests(settings, RequestServer)
