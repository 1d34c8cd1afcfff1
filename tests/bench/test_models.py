"""The catalogue's models behave like trained ones, export to the same bytes, and their inputs vary."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from itertools import combinations
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper

from mononn_bench.codec import read_record
from mononn_bench.errors import ModelError, UnknownNameError
from mononn_bench.models import onnxfile
from mononn_bench.models.arithmetic import count_arithmetic
from mononn_bench.models.folder import write_catalogued_model
from mononn_bench.models.inputs import make_inputs
from mononn_bench.models.modules import build_module, load_module, save_tensors
from mononn_bench.models.networks import branch_ends
from mononn_bench.models.reference import evaluate_onnx
from mononn_bench.models.weights import BRANCH_GAIN
from mononn_bench.models.zoo import ZOO, InputSpec, get_model
from mononn_bench.record import ModelRecord
from tests.bench.conftest import linear_model

SMALL = ["bert-test", "bert-tiny", "mlp-test", "mlp"]
IMAGES = [
    "resnet-test",
    "resnext-test",
    "mobilenet-test",
    "regnet-test",
    "efficientnet-test",
    "mobilenetv3-test",
    "r3d-test",
]
"""Networks with batch norms."""
REST = ["vit-test", "t5-test", "swin-test", "unet-test", "wavenet-test", "lstm-test"]
BATCH_NORMS = (torch.nn.BatchNorm2d, torch.nn.BatchNorm3d)
ATTENTION = {
    "bert-test": ("bert", "attentions"),
    "bert-tiny": ("bert", "attentions"),
    "vit-test": ("network", "attentions"),
    "swin-test": ("network", "attentions"),
    "t5-test": ("t5", "encoder_attentions", "decoder_attentions", "cross_attentions"),
}
"""The module inside, and what it calls its attention weights."""


@cache
def seeded_module(name: str) -> torch.nn.Module:
    return build_module(get_model(name), seed=0)


def outputs(name: str, sets: int = 4) -> list[tuple[torch.Tensor, ...]]:
    module = seeded_module(name)
    results = []
    for arrays in make_inputs(get_model(name).inputs, sets=sets, seed=0):
        results.append(_tuple(module(*(torch.from_numpy(a) for a in arrays.values()))))
    return results


def _tuple(result: torch.Tensor | tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def attention_entropies(name: str) -> list[float]:
    """Mean entropy of a layer's rows of attention over its largest possible value, the logarithm of the tokens that a
    row may look at; one number a layer and input set.
    """
    spec = get_model(name)
    module = seeded_module(name)
    inner, *kinds = ATTENTION[name]
    found = []
    for arrays in make_inputs(spec.inputs, sets=3, seed=0):
        given = {k: torch.from_numpy(v) for k, v in arrays.items()}
        result = getattr(module, inner)(**given, output_attentions=True)
        for kind in kinds:
            for p in result[kind]:
                seen = (p > 0).sum(-1).clamp_min(2).log()  # a causal row sees those before it; the first one itself
                rows = -(p * p.clamp_min(1e-30).log()).sum(-1)
                found.append(float(rows.mean() / seen.mean()))
    return found


@pytest.mark.parametrize("name", [*SMALL, *IMAGES, *REST])
def test_different_inputs_have_different_outputs(name: str) -> None:
    for first, second in combinations(outputs(name), 2):
        for a, b in zip(first, second, strict=True):
            assert float((a - b).norm() / a.norm()) > 0.1


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_is_not_uniform(name: str) -> None:
    assert max(attention_entropies(name)) <= 0.7


@pytest.mark.parametrize("name", ["bert-test", "bert-tiny"])
def test_layers_keep_their_variance(name: str) -> None:
    module = deepcopy(seeded_module(name))
    variances: dict[str, float] = {}
    for path, part in module.named_modules():
        if path.endswith("LayerNorm") or path.endswith(("value", "intermediate.dense", "pooler.dense")):
            part.register_forward_hook(lambda _m, _i, o, path=path: variances.update({path: float(o.var())}))
    module(*(torch.from_numpy(a) for a in make_inputs(get_model(name).inputs, sets=1, seed=0)[0].values()))
    assert len(variances) > 8
    assert all(0.4 < value < 2.5 for value in variances.values()), variances


@pytest.mark.parametrize("name", IMAGES)
def test_batch_statistics_are_those_of_the_data(name: str) -> None:
    spec = get_model(name)
    module = deepcopy(seeded_module(name))
    seen: dict[str, torch.Tensor] = {}
    norms = {path: part for path, part in module.named_modules() if isinstance(part, BATCH_NORMS)}
    for path, part in norms.items():
        part.register_forward_hook(lambda _m, i, _o, path=path: seen.update({path: i[0]}))
        assert float(part.running_mean.std()) > 0.01  # so folding a norm into a convolution changes its bias
        assert float(part.running_var.std() / part.running_var.mean()) > 0.01
    sets = make_inputs(spec.inputs, sets=8, seed=3)
    logits = module(torch.cat([torch.from_numpy(arrays[spec.inputs[0].name]) for arrays in sets]))
    assert 0.05 < float(logits.std()) < 5
    for path, part in norms.items():  # of other images than the statistics come from
        variances = seen[path].transpose(0, 1).flatten(1).var(1)
        assert 0.5 < float((variances / part.running_var).median()) < 3, path


@pytest.mark.parametrize("name", IMAGES)
def test_branches_add_little_to_their_shortcuts(name: str) -> None:
    """Or rounding would grow from layer to layer as in no trained network."""
    module = seeded_module(name)
    ends = set(branch_ends(module))
    norms = [part for part in module.modules() if isinstance(part, BATCH_NORMS)]
    assert 2 <= len(ends) < len(norms) / 2
    for part in norms:
        low, high = (0.5 * BRANCH_GAIN, 1.5 * BRANCH_GAIN) if part in ends else (0.5, 1.5)
        assert low <= float(part.weight.min()) <= float(part.weight.max()) <= high


@pytest.mark.parametrize("name", ["bert-test", *IMAGES, *REST])
def test_biases_and_gains_are_random(name: str) -> None:
    for path, tensor in seeded_module(name).named_parameters():
        assert float(tensor.std()) > 0.02 or tensor.numel() <= 2, path  # two may be alike


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


@pytest.mark.parametrize("name", ["bert-test", *IMAGES, *REST])
def test_a_loaded_module_is_the_saved_one(name: str, tmp_path: Path) -> None:
    spec = get_model(name)
    arrays = [torch.from_numpy(a) for a in make_inputs(spec.inputs, sets=2, seed=3)[1].values()]
    module = seeded_module(name)
    save_tensors(module, tmp_path / "weights.safetensors")
    loaded = load_module(spec, tmp_path / "weights.safetensors", attention="sdpa")
    for expected, found in zip(_tuple(module(*arrays)), _tuple(loaded(*arrays)), strict=True):
        assert torch.allclose(expected, found, atol=1e-5)


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


def test_a_batch_is_part_of_the_name() -> None:
    spec = get_model("resnet50-b8")
    assert (spec.name, spec.inputs[0].shape) == ("resnet50", (8, 3, 224, 224))
    assert [i.shape for i in get_model("t5-small-b2").inputs] == [(2, 128), (2, 128), (2, 16)]
    assert get_model("bert-base-b1") == get_model("bert-base")
    with pytest.raises(UnknownNameError, match="resnet50"):
        get_model("resnet5-b8")
    with pytest.raises(ModelError, match="batch of 1"):
        get_model("light-vgg19-b2")


def test_a_batch_has_the_same_weights() -> None:
    one, two = seeded_module("resnet-test").state_dict(), seeded_module("resnet-test-b2").state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_rows_of_a_batch_differ_in_length_and_content() -> None:
    arrays = make_inputs(get_model("bert-base-b4").inputs, sets=1, seed=0)[0]
    assert arrays["input_ids"].shape == (4, 128)
    assert len(set(arrays["attention_mask"].sum(-1).tolist())) > 2
    assert arrays["attention_mask"][0].all()
    assert ((arrays["input_ids"] == 0) == (arrays["attention_mask"] == 0)).all()
    assert not (arrays["token_type_ids"] > arrays["attention_mask"]).any()


def test_images_have_the_spread_of_images() -> None:
    spec = InputSpec("x", "float32", (1, 3, 64, 64), "image", scale=60.0)
    images = np.concatenate([arrays["x"] for arrays in make_inputs((spec,), sets=64, seed=1)])
    assert images.dtype == np.float32
    assert abs(float(images.mean())) < 10
    assert 50 < float(images.std()) < 70
    flat = images - images.mean((2, 3), keepdims=True)
    neighbours = (flat[..., 1:] * flat[..., :-1]).mean() / (flat**2).mean()
    assert neighbours > 0.5  # a picture, not noise: pooling it all does not leave the same number for every image


@pytest.mark.parametrize("axes", [(4000,), (16, 48, 40)])
def test_sound_and_clips_go_on_as_they_began(axes: tuple[int, ...]) -> None:
    spec = InputSpec("x", "float32", (2, 3, *axes), "image", scale=0.25)
    fields = np.concatenate([arrays["x"] for arrays in make_inputs((spec,), sets=8, seed=1)])
    assert fields.shape == (16, 3, *axes)
    assert 0.22 < float(fields.std()) < 0.28
    for axis in range(2, fields.ndim):
        low, high = (fields.take(range(start, fields.shape[axis] - 1 + start), axis) for start in (0, 1))
        assert np.corrcoef(low.ravel(), high.ravel())[0, 1] > 0.7
        assert float(np.abs(high - low).mean()) > 0.02


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


def test_weights_beside_a_file_are_written_anew_and_not_appended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnxfile, "EXTERNAL_DATA_FROM", 0)
    path, written = tmp_path / "m.onnx", list[tuple[bytes, bytes]]()
    for _ in range(2):
        onnxfile.write_onnx(linear_model(32), path)
        written.append((path.read_bytes(), (tmp_path / "m.onnx.data").read_bytes()))
    assert written[0] == written[1] and len(written[0][1]) >= 32 * 32 * 4
    found, meant = (m.graph.initializer[0] for m in (onnx.load(path), linear_model(32)))
    assert np.array_equal(numpy_helper.to_array(found), numpy_helper.to_array(meant))
