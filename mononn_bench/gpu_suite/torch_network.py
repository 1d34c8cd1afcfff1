"""The suite's networks on PyTorch: rivals, and references in float64. Import this file only where torch is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from mononn_bench.gpu_suite.networks import MASKED, NETWORKS, Maker
from mononn_bench.models.inputs import make_inputs
from mononn_bench.models.weights import BRANCH_GAIN, STATISTICS_SEED, seeded_tensor
from mononn_bench.models.zoo import ModelSpec, get_model

ACTIVATIONS = {"gelu": functional.gelu, "relu": torch.relu, "tanh": torch.tanh}
BATCH_NORM_EPSILON = 1e-5
IMAGES = 8
"""Seeded inputs behind statistics of batch norms, as in mononn_bench.models.statistics."""
TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "fp64": torch.float64}


class TorchOperators:
    """The operators of networks.py over tensors by name; constants are `constants` in the order they are asked for."""

    def __init__(self, tensors: Mapping[str, Tensor], constants: Sequence[Tensor] = ()) -> None:
        self.tensors = tensors
        self.constants, self.asked = constants, 0

    def parameter(self, name: str, shape: tuple[int, ...]) -> Tensor:
        return self.tensors[name]

    def linear(self, x: Tensor, name: str, inner: int, outer: int, bias: bool = True) -> Tensor:
        weight = self.parameter(f"{name}.weight", (outer, inner))
        return functional.linear(x, weight, self.parameter(f"{name}.bias", (outer,)) if bias else None)

    def constant(self, make: Maker) -> Tensor:
        self.asked += 1
        return self.constants[self.asked - 1]

    def gather(self, table: Tensor, indices: Tensor) -> Tensor:
        return functional.embedding(indices, table)

    def score_bias(self, table: Tensor, make: Maker) -> Tensor:
        return self.gather(table, self.constant(make)).permute(2, 0, 1).unsqueeze(0)

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b

    def scale(self, x: Tensor, factor: float) -> Tensor:
        return x * factor

    def layer_norm(self, x: Tensor, name: str, width: int, epsilon: float) -> Tensor:
        gain, shift = self.parameter(f"{name}.weight", (width,)), self.parameter(f"{name}.bias", (width,))
        return functional.layer_norm(x, (width,), gain, shift, epsilon)

    def rms_norm(self, x: Tensor, name: str, width: int, epsilon: float) -> Tensor:
        gain = self.parameter(f"{name}.weight", (width,))
        wide = x if x.dtype == torch.float64 else x.float()
        return gain * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)).to(gain.dtype)

    def activate(self, x: Tensor, kind: str) -> Tensor:
        return ACTIVATIONS[kind](x)

    def attention(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, heads: int, factor: float) -> Tensor:
        def split(x: Tensor) -> Tensor:
            return x.unflatten(-1, (heads, x.shape[-1] // heads)).transpose(1, 2)

        if bias is not None:
            bias = bias.expand(q.shape[0], -1, q.shape[1], k.shape[1])
        mixed = functional.scaled_dot_product_attention(split(q), split(k), split(v), bias, scale=factor)
        return mixed.transpose(1, 2).flatten(2)

    def mask_bias(self, mask: Tensor) -> Tensor:
        like = next(iter(self.tensors.values()))
        return (1 - mask.to(like.dtype))[:, None, None, :] * MASKED

    def convolution(self, x: Tensor, name: str, shape: tuple[int, ...], stride: int, bias: bool) -> Tensor:
        shift = self.parameter(f"{name}.bias", shape[:1]) if bias else None
        padding = 0 if bias else shape[-1] // 2
        return functional.conv2d(x, self.parameter(f"{name}.weight", shape), shift, stride, padding)

    def batch_norm(self, x: Tensor, name: str, channels: int) -> Tensor:
        names = ("running_mean", "running_var", "weight", "bias")
        mean, variance, gain, shift = (self.parameter(f"{name}.{part}", (channels,)) for part in names)
        return functional.batch_norm(x, mean, variance, gain, shift, eps=BATCH_NORM_EPSILON)

    def max_pool(self, x: Tensor) -> Tensor:
        return functional.max_pool2d(x, 3, 2, 1)

    def mean_pixels(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))

    def tokens_of(self, image: Tensor) -> Tensor:
        return image.flatten(2).transpose(1, 2)

    def put_first(self, token: Tensor, x: Tensor) -> Tensor:
        return torch.cat([token.expand(x.shape[0], -1, -1), x], 1)

    def first_token(self, x: Tensor) -> Tensor:
        return x[:, 0]

    def output_of_table(self, x: Tensor, table: Tensor) -> Tensor:
        return functional.linear(x, table)


BRANCH_END = ".layer.2.normalization.weight"
"""Of a ResNet's bottleneck: the gain of the norm before its shortcut is added."""


