"""The 8-bit file of a model, by ONNX Runtime's tool: what every system that reads quantised ONNX files is given.

Import this file only where onnxruntime and onnx are installed.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx
from onnx import version_converter
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

from mononn_bench.codec import read_record, write_record
from mononn_bench.errors import ModelError
from mononn_bench.models.arithmetic import count_arithmetic
from mononn_bench.models.folder import ONNX, RECORD, WEIGHTS, digest_model, package_versions
from mononn_bench.models.inputs import CALIBRATION_SEED, CALIBRATION_SETS, Arrays, make_inputs
from mononn_bench.models.onnxfile import EXTERNAL_DATA_FROM, strip_metadata, write_onnx
from mononn_bench.models.user import describe_inputs
from mononn_bench.models.zoo import IDENTITY, InputSpec, get_model
from mononn_bench.record import ModelRecord, Quantisation

TOOLS = ("numpy", "onnx", "onnxruntime")
OLDEST_OPSET, CONVERTED_TO = 13, 18
"""Scales of single channels came with the opset 13."""
CONVOLUTIONS, PRODUCTS, TABLES = ("Conv",), ("MatMul", "Gemm"), ("Gather",)
MADE_BY_OPTIMISER = "gemm_"
OPTIONS = {
    "quant_format": "QDQ",
    "activation_type": "QUInt8",
    "weight_type": "QInt8",
    "per_channel": "True",
    "calibrate_method": "MinMax",
    "quant_pre_process": "skip_symbolic_shape=True",
}
"""What is set of `quantize_static` for every model, as a record shows it; see `Recipe` for the rest. All else is the
tool's own choice.
"""


@dataclass(frozen=True)
class Recipe:
    """What is quantised of a model."""

    kinds: tuple[str, ...]
    """Operators, by ONNX's names; none for all that the tool knows."""
    float_outputs: tuple[str, ...]
    """Operators whose results stay float32."""
    weights_only: bool
    """Whether products of two computed matrices stay float32."""
    reduce_range: bool
    """Whether weights have 7 bits: see `saturates`."""

    def described(self) -> dict[str, str]:
        """For a record, by the tool's names of options."""
        by_weights = {"nodes_to_exclude": "products of two computed matrices"} if self.weights_only else {}
        outputs = {"OpTypesToExcludeOutputQuantization": ", ".join(self.float_outputs)} if self.float_outputs else {}
        kinds = ", ".join(self.kinds) or "all that the tool knows"
        return {
            **OPTIONS,
            "op_types_to_quantize": kinds,
            "reduce_range": str(self.reduce_range),
            **by_weights,
            **outputs,
        }


def write_quantised_model(source: Path, folder: Path) -> ModelRecord:
    """Quantise the model in the folder `source` into `folder`, its record last; the same arguments give the same file.

    Beside the file lie what `source` has for systems that start from the float weights, and its one-node model.
    Raises ModelError where the tool cannot, or leaves operators that are not ONNX's.
    """
    model = read_record(ModelRecord, source / RECORD)
    specs = _inputs(model, source)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".") as scratch:
        reduce_range = saturates(Path("/proc/cpuinfo").read_text())
        recipe = make_recipe(onnx.load(source / ONNX, load_external_data=False), reduce_range=reduce_range)
        large = model.weight_bytes > EXTERNAL_DATA_FROM
        quantised = _quantised(source / ONNX, Path(scratch), specs, recipe, large=large)
        write_onnx(strip_metadata(quantised), folder / ONNX)
    if (source / WEIGHTS).exists():
        (folder / WEIGHTS).hardlink_to(source / WEIGHTS)
    shutil.copytree(source / IDENTITY.name, folder / IDENTITY.name)
    written = onnx.load(folder / ONNX)
    counted = count_arithmetic(written)
    versions = package_versions(TOOLS)
    record = replace(
        model,
        digest=digest_model(folder),
        opset=next(o.version for o in written.opset_import if o.domain == ""),
        flops=counted.flops,
        weight_bytes=counted.weight_bytes,
        compulsory_bytes=counted.compulsory_bytes,
        quantisation=Quantisation(
            tool="onnxruntime.quantization.quantize_static",
            versions=versions,
            options=recipe.described(),
            calibration_seed=CALIBRATION_SEED,
            calibration_sets=CALIBRATION_SETS,
            unquantised_digest=model.digest,
        ),
    )
    write_record(record, folder / RECORD)
    return record


def _inputs(model: ModelRecord, source: Path) -> tuple[InputSpec, ...]:
    """What the graph inputs of a model are, whether it is the catalogue's or a user's."""
    if model.weights == "user":
        return describe_inputs(onnx.load(source / ONNX, load_external_data=False))
    return get_model(f"{model.name}-b{model.batch}").inputs


