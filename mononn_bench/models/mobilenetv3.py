"""MobileNetV3 (Howard et al., "Searching for MobileNetV3", 2019). Import this file only where torch is installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from mononn_bench.models.layers import Unit

ACTIVATIONS = {"relu": torch.relu, "hard_swish": functional.hardswish}
SQUEEZE = 4
"""An excitation's channels over those between its two convolutions."""


def eights(channels: float) -> int:
    """The nearest multiple of 8, at least 8 and at least nine tenths of `channels`."""
    near = max(8, int(channels + 4) // 8 * 8)
    return near if near >= 0.9 * channels else near + 8


class Excitation(nn.Module):
    """Squeeze and excitation (Hu et al. 2018): each channel times the hard sigmoid of what two 1x1 convolutions, a ReLU
    between them, make of all channels' means.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        inner = eights(channels / SQUEEZE)
        self.reduce = nn.Conv2d(channels, inner, 1)
        self.expand = nn.Conv2d(inner, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        means = functional.adaptive_avg_pool2d(x, 1)
        return x * functional.hardsigmoid(self.expand(torch.relu(self.reduce(means))))


class InvertedResidual(nn.Module):
    """1x1 to more channels (where there are more), depthwise, excitation where asked, 1x1 to `outputs` without
    activation, added to the input where both have one shape.
    """

    def __init__(self, inputs: int, kernel: int, inner: int, outputs: int, excites: bool, kind: str,
                 stride: int) -> None:  # fmt: skip
        super().__init__()
        act = ACTIVATIONS[kind]
        self.expand = Unit((inputs, inner), 1, activation=act) if inner != inputs else nn.Identity()
        self.depthwise = Unit((inner, inner), kernel, stride, groups=inner, activation=act)
        self.excitation = Excitation(inner) if excites else nn.Identity()
        self.project = Unit((inner, outputs), 1, activation=None)
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y = self.project(self.excitation(self.depthwise(self.expand(x))))
        return x + y if self.adds else y


class MobileNetV3(nn.Module):
    """A stem of 3x3 and stride 2, inverted residuals as `blocks` has them (the paper's tables 1 and 2: kernel, inner,
    outputs, excites, kind, stride), a 1x1 convolution to `last` channels, their means, a linear layer to `hidden`, hard
    swish and the classifier; logits [b, labels] of images [b, 3, h, w].
    """

    def __init__(self, stem: int, blocks: Sequence[Mapping[str, Any]], last: int, hidden: int, labels: int) -> None:
        super().__init__()
        self.stem = Unit((3, stem), 3, 2, activation=functional.hardswish)
        made, inputs = [], stem
        for block in blocks:
            made.append(InvertedResidual(inputs, **block))
            inputs = block["outputs"]
        self.blocks = nn.Sequential(*made)
        self.last = Unit((inputs, last), 1, activation=functional.hardswish)
        self.hidden = nn.Linear(last, hidden)
        self.classifier = nn.Linear(hidden, labels)

    def forward(self, pixel_values: Tensor) -> Tensor:
        x = functional.adaptive_avg_pool2d(self.last(self.blocks(self.stem(pixel_values))), 1)
        return self.classifier(functional.hardswish(self.hidden(torch.flatten(x, 1))))
