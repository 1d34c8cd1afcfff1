"""Encoders of the catalogue with an open axis of tokens: export, and right answers for some requests.

A BERT is an encoder as it is, of a T5 the encoder is taken, with the catalogue's weights in both cases. What needs
PyTorch is imported inside functions: the list of encoders can be read anywhere.
"""

from __future__ import annotations

import hashlib
import logging
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import onnx

from mononn_bench.codec import write_record
from mononn_bench.errors import ModelError
from mononn_bench.lengths.distribution import quantile
from mononn_bench.lengths.requests import Arrays, make_requests, shapes_at
from mononn_bench.models.arithmetic import count_arithmetic
from mononn_bench.models.distance import largest_errors
from mononn_bench.models.folder import ONNX, RECORD, TOOLS, WEIGHTS, digest_model, package_versions
from mononn_bench.models.onnxfile import strip_metadata, write_onnx
from mononn_bench.models.spec import InputSpec
from mononn_bench.models.user import read_user_model
from mononn_bench.models.zoo import get_model
from mononn_bench.record import ModelRecord, ReferenceRecord, Tensor
from mononn_bench.served import Distribution

if TYPE_CHECKING:
    import torch

OPSET = 18
BEFORE, AFTER = (0.0, 0.1, 0.5, 0.9, 1.0), (0.0, 0.3, 0.7, 1.0)
"""Shares of the distribution at whose lengths answers are compared: before the first block, and after the last one.
"""
ROUNDED = 3
"""Requests that are answered in float32 too, to see what its rounding costs."""
REFERENCE_SEED = 1
"""Of the contents of compared requests: none of them is timed."""


def encoder_inputs(name: str) -> tuple[InputSpec, ...]:
    """The inputs of a catalogued network's encoder; their shapes are those of the catalogue. Raises UnknownNameError,
    and ModelError where there is no encoder of tokens.
    """
    spec = get_model(name)
    if spec.family not in ("bert", "t5"):
        raise ModelError(f"{name} reads no tokens, so its requests have no lengths: name a BERT or a T5.")
    return tuple(one for one in spec.inputs if not one.name.startswith("decoder"))


def load_encoder(name: str, folder: Path, attention: Literal["eager", "sdpa"]) -> Any:
    """The encoder as a PyTorch module with the weights in the folder."""
    from mononn_bench.models.modules import load_module

    return _encoder(load_module(get_model(name), folder / WEIGHTS, attention=attention))


def _encoder(network: Any) -> Any:
    """A BERT as it is, the encoder of a T5: positional token numbers and mask [1, n] -> (states [1, n, width],)."""
    if not hasattr(network, "t5"):
        return network
    from torch import nn

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = network.t5.encoder

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> tuple[torch.Tensor]:
            return (self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state,)

    return Encoder().eval()