def saturates(cpuinfo: str) -> bool:
    """Whether sums of products of bytes saturate on the processor of that /proc/cpuinfo as libraries multiply there
    (`vpmaddubsw`): x86 without VNNI. ONNX Runtime's documentation (Quantize ONNX models, "When and why do I need to try
    U8U8?") advises weights of 7 bits there.
    """
    flags = next((line.split() for line in cpuinfo.splitlines() if line.startswith("flags")), [])
    return bool(flags) and not {"avx512_vnni", "avx_vnni"} & set(flags)


def make_recipe(model: onnx.ModelProto, *, reduce_range: bool = False) -> Recipe:
    """All that the tool knows, for a convolutional network. Of any other the products by weights, with results in
    float32, and the tables that tokens are looked up in: attention, norms, softmaxes, residuals and results of 8 bits
    make noise of a transformer's answers.
    """
    kinds = [node.op_type for node in model.graph.node]
    convolutions, products = (sum(map(kinds.count, some)) for some in (CONVOLUTIONS, PRODUCTS))
    if convolutions > products:
        return Recipe((), (), weights_only=False, reduce_range=reduce_range)
    return Recipe((*CONVOLUTIONS, *PRODUCTS, *TABLES), PRODUCTS, weights_only=True, reduce_range=reduce_range)


def _computed_products(path: Path) -> list[str]:
    """The names of the products in the file at `path` whose two sides are computed; nodes without names get some."""
    model = onnx.load(path, load_external_data=False)
    given = {t.name for t in model.graph.initializer}
    given |= {out for node in model.graph.node if node.op_type == "Constant" for out in node.output}
    if any(not node.name for node in model.graph.node):
        for index, node in enumerate(model.graph.node):
            node.name = node.name or f"unnamed {index}"
        onnx.save(model, path)
    return [n.name for n in model.graph.node if n.op_type in PRODUCTS and not given & set(n.input[:2])]


class _Calibration(CalibrationDataReader):  # type: ignore[misc]
    """Hands out the calibration inputs, one set a call, then None."""

    def __init__(self, specs: tuple[InputSpec, ...]) -> None:
        self._sets: Iterator[Arrays] = iter(make_inputs(specs, sets=CALIBRATION_SETS, seed=CALIBRATION_SEED))

    def get_next(self) -> Arrays | None:
        return next(self._sets, None)


def _quantised(
    path: Path, scratch: Path, specs: tuple[InputSpec, ...], recipe: Recipe, *, large: bool
) -> onnx.ModelProto:
    """The quantised graph of the file at `path`; `large` where one protobuf message cannot hold its weights."""
    prepared, result = scratch / "prepared.onnx", scratch / "quantised.onnx"
    try:
        quant_pre_process(
            str(_modern(path, scratch)), str(prepared), skip_symbolic_shape=True, save_as_external_data=large
        )
        quantize_static(
            str(prepared), str(result), _Calibration(specs), quant_format=QuantFormat.QDQ, per_channel=True,
            activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8, use_external_data_format=large,
            reduce_range=recipe.reduce_range,
            op_types_to_quantize=list(recipe.kinds) or None,
            nodes_to_exclude=_computed_products(prepared) if recipe.weights_only else None,
            extra_options={"OpTypesToExcludeOutputQuantization": list(recipe.float_outputs)},
        )  # fmt: skip
    except Exception as error:
        raise ModelError(f"ONNX Runtime's tool cannot quantise {path}: {' '.join(str(error).split())[:200]}") from error
    quantised = _renamed(onnx.load(result))
    foreign = sorted({f"{n.domain}.{n.op_type}" for n in quantised.graph.node if n.domain not in ("", "ai.onnx")})
    if foreign:
        raise ModelError(f"The quantised {path.name} has operators that are not ONNX's: {', '.join(foreign)}.")
    kept = [opset for opset in quantised.opset_import if opset.domain == ""]
    del quantised.opset_import[:]
    quantised.opset_import.extend(kept)
    return quantised


def _renamed(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with other names for the constants that ONNX Runtime's optimiser made when the tool ran it: when it
    makes the like again, of the file, it gives them these names once more, and then refuses the file.
    """
    new = {t.name: f"{t.name}_prepared" for t in model.graph.initializer if t.name.startswith(MADE_BY_OPTIMISER)}
    for tensor in model.graph.initializer:
        tensor.name = new.get(tensor.name, tensor.name)
    for node in model.graph.node:
        node.input[:] = [new.get(name, name) for name in node.input]
    return model


def _modern(path: Path, scratch: Path) -> Path:
    """The file, or its conversion where its opset is too old for the tool."""
    model: Any = onnx.load(path, load_external_data=False)
    version = next(o.version for o in model.opset_import if o.domain == "")
    if version >= OLDEST_OPSET:
        return path
    write_onnx(version_converter.convert_version(onnx.load(path), CONVERTED_TO), scratch / "modern.onnx")
    return scratch / "modern.onnx"
