"""``onnx.backend.base.Backend`` over the compiler, so that ONNX's own tests and tools can drive it.

``mode="compile"`` runs the compiled function; ``mode="evaluate"`` executes the Graph by its operators' semantics and
needs no compiler. Inputs a model computes shapes from (the target of a Reshape, say) are not known before the first
run: they are bound then, and the model is prepared again whenever they change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep

from mononn_core.compiler import build, lower_imported
from mononn_core.errors import InputError, UnsupportedError
from mononn_core.graph import Graph
from mononn_core.importer.context import UnknownValueError
from mononn_core.importer.protobuf import tensor_value
from mononn_core.importer.reader import load
from mononn_core.machine import Machine
from mononn_core.ops.evaluate import run as evaluate
from mononn_core.options import Options
from mononn_core.passes import pipeline
from mononn_core.runtime.session import Session

Run = Callable[[Mapping[str, Any]], Mapping[str, Any]]
MODES = ("compile", "evaluate")


def specialise(model: bytes, inputs: Mapping[str, np.ndarray[Any, Any]]) -> Graph:
    """The Graph of a model for inputs like these; those that decide shapes are fixed to their values."""
    values: dict[str, np.ndarray[Any, Any]] = {}
    shapes = {name: value.shape for name, value in inputs.items()}
    while True:
        try:
            return load(model, {name: s for name, s in shapes.items() if name not in values}, values)
        except UnknownValueError as error:
            needed = {name: inputs[name] for name in error.inputs if name in inputs and name not in values}
            if not needed:
                raise
            values.update(needed)


class MononnRep(BackendRep):
    """A prepared model."""

    def __init__(self, model: onnx.ModelProto, mode: str) -> None:
        self._model = model.SerializeToString()
        stored = {t.name for t in model.graph.initializer}
        self._names = [i.name for i in model.graph.input if i.name not in stored]
        self._outputs = [o.name for o in model.graph.output]
        self._mode = mode
        self._bound: tuple[str, ...] = ()
        self._ready: tuple[object, Run] | None = None

    def run(self, inputs: Sequence[Any], **kwargs: Any) -> tuple[Any, ...]:
        """Outputs, in the model's order, for inputs in the model's order."""
        if len(inputs) > len(self._names):
            raise InputError(f"the model has {len(self._names)} inputs, and {len(inputs)} were given")
        named = {name: _array(value) for name, value in zip(self._names, inputs, strict=False)}
        if self._ready is None or self._key(named) != self._ready[0]:
            graph = specialise(self._model, named)
            self._bound = tuple(name for name in named if name not in graph.inputs)
            self._ready = (self._key(named), self._prepare(graph))
        results = self._ready[1]({name: value for name, value in named.items() if name not in self._bound})
        return tuple(np.asarray(results[name]) for name in self._outputs)

    def _key(self, named: Mapping[str, np.ndarray[Any, Any]]) -> object:
        """What the prepared form depends on: all shapes, and the values of the bound inputs."""
        values = tuple(named[name].tobytes() for name in self._bound if name in named)
        return tuple((name, value.shape) for name, value in named.items()), values

    def _prepare(self, graph: Graph) -> Run:
        if self._mode == "evaluate":
            optimised = pipeline.run(graph)
            return lambda inputs: evaluate(optimised, inputs)
        return Session(build(lower_imported(graph, Options(), Machine.probe()))).run


def _array(value: Any) -> np.ndarray[Any, Any]:
    if isinstance(value, onnx.TensorProto):
        return tensor_value(value)
    if isinstance(value, (list, tuple)) or value is None:
        raise UnsupportedError("inputs that are sequences or optionals are not supported; give tensors")
    return np.asarray(value)


class MononnBackend(Backend):
    """ONNX's backend interface; ``prepare(model, device, mode=...)``."""

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device == "CPU"

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> MononnRep:
        """A runnable form of ``model``; raises UnsupportedError for another device than "CPU"."""
        if not cls.supports_device(device):
            raise UnsupportedError(f"device {device!r} is not supported; use 'CPU'")
        mode = kwargs.get("mode", "compile")
        if mode not in MODES:
            raise UnsupportedError(f"mode {mode!r} is not supported; use one of {', '.join(MODES)}")
        return MononnRep(model, mode)
