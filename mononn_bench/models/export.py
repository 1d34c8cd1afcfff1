"""Export of a PyTorch module to ONNX: static shapes, pinned opset, the same bytes every time.

Import this file only in the PyTorch environment (envs/torch.txt pins the versions it needs).
"""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

import torch
from torch import nn

from mononn_bench.models.inputs import make_inputs
from mononn_bench.models.onnxfile import strip_metadata, write_onnx
from mononn_bench.models.zoo import ModelSpec

OPSET = 18


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
