"""Reference answers in float64, from an implementation that is not ours: PyTorch, or onnx's ReferenceEvaluator."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from mononn_bench.codec import read_record, write_record
from mononn_bench.models.distance import largest_errors
from mononn_bench.models.evaluator import make_evaluator
from mononn_bench.models.folder import ONNX, RECORD, TOOLS, WEIGHTS, package_versions
from mononn_bench.models.inputs import TIMED_SETS, UNSEEN_SETS, Arrays, make_inputs
from mononn_bench.models.spec import is_quantised
from mononn_bench.models.user import describe_inputs
from mononn_bench.models.zoo import get_model
from mononn_bench.record import ModelRecord, ReferenceRecord

SETS = TIMED_SETS + UNSEEN_SETS
BY_ONNX = "onnx ReferenceEvaluator, float64"
ROUNDED_SETS = 2
"""Input sets that are answered in float32 too, to see what its rounding costs."""
MOVED = 2.0**-18
"""Of a number: so much that of a small network's, over all sets, some round the other way when they are quantised, as
one or another does in each implementation in float32."""


def write_reference(folder: Path, seed: int) -> ReferenceRecord:
    """Compute reference.npz beside model.onnx for SETS input sets; the record comes last. What rounding costs is that
    of float32, or of numbers that are MOVED before a user's quantised file quantises them.
    """
    model = read_record(ModelRecord, folder / RECORD)
    user = model.weights == "user"
    specs = describe_inputs(onnx.load(folder / ONNX)) if user else get_model(f"{model.name}-b{model.batch}").inputs
    inputs = make_inputs(specs, sets=SETS, seed=seed)
    module = (folder / WEIGHTS).exists()
    answers = evaluate_module(model, folder / WEIGHTS, inputs) if module else evaluate_onnx(folder / ONNX, inputs)
    few = inputs[:ROUNDED_SETS]
    if module:
        rounded = evaluate_module(model, folder / WEIGHTS, few, double=False)
    elif is_quantised(folder / ONNX):
        rounded = evaluate_onnx(folder / ONNX, inputs, moved=MOVED)
    else:
        rounded = _rounded(folder / ONNX, few)
    record = ReferenceRecord(
        model_digest=model.digest,
        method="PyTorch, float64" if module else BY_ONNX,
        family="pytorch" if module else "onnx",
        sets=SETS,
        seed=seed,
        digest="",
        versions=package_versions(TOOLS),
        fp32_errors=largest_errors(rounded, answers),
    )
    return _stored(folder, record, {"in": inputs, "out": answers})


def write_quantised_reference(folder: Path, unquantised: Path) -> ReferenceRecord:
    """As `write_reference`, for an 8-bit file: that graph's own answers, the scales being what they are in the file,
    and those of the model it was made of, whose reference stands in the folder `unquantised`. What rounding costs is
    seen over all sets where numbers are MOVED before they are quantised.
    """
    model = read_record(ModelRecord, folder / RECORD)
    before = read_record(ReferenceRecord, unquantised / "reference.json")
    with np.load(unquantised / "reference.npz") as stored:
        inputs, exact = (
            [{t.name: stored[f"{i}/{part}/{t.name}"] for t in ends} for i in range(before.sets)]
            for part, ends in (("in", model.inputs), ("out", model.outputs))
        )
    answers = evaluate_onnx(folder / ONNX, inputs)
    rounded = evaluate_onnx(folder / ONNX, inputs, moved=MOVED)
    record = replace(
        before,
        model_digest=model.digest,
        method=f"{BY_ONNX}, of the quantised graph",
        family="onnx",
        versions=package_versions(TOOLS),
        fp32_errors=largest_errors(rounded, answers),
        quantisation_errors=largest_errors(answers, exact),
    )
    return _stored(folder, record, {"in": inputs, "out": answers, "unquantised": exact})


def _stored(folder: Path, record: ReferenceRecord, parts: Mapping[str, Sequence[Arrays]]) -> ReferenceRecord:
    """Write reference.npz with `<set>/<part>/<name>`, then the record, completed by the file's digest."""
    stored = {
        f"{index}/{part}/{name}": array
        for part, sets in parts.items()
        for index, arrays in enumerate(sets)
        for name, array in arrays.items()
    }
    partial = folder / ".reference.npz"
    np.savez(partial, **stored)  # type: ignore[arg-type]
    partial.replace(folder / "reference.npz")
    record = replace(record, digest=hashlib.sha256((folder / "reference.npz").read_bytes()).hexdigest())
    write_record(record, folder / "reference.json")
    return record


def _rounded(path: Path, inputs: list[Arrays]) -> list[Arrays]:
    """A user's file as it is; no answers where onnx's evaluator cannot run it in its own types."""
    try:
        return evaluate_onnx(path, inputs, double=False)
    except Exception:
        return []


def evaluate_module(model: ModelRecord, weights: Path, inputs: list[Arrays], *, double: bool = True) -> list[Arrays]:
    """The catalogued module in double precision, or as it is; one dictionary of outputs a set. Needs PyTorch."""
    import torch

    from mononn_bench.models.modules import load_module

    module = load_module(get_model(model.name), weights, attention="eager")
    module = module.double() if double else module
    answers = []
    with torch.inference_mode():
        for arrays in inputs:
            tensors = (torch.from_numpy(arrays[tensor.name]) for tensor in model.inputs)
            result = module(*(t.double() if double and t.is_floating_point() else t for t in tensors))
            results = result if isinstance(result, tuple) else (result,)
            answers.append({t.name: r.numpy() for t, r in zip(model.outputs, results, strict=True)})
    return answers


def evaluate_onnx(path: Path, inputs: list[Arrays], *, double: bool = True, moved: float = 0.0) -> list[Arrays]:
    """An ONNX file with every floating-point type made double, or as it is, by onnx's ReferenceEvaluator; numbers are
    `moved` before they are quantised, see `make_evaluator`.
    """
    model = onnx.load(path)
    evaluator = make_evaluator(widen(model) if double else model, moved=moved)
    given = [{n: _double(a) for n, a in arrays.items()} for arrays in inputs] if double else inputs
    return [dict(zip(evaluator.output_names, evaluator.run(None, arrays), strict=True)) for arrays in given]


def widen(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with float32, float16 and bfloat16 constants, casts, inputs and outputs made float64."""
    narrow = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16}
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    del wide.graph.value_info[:]
    for tensor in wide.graph.initializer:
        if tensor.data_type in narrow:
            tensor.CopyFrom(_double_tensor(tensor))
    for value in (*wide.graph.input, *wide.graph.output):
        if value.type.tensor_type.elem_type in narrow:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    for node in wide.graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i in narrow:
                attribute.i = TensorProto.DOUBLE
            if attribute.type == onnx.AttributeProto.TENSOR and attribute.t.data_type in narrow:
                attribute.t.CopyFrom(_double_tensor(attribute.t))
        if node.op_type == "Constant":
            _widen_constant(node)
    return wide


def _widen_constant(node: onnx.NodeProto) -> None:
    for attribute in node.attribute:
        if attribute.name in ("value_float", "value_floats"):
            numbers = [attribute.f] if attribute.name == "value_float" else list(attribute.floats)
            array = np.array(numbers[0] if attribute.name == "value_float" else numbers, np.float64)
            attribute.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(array)))


def _double_tensor(tensor: onnx.TensorProto) -> onnx.TensorProto:
    return numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name)


def _double(array: Any) -> Any:
    return array.astype(np.float64) if np.issubdtype(array.dtype, np.floating) else array
