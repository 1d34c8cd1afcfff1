"""ONNX files: without what differs from machine to machine, written at once or not at all."""

from __future__ import annotations

from pathlib import Path

import onnx

EXTERNAL_DATA_FROM = 2_000_000_000
"""Bytes of weights above which they go to one external file (a protobuf message ends at 2 GiB)."""


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
    """Write atomically; above 2 GB the weights go first to one file beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    external = sum(len(t.raw_data) for t in model.graph.initializer) > EXTERNAL_DATA_FROM
    if external:
        data = f"{path.name}.data"
        (path.parent / data).unlink(missing_ok=True)  # onnx.save would append to it
        onnx.save(model, partial, save_as_external_data=True, location=data, all_tensors_to_one_file=True)
    else:
        partial.write_bytes(model.SerializeToString(deterministic=True))
    partial.replace(path)
