"""``mononn bisect``: the first node of a model where our value leaves onnx's reference, and the stage that did it.

1. The imported Graph, by its operators' semantics: every tensor is compared, the first that differs is named.
2. The passes: each in turn, then the shortest prefix of the model that the guilty pass breaks.
3. The compiled function: its outputs, then the shortest prefix of the model that compiles to a wrong value.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from mononn_core.cli.compile import progress
from mononn_core.cli.feeds import feeds, read_inputs, shapes_of, values_of
from mononn_core.compiler import compile as compile_model
from mononn_core.compiler.cpu import rounding
from mononn_core.errors import OptionError
from mononn_core.importer.reader import load as import_model
from mononn_core.importer.reference import Step, Traced
from mononn_core.machine import Machine
from mononn_core.ops import evaluate
from mononn_core.options import Options
from mononn_core.passes import pipeline
from mononn_core.passes.pipeline import Pass
from mononn_core.runtime.base import TensorInfo

Arrays = Mapping[str, np.ndarray]
FOUND = 1


@dataclass(frozen=True)
class Finding:
    """Where a value left the reference: the stage, the ONNX node and its tensor, and the relative L2 error there."""

    stage: str
    node: str
    op_type: str
    tensor: str
    error: float


def run(options: argparse.Namespace) -> int:
    """Prints the finding and returns 1, or says that all agree and returns 0."""
    if not options.tolerance > 0:
        raise OptionError(f"--tolerance {options.tolerance} accepts nothing; give a positive number")
    search = Bisection(options)
    finding, error = search.run()
    if options.json:
        print(json.dumps({"finding": asdict(finding) if finding else None, "error": error, "nodes": search.nodes}))
    elif finding:
        place = f"{finding.op_type} node {finding.node!r}, tensor {finding.tensor!r}"
        print(f"{place}: relative L2 error {finding.error:.3g} after {finding.stage}")
    else:
        print(
            f"all {search.nodes} nodes agree with the reference; the outputs' largest relative L2 error is {error:.3g}"
        )
    return FOUND if finding else 0


class Bisection:
    """One model, one set of inputs, one reference."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.started = time.perf_counter()
        self.options = options
        self.shapes = shapes_of(options)
        self.values = values_of(options)
        self.traced = Traced.load(options.model, self.shapes, self.values)
        graph = self.traced.graph
        tensors = {name: TensorInfo(graph.types[name].dtype, graph.types[name].shape) for name in graph.inputs}
        self.inputs = feeds(tensors, read_inputs(tensors, options.input), options.seed)
        progress(f"reference values of {len(self.traced.steps)} tensors", self.started)
        self.reference = self.traced.reference(self.inputs)
        self.nodes = len(self.traced.steps)
        self.outputs = [output.name for output in self.traced.model.graph.output]

    def run(self) -> tuple[Finding | None, float]:
        """The finding, and the largest error among the compiled outputs (0 when another stage was found first)."""
        for stage in (self.semantics, self.passes):
            finding = stage()
            if finding:
                return finding, 0.0
        return self.compiled()

    def semantics(self) -> Finding | None:
        """Every tensor of the imported Graph against the reference."""
        progress("the imported graph, tensor by tensor", self.started)
        ours = {**self.traced.constants, **self.inputs, **evaluate.run(self.traced.graph, self.inputs)}
        for step in self.traced.steps:
            error = self.error(step.tensor, ours[step.value])
            if error > self.options.tolerance:
                return finding_of(step, "import", error)
        return None

    def passes(self) -> Finding | None:
        """Each pass in turn; for the first that breaks an output, the shortest prefix that it breaks."""
        graph = import_model(self.options.model, self.shapes, self.values)
        target, rule = self.options.target, rounding(Options(activations=self.options.activations), Machine.probe())
        steps = (*pipeline.steps(target, rule), *pipeline.FORMS[target])
        for position, (name, step) in enumerate(steps):
            changed = step(graph)
            if changed is graph:
                continue
            graph = changed
            progress(f"pass {name}", self.started)
            if self.worst(evaluate.run(graph, self.inputs)) > self.options.tolerance:
                return self.shortest(f"pass {name}", partial(self.evaluated, steps[: position + 1]))
        return None

    def compiled(self) -> tuple[Finding | None, float]:
        """The compiled outputs; if they are wrong, the shortest prefix that compiles to a wrong value."""
        progress("the compiled function", self.started)
        worst = self.worst(self.executed(self.options.model))
        if worst <= self.options.tolerance:
            return None, worst
        return self.shortest("compilation", self.executed), worst

    def evaluated(self, steps: Sequence[tuple[str, Pass]], prefix: bytes) -> Arrays:
        """Outputs of a prefix's Graph after the first passes."""
        graph = import_model(prefix, self.shapes)
        for _, step in steps:
            graph = step(graph)
        return evaluate.run(graph, self.inputs)

    def executed(self, model: str | bytes) -> Arrays:
        """Outputs of a model's compiled function."""
        options = self.options
        names = ("target", "precision", "activations", "threads")
        settings: dict[str, Any] = {name: getattr(options, name) or 0 for name in names}
        values = self.values if isinstance(model, str) else {}  # which a prefix has as constants
        with compile_model(model, shapes=self.shapes, values=values, **settings) as session:
            return session.run({name: self.inputs[name] for name in session.inputs})

    def shortest(self, stage: str, run: Callable[[bytes], Arrays]) -> Finding:
        """Binary search for the first step whose prefix gives a wrong value; the whole model is known to."""
        folded = self.traced.constants
        steps = [step for step in self.traced.steps if step.value not in folded and step.tensor in self.reference]
        low, high = 0, len(steps) - 1
        errors: dict[int, float] = {}
        while low < high:
            middle = (low + high) // 2
            progress(f"{stage}: up to {steps[middle].origin}", self.started)
            errors[middle] = self.worst(run(self.traced.prefix(steps[middle].tensor)))
            if errors[middle] > self.options.tolerance:
                high = middle
            else:
                low = middle + 1
        if low not in errors:
            errors[low] = self.worst(run(self.traced.prefix(steps[low].tensor)))
        return finding_of(steps[low], stage, errors[low])

    def worst(self, values: Arrays) -> float:
        """The largest error among ``values``."""
        return max((self.error(name, value) for name, value in values.items()), default=0.0)

    def error(self, tensor: str, value: np.ndarray) -> float:
        """Relative L2 error of a value; 0 where the reference has none."""
        return relative_error(value, self.reference[tensor]) if tensor in self.reference else 0.0


def finding_of(step: Step, stage: str, error: float) -> Finding:
    return Finding(stage, step.origin.name, step.origin.op_type, step.tensor, error)


def relative_error(value: np.ndarray, reference: np.ndarray) -> float:
    """|value - reference| / |reference| in L2, where equal infinities and NaNs count as equal; infinite for another
    shape or dtype; the share of wrong elements for integers and bools."""
    value, reference = np.asarray(value), np.asarray(reference)
    if value.shape != reference.shape or value.dtype != reference.dtype:
        return float("inf")
    if reference.dtype.kind not in "fc" and reference.dtype.name != "bfloat16":
        return float(np.mean(value != reference)) if value.size else 0.0
    ours, theirs = value.astype(np.float64), reference.astype(np.float64)
    same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
    if not (np.isfinite(ours) | same).all() or not (np.isfinite(theirs) | same).all():
        return float("inf")
    difference = np.linalg.norm(np.where(same, 0, ours - theirs))
    scale = np.linalg.norm(np.where(np.isfinite(theirs), theirs, 0))
    return float(difference / scale) if scale else float(difference)
