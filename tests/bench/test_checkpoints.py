"""Published checkpoints: what the catalogue pins, and every tensor of a file in its right place in our network."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import conv2d
from transformers import (
    BertConfig,
    BertModel,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
)

from mononn_bench.cli import main
from mononn_bench.codec import read_record
from mononn_bench.errors import ModelError
from mononn_bench.models import hub
from mononn_bench.models.checkpoints import rename_tensors
from mononn_bench.models.folder import WEIGHTS, write_catalogued_model
from mononn_bench.models.modules import load_module, load_pretrained_module
from mononn_bench.models.networks import make_network
from mononn_bench.models.zoo import ZOO, HubSource, get_model
from mononn_bench.record import ModelRecord
from tests.bench.published import COUNTER, PUBLISHED, Shape, file_bytes

PINNED = {name: spec for name, spec in ZOO.items() if spec.hub}
SMALL = {"bert": "bert-test", "vit": "vit-test", "t5": "t5-test", "resnet": "resnet-test"}
WRITTEN = {
    "bert-base": {"ordered": True, "metadata": True},
    "resnet50": {"ordered": True, "metadata": False},
    "t5-small": {"ordered": True, "metadata": True},
    "vit-base": {"ordered": False, "metadata": True},
}
"""How each published file was written."""
LIBRARY: dict[str, tuple[Any, type[PreTrainedModel]]] = {
    "bert": (BertConfig, BertModel),
    "t5": (T5Config, T5ForConditionalGeneration),
    "vit": (ViTConfig, ViTForImageClassification),
}
"""Whose own loader reads the same file."""


def tensors_of(name: str) -> dict[str, Shape]:
    spec = get_model(name)
    return dict(PUBLISHED[spec.family](spec.config))


def publish(name: str, path: Path) -> dict[str, Tensor]:
    """A file as it is published, of a small model: each tensor other numbers, variances positive."""
    random = torch.Generator().manual_seed(3)
    tensors = {n: torch.rand(shape, generator=random) - 0.3 for n, shape in tensors_of(name).items()}
    for key in tensors:
        if key.endswith("running_var"):
            tensors[key] = tensors[key].abs() + 0.5
        if key.endswith(COUNTER):
            tensors[key] = torch.tensor(7)
    save_file(tensors, str(path), {"format": "pt"})
    return tensors


def by_timm(weights: dict[str, Tensor], images: Tensor) -> Tensor:
    """Logits of a residual network of two stages with one block each, by its publisher's names."""

    def norm(x: Tensor, name: str) -> Tensor:
        tensors = (weights[f"{name}.{part}"] for part in ("running_mean", "running_var", "weight", "bias"))
        return functional.batch_norm(x, *tensors)

    x = functional.max_pool2d(norm(conv2d(images, weights["conv1.weight"], None, 2, 3), "bn1").relu(), 3, 2, 1)
    for stage, stride in (("layer1.0", 1), ("layer2.0", 2)):
        y = norm(conv2d(x, weights[f"{stage}.conv1.weight"]), f"{stage}.bn1").relu()
        y = norm(conv2d(y, weights[f"{stage}.conv2.weight"], None, stride, 1), f"{stage}.bn2").relu()
        y = norm(conv2d(y, weights[f"{stage}.conv3.weight"]), f"{stage}.bn3")
        x = norm(conv2d(x, weights[f"{stage}.downsample.0.weight"], None, stride), f"{stage}.downsample.1")
        x = (x + y).relu()
    return functional.linear(x.mean((2, 3)), weights["fc.weight"], weights["fc.bias"])


