"""Whole networks of the catalogue through the compiler: as right as docs/measuring.md asks, with few barriers.

Small ones by default; all full-size ones, minutes each, by `pytest -m networks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from mononn_bench.codec import read_record
from mononn_bench.measure.accuracy import fp32_limit
from mononn_bench.models.distance import relative_l2
from mononn_bench.models.folder import ONNX, RECORD, WEIGHTS, write_catalogued_model
from mononn_bench.models.inputs import Arrays, make_inputs
from mononn_bench.models.reference import evaluate_module, evaluate_onnx
from mononn_bench.models.zoo import ZOO, get_model
from mononn_bench.record import ModelRecord
from mononn_core import compile as compile_model
from mononn_core.importer import load
from mononn_core.passes import pipeline

BARRIERS_A_LAYER, BARRIERS_A_CONVOLUTION, BARRIERS_A_TOKEN = 6, 1.3, 2
"""Those of a token are of each recurrent layer."""
LAYERS = {
    "bert": ("num_hidden_layers",),
    "vit": ("num_hidden_layers",),
    "t5": ("num_layers", "num_decoder_layers"),
    "swin": ("depths",),
}
"""Where a configuration has the number of a transformer's layers, or of those of each stage."""
FULL_SIZE = [name for name, spec in ZOO.items() if spec.full_size]
RECOGNISED = {
    "t5-test-b2": {"attention": 6, "rms_norm": 12, "softmax": 0},
    "vit-test": {"attention": 2, "layer_norm": 5, "gelu": 2, "softmax": 0, "erf": 0},
}
"""What the passes make of a network: T5's attention (of itself, causal, of the encoder) with its biases and without a
scale, its norms; ViT's.
"""
SMALL = ["vit-test", "t5-test-b2", "resnext-test-b2", pytest.param("mobilenet-test", marks=pytest.mark.slow)]


def exact_answers(folder: Path, inputs: Sequence[Arrays]) -> list[Arrays]:
    """In double precision, by PyTorch, or where there is no module by onnx's evaluator."""
    if (folder / WEIGHTS).exists():
        return evaluate_module(read_record(ModelRecord, folder / RECORD), folder / WEIGHTS, list(inputs))
    return evaluate_onnx(folder / ONNX, list(inputs))


def onnxruntime_answers(path: Path, inputs: Sequence[Arrays]) -> list[Arrays]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return [dict(zip(names, session.run(None, arrays), strict=True)) for arrays in inputs]


def most_barriers(name: str, path: Path) -> float:
    """How many barriers a network may have: by its transformer layers, or by its convolutions (where AlexNet and its
    like have few of them, also by their other layers with a barrier each: fully connected ones, LRN). Small networks
    may have two more, their ends being many beside their layers.
    """
    spec = get_model(name)
    spare = 0 if spec.full_size else 2
    if spec.family in LAYERS:
        return BARRIERS_A_LAYER * int(sum(np.sum(spec.config[key]) for key in LAYERS[spec.family])) + spare
    operators = [node.op_type for node in onnx.load(path, load_external_data=False).graph.node]
    spare += BARRIERS_A_TOKEN * operators.count("LSTM") * spec.inputs[0].shape[-1]
    return BARRIERS_A_CONVOLUTION * sum(operators.count(op) for op in ("Conv", "Gemm", "LRN")) + spare


def check(name: str, folder: Path) -> None:
    write_catalogued_model(name, "seeded", 0, folder, folder)
    inputs = make_inputs(get_model(name).inputs, sets=2, seed=0)
    exact, theirs = exact_answers(folder, inputs), onnxruntime_answers(folder / ONNX, inputs)
    with compile_model(folder / ONNX, threads=2) as session:
        ours = [session.run(arrays) for arrays in inputs]
        again = session.run(inputs[0])
        barriers = session.info["barriers"]
    for output in get_model(name).outputs:
        assert np.array_equal(again[output], ours[0][output])
        limit = fp32_limit(max(relative_l2(t[output], e[output]) for t, e in zip(theirs, exact, strict=True)))
        errors = [relative_l2(o[output], e[output]) for o, e in zip(ours, exact, strict=True)]
        assert max(errors) <= limit, f"{output}: {errors} where {limit:.1e} passes"
    assert barriers <= most_barriers(name, folder / ONNX)


@pytest.mark.parametrize("name", SMALL)
def test_small_networks_are_compiled_right(name: str, tmp_path: Path) -> None:
    check(name, tmp_path)
    found = [node.op for node in pipeline.run(load(tmp_path / ONNX)).nodes]
    for op, count in RECOGNISED.get(name, {}).items():
        assert found.count(op) == count, op


@pytest.mark.networks
@pytest.mark.parametrize("name", FULL_SIZE)
def test_full_size_networks_are_compiled_right(name: str, tmp_path: Path) -> None:
    check(name, tmp_path)
    for path in tmp_path.iterdir():  # hundreds of megabytes that pytest would keep
        if path.is_file():
            path.unlink()
