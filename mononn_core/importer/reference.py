"""Every tensor of an ONNX model, by onnx's own reference evaluator and by the imported Graph; for ``mononn bisect``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from mononn_core.errors import Origin, UnsupportedError
from mononn_core.graph import Graph
from mononn_core.importer.protobuf import plain_node, read_model
from mononn_core.importer.reader import Importer, Shapes, Values, fix_inputs, input_types


@dataclass(frozen=True)
class Step:
    """One tensor that an ONNX node makes: its name there, and the Graph tensor that holds its value."""

    origin: Origin
    tensor: str
    value: str


@dataclass(frozen=True)
class Traced:
    """A model with every tensor kept.

    Attributes:
        model: the ONNX model, external data included.
        graph: imported, not optimised; its outputs are the values of all steps that are not constants.
        steps: in the model's order.
        constants: values of the steps that importing folded.
    """

    model: onnx.ModelProto
    graph: Graph
    steps: tuple[Step, ...]
    constants: Mapping[str, np.ndarray[Any, Any]]

    @staticmethod
    def load(source: str | Path | bytes, shapes: Shapes | None = None, values: Values | None = None) -> Traced:
        """Raises what :func:`mononn_core.importer.load` raises."""
        model = read_model(source)
        fix_inputs(model, values or {})
        importer = Importer(model)
        importer.declare(input_types(model, shapes or {}))
        steps = []
        for proto in model.graph.node:
            node = plain_node(proto)
            importer.convert(node, importer.scope, importer.opsets, "")
            for name in node.outputs:
                value = importer.scope.get(name)
                if name and isinstance(value, str):
                    steps.append(Step(node.origin, name, value))
        builder = importer.builder
        made = {name for node in builder.nodes for name in node.outputs}
        outputs = tuple(dict.fromkeys(step.value for step in steps if step.value in made))
        graph = builder.graph(model.graph.name or "model", importer.inputs, outputs)
        return Traced(model, graph, tuple(steps), dict(builder.constants))

    def reference(self, inputs: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
        """Value of every ONNX tensor by onnx.reference, in the model's own precision.

        Raises:
            UnsupportedError: the reference evaluator cannot run the model.
        """
        try:
            with np.errstate(all="ignore"):
                values = ReferenceEvaluator(self.model).run(None, dict(inputs), intermediate=True)
        except Exception as error:  # the evaluator raises whatever its operators raise
            line = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UnsupportedError(f"onnx's reference evaluator cannot run this model ({line[:200]})") from error
        kinds = (np.ndarray, np.generic)  # not sequences, not absent optional values
        return {name: np.asarray(value) for name, value in values.items() if isinstance(value, kinds)}

    def prefix(self, tensor: str) -> bytes:
        """The model up to ``tensor``, which becomes its only output."""
        kinds = {value.name: value for value in (*self.model.graph.value_info, *self.model.graph.output)}
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        del model.graph.output[:]
        model.graph.output.add().CopyFrom(kinds.get(tensor, onnx.ValueInfoProto(name=tensor)))
        return bytes(model.SerializeToString())
