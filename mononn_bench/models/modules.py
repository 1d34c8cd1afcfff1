"""PyTorch modules of the catalogue with their weights. Import this file only where torch and transformers are
installed.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from mononn_bench.errors import ModelError
from mononn_bench.models.networks import Attention, make_network
from mononn_bench.models.statistics import set_batch_statistics
from mononn_bench.models.weights import seeded_state
from mononn_bench.models.zoo import ModelSpec


def build_module(spec: ModelSpec, *, seed: int) -> nn.Module:
    """The float32 module in evaluation mode with seeded weights (mononn_bench.models.weights)."""
    module = make_network(spec, "eager").requires_grad_(False)
    shapes = {name: tuple(t.shape) for name, t in module.named_parameters()}
    weights = {name: torch.from_numpy(a) for name, a in seeded_state(spec, shapes, seed).items()}
    module.load_state_dict(weights, strict=False)
    set_batch_statistics(module, spec)
    return module.eval()


def load_pretrained_module(spec: ModelSpec, weights: Path) -> nn.Module:
    """The float32 module with the weights of a downloaded safetensors file; ModelError where one is missing."""
    module = make_network(spec, "eager")
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
        module = make_network(spec, attention)
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    shared = {group[0]: group for group in names.values()}
    for first, tensor in load_file(str(path)).items():
        for name in shared.get(first, [first]):
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