class Seeding(TorchOperators):
    """Draws each tensor when the network first asks for it, in float64; batch norms take their input's statistics."""

    def __init__(self, spec: ModelSpec, seed: int) -> None:
        super().__init__({})
        self.spec, self.seed = spec, seed
        self.drawn: dict[str, Tensor] = {}
        self.tensors = {"": torch.zeros(1, dtype=torch.float64)}

    def constant(self, make: Maker) -> Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(make()))
        return tensor.double() if tensor.is_floating_point() else tensor

    def parameter(self, name: str, shape: tuple[int, ...]) -> Tensor:
        if name not in self.drawn:
            drawn = torch.from_numpy(seeded_tensor(self.spec, name, shape, self.seed))
            self.drawn[name] = drawn * BRANCH_GAIN if name.endswith(BRANCH_END) else drawn
        return self.drawn[name].double()

    def batch_norm(self, x: Tensor, name: str, channels: int) -> Tensor:
        self.drawn[f"{name}.running_mean"] = x.mean((0, 2, 3)).float()
        self.drawn[f"{name}.running_var"] = x.var((0, 2, 3)).float()
        gain, shift = (self.parameter(f"{name}.{part}", (channels,)) for part in ("weight", "bias"))
        return functional.batch_norm(x, None, None, gain, shift, training=True, eps=BATCH_NORM_EPSILON)


def seeded_tensors(spec: ModelSpec, seed: int) -> dict[str, NDArray[np.float32]]:
    """Every tensor of the network by the catalogue's names, drawn by mononn_bench.models.weights."""
    small = get_model(spec.name)
    sets = make_inputs(small.inputs, sets=IMAGES if spec.family == "resnet" else 1, seed=STATISTICS_SEED)
    inputs = {i.name: torch.cat([torch.from_numpy(s[i.name]) for s in sets]) for i in small.inputs}
    inputs = {name: t.double() if t.is_floating_point() else t for name, t in inputs.items()}
    seeding = Seeding(small, seed)
    with torch.no_grad():
        NETWORKS[spec.family](seeding, small, inputs)
    return {name: tensor.numpy() for name, tensor in seeding.drawn.items()}


class Tracing(TorchOperators):
    """Runs a network on no data, for its constants alone: `made`."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__(tensors)
        self.made: list[Tensor] = []

    def constant(self, make: Maker) -> Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(make()))
        self.made.append(tensor)
        return tensor.to("meta")


def constants(spec: ModelSpec, tensors: Mapping[str, NDArray[Any]]) -> list[Tensor]:
    """The network's constants in the order it asks for them."""
    tracing = Tracing({name: torch.empty(array.shape, device="meta") for name, array in tensors.items()})
    types = {i.name: torch.from_numpy(np.empty(0, i.dtype)).dtype for i in spec.inputs}
    given = {i.name: torch.empty(i.shape, dtype=types[i.name], device="meta") for i in spec.inputs}
    with torch.no_grad():
        NETWORKS[spec.family](tracing, spec, given)
    return tracing.made


class Network(nn.Module):
    """The network with given tensors in one precision; its inputs and outputs keep the model's types."""

    def __init__(self, spec: ModelSpec, tensors: Mapping[str, NDArray[Any]], precision: str) -> None:
        super().__init__()
        self.spec, self.dtype = spec, TYPES[precision]
        self._names = {name: name.replace(".", "_") for name in tensors}
        for name, array in tensors.items():
            parameter = nn.Parameter(torch.from_numpy(array).to(self.dtype), requires_grad=False)
            self.register_parameter(self._names[name], parameter)
        self._constants = constants(spec, tensors)
        for number, tensor in enumerate(self._constants):
            self.register_buffer(f"constant_{number}", tensor.to(self.dtype) if tensor.is_floating_point() else tensor)
        self.eval()

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        made = [getattr(self, f"constant_{number}") for number in range(len(self._constants))]
        operators = TorchOperators({name: getattr(self, own) for name, own in self._names.items()}, made)
        given = {
            i.name: t.to(self.dtype) if t.is_floating_point() else t
            for i, t in zip(self.spec.inputs, inputs, strict=True)
        }
        results = NETWORKS[self.spec.family](operators, self.spec, given)
        return tuple(r if self.dtype == torch.float64 else r.float() for r in results)


def reference(spec: ModelSpec, tensors: Mapping[str, NDArray[Any]], sets: Sequence[Mapping[str, NDArray[Any]]],
              device: str, precision: str = "fp64") -> list[dict[str, NDArray[Any]]]:  # fmt: skip
    """The outputs of every input set, in float64 unless it is told otherwise."""
    network = Network(spec, tensors, precision).to(device)
    answers = []
    with torch.inference_mode():
        for arrays in sets:
            results = network(*(torch.from_numpy(arrays[i.name]).to(device) for i in spec.inputs))
            answers.append({name: r.cpu().numpy() for name, r in zip(spec.outputs, results, strict=True)})
    return answers
