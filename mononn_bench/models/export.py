"""Export of a PyTorch module to ONNX: static shapes, pinned opset, the same bytes every time.

Import this file only in the PyTorch environment (envs/torch.txt pins the versions it needs).
"""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

import onnx
import torch
from torch import nn

from mononn_bench.models.inputs import make_inputs
from mononn_bench.models.zoo import ModelSpec

OPSET = 18
EXTERNAL_DATA_FROM = 2_000_000_000
"""Bytes of weights above which they go to one external file (a protobuf message ends at 2 GiB)."""


def example_arguments(spec: ModelSpec) -> tuple[torch.Tensor, ...]:
    """One input set as positional tensors; its mask pads, so nothing is specialised to a full one."""
    arrays = make_inputs(spec.inputs, sets=2, seed=0)[1]
    return tuple(torch.from_numpy(arrays[s.name]) for s in spec.inputs)


def export_onnx(module: nn.Module, spec: ModelSpec, path: Path) -> None:
    """Write the module as ONNX (opset 18, static shapes, weights embedded); equal modules give equal bytes."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            module, example_arguments(spec), dynamo=True, opset_version=OPSET, optimize=True, verbose=False,
            input_names=[s.name for s in spec.inputs], output_names=list(spec.outputs),
        )  # fmt: skip
    assert program is not None
    write_onnx(strip_metadata(program.model_proto), path)


def strip_metadata(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without stack traces, source paths and doc strings, which differ from machine to machine."""
    graph = model.graph
    model.doc_string = graph.doc_string = ""
    values = [*graph.input, *graph.output, *graph.value_info, *graph.initializer, *graph.node]
    for holder in [model, graph, *values]:
        del holder.metadata_props[:]
    for holder in values:
        holder.doc_string = ""
    return model


def write_onnx(model: onnx.ModelProto, path: Path) -> None:
    """Write atomically; above 2 GB the weights go to one file beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    external = sum(len(t.raw_data) for t in model.graph.initializer) > EXTERNAL_DATA_FROM
    if external:
        onnx.save(
            model, partial, save_as_external_data=True, location=f"{path.name}.data", all_tensors_to_one_file=True
        )
    else:
        partial.write_bytes(model.SerializeToString(deterministic=True))
    partial.replace(path)
