"""The nodes of a model, and which of them a system's step computes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import onnx
from onnx import shape_inference

from mononn_bench.models.arithmetic import Tensors
from mononn_bench.profiled import ModelNode, Step


def model_nodes(path: Path) -> tuple[ModelNode, ...]:
    """The nodes of a main graph with static shapes, in order; one without a name of its own has that of an output."""
    graph = shape_inference.infer_shapes(onnx.load(path, load_external_data=False), data_prop=True).graph
    tensors, named = Tensors.of(graph), Counter(node.name for node in graph.node)
    return tuple(
        ModelNode(
            name=node.name if node.name and named[node.name] == 1 else next(filter(None, node.output), node.name),
            op=node.op_type,
            inputs=tuple(name for name in node.input if name and name not in tensors.constants),
            outputs=tuple(name for name in node.output if name),
            flops=tensors.flops(node),
            output_bytes=sum(map(tensors.bytes, node.output)),
            constant_bytes=sum(tensors.constants_read(node).values()),
        )
        for node in graph.node
    )


def outputs_by_node(path: Path) -> dict[str, tuple[str, ...]]:
    """What each node of an optimised graph makes, where a build is one; empty where it is none."""
    if not path.exists():
        return {}
    return {node.name: tuple(node.output) for node in onnx.load(path, load_external_data=False).graph.node}


def with_nodes(
    steps: Iterable[Step], nodes: Sequence[ModelNode], made: Mapping[str, tuple[str, ...]]
) -> tuple[Step, ...]:
    """Steps with the model's nodes alone: what makes the tensors that a step of that name makes (`made`), or else those
    of `Step.nodes`, which may be names of nodes or of tensors.
    """
    known = {name: node.name for node in nodes for name in (*node.outputs, node.name)}
    return tuple(replace(step, nodes=_found(step.nodes, made.get(step.name, ()), known)) for step in steps)


def _found(said: Iterable[str], made: Iterable[str], known: Mapping[str, str]) -> tuple[str, ...]:
    for names in (made, said):
        if found := dict.fromkeys(known[name] for name in names if name in known):
            return tuple(found)
    return ()