def example(name: str, length: int) -> tuple[torch.Tensor, ...]:
    """Inputs of an encoder [1, length] as tensors, half of them padding: nothing is specialised to a full mask."""
    import torch

    specs = encoder_inputs(name)
    found = make_requests(specs, [length], 0).inputs(0, specs)
    found["attention_mask"][:, length // 2 :] = 0
    return tuple(torch.from_numpy(array) for array in found.values())


def open_axes(arguments: tuple[torch.Tensor, ...], longest: int) -> tuple[dict[int, Any], ...]:
    """What tells torch.export that the second axis of all arguments is one and the same length, up to `longest`."""
    import torch

    tokens = torch.export.Dim("tokens", min=2, max=longest)
    return tuple({1: tokens} for _ in arguments)


def write_encoder(name: str, distribution: Distribution, folder: Path) -> ModelRecord:
    """Export an encoder with an open axis into `folder`, with the reference answers, its record last.

    Raises UnknownNameError, and ModelError where there is no encoder or it is of fewer tokens than the longest request.
    """
    spec, longest = get_model(name), quantile(distribution, 1.0)
    encoder_inputs(name)
    most = spec.config.get("max_position_embeddings", longest)
    if most < longest:
        raise ModelError(f"{name} has positions for {most} tokens, the longest request has {longest}: name another.")
    from mononn_bench.models import modules

    network = modules.build_module(spec, seed=0)
    folder.mkdir(parents=True, exist_ok=True)
    modules.save_tensors(network, folder / WEIGHTS)
    _export(_encoder(network), name, longest, folder / ONNX)
    record = _described(name, longest, folder)
    _write_reference(record, distribution, folder)
    write_record(record, folder / RECORD)
    return record


def _export(module: Any, name: str, longest: int, path: Path) -> None:
    import torch

    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    arguments, specs = example(name, max(4, longest // 2)), encoder_inputs(name)
    outputs = ["last_hidden_state", "pooler_output"] if get_model(name).family == "bert" else ["last_hidden_state"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            module, arguments, dynamo=True, opset_version=OPSET, optimize=True, verbose=False,
            input_names=[s.name for s in specs], output_names=outputs, dynamic_shapes=open_axes(arguments, longest),
        )  # fmt: skip
    assert program is not None
    write_onnx(strip_metadata(program.model_proto), path)


def _described(name: str, longest: int, folder: Path) -> ModelRecord:
    """The model's record: an open axis has the size OPEN, arithmetic and bytes are those of the longest request."""
    model = onnx.load(folder / ONNX)
    inputs, outputs = (tuple(map(_tensor, ends)) for ends in (model.graph.input, model.graph.output))
    counted = count_arithmetic(read_user_model(folder / ONNX, shapes_at(inputs, longest)))
    spec = get_model(name)
    part = "" if spec.family == "bert" else "the encoder of "
    return ModelRecord(
        name=name, batch=1, full_size=spec.full_size, weights="seeded", seed=0,
        source=f"{part}the catalogue's network with an open axis of tokens, seed 0", digest=digest_model(folder),
        opset=OPSET, inputs=inputs, outputs=outputs, flops=counted.flops, weight_bytes=counted.weight_bytes,
        compulsory_bytes=counted.compulsory_bytes, versions=package_versions(TOOLS),
    )  # fmt: skip


def _tensor(value: onnx.ValueInfoProto) -> Tensor:
    kind = value.type.tensor_type
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)).name
    return Tensor(value.name, dtype, tuple(d.dim_value for d in kind.shape.dim))


def _write_reference(model: ModelRecord, distribution: Distribution, folder: Path) -> None:
    """reference.npz as `write_reference` has it, of requests at the lengths of BEFORE and AFTER, unpadded."""
    specs, lengths = encoder_inputs(model.name), [quantile(distribution, share) for share in (*BEFORE, *AFTER)]
    requests = make_requests(specs, lengths, REFERENCE_SEED)
    inputs = [requests.inputs(number, specs) for number in range(len(lengths))]
    module = load_encoder(model.name, folder, "eager")
    rounded = _answers(module, model, inputs[:ROUNDED])
    exact = _answers(module.double(), model, inputs)
    stored = {f"{i}/{part}/{n}": a for part, sets in (("in", inputs), ("out", exact))
              for i, arrays in enumerate(sets) for n, a in arrays.items()}  # fmt: skip
    partial = folder / ".reference.npz"
    np.savez(partial, **stored)  # type: ignore[arg-type]
    partial.replace(folder / "reference.npz")
    record = ReferenceRecord(
        model_digest=model.digest, method="PyTorch, float64, unpadded", family="pytorch", sets=len(lengths),
        seed=REFERENCE_SEED, digest=hashlib.sha256((folder / "reference.npz").read_bytes()).hexdigest(),
        versions=package_versions(TOOLS), fp32_errors=largest_errors(rounded, exact),
    )  # fmt: skip
    write_record(record, folder / "reference.json")


def _answers(module: Any, model: ModelRecord, inputs: list[Arrays]) -> list[Arrays]:
    import torch

    with torch.inference_mode():
        results = [module(*(torch.from_numpy(array) for array in arrays.values())) for arrays in inputs]
    return [{t.name: r.numpy() for t, r in zip(model.outputs, one, strict=True)} for one in results]
