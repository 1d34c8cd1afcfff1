"""A residual network of three-dimensional convolutions over clips (Tran et al., "A closer look at spatiotemporal
convolutions for action recognition", 2018: R3D). Import this file only where torch is installed.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from mononn_bench.models.layers import Unit


class ClipBlock(nn.Module):
    """Two 3x3x3 convolutions with batch norms, the first with a stride, added to the shortcut, ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = Unit((inputs, outputs), 3, stride, axes=3)
        self.second = Unit((outputs, outputs), 3, activation=None, axes=3)
        changed = stride != 1 or inputs != outputs
        self.shortcut = Unit((inputs, outputs), 1, stride, activation=None, axes=3) if changed else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.second(self.first(x)) + self.shortcut(x))


class R3d(nn.Module):
    """R3D: a stem of 3x7x7, then stages of `depths` blocks, each stage twice as wide as the one before it and from the
    second on with half the frames, rows and columns; logits [b, labels] of clips [b, 3, frames, h, w].
    """

    def __init__(self, depths: tuple[int, ...], stem: int, labels: int) -> None:
        super().__init__()
        self.stem = Unit((3, stem), (3, 7, 7), (1, 2, 2), axes=3)
        blocks, inputs = [], stem
        for stage, depth in enumerate(depths):
            outputs = stem << stage
            for block in range(depth):
                blocks.append(ClipBlock(inputs, outputs, 2 if stage and block == 0 else 1))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.classifier = nn.Linear(inputs, labels)

    def forward(self, clip: Tensor) -> Tensor:
        x = functional.adaptive_avg_pool3d(self.blocks(self.stem(clip)), 1)
        return self.classifier(torch.flatten(x, 1))
