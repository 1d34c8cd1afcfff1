"""PyTorch modules of the catalogue with their weights. Import this file only where torch and transformers are
installed.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from mononn_bench.errors import ModelError
from mononn_bench.models.checkpoints import rename_tensors
from mononn_bench.models.networks import Attention, branch_ends, make_network
from mononn_bench.models.statistics import set_batch_statistics
from mononn_bench.models.weights import BRANCH_GAIN, seeded_state
from mononn_bench.models.zoo import ModelSpec


def build_module(spec: ModelSpec, *, seed: int) -> nn.Module:
    """The float32 module in evaluation mode with seeded weights (mononn_bench.models.weights)."""
    module = make_network(spec, "eager").requires_grad_(False)
    shapes = {name: tuple(t.shape) for name, t in module.named_parameters()}
    weights = {name: torch.from_numpy(a) for name, a in seeded_state(spec, shapes, seed).items()}
    module.load_state_dict(weights, strict=False)
    for norm in branch_ends(module):
        norm.weight *= BRANCH_GAIN
    set_batch_statistics(module, spec)
    return module.eval()


def load_pretrained_module(spec: ModelSpec, weights: Path) -> nn.Module:
    """The float32 module, its parameters and batch statistics those of a published safetensors file.

    Raises ModelError where a tensor is missing, has another shape, or has no place in the network.
    """
    module = make_network(spec, "eager")
    stored = module.state_dict().keys()
    wanted = {n: t for n, t in (*module.named_parameters(), *module.named_buffers()) if n in stored}
    loaded = rename_tensors(spec.family, load_file(str(weights)))
    unlike = [n for n, t in loaded.items() if n in wanted and t.shape != wanted[n].shape]
    _require_none("lacks tensors of", [n for n in wanted if n not in loaded], spec, weights)
    _require_none("has tensors without a place in", [n for n in loaded if n not in wanted], spec, weights)
    _require_none("has tensors of another shape than", unlike, spec, weights)
    module.load_state_dict(loaded, strict=False)
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


class Bf16(nn.Module):
    """A network whose products and convolutions take bf16 operands, as autocast has it on a CPU; float32 in and out.

    Their weights are cast once, here: autocast would cast those of an inference anew in each run.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        for part in network.modules():
            if isinstance(part, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
                for name, tensor in part.named_parameters(recurse=False):
                    setattr(part, name, nn.Parameter(tensor.to(torch.bfloat16), requires_grad=False))

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """The network's outputs, one or several, in float32."""
        with torch.autocast("cpu", dtype=torch.bfloat16):
            result = self.network(*inputs)
        return tuple(r.float() for r in result) if isinstance(result, tuple | list) else result.float()


def _require_none(problem: str, names: list[str], spec: ModelSpec, weights: Path) -> None:
    if names:
        raise ModelError(
            f"{weights.name} {problem} {spec.name} ({len(names)}, the first {names[0]!r}): "
            "pin a file of the same architecture in the catalogue."
        )
