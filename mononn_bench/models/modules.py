"""PyTorch modules of the catalogue. Import this file only where torch and transformers are installed."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel

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


def build_module(spec: ModelSpec, *, seed: int, attention: Attention = "eager") -> nn.Module:
    """The float32 module in evaluation mode with seeded weights (mononn_bench.models.weights)."""
    module = _construct(spec, attention)
    state = module.state_dict()
    shapes = {name: tuple(t.shape) for name, t in state.items() if t.is_floating_point()}
    weights = {name: torch.from_numpy(a) for name, a in seeded_state(shapes, seed).items()}
    module.load_state_dict(weights, strict=False)
    return module.eval().requires_grad_(False)


def load_pretrained_module(spec: ModelSpec, weights: Path, *, attention: Attention = "eager") -> nn.Module:
    """The float32 module with the weights of a downloaded safetensors file; names are matched to ours, none may be
    missing.
    """
    from safetensors.torch import load_file

    from mononn_bench.errors import ModelError

    module = _construct(spec, attention)
    loaded = {_module_name(name): tensor for name, tensor in load_file(str(weights)).items()}
    missing = [n for n, _ in module.named_parameters() if n not in loaded]
    if missing:
        raise ModelError(f"{weights.name} lacks {missing[0]!r} and {len(missing) - 1} more tensors of {spec.name}: "
                         "pin a file of the same architecture in the catalogue.")  # fmt: skip
    module.load_state_dict({n: loaded[n].float() for n, _ in module.named_parameters()}, strict=False)
    return module.eval().requires_grad_(False)


def _module_name(name: str) -> str:
    """A hub file's tensor name as ours (older BERT files call a norm's tensors gamma and beta)."""
    name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
    return name if name.startswith("bert.") else f"bert.{name}"


def _construct(spec: ModelSpec, attention: Attention) -> nn.Module:
    if spec.family == "mlp":
        return Mlp(**spec.config)
    config = BertConfig(**spec.config, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    config._attn_implementation = attention
    return Encoder(config)