def test_the_four_published_networks_are_pinned(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(PINNED) == {"bert-base", "resnet50", "vit-base", "t5-small"}
    for spec in PINNED.values():
        assert spec.hub is not None
        assert re.fullmatch("[0-9a-f]{40}", spec.hub.revision)
        assert re.fullmatch("[0-9a-f]{64}", spec.hub.sha256)
    assert main(["models"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "pretrained weights: google-t5/t5-small, 242 MB, Apache-2.0" in lines["t5-small"]
    assert {name for name, line in lines.items() if "pretrained" in line} == set(PINNED)


@pytest.mark.parametrize("name", sorted(PINNED))
def test_a_published_file_has_the_pinned_size_and_fills_the_network(name: str) -> None:
    spec, tensors = PINNED[name], tensors_of(name)
    assert spec.hub is not None
    assert file_bytes(tensors, **WRITTEN[name]) == spec.hub.size_bytes
    with torch.device("meta"):
        module = make_network(spec, "eager")
    names = module.state_dict().keys()
    ours = {n: tuple(t.shape) for n, t in (*module.named_parameters(), *module.named_buffers()) if n in names}
    assert rename_tensors(spec.family, tensors) == ours


@pytest.mark.parametrize("family", sorted(LIBRARY))
def test_our_network_is_the_one_that_the_library_loads(family: str, tmp_path: Path) -> None:
    spec = get_model(SMALL[family])
    publish(spec.name, tmp_path / "model.safetensors")
    config, kind = LIBRARY[family]
    config(**spec.config).save_pretrained(tmp_path)
    theirs, report = kind.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    (ours,) = load_pretrained_module(spec, tmp_path / "model.safetensors").children()
    found, expected = ours.state_dict(), theirs.state_dict()
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


def test_our_residual_network_is_the_publishers(tmp_path: Path) -> None:
    spec = get_model("resnet-test")
    weights = publish(spec.name, tmp_path / "model.safetensors")
    images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    expected = by_timm(weights, images)
    assert torch.allclose(load_pretrained_module(spec, tmp_path / "model.safetensors")(images), expected, rtol=1e-4)
    assert float(expected.std()) > 0.01


@pytest.mark.parametrize("family", sorted(SMALL))
def test_a_file_of_another_architecture_is_refused(family: str, tmp_path: Path) -> None:
    spec, path = get_model(SMALL[family]), tmp_path / "model.safetensors"
    tensors = publish(spec.name, path)
    last = next(reversed(rename_tensors(spec.family, {n: n for n in tensors}).values()))
    save_file({name: tensor for name, tensor in tensors.items() if name != last}, str(path))
    with pytest.raises(ModelError, match=rf"lacks tensors of {spec.name} \(1, "):
        load_pretrained_module(spec, path)
    save_file({**tensors, "lm_head.weight": torch.ones(2)}, str(path))
    with pytest.raises(ModelError, match=r"without a place in .*\(1, .*lm_head\.weight"):
        load_pretrained_module(spec, path)
    save_file({**tensors, last: torch.ones(3, 3, 3)}, str(path))
    with pytest.raises(ModelError, match=r"another shape than .*\(1, "):
        load_pretrained_module(spec, path)


def test_a_pretrained_model_is_exported_with_its_origin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.safetensors"
    publish("resnet-test", path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    source = HubSource("someone/resnet", "0" * 40, path.name, digest, path.stat().st_size, "MIT")
    spec = get_model("resnet-test")
    monkeypatch.setitem(ZOO, spec.name, type(spec)(**{**vars(spec), "hub": source}))
    monkeypatch.setattr(hub, "fetch_weights", lambda found, _: path if found == source else None)
    write_catalogued_model(spec.name, "pretrained", 0, tmp_path / "model", tmp_path)
    record = read_record(ModelRecord, tmp_path / "model" / "model.json")
    assert (record.weights, record.weights_digest) == ("pretrained", digest)
    assert record.source == f"someone/resnet at {'0' * 40}"
    images = torch.rand(1, 3, 64, 64)
    stored: nn.Module = load_module(spec, tmp_path / "model" / WEIGHTS, attention="eager")
    assert torch.allclose(stored(images), by_timm(load_file(str(path)), images), rtol=1e-4)
