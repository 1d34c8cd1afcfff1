"""PyTorch modules of the catalogue. Import this file only where torch and transformers are installed."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import BertConfig, BertModel

from mononn_bench.errors import ModelError
from mononn_bench.models.weights import seeded_state
from mononn_bench.models.zoo import ModelSpec

Attention = Literal["eager", "sdpa"]


class Encoder(nn.Module):
    """BERT with positional inputs and a plain tuple (last_hidden_state [1, n, h], pooler_output [1, h]) as its
    result.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.bert = BertModel(config)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> tuple[Tensor, Tensor]:
        result = self.bert(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)
        return result.last_hidden_state, result.pooler_output


class Mlp(nn.Module):
    """`layers` times Linear(width, width) followed by ReLU; x [1, width] -> y [1, width]."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


class Identity(nn.Module):
    """x -> a copy of x: what a call costs."""

    def forward(self, x: Tensor) -> Tensor:
        return x.clone()


def build_module(spec: ModelSpec, *, seed: int) -> nn.Module:
    """The float32 module in evaluation mode with seeded weights (mononn_bench.models.weights)."""
    module = _construct(spec, "eager")
    shapes = {name: tuple(t.shape) for name, t in module.state_dict().items() if t.is_floating_point()}
    weights = {name: torch.from_numpy(a) for name, a in seeded_state(shapes, seed).items()}
    module.load_state_dict(weights, strict=False)
    return module.eval().requires_grad_(False)


def load_pretrained_module(spec: ModelSpec, weights: Path) -> nn.Module:
    """The float32 module with the weights of a downloaded safetensors file; ModelError where one is missing."""
    module = _construct(spec, "eager")
    loaded = {_module_name(name): tensor for name, tensor in load_file(str(weights)).items()}
    wanted = [name for name, _ in module.named_parameters()]
    missing = [name for name in wanted if name not in loaded]
    if missing:
        raise ModelError(
            f"{weights.name} lacks {missing[0]!r} and {len(missing) - 1} more tensors of {spec.name}: "
            "pin a file of the same architecture in the catalogue."
        )
    module.load_state_dict({name: loaded[name].float() for name in wanted}, strict=False)
    return module.eval().requires_grad_(False)


def save_tensors(module: nn.Module, path: Path) -> None:
    """Write parameters and buffers as safetensors, which `load_module` maps into memory."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    partial = path.with_name(f".{path.name}.partial")
    save_file({name: t.detach().clone().contiguous() for name, t in tensors.items()}, str(partial))
    partial.replace(path)


def load_module(spec: ModelSpec, path: Path, *, attention: Attention) -> nn.Module:
    """The module without initialising it: tensors of `save_tensors` are put in place of empty ones."""
    with torch.device("meta"):
        module = _construct(spec, attention)
    for name, tensor in load_file(str(path)).items():
        owner, _, leaf = name.rpartition(".")
        holder = module.get_submodule(owner)
        if leaf in holder._parameters:
            holder._parameters[leaf] = nn.Parameter(tensor, requires_grad=False)
        else:
            holder._buffers[leaf] = tensor
    return module.eval()


def _module_name(name: str) -> str:
    """A hub file's tensor name as ours (older BERT files call a norm's tensors gamma and beta)."""
    name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
    return name if name.startswith("bert.") else f"bert.{name}"


def _construct(spec: ModelSpec, attention: Attention) -> nn.Module:
    if spec.family == "identity":
        return Identity()
    if spec.family == "mlp":
        return Mlp(**spec.config)
    config = BertConfig(**spec.config, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    config._attn_implementation = attention
    return Encoder(config)
