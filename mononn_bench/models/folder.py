"""A model as a folder: model.onnx, model.json, weights.safetensors for PyTorch systems, and identity/ of the same
form.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from math import prod
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto

from mononn_bench.codec import write_record
from mononn_bench.errors import ModelError
from mononn_bench.models.arithmetic import count_arithmetic
from mononn_bench.models.inputs import make_inputs
from mononn_bench.models.light import make_light_model
from mononn_bench.models.onnxfile import write_onnx
from mononn_bench.models.user import describe_inputs, identity_model, read_user_model
from mononn_bench.models.zoo import IDENTITY, ModelSpec, get_model
from mononn_bench.record import ModelRecord, Tensor, Weights

RECORD, ONNX, WEIGHTS = "model.json", "model.onnx", "weights.safetensors"
TOOLS = ("numpy", "onnx", "onnxscript", "torch", "transformers")
HALVES = {TensorProto.FLOAT16: "fp16", TensorProto.BFLOAT16: "bf16"}


def write_catalogued_model(name: str, weights: Weights, seed: int, folder: Path, hub_cache: Path) -> ModelRecord:
    """Export a catalogued model into `folder`, its record last. Needs PyTorch and transformers, but for light networks.

    Raises UnknownNameError, HubUnreachableError, or ModelError where the model has no published weights.
    """
    spec = get_model(name)
    if weights == "pretrained" and spec.hub is None:
        raise ModelError(f"{name} has no published weights in the catalogue: use 'weights: seeded'.")
    if spec.family == "light":
        write_onnx(make_light_model(spec, seed), folder / ONNX)
        _write_identity(folder / IDENTITY.name)
        return _describe(spec, folder, weights, seed, f"{spec.config['file']} of onnx, seed {seed}")

    from mononn_bench.models import modules
    from mononn_bench.models.export import export_onnx
    from mononn_bench.models.hub import fetch_weights

    source, weights_digest = f"catalogue, seed {seed}", ""
    if spec.hub is not None and weights == "pretrained":
        module = modules.load_pretrained_module(spec, fetch_weights(spec.hub, hub_cache))
        source, weights_digest = f"{spec.hub.repo_id} at {spec.hub.revision}", spec.hub.sha256
    else:
        module = modules.build_module(spec, seed=seed)
    folder.mkdir(parents=True, exist_ok=True)
    export_onnx(module, spec, folder / ONNX)
    modules.save_tensors(module, folder / WEIGHTS)
    (folder / IDENTITY.name).mkdir(exist_ok=True)
    modules.save_tensors(modules.make_network(IDENTITY, "eager"), folder / IDENTITY.name / WEIGHTS)
    _write_identity(folder / IDENTITY.name)
    return _describe(spec, folder, weights, seed, source, weights_digest)


def write_user_model(name: str, path: Path, shapes: Mapping[str, tuple[int, ...]], folder: Path) -> ModelRecord:
    """Copy a user's ONNX file into `folder` with static shapes, its record last. Raises ModelError (user.py)."""
    model = read_user_model(path, shapes)
    spec = ModelSpec(
        name=name,
        family="identity",
        config={},
        inputs=describe_inputs(model),
        outputs=tuple(v.name for v in model.graph.output),
        full_size=False,
        summary=path.name,
    )
    write_onnx(model, folder / ONNX)
    _write_identity(folder / IDENTITY.name)
    return _describe(spec, folder, "user", 0, path.name)


def digest_model(folder: Path) -> str:
    """SHA-256 of model.onnx and its external data."""
    total = hashlib.sha256()
    for path in sorted(folder.glob(f"{ONNX}*")):
        with path.open("rb") as stream:
            while chunk := stream.read(1 << 20):
                total.update(chunk)
    return total.hexdigest()


def package_versions(names: tuple[str, ...]) -> dict[str, str]:
    """Installed versions of those of the distributions that are there."""
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _write_identity(folder: Path) -> None:
    spec = IDENTITY.inputs[0]
    write_onnx(identity_model(spec, IDENTITY.outputs[0]), folder / ONNX)
    stored = {f"0/in/{name}": a for name, a in make_inputs(IDENTITY.inputs, sets=1, seed=0)[0].items()}
    np.savez(folder / "inputs.npz", **stored)  # type: ignore[arg-type]
    _describe(IDENTITY, folder, "seeded", 0, "one Identity node")


def _describe(
    spec: ModelSpec, folder: Path, weights: Weights, seed: int, source: str, weights_digest: str = ""
) -> ModelRecord:
    model = onnx.load(folder / ONNX)
    counted = count_arithmetic(model)
    record = ModelRecord(
        name=spec.name,
        batch=spec.inputs[0].shape[0] if spec.inputs[0].shape else 1,
        full_size=spec.full_size,
        weights=weights,
        seed=seed,
        source=source,
        digest=digest_model(folder),
        opset=next(o.version for o in model.opset_import if o.domain == ""),
        inputs=tuple(_tensor(v) for v in model.graph.input if v.name in {s.name for s in spec.inputs}),
        outputs=tuple(_tensor(v) for v in model.graph.output),
        flops=counted.flops,
        weight_bytes=counted.weight_bytes,
        compulsory_bytes=counted.compulsory_bytes,
        versions=package_versions(TOOLS),
        weights_digest=weights_digest,
        stored=_stored(model),
    )
    write_record(record, folder / RECORD)
    return record


def _stored(model: onnx.ModelProto) -> str:
    """The type of 16 bits that most of a file's real weights are of, or ""."""
    elements: Counter[int] = Counter()
    for tensor in model.graph.initializer:
        if tensor.data_type in (*HALVES, TensorProto.FLOAT):
            elements[tensor.data_type] += prod(tensor.dims)
    most = max(elements, key=lambda kind: elements[kind], default=TensorProto.FLOAT)
    return HALVES.get(most, "")


def _tensor(value: onnx.ValueInfoProto) -> Tensor:
    kind = value.type.tensor_type
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)).name
    shape = tuple(d.dim_value for d in kind.shape.dim)
    if 0 in shape:
        raise ModelError(
            f"Output {value.name!r} has a dimension only the data decides: this suite needs static shapes."
        )
    return Tensor(value.name, dtype, shape)
