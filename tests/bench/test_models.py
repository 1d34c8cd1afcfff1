"""The catalogue's models behave like trained ones, export to the same bytes, and their inputs vary."""

from __future__ import annotations

import math
from itertools import combinations
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mononn_bench.codec import read_record
from mononn_bench.errors import UnknownNameError
from mononn_bench.models.arithmetic import count_arithmetic
from mononn_bench.models.folder import write_catalogued_model
from mononn_bench.models.inputs import make_inputs
from mononn_bench.models.modules import build_module, load_module
from mononn_bench.models.reference import evaluate_onnx
from mononn_bench.models.zoo import ZOO, InputSpec, get_model
from mononn_bench.record import ModelRecord

SMALL = ["bert-test", "bert-tiny", "mlp-test", "mlp"]


def outputs(name: str, sets: int = 4) -> list[tuple[torch.Tensor, ...]]:
    module = build_module(get_model(name), seed=0)
    results = []
    for arrays in make_inputs(get_model(name).inputs, sets=sets, seed=0):
        result = module(*(torch.from_numpy(a) for a in arrays.values()))
        results.append(result if isinstance(result, tuple) else (result,))
    return results


def attention_entropies(name: str) -> list[float]:
    """Mean entropy of a layer's rows of attention over log(n), n the unpadded tokens; one number a layer and input
    set.
    """
    module = build_module(get_model(name), seed=0)
    found = []
    for arrays in make_inputs(get_model(name).inputs, sets=3, seed=0):
        length = int(arrays["attention_mask"].sum())
        result = module.bert(**{k: torch.from_numpy(v) for k, v in arrays.items()}, output_attentions=True)
        for p in result.attentions:
            rows = -(p * p.clamp_min(1e-30).log()).sum(-1)
            found.append(float(rows.mean()) / math.log(length))
    return found


@pytest.mark.parametrize("name", SMALL)
def test_different_inputs_have_different_outputs(name: str) -> None:
    for first, second in combinations(outputs(name), 2):
        for a, b in zip(first, second, strict=True):
            assert float((a - b).norm() / a.norm()) > 0.1


@pytest.mark.parametrize("name", ["bert-test", "bert-tiny"])
def test_attention_is_not_uniform_and_layers_keep_their_variance(name: str) -> None:
    assert max(attention_entropies(name)) <= 0.7
    module = build_module(get_model(name), seed=0)
    variances: dict[str, float] = {}
    for path, part in module.named_modules():
        if path.endswith("LayerNorm") or path.endswith(("value", "intermediate.dense", "pooler.dense")):
            part.register_forward_hook(lambda _m, _i, o, path=path: variances.update({path: float(o.var())}))
    module(*(torch.from_numpy(a) for a in make_inputs(get_model(name).inputs, sets=1, seed=0)[0].values()))
    assert len(variances) > 8
    assert all(0.4 < value < 2.5 for value in variances.values()), variances


def test_biases_and_gains_are_random() -> None:
    for name, tensor in build_module(get_model("bert-test"), seed=0).named_parameters():
        assert float(tensor.std()) > 0.02, name


def test_the_export_gives_the_same_bytes_and_agrees_with_the_module(bert_folder: Path, tmp_path: Path) -> None:
    record = read_record(ModelRecord, bert_folder / "model.json")
    again = write_catalogued_model("bert-test", "seeded", 0, tmp_path / "again", tmp_path)
    assert again.digest == record.digest
    other = write_catalogued_model("bert-test", "seeded", 1, tmp_path / "other", tmp_path)
    assert other.digest != record.digest
    text = (bert_folder / "model.onnx").read_bytes()
    assert str(Path.cwd()).encode() not in text
    assert b"site-packages" not in text
    assert record.opset == 18
    assert [t.shape for t in record.inputs] == [(1, 16)] * 3
    with np.load(bert_folder / "reference.npz") as reference:
        inputs = [{t.name: reference[f"{i}/in/{t.name}"] for t in record.inputs} for i in range(2)]
        for index, answer in enumerate(evaluate_onnx(bert_folder / "model.onnx", inputs)):
            for tensor in record.outputs:
                exact = reference[f"{index}/out/{tensor.name}"]
                assert exact.dtype == np.float64
                assert np.linalg.norm(answer[tensor.name] - exact) / np.linalg.norm(exact) < 1e-6


def test_a_loaded_module_is_the_exported_one(bert_folder: Path) -> None:
    spec = get_model("bert-test")
    arrays = [torch.from_numpy(a) for a in make_inputs(spec.inputs, sets=2, seed=3)[1].values()]
    expected = build_module(spec, seed=0)(*arrays)
    found = load_module(spec, bert_folder / "weights.safetensors", attention="sdpa")(*arrays)
    for a, b in zip(expected, found, strict=True):
        assert torch.allclose(a, b, atol=1e-5)


def test_arithmetic_of_bert_and_of_a_product(bert_folder: Path) -> None:
    counted = count_arithmetic(onnx.load(bert_folder / "model.onnx"))
    hidden, tokens, ffn, layers = 32, 16, 64, 2
    products = tokens * (4 * hidden * hidden + 2 * hidden * ffn) + 2 * tokens * tokens * hidden
    assert counted.flops == 2 * (layers * products + hidden * hidden)
    assert counted.compulsory_bytes < counted.weight_bytes + 10_000


def test_unknown_models_are_named_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'bert-base'"):
        get_model("bert-bse")
    assert set(SMALL) < set(ZOO)


@given(st.integers(2, 64), st.integers(0, 10_000))
def test_inputs_differ_in_content_length_and_mask(tokens: int, seed: int) -> None:
    specs = (
        InputSpec("ids", "int64", (1, tokens), "tokens", 50),
        InputSpec("mask", "int64", (1, tokens), "mask", 2),
        InputSpec("kinds", "int64", (1, tokens), "segments", 2),
        InputSpec("x", "float32", (2, 3), "dense"),
    )
    sets = make_inputs(specs, sets=4, seed=seed)
    again = make_inputs(specs, sets=4, seed=seed)
    assert all((a[k] == b[k]).all() for a, b in zip(sets, again, strict=True) for k in a)
    assert sets[0]["mask"].all()
    for arrays in sets:
        length = int(arrays["mask"].sum())
        assert 1 <= length <= tokens
        assert (np.diff(arrays["mask"]) <= 0).all()
        assert (arrays["ids"][:, length:] == 0).all()
        assert (arrays["ids"][:, :length] > 0).all()
        assert arrays["ids"].max() < 50
        assert set(np.unique(arrays["kinds"])) <= {0, 1}
    assert not (sets[0]["x"] == sets[1]["x"]).any()
    if tokens >= 16:
        assert len({int(arrays["mask"].sum()) for arrays in sets}) >= 3
